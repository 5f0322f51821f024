"""From a matplotlib figure to a small SVG that can stand inside a page.

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
from matplotlib.figure import Figure

from smidgen.report.drawing.palette import FAINT, INK, SOFT

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


def inline(figure: Figure, name: str, title: str) -> str:
    """Write a figure as SVG for the inside of an HTML page."""
    buffer = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=metadata)
    source = ET.fromstring(buffer.getvalue())
    root = ET.Element(
        "svg",
        {
            "viewBox": source.attrib["viewBox"],
            "role": "img",
            "style": f"font-family:{FONTS};stroke-linejoin:round;stroke-linecap:butt",
        },
    )
    ET.SubElement(root, "title").text = title
    referenced = set(_REFERENCE.findall(buffer.getvalue()))
    for child in source:
        _copy(child, root, name, referenced)
    return ET.tostring(root, encoding="unicode")


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
            attributes[key] = _LONG.sub(_short, " ".join(text.split()))
    element = ET.SubElement(parent, tag, attributes)
    element.text = source.text if tag in ("text", "tspan") else None
    for child in source:
        _copy(child, element, name, referenced)


def _prefixed(text: str, name: str) -> str:
    """Prefix the ids a value points to; colours begin with a hash too."""
    return re.sub(r"(^|url\()#", rf"\1#{name}-", text)


def _short(match: re.Match[str]) -> str:
    """Keep a hundredth of a pixel of a coordinate."""
    return f"{float(match.group()):.2f}"
