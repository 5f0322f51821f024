"""The README's picture of the demo's page: `python -m docs.build.screenshot`.

It needs a Chromium on the path, so `make pictures` leaves it alone; the picture carries
the digest of its record, by which a test tells whether it is still of that record.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from docs.build.committed import RESULTS, ROOT
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from smidgen.report import render
from smidgen.runtime.artifact import DIGEST
from smidgen.runtime.record import Record

RECORD = RESULTS / "demo.json"
PICTURE = ROOT / "docs" / "pictures" / "report.png"
_WIDTH, _HEIGHT = 1100, 1340


def record_digest() -> str:
    """Return the digest of the demo's committed record."""
    return str(Record.load(RECORD).to_fields()[DIGEST])


def pictured_digest() -> str:
    """Return the digest of the record that the committed picture was taken of."""
    with Image.open(PICTURE) as picture:
        return str(picture.info["record"])


def take(browser: str) -> None:
    """Render the demo's page, photograph its top and note whose page it is."""
    with tempfile.TemporaryDirectory() as folder:
        page, raw = Path(folder, "page.html"), Path(folder, "page.png")
        page.write_text(render(Record.load(RECORD)), encoding="utf-8")
        window = f"--window-size={_WIDTH},{_HEIGHT}"
        plain = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", window]
        subprocess.run([*plain, f"--screenshot={raw}", page.as_uri()], check=True)
        note = PngInfo()
        note.add_text("record", record_digest())
        with Image.open(raw) as picture:
            picture.convert("RGB").save(PICTURE, pnginfo=note, optimize=True)


if __name__ == "__main__":
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        raise SystemExit("no chromium or google-chrome is on the path: install one")
    take(found)
