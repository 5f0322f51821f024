"""Bring the gallery's report pages and their pictures up to date, in `build/pages`."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from docs.build.committed import RESULTS, list_committed
from docs.build.pages import FOLDER, write_page
from docs.build.site import ROOT
from PIL import Image

from smidgen.report import render
from smidgen.runtime.packed_records import SUFFIX
from smidgen.runtime.record import Record

_DEMO = "demo"
_WINDOW, _SHOWN = (900, 675), (600, 450)
_SOURCES = ("src/smidgen/report", "src/smidgen_studies", "src/smidgen/evaluate")


def build_pages() -> None:
    """Build the pages that are older than their records or than the code that draws them."""
    code = [path for folder in _SOURCES for path in (ROOT / folder).rglob("*.*")]
    newest = max(path.stat().st_mtime for path in code)
    FOLDER.mkdir(parents=True, exist_ok=True)
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    for name in (_DEMO, *list_committed()):
        page = FOLDER / f"{name}.html"
        record = RESULTS / (f"{name}.json" if name == _DEMO else f"{name}{SUFFIX}")
        if not page.is_file() or page.stat().st_mtime <= max(newest, _find_age(record)):
            _write(name, record, page)
        if browser is not None:
            take_picture(browser, page)


def _find_age(path: Path) -> float:
    return path.stat().st_mtime


def _write(name: str, record: Path, page: Path) -> None:
    if name == _DEMO:
        page.write_text(render(Record.load(record)), encoding="utf-8")
    else:
        write_page(name, page)


def take_picture(browser: str, page: Path) -> None:
    """Photograph the top of a page, unless its picture is newer than it."""
    picture = page.with_suffix(".png")
    if picture.is_file() and _find_age(picture) > _find_age(page):
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


if __name__ == "__main__":
    build_pages()
