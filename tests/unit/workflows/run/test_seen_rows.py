"""How many of the rows to be scored trained the model, from notes of every kind of data."""

from __future__ import annotations

import torch

from smidgen.errors import DataError
from smidgen.integrations.reading.images import ImageSet
from smidgen.integrations.reading.tables import FeatureTable
from smidgen.integrations.reading.task_note import DataFile, SplitNote, TaskNote
from smidgen.integrations.text import TextTable
from smidgen.runtime.writing.claim import digest_path
from smidgen.workflows.run.seen_rows import describe_seen_rows

TEXTS = tuple(f"text {number}" for number in range(10))


class Files:
    """Files of one row a line, their note, and how often each was read."""

    def __init__(self, folder, kind="text", **contents):
        self.folder, self.kind, self.read_again = folder, kind, []
        listed = []
        for name, lines in contents.items():
            path = self.write(name, lines)
            listed.append(DataFile(str(path), len(lines), digest_path(path)))
        self.files = tuple(listed)

    def write(self, name, lines):
        path = self.folder / name
        path.write_text("\n".join(lines))
        return path

    def parse(self, path):
        lines = tuple(path.read_text().split("\n"))
        if self.kind == "table":
            return FeatureTable({"x": lines})
        return TextTable(lines)

    def read(self, path):
        self.read_again.append(path.name)
        return self.parse(path)

    def describe(self, path, **parts):
        note = TaskNote(self.kind, files=self.files, split=SplitNote(0, {}, parts))
        return describe_seen_rows(note, self.parse(path), path, self.read)


def test_rows_that_trained_or_chose_are_counted_whatever_their_case(tmp_path):
    files = Files(tmp_path, train=TEXTS)
    path = files.write("new", ["TEXT  1", "text 2", "text 7", "another"])
    said = files.describe(path, train=(0, 1), validation=(2, 3), test=tuple(range(4, 10)))
    assert said.startswith("2 of these 4 rows trained this model or chose something")
    assert files.describe(path, test=tuple(range(10))) is None
    assert files.read_again == ["train"]


def test_the_file_of_training_itself_is_not_read_again_wherever_it_is_now(tmp_path):
    files = Files(tmp_path, train=TEXTS)
    moved = (tmp_path / "train").rename(tmp_path / "moved")
    said = files.describe(moved, train=tuple(range(6)), test=(6, 7, 8, 9))
    assert said.startswith("6 of these 10 rows")
    assert not files.read_again


def test_files_are_read_until_every_row_is_found(tmp_path):
    files = Files(tmp_path, train=TEXTS[:5], val=TEXTS[5:])
    parts = {"train": tuple(range(5)), "validation": tuple(range(5, 10))}
    first = files.write("first", TEXTS[1:3])
    assert files.describe(first, **parts).startswith("2 of these 2 rows")
    assert files.read_again == ["train"]
    both = files.write("both", TEXTS[3:7])
    assert files.describe(both, **parts).startswith("4 of these 4 rows")


def test_test_rows_that_a_run_was_given_share_no_row_with_others(tmp_path):
    files = Files(tmp_path, train=TEXTS[:5], test=TEXTS[5:])
    parts = {"train": tuple(range(5)), "test": tuple(range(5, 10))}
    assert files.describe(tmp_path / "test", **parts) is None
    assert not files.read_again
    # Of a table with few different rows the same may be on both sides.
    table = Files(tmp_path, "table", train=["1", "2"], test=["2", "3"])
    said = table.describe(tmp_path / "test", train=(0, 1), test=(2, 3))
    assert said.startswith("1 of these 2 rows")


def test_files_that_are_gone_changed_or_unreadable_say_nothing_of_other_rows(tmp_path):
    files = Files(tmp_path, train=TEXTS)
    same = files.write("same", TEXTS[:2])
    files.write("train", (*TEXTS, "one more"))
    assert files.describe(same, train=tuple(range(10))) is None
    (tmp_path / "train").unlink()
    assert files.describe(same, train=tuple(range(10))) is None
    assert not files.read_again
    files.write("train", TEXTS)
    assert files.describe(same, train=tuple(range(10))) is not None

    def refuse(path):
        raise DataError(f"{path} cannot be read")

    files.read = refuse
    assert files.describe(same, train=tuple(range(10))) is None


def test_a_file_of_training_that_has_changed_is_told_when_it_is_scored(tmp_path):
    files = Files(tmp_path, train=TEXTS)
    files.write("train", (*TEXTS, "one more"))
    said = files.describe(tmp_path / "train", train=tuple(range(10)))
    assert "has changed since this model was trained on it" in said


def test_pairs_are_the_same_only_as_pairs(tmp_path):
    path = tmp_path / "train"
    path.write_text("pairs")
    note = TaskNote(
        "text",
        text_pair="b",
        files=(DataFile(str(path), 2, digest_path(path)),),
        split=SplitNote(0, {}, {"train": (0, 1)}),
    )
    trained = TextTable(("a", "b"), ("c", "d"))
    new = TextTable(("a", "A", "b"), ("c", "d", "D"))
    said = describe_seen_rows(note, new, tmp_path / "new", lambda _: trained)
    assert said.startswith("2 of these 3 rows")


def test_images_are_the_same_by_their_pixels(tmp_path):
    path = tmp_path / "train"
    path.write_text("images")
    note = TaskNote(
        "images",
        files=(DataFile(str(path), 4, digest_path(path)),),
        split=SplitNote(0, {}, {"train": (0, 1), "test": (2, 3)}),
    )
    images = torch.rand(4, 1, 2, 2)
    new = ImageSet(images[[1, 2]])
    said = describe_seen_rows(note, new, tmp_path / "new", lambda _: ImageSet(images))
    assert said.startswith("1 of these 2 rows")


def test_a_note_without_rows_says_nothing(tmp_path):
    new = TextTable(TEXTS)
    assert (
        describe_seen_rows(TaskNote("text"), new, tmp_path / "new", lambda _: new) is None
    )
