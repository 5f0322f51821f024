"""From a matplotlib figure or a style to a small SVG that can stand inside a page.

Text stays text in the reader's own font, the width is left to the page, ids carry the
name of the figure, and nothing points outside: no header, no metadata, no namespace.
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from smidgen.report.drawing.palette import FAINT, INK, SOFT, Style

FONTS = "-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_SIZE = 11.0
_SETTINGS = {
    "axes.edgecolor": SOFT,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.labelsize": _SIZE,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.unicode_minus": True,
    "font.family": ["DejaVu Sans"],
    "font.size": _SIZE,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",
    "text.color": INK,
    # A name from the user's data may hold a dollar sign and is never a formula.
    "text.parse_math": False,
    "xtick.color": SOFT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": _SIZE,
    "xtick.major.pad": 4.5,
    "xtick.major.size": 3.0,
    "xtick.major.width": 0.7,
    "xtick.minor.size": 0.0,
    "ytick.color": SOFT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": _SIZE,
    "ytick.major.size": 3.0,
    "ytick.major.width": 0.7,
    "ytick.minor.size": 0.0,
}
_SHAPES = {
    "s": "9.8,1.8 16.2,1.8 16.2,8.2 9.8,8.2",
    "D": "13,1 17,5 13,9 9,5",
    "^": "13,1.2 17,8.4 9,8.4",
    "v": "13,8.8 17,1.6 9,1.6",
    "*": "13,0.4 14.2,3.6 17.6,3.7 14.9,5.8 15.9,9.1 13,7.2 10.1,9.1 11.1,5.8 8.4,3.7 "
    "11.8,3.6",
}
_POINTS_PER_INCH = 72
_REFERENCE = re.compile(r"#([\w.-]+)")
_FONT = re.compile(r"font-family:[^;]*;?\s*")
_LONG = re.compile(r"-?\d+\.\d{3,}")


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in the style of the report; matplotlib's own settings come back after."""
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # The reader's browser brings the glyphs; ours only measures the text.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def sheet(width: float, height: float) -> Figure:
    """Make an empty figure; one unit is one pixel at natural size."""
    size = (width / _POINTS_PER_INCH, height / _POINTS_PER_INCH)
    return Figure(figsize=size, dpi=_POINTS_PER_INCH, facecolor="none")


def inline(figure: Figure, name: str, title: str) -> Markup:
    """Write a figure as SVG for the inside of an HTML page."""
    buffer = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=metadata)
    source = ET.fromstring(buffer.getvalue())
    style = f"font-family:{FONTS};stroke-linejoin:round;stroke-linecap:butt"
    root = ET.Element("svg", viewBox=source.attrib["viewBox"], role="img", style=style)
    ET.SubElement(root, "title").text = title
    referenced = set(_REFERENCE.findall(buffer.getvalue()))
    for child in source:
        _copy(child, root, name, referenced)
    return Markup(ET.tostring(root, encoding="unicode"))


def legend_marker(style: Style, *, marker: bool = True) -> Markup:
    """Draw a style as a small SVG, to stand beside a name."""
    dash = " ".join(f"{2 * length:g}" for length in style.dash)
    line = f'<path d="M0 5H25.2" stroke-width="2" stroke-dasharray="{dash or "none"}"/>'
    shape = ""
    if marker and style.marker in _SHAPES:
        shape = f'<polygon points="{_SHAPES[style.marker]}"/>'
    elif marker:
        shape = '<circle cx="13" cy="5" r="3.6"/>'
    return Markup(
        '<svg class="key" viewBox="0 0 26 10" aria-hidden="true" '
        f'fill="{style.colour}" stroke="{style.colour}" stroke-width="0">'
        f"{line}{shape}</svg>"
    )


def _copy(source: ET.Element, parent: ET.Element, name: str, referenced: set[str]) -> None:
    """Copy an element without namespaces, with its references prefixed."""
    tag = source.tag.rpartition("}")[2]
    # A style element inside a page would style the whole page.
    if tag in ("metadata", "style", "title"):
        return
    attributes = {}
    for long_key, text in source.attrib.items():
        key = long_key.rpartition("}")[2]
        if key == "id":
            if text in referenced:
                attributes[key] = f"{name}-{text}"
        elif key == "style":
            attributes[key] = _FONT.sub("", _prefixed(text, name))
        elif key in ("href", "clip-path"):
            attributes[key] = _prefixed(text, name)
        elif not text.startswith("rotate(-0 "):
            # A hundredth of a pixel is enough.
            attributes[key] = _LONG.sub(
                lambda match: f"{float(match.group()):.2f}", " ".join(text.split())
            )
    element = ET.SubElement(parent, tag, attributes)
    element.text = source.text if tag in ("text", "tspan") else None
    for child in source:
        _copy(child, element, name, referenced)


def _prefixed(text: str, name: str) -> str:
    """Prefix the ids a value points to; colours begin with a hash too."""
    return re.sub(r"(^|url\()#", rf"\1#{name}-", text)
