"""The figures of the docs, from committed records: `python -m docs.build.pictures`.

Those of studies are those of their report pages, made files of their own.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path

from docs.build.committed import ROOT, read_table
from docs.build.cost_picture import HEADING, draw_percents, read_percents

from smidgen.report.drawing.palette import INK, PAPER
from smidgen.report.drawing.svg import FONTS
from smidgen.report.many_records.figures import draw_levels, draw_ramps, join_ramps
from smidgen.report.names import assign_styles
from smidgen.report.ramp.page import BY_NORM, STORING_NOTHING

FOLDER = ROOT / "docs" / "pictures"
_MARGIN, _HEAD = 14.0, 22.0


def uci() -> str:
    """What a percentage of stochastic weights changes on Yacht."""
    across = read_table("uci")
    assert across is not None
    drawn = draw_levels(across, "Yacht", assign_styles(across.methods), "map", "uci")
    return side_by_side(list(drawn.values()), list(drawn))


def ramp() -> str:
    """Validation scores on MRPC against floats, of schemes but those by norm."""
    across = read_table("glue-ramp")
    assert across is not None
    joined = join_ramps(across.parts("MRPC", "ramp"))
    assert joined is not None
    apart = (*BY_NORM, *STORING_NOTHING)
    points = [each for each in joined["points"] if each["scheme"] not in apart]
    drawn = draw_ramps({**joined, "points": points}, assign_styles(across.methods), "ramp")
    return side_by_side(drawn, ["NLL", "ECE"])


def cost() -> str:
    """Time over the limit against the percentage of stochastic rows and columns."""
    found = read_percents()
    assert found is not None
    return side_by_side([draw_percents(found)], [HEADING])


PICTURES: dict[str, Callable[[], str]] = {"uci.svg": uci, "ramp.svg": ramp}
if read_percents() is not None:
    PICTURES["cost.svg"] = cost


def side_by_side(drawn: Sequence[str], headings: Sequence[str]) -> str:
    """Set figures of a page beside each other, each under its heading, as one file.

    Args:
        drawn: SVG elements, each with a viewBox.
        headings: One for each.

    Returns:
        An SVG file on white.
    """
    found = [ET.fromstring(each) for each in drawn]
    sizes = [[float(x) for x in each.attrib["viewBox"].split()[2:]] for each in found]
    width = sum(wide for wide, _ in sizes) + _MARGIN * (len(sizes) + 1)
    height = max(tall for _, tall in sizes) + _HEAD + 2 * _MARGIN
    whole = ET.Element(
        "svg",
        {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width:g} {height:g}"},
    )
    ET.SubElement(whole, "rect", {"width": "100%", "height": "100%", "fill": PAPER})
    left = _MARGIN
    for each, heading, (wide, tall) in zip(found, headings, sizes, strict=True):
        place = {"x": f"{left:g}", "y": f"{_MARGIN + 11:g}", "fill": INK}
        style = f"font: 600 11px {FONTS}"
        ET.SubElement(whole, "text", {**place, "style": style}).text = heading
        top = _MARGIN + _HEAD
        each.attrib.update(
            x=f"{left:g}", y=f"{top:g}", width=f"{wide:g}", height=f"{tall:g}"
        )
        whole.append(each)
        left += wide + _MARGIN
    return ET.tostring(whole, encoding="unicode") + "\n"


def main(folder: Path = FOLDER) -> None:
    """Write all pictures."""
    for name, draw in PICTURES.items():
        (folder / name).write_text(draw(), encoding="utf-8")
        sys.stdout.write(f"wrote {folder / name}\n")


if __name__ == "__main__":
    main()
