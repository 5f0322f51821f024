"""Several processes that work together: each has some of the rows, or some of every weight."""
