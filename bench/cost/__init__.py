"""What fitting and predicting cost beside the passes that nobody can do without."""
