"""One look per method, the same in every figure and beside every name.

The colours are those of Okabe and Ito, told apart by all common kinds of colour vision;
markers and dashes say the same once more for print without colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

INK = "#1f2328"
SOFT = "#6b7076"
FAINT = "#d9d8d3"
PAPER = "#ffffff"


@dataclass(frozen=True)
class Style:
    """How a method is drawn.

    Args:
        colour: Of lines and markers.
        marker: Its shape, by its matplotlib letter.
        dash: Lengths of strokes and gaps in line widths; empty for an unbroken line.
    """

    colour: str
    marker: str
    dash: tuple[float, ...] = ()


_KNOWN = {
    "map": Style("#5f6368", "o", (1.2, 1.6)),
    "temperature": Style("#d55e00", "s", (4.5, 1.8)),
    "last-layer": Style("#009e73", "^", (6.0, 1.6, 1.2, 1.6)),
    "sparse-kfac": Style("#0072b2", "D"),
    "posterior": Style("#0072b2", "D"),
    "best-budget": Style("#882255", "*", (7.0, 1.4)),
    "random": Style("#cc79a7", "o", (2.4, 1.2)),
    "full": Style("#1f2328", "s"),
    "max-mlp": Style("#8a6d00", "^"),
    "min-mlp": Style("#8a6d00", "v", (2.4, 1.4)),
    "max-attention": Style("#332288", "^"),
    "min-attention": Style("#332288", "v", (2.4, 1.4)),
    "constant": Style("#9a9a9a", "o", (1.0, 2.0)),
    "dropout": Style("#b8860b", "o", (8.0, 2.0)),
    "dropout-temperature": Style("#b8860b", "s"),
    "ensemble": Style("#117733", "o", (8.0, 2.0)),
    "ensemble-temperature": Style("#117733", "s"),
    "swag-max-mlp": Style("#a6761d", "^", (1.4, 1.0)),
    "swag-max-attention": Style("#6a51a3", "^", (1.4, 1.0)),
    "swag-random": Style("#e7298a", "o", (1.4, 1.0)),
    "swag-magnitude": Style("#e6550d", "D", (1.4, 1.0)),
    "swag-variance": Style("#756bb1", "v", (1.4, 1.0)),
    "swag-full": Style("#636363", "s", (1.4, 1.0)),
    "laplace-magnitude": Style("#0072b2", "D"),
    "laplace-variance": Style("#009e73", "v"),
    "laplace-random": Style("#cc79a7", "o", (2.4, 1.2)),
    "laplace-full": Style("#1f2328", "s"),
    "laplace-sparse-kfac": Style("#8a6d00", "^"),
    "laplace-last-layer": Style("#882255", "s", (6.0, 1.6, 1.2, 1.6)),
    "laplace-bayestune": Style("#d55e00", "o"),
    "laplace-bayestune-warm": Style("#e69f00", "v", (6.0, 1.6)),
    "laplace-ssvi": Style("#332288", "D", (4.5, 1.8)),
    "swag-sparse-kfac": Style("#8a6d00", "^", (1.4, 1.0)),
    "swag-last-layer": Style("#882255", "s", (1.4, 1.0)),
    "swag-bayestune": Style("#d55e00", "o", (1.4, 1.0)),
    "swag-bayestune-warm": Style("#e69f00", "v", (1.4, 1.0)),
    "swag-ssvi": Style("#332288", "D", (1.4, 1.0)),
}
# Six and five have no common divisor: thirty other methods all look different.
_OTHER_COLOURS = ("#aa4499", "#997733", "#56b4e9", "#44557a", "#2aa198", "#cc6677")
_OTHER_MARKERS = ("v", "o", "s", "^", "D")
_OTHER_DASHES = ((3.0, 1.2), (8.0, 2.0), (2.0, 1.0), (5.0, 1.5))
_SHAPES = {
    "s": "9.8,1.8 16.2,1.8 16.2,8.2 9.8,8.2",
    "D": "13,1 17,5 13,9 9,5",
    "^": "13,1.2 17,8.4 9,8.4",
    "v": "13,8.8 17,1.6 9,1.6",
    "*": "13,0.4 14.2,3.6 17.6,3.7 14.9,5.8 15.9,9.1 13,7.2 10.1,9.1 11.1,5.8 8.4,3.7 "
    "11.8,3.6",
}


def looks(names: Sequence[str]) -> dict[str, Style]:
    """Give every method its look; methods smidgen knows keep theirs always.

    Args:
        names: The methods of a record, in order.

    Returns:
        A look by name, of those given and those known.
    """
    others = [name for name in dict.fromkeys(names) if name not in _KNOWN]
    return {**_KNOWN, **{name: _other(i) for i, name in enumerate(others)}}


def _other(index: int) -> Style:
    """Return the look of one among the methods smidgen does not know."""
    return Style(
        _OTHER_COLOURS[index % len(_OTHER_COLOURS)],
        _OTHER_MARKERS[index % len(_OTHER_MARKERS)],
        _OTHER_DASHES[index % len(_OTHER_DASHES)],
    )


def legend_marker(look: Style, *, marker: bool = True) -> str:
    """Draw a look as a small SVG, to stand beside a name."""
    dash = " ".join(f"{2 * length:g}" for length in look.dash)
    line = f'<path d="M0 5H25.2" stroke-width="2" stroke-dasharray="{dash or "none"}"/>'
    shape = ""
    if marker and look.marker in _SHAPES:
        shape = f'<polygon points="{_SHAPES[look.marker]}"/>'
    elif marker:
        shape = '<circle cx="13" cy="5" r="3.6"/>'
    return (
        '<svg class="key" viewBox="0 0 26 10" aria-hidden="true" '
        f'fill="{look.colour}" stroke="{look.colour}" stroke-width="0">{line}{shape}</svg>'
    )
