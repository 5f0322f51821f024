"""Outputs are apart from one another, and from what is read."""

from __future__ import annotations

import pytest

from smidgen.errors import StoreError
from smidgen.runtime.writing.output import Input, Output, refuse_overlaps


def made(path, *names):
    """The output of --out: a folder as a whole, or file by file."""
    within = [Output("--out", path / name) for name in names]
    return [Output("--out", path, folder=True), *within]


@pytest.mark.parametrize("name", ["made", "./made", "link", "made/n.json", "made/a/b", ""])
def test_two_outputs_are_apart(tmp_path, name):
    (tmp_path / "made").mkdir()
    (tmp_path / "link").symlink_to("made")
    other = Output("--json", tmp_path / name)
    with pytest.raises(StoreError, match="--out must be apart from another.*with --json"):
        refuse_overlaps([*made(tmp_path / "made"), other], [])


def test_a_folder_that_is_written_file_by_file_has_room_for_others(tmp_path):
    outputs = made(tmp_path, "record.json", "posterior")
    refuse_overlaps([*outputs, Output("--json", tmp_path / "n.json")], [])
    refuse_overlaps(outputs, [Input("--train", tmp_path / "train.tsv")])
    for name in ("record.json", "posterior/n.json"):
        with pytest.raises(StoreError, match="apart from another output"):
            refuse_overlaps([*outputs, Output("--json", tmp_path / name)], [])


@pytest.mark.parametrize("name", ["train.tsv", "model", "model/n.json"])
def test_what_is_read_is_not_replaced(tmp_path, name):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    inputs = [Input("model", tmp_path / "model"), Input("--train", tmp_path / "train.tsv")]
    with pytest.raises(StoreError, match="--json must be apart from what is read"):
        refuse_overlaps([Output("--json", tmp_path / name)], inputs)
    with pytest.raises(StoreError, match="--out must be apart from what is read"):
        refuse_overlaps(made(tmp_path), inputs)
    refuse_overlaps([Output("--json", tmp_path / "n.json")], inputs)


def test_a_page_may_be_beside_the_records_it_shows(tmp_path):
    outputs = [Output("--out", tmp_path / "report.html")]
    refuse_overlaps(outputs, [Input("RECORD", tmp_path), Input("RECORD", tmp_path / "a")])
