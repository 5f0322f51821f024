"""Equations of the pages, as MathML: browsers show it without scripts and without a network.

Pages hold LaTeX as GitHub shows it too: a fence named `math` for a display, and a dollar sign
with a backtick for an equation within a line.
"""

from __future__ import annotations

import re
import unicodedata
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import latex2mathml.converter
from fontTools import subset
from fontTools.ttLib import TTFont

_DISPLAY = re.compile(r"^( *)```math\n(.*?)\n *```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"\$`([^`\n]+)`\$")
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
# What an equation must not hold once it is MathML: LaTeX that was not understood.
_LEFT_OVER = re.compile(r"\\|&(?!#x)|&#x00026;")
# Names of functions, which Chromium would set without the space that belongs behind them.
_NAMES = re.compile(
    r"(?<!<msub>)(?<!<msup>)(?<!<munder>)<m[io]>(log|exp|max|min|tr|diag|erf)</m[io]>"
    "(?!<mo stretchy)"
)
# Letters, operators and the mathematical alphabets that the pages use.
_LETTERS = (
    (0x20, 0x17F),
    (0x2B0, 0x3FF),
    (0x2000, 0x23FF),
    (0x27E0, 0x27EF),
    (0x2A00, 0x2A7F),
    (0x1D400, 0x1D503),
    (0x1D538, 0x1D56B),
    (0x1D6A8, 0x1D755),
    (0x1D7CE, 0x1D7FF),
)


def convert_equation(latex: str, *, display: bool) -> str:
    """Convert an equation to MathML.

    Args:
        latex: The equation.
        display: Whether it stands by itself, or within a line.

    Returns:
        A `math` element in one line.

    Raises:
        ValueError: If part of the equation was not understood.
    """
    way = "block" if display else "inline"
    # A bar's own letter is too short to be seen above another.
    words = latex2mathml.converter.convert(
        latex.replace("\\bar{", "\\overline{"), display=way
    )
    if _LEFT_OVER.search(words):
        raise ValueError(
            f"the equation {latex!r} has LaTeX that latex2mathml does not know"
        )
    words = re.sub(r"<mi>(&#x[0-9A-F]+;)</mi>", _set_upright, words)
    words = words.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")
    words = re.sub(r"<mi>(&#x0224[0-9A-F];)</mi>", r"<mo>\1</mo>", words)
    words = _NAMES.sub(r'<mi>\1</mi><mspace width="0.17em"/>', words)
    words = re.sub(r'columnalign="(\w+)"', r'class="to-\1"', words)
    return words.replace('encoding="UTF-8"', "")


def _set_upright(letter: re.Match[str]) -> str:
    """Capital Greek letters stand upright, as LaTeX sets them."""
    name = unicodedata.name(chr(int(letter[1][3:-1], 16)), "")
    if name.startswith("GREEK CAPITAL"):
        return f'<mi mathvariant="normal">{letter[1]}</mi>'
    return letter[0]


def find_equations(markdown: str) -> list[str]:
    """List the LaTeX of a page's equations."""
    displays = [found[2] for found in _DISPLAY.finditer(markdown)]
    plain = _FENCE.sub("", markdown)
    return displays + [found[1] for found in _INLINE.finditer(plain)]


def replace_equations(markdown: str) -> str:
    """Put MathML in place of a page's equations.

    Args:
        markdown: The page's source.

    Returns:
        The source with `math` elements; code is left as it is.
    """
    kept: list[str] = []

    def show(found: re.Match[str]) -> str:
        element = convert_equation(" ".join(found[2].split()), display=True)
        return f'{found[1]}<div class="equation" tabindex="0">{element}</div>'

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    markdown = _FENCE.sub(keep, _DISPLAY.sub(show, markdown))
    # Markdown takes a line that begins with `<math>` for a block, one with `<span>` not.
    markdown = _INLINE.sub(
        lambda found: f"<span>{convert_equation(found[1], display=False)}</span>", markdown
    )
    return re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], markdown)


def pack_font() -> bytes:
    """Pack the letters of STIX Two Math (SIL Open Font License) that equations need.

    Returns:
        A font in the format WOFF. It comes with ziamath, and has the table by which a
        browser stretches brackets; of system fonts only some have one.
    """
    package = find_spec("ziamath")
    assert package is not None
    assert package.origin is not None
    source = next(Path(package.origin).parent.glob("fonts/STIXTwoMath*.ttf"))
    options = subset.Options(flavor="woff", layout_features=["*"], notdef_outline=True)
    with TTFont(source) as font:
        narrowed = subset.Subsetter(options)
        narrowed.populate(
            unicodes=[letter for low, high in _LETTERS for letter in range(low, high + 1)]
        )
        narrowed.subset(font)
        font.flavor = "woff"
        file = BytesIO()
        font.save(file)
    return file.getvalue()
