"""Colours, the style of a line, and the small marker that stands beside a name."""

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


_SHAPES = {
    "s": "9.8,1.8 16.2,1.8 16.2,8.2 9.8,8.2",
    "D": "13,1 17,5 13,9 9,5",
    "^": "13,1.2 17,8.4 9,8.4",
    "v": "13,8.8 17,1.6 9,1.6",
    "*": "13,0.4 14.2,3.6 17.6,3.7 14.9,5.8 15.9,9.1 13,7.2 10.1,9.1 11.1,5.8 8.4,3.7 "
    "11.8,3.6",
}


def legend_marker(style: Style, *, marker: bool = True) -> str:
    """Draw a style as a small SVG, to stand beside a name."""
    dash = " ".join(f"{2 * length:g}" for length in style.dash)
    line = f'<path d="M0 5H25.2" stroke-width="2" stroke-dasharray="{dash or "none"}"/>'
    shape = ""
    if marker and style.marker in _SHAPES:
        shape = f'<polygon points="{_SHAPES[style.marker]}"/>'
    elif marker:
        shape = '<circle cx="13" cy="5" r="3.6"/>'
    return (
        '<svg class="key" viewBox="0 0 26 10" aria-hidden="true" '
        f'fill="{style.colour}" stroke="{style.colour}" stroke-width="0">'
        f"{line}{shape}</svg>"
    )
