"""Benchmarks: both sides in one run, interleaved, medians of ratios, written as records."""
