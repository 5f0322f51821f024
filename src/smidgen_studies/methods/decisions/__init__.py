"""What the kinds of cells for decisions share."""
