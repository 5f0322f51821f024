"""Colours, SVG and pictures of connectivity."""
