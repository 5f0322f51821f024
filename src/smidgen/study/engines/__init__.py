"""Engines: where the cells of a study are done."""
