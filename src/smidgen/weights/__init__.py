"""Which weights: subsets, affine layers, blocks, heads, vectors of weights, deltas."""
