"""The story: the only room that knows the whole path from a model to a record."""
