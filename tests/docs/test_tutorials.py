"""The tutorials run as they stand, print what they show, and are notebooks as well."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from docs.build.code_blocks import find_difference, read_code, read_pieces
from docs.build.notebooks import make_notebook, write_notebooks
from docs.build.tutorials import FOLDER, PAGES, PICTURES, list_pictures, run_page

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.mark.slow
@each_page
@pytest.mark.filterwarnings("default")
def test_a_page_runs_and_prints_what_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    anew = f"{page.stem}: run python -m docs.build.tutorials {page.stem}"
    for block, printed in zip(read_code(page), run_page(page), strict=True):
        difference = find_difference(block.printed, printed)
        assert difference is None, f"{anew}\n{block.text}\n{difference}"
    for name in list_pictures(page):
        assert ET.parse(tmp_path / name).getroot().tag.endswith("svg")


@each_page
def test_a_page_shows_outputs_pictures_and_what_is_next(page):
    text = page.read_text(encoding="utf-8")
    assert sum(bool(block.printed) for block in read_code(page)) >= 3
    assert "## What to try next" in text
    assert "At the end you will have" in text.split("## 1.")[0]
    for name in list_pictures(page):
        assert (PICTURES / name).stat().st_size < 100_000


def test_the_index_lists_every_page_and_every_picture_is_shown():
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\(([\w-]+\.md)\)", index)) == [p.name for p in PAGES]
    shown = {name for page in PAGES for name in list_pictures(page)}
    assert shown == {path.name for path in PICTURES.iterdir()}


@each_page
def test_a_notebook_has_the_same_code(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    book = make_notebook(text)
    code = ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == "code"]
    blocks = read_code(page)
    assert len(code) == len(blocks)
    for cell, block in zip(code, blocks, strict=True):
        if block.language == "python":
            assert cell == block.text.strip("\n")
        else:
            assert all(line.startswith("!") for line in cell.splitlines())
    prose = "".join(
        "".join(c["source"]) for c in book["cells"] if c["cell_type"] == "markdown"
    )
    assert not re.search(r"\]\((?!https?:)", prose)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    assert book == make_notebook(text)


def test_notebooks_are_valid_and_run_their_commands_whole(tmp_path):
    written = write_notebooks(tmp_path / "books")
    assert [path.stem for path in written] == [page.stem for page in PAGES]
    nbformat = pytest.importorskip("nbformat")
    for path in written:
        nbformat.validate(nbformat.read(path, as_version=4))


def test_a_command_over_several_lines_is_one_in_a_notebook():
    page = "# A\n\n```bash\nsmidgen run \\\n    a.csv --out b\ncat c\n```\n"
    assert [piece.language for piece in read_pieces(page)] == ["", "bash", ""]
    (cell,) = [c for c in make_notebook(page)["cells"] if c["cell_type"] == "code"]
    assert cell["source"] == ["!smidgen run a.csv --out b\n", "!cat c"]
