"""The gallery's cards: report pages that have been built, with a picture of each."""

from __future__ import annotations

import html
import re
from pathlib import Path

from docs.build.site import ROOT

FOLDER = ROOT / "build" / "pages"
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)


def list_files() -> list[Path]:
    """List the report pages that have been built, and their pictures."""
    pages = sorted(FOLDER.glob("*.html"), key=lambda page: (page.stem != "demo", page.stem))
    pictures = (page.with_suffix(".png") for page in pages)
    return [*pages, *(picture for picture in pictures if picture.is_file())]


def write_cards() -> str:
    """Write the gallery's cards: a picture of each page, its title and its command."""
    files = list_files()
    cards = []
    for page in files:
        if page.suffix != ".html":
            continue
        name, place = page.stem, f"gallery/{page.stem}"
        command = "smidgen demo" if name == "demo" else f"smidgen study report {name}"
        picture = ""
        if page.with_suffix(".png") in files:
            picture = f"[![Top of the page]({place}.png)]({place}.html)\n\n    "
        cards.append(
            f"-   {picture}**[{_read_title(page)}]({place}.html)**\n\n    `{command}`"
        )
    body = "\n\n".join(cards) or "No page has been built yet."
    return f'<div class="cards" markdown>\n\n{body}\n\n</div>'


def _read_title(page: Path) -> str:
    found = _TITLE.search(page.read_text(encoding="utf-8"))
    return html.unescape(found[1]).partition(" · ")[0].strip() if found else page.stem
