"""What outputs mean: problems, likelihoods, links, predictives, targets."""
