"""What posteriors cost, counted from shapes alone."""
