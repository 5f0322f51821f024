"""What the shipped studies compare."""
