"""BayesTune: the scales of Laplace priors, inferred by Langevin sampling."""
