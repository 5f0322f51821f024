"""The gallery: report pages of the committed records, with a picture of the top of each."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from docs.build.committed import RESULTS, ROOT, list_committed
from docs.build.pages import FOLDER, write_page
from PIL import Image

from smidgen.report import render
from smidgen.runtime.packed_records import SUFFIX
from smidgen.runtime.record import Record
from smidgen_studies.engine.study import read_study

DEMO = "demo"
_WINDOW, _SHOWN = (1200, 900), (600, 450)
_SOURCES = ("src/smidgen/report", "src/smidgen_studies", "src/smidgen/evaluate")


def list_pages() -> dict[str, str]:
    """List the pages by name, with their titles; the demo's first."""
    studies = {name: read_study(name).title for name in list_committed()}
    return {DEMO: "The demo: one model, one posterior", **studies}


def build_pages() -> None:
    """Build the pages that are older than their records or than the code that draws them."""
    code = [path for folder in _SOURCES for path in (ROOT / folder).rglob("*.*")]
    newest = max(path.stat().st_mtime for path in code)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in list_pages():
        page = FOLDER / f"{name}.html"
        record = RESULTS / (f"{name}.json" if name == DEMO else f"{name}{SUFFIX}")
        if page.is_file() and page.stat().st_mtime > max(newest, record.stat().st_mtime):
            continue
        if name == DEMO:
            page.write_text(render(Record.load(record)), encoding="utf-8")
        else:
            write_page(name, page)
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    for name in list_pages():
        if browser is not None:
            take_picture(browser, FOLDER / f"{name}.html")


def take_picture(browser: str, page: Path) -> None:
    """Photograph the top of a page, unless its picture is newer than it."""
    picture = page.with_suffix(".png")
    if picture.is_file() and picture.stat().st_mtime > page.stat().st_mtime:
        return
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "page.png")
        window = f"--window-size={_WINDOW[0]},{_WINDOW[1]}"
        plain = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", window]
        subprocess.run(
            [*plain, f"--screenshot={raw}", page.as_uri()], check=True, capture_output=True
        )
        with Image.open(raw) as image:
            small = image.convert("RGB").resize(_SHOWN, Image.Resampling.LANCZOS)
            small.save(picture, optimize=True)


def list_files() -> list[Path]:
    """List what the gallery shows and has been built."""
    files = [FOLDER / f"{name}{kind}" for name in list_pages() for kind in (".html", ".png")]
    return [file for file in files if file.is_file()]


def write_gallery() -> str:
    """Write the page that leads to the others."""
    parts = [
        "# Gallery",
        "Pages that `smidgen` writes from records, here from those in `results/`. Each is one "
        "file that needs no network: `smidgen report RECORD --out page.html` makes one of your "
        "own, and [compare and read the page](how-to/compare.md) says how to read it.",
    ]
    cards = []
    for name, title in list_pages().items():
        if not (FOLDER / f"{name}.html").is_file():
            continue
        command = "smidgen demo" if name == DEMO else f"smidgen study report {name}"
        picture = ""
        if (FOLDER / f"{name}.png").is_file():
            picture = f"[![Top of the page]({_place(name)}.png)]({_place(name)}.html)\n\n    "
        cards.append(
            f"-   {picture}**[{title}]({_place(name)}.html)**\n\n    `{command}`"
        )
    body = "\n\n".join(cards) or "No page has been built: `make docs` builds them."
    parts.append(f'<div class="cards" markdown>\n\n{body}\n\n</div>')
    return "\n\n".join(parts) + "\n"


def _place(name: str) -> str:
    return f"gallery/{name}"
