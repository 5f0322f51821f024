"""What training saw of texts: `smidgen finetune` notes it, and later commands use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from smidgen.errors import ArgumentError

if TYPE_CHECKING:
    from smidgen.cli.options.source import Source
    from smidgen.integrations.reading.task_note import DataFile, TaskNote
    from smidgen.integrations.text import TextTable
    from smidgen.integrations.text_length import TextLength

_SEEN = "by default what training saw, or else"
Text = Annotated[
    str | None,
    Option(
        "--text",
        help="Column of the text: its name, or its number from 0 if the file has no header; "
        f"{_SEEN} text.",
    ),
]
Pair = Annotated[
    str | None,
    Option("--text-pair", help=f"Column of a second text, for pairs; {_SEEN} none."),
]
Label = Annotated[
    str | None, Option("--label", help=f"Column of the label; {_SEEN} label.")
]
MaxLength = Annotated[
    int | None,
    Option(min=3, help=f"Longer texts are cut to this many tokens; {_SEEN} 128."),
]
NOTED_OPTIONS = {
    "columns": "--text",
    "text_pair": "--text-pair",
    "label": "--label",
    "max_length": "--max-length",
}
"""The option of each thing that a note says."""


@dataclass(frozen=True)
class SeenTexts:
    """How training read its texts, and so how a command reads others; and the note, if any."""

    columns: tuple[str, str | None, str]
    length: TextLength
    note: TaskNote | None = None

    def require_held_out(self, train: Path | None) -> None:
        """Refuse, where no --val is given, a file of which no rows were held out to calibrate.

        Args:
            train: The file that training is said to have read.

        Raises:
            ArgumentError: If it is another file, or all of it was trained on.
        """
        from smidgen.runtime.writing.claim import digest_path

        note = self.note
        if note is None or note.split is None or "calibration" not in note.split.rows:
            given = "" if note is None or len(note.files) < 2 else f" {note.files[1].path}"
            raise ArgumentError(
                "--val must be given for a model of whose training data 'smidgen finetune' "
                f"held out no rows to calibrate on, got none. Give --val{given or ' FILE'}."
            )
        file = note.files[0]
        if train is None or digest_path(train) != file.digest:
            got = "none" if train is None else f"{str(train)!r}, which differs from it"
            raise ArgumentError(
                f"--train must be the file that rows were held out of, {file.path!r}, got "
                f"{got}. Give that file, or --val."
            )

    def divide(self, table: TextTable) -> tuple[TextTable, TextTable]:
        """Take what training was on, and what it held out to calibrate on."""
        assert self.note is not None
        assert self.note.split is not None
        rows = self.note.split.rows
        return table.take(rows["train"]), table.take(rows["calibration"])


def find_seen(
    source: Source,
    text: str | None,
    text_pair: str | None,
    label: str | None,
    max_length: int | None,
) -> SeenTexts:
    """Find how to read texts: as training did, or as typed where no note tells.

    Args:
        source: The model that was typed.
        text: The column of the text; None if it was not typed.
        text_pair: The column of a second text.
        label: The column of the label.
        max_length: How many tokens of a text are read.

    Returns:
        What to read.

    Raises:
        ArgumentError: If something was typed that differs from the note.
    """  # noqa: DOC502
    from smidgen.integrations.reading.task_note import find_note, use_note
    from smidgen.integrations.text_length import TextLength

    note = find_note(source.model)
    if note is None or note.kind != "text":
        return SeenTexts(
            (text or "text", text_pair, label or "label"), TextLength(max_length)
        )
    typed: dict[str, Any] = {"label": label, "max_length": max_length}
    if not source.is_asked:
        # A prompt names its own columns, which the note of the answers has.
        typed |= {"columns": None if text is None else (text,), "text_pair": text_pair}
    use_note(note, typed, options=NOTED_OPTIONS, may_differ=())
    columns = (*note.columns[:1], "text")[0], note.text_pair, note.label or "label"
    length = TextLength(max_length, note.max_length or 128)
    return SeenTexts(columns, length, note)


def divide_texts(
    note: TaskNote,
    files: tuple[Path, Path | None],
    table: TextTable,
    read: Callable[[Path], TextTable],
    *,
    seed: int,
) -> tuple[tuple[TextTable, TextTable], TaskNote]:
    """Take what to train on and what to stop by, and note which rows they are.

    Without a file to stop by, rows are held out: half of them stop training, and the others
    are left for `smidgen fit`, so that no row does both.

    Args:
        note: What else training sees.
        files: The training data, and those to stop by.
        table: All training data.
        read: Reads the other file.
        seed: Fixes which rows are held out.

    Returns:
        Both tables, and the note with files and rows.
    """
    from smidgen.integrations.reading import splitting
    from smidgen.integrations.reading.task_note import SplitNote

    train, val = files
    listed = [_describe_file(train, table)]
    if val is not None:
        held_out = read(val)
        listed.append(_describe_file(val, held_out))
        end = len(table) + len(held_out)
        rows = {"train": range(len(table)), "validation": range(len(table), end)}
        split = SplitNote(seed, {}, {name: tuple(part) for name, part in rows.items()})
        tables = table, held_out
    else:
        shares = splitting.choose_held_out(len(table))
        dealt = splitting.deal_rows(
            range(len(table)),
            splitting.group_rows(table.keys()),
            shares,
            classes=[int(label) for label in table.labels or ()],
            seed=seed,
        )
        split = SplitNote(seed, shares, dealt)
        tables = table.take(dealt["train"]), table.take(dealt["validation"])
    return tables, replace(note, files=tuple(listed), split=split)


def _describe_file(path: Path, table: TextTable) -> DataFile:
    from smidgen.integrations.reading.task_note import DataFile
    from smidgen.runtime.writing.claim import digest_path

    return DataFile(str(path), len(table), digest_path(path))
