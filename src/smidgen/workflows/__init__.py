"""Whole paths from a model to a verdict; the only room that knows every verb."""
