"""What a run writes: whether it can be, and whose it is until it is all written."""
