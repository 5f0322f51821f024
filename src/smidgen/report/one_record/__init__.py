"""The page of one record."""
