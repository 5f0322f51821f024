"""Curvature: what passes over the data see of the chosen weights."""
