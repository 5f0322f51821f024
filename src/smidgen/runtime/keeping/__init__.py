"""What is kept of a model between calls, for as long as the model is what it was."""
