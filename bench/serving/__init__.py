"""Throughput of `smidgen serve` beside the plain model behind the same server."""
