"""From a file to a ready predictor: read, split, train, make Bayesian, decide, compare."""
