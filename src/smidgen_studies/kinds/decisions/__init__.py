"""Kinds of cells for decisions: which answers to trust, which inputs are strange."""
