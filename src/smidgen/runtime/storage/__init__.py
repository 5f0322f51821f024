"""Where the numbers of weights lie: packed into other tensors, or away until a layer runs."""
