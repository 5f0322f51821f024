"""A ready folder in memory, what it is given, and what it answers."""
