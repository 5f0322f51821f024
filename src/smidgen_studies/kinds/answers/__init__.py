"""Kinds of cells for language models that choose among answers."""
