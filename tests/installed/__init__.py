"""What is built from this repository works where the repository is not."""
