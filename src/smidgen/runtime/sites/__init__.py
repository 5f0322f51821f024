"""Sites: where modules multiply with matrices of theirs without calling a layer."""
