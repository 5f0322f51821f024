"""The name of the note of a base, which is read without transformers."""

BASE_NOTE = "base.json"
"""The file that says which model a folder's model was made of."""
