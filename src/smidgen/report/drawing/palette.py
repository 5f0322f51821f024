"""Colours, and the style of a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

INK = "#1f2328"
SOFT = "#6b7076"
FAINT = "#d9d8d3"
PAPER = "#ffffff"


@dataclass(frozen=True)
class Style:
    """How a method is drawn."""

    colour: str
    marker: str
    dash: tuple[float, ...] = ()  # strokes and gaps in line widths; empty is unbroken


Styles = Mapping[str, Style]
"""How each method is drawn, by name."""
