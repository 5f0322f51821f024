"""Models in folders that are small or come from elsewhere: described layers, and named bases."""
