"""What to do with the answers: decisions of each method on the test data, for a record."""
