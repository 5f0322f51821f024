"""The tutorials as notebooks, from the same pages: `python -m docs.build.notebooks FOLDER`.

A notebook has the page's prose and code and no outputs: running it makes them. The format
is plain JSON (nbformat 4.5), so nothing needs to be installed to write it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from docs.build.code_blocks import Piece, read_pieces
from docs.build.tutorials import PAGES

_PICTURE = re.compile(r"^!\[[^\]]*\]\(pictures/[^)]+\)\n+", re.MULTILINE)
_PAGE_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")


def make_notebook(page: str) -> dict[str, Any]:
    """Turn a page into a notebook's JSON.

    Pictures are left out, because the code draws them; links to other pages become their
    words, because a downloaded notebook stands alone.
    """
    cells = [_make_cell(number, piece) for number, piece in enumerate(read_pieces(page))]
    return {
        "cells": [cell for cell in cells if "".join(cell["source"]).strip()],
        "metadata": {
            "kernelspec": {
                "display_name": "Python 3",
                "language": "python",
                "name": "python3",
            },
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _make_cell(number: int, piece: Piece) -> dict[str, Any]:
    kind: dict[str, Any] = {"cell_type": "markdown"}
    text = piece.text
    if piece.is_code:
        kind = {"cell_type": "code", "execution_count": None, "outputs": []}
        if piece.language == "bash":
            text = _ask_shell(text)
    elif piece.language:
        text = f"```{piece.language}\n{text}```"
    else:
        text = _PAGE_LINK.sub(r"\1", _PICTURE.sub("", text))
    text = text.strip("\n")
    name = sha256(f"{number} {text}".encode()).hexdigest()[:8]
    return {**kind, "id": name, "metadata": {}, "source": text.splitlines(keepends=True)}


def _ask_shell(script: str) -> str:
    """Write commands as a notebook does: one with `!` for each, its lines joined."""
    joined = re.sub(r"\s*\\\n\s*", " ", script)
    return "\n".join(f"!{line}" for line in joined.splitlines() if line.strip())


def write_notebooks(folder: Path, pages: Sequence[Path] = PAGES) -> list[Path]:
    """Write a notebook of every page into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for page in pages:
        path = folder / f"{page.stem}.ipynb"
        book = make_notebook(page.read_text(encoding="utf-8"))
        path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", "utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m docs.build.notebooks FOLDER")
    for notebook in write_notebooks(Path(sys.argv[1])):
        print(notebook)
