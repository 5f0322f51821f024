"""Kronecker factors: their sums, how few eigenvectors are enough, and what is made of them."""
