"""Who runs the cells: local processes or a Ray cluster."""
