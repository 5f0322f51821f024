"""Real models for the benchmarks, fetched, converted and fine-tuned once."""
