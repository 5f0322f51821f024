"""The tutorials run anew: `python -m docs.build.tutorials [NAME …]`.

Each page of docs/tutorials runs in an empty folder, as a new user would run it. What it
printed is written into the page, and what it drew into docs/tutorials/pictures.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from docs.build.code_blocks import read_code, read_pieces, run_code, write_pieces
from docs.build.committed import ROOT

FOLDER = ROOT / "docs" / "tutorials"
PICTURES = FOLDER / "pictures"
PAGES = tuple(sorted(path for path in FOLDER.glob("*.md") if path.stem != "index"))


def run_page(page: Path) -> list[str]:
    """Run a page's code in the current folder; the caller's random state is kept."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            return list(run_code(read_code(page)))
    finally:
        torch.set_num_threads(threads)


def list_pictures(page: Path) -> list[str]:
    """Name the pictures that a page shows, which its code draws."""
    return re.findall(r"!\[[^\]]*\]\(pictures/([^)]+)\)", page.read_text(encoding="utf-8"))


def write_page(page: Path) -> None:
    """Run a page and write what it printed and drew."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        printed = iter(run_page(page))
        for name in list_pictures(page):
            shutil.copyfile(name, PICTURES / name)
    pieces = read_pieces(page.read_text(encoding="utf-8"))
    shown = [replace(p, printed=next(printed)) if p.is_code else p for p in pieces]
    page.write_text(write_pieces(shown), encoding="utf-8")


def main(names: Sequence[str]) -> None:
    """Run the named pages, or all."""
    for page in PAGES:
        if not names or page.stem in names:
            start, busy = time.monotonic(), time.process_time()
            write_page(page)
            print(
                f"{page.stem}: {time.monotonic() - start:.0f} s, "
                f"{time.process_time() - busy:.0f} s of processor time"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
