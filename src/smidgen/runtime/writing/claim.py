"""A run's claim on what it writes: the same command, started again, ends as if undisturbed.

Before its work a run makes a hidden folder beside its first output, with a description of
itself and, later, its checkpoints. While that folder is there the run's outputs are its own:
started again, it may replace what it had written. After the last output it puts the
description into the output folder, as `run.json`, and removes the hidden one. So

- killed before its end, it resumes from its checkpoints;
- killed after its end, or asked for once more, it is done already;
- another run's outputs, and another run's checkpoints, are refused as ever.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from smidgen.errors import StoreError
from smidgen.runtime.artifact import read_sealed_json, write_sealed_json
from smidgen.runtime.files import sweep
from smidgen.runtime.writing.output import Input, Output, list_files, refuse_overlaps
from smidgen.runtime.writing.writable import require_writable

RUN_NOTE = "run.json"
"""The description of the run that made a folder, in the folder."""
_FILES, _REPLACED = "files", "replaced"
"""What a note adds: the files that were written; and a claim: the note that it outdates."""
_LONGEST_NAME = 200
_WHOLE, _SAMPLES, _SAMPLE = 1 << 26, 64, 1 << 20
_MOST_FILES = 1000


class Claim:
    """The claim of one run; use it as a context.

    Args:
        about: What the run is, in JSON values: only the same one may go on with it. Each of
            its parts is a mapping from options to values.
        outputs: What it writes, the folder with the `run.json` first, if there is one.
        states: Checkpoints outside the claim's own folder, removed at the end.
        inputs: What it reads, which no output may replace.
        overwrite: Whether outputs of other runs may be replaced.

    Raises:
        StoreError: If an output cannot be written, is taken or is also an input, or if
            another run on the first one was interrupted and could still be resumed.
    """

    def __init__(
        self,
        about: Mapping[str, Any],
        outputs: Sequence[Output],
        states: Sequence[Output] = (),
        *,
        inputs: Sequence[Input] = (),
        overwrite: bool,
    ) -> None:
        self.about: dict[str, Any] = json.loads(json.dumps(dict(about)))
        self.outputs, self.states = tuple(outputs), tuple(states)
        for output in self.outputs + self.states:
            require_writable(output.path, output.option, folder=output.folder)
            sweep(output.path)
        refuse_overlaps(self.outputs + self.states, inputs)
        self.note = outputs[0].path / RUN_NOTE if outputs and outputs[0].folder else None
        if self.note is not None:
            sweep(self.note)
        self.folder = hidden_beside(outputs[0].path) if outputs else None
        claimed = None if self.folder is None else _read(self.folder / RUN_NOTE)
        self.resumed = self._is_of_this_run(claimed)
        self.overwrite = overwrite or self.resumed
        # `overwrite` asks for a new one.
        asked_again = self.resumed or not overwrite
        self.finished = asked_again and self._is_finished(claimed)
        if self.finished:
            self._clean()
            return
        self._refuse_others(claimed)
        self._made: list[Path] = []
        if not self.resumed:
            self._begin()
        self._before = self._signatures()

    def place(self, name: str) -> Path:
        """Name a file for a checkpoint; it is removed when the run is finished."""
        assert self.folder is not None
        return self.folder / name

    def finish(self) -> None:
        """Say that all outputs are written; checkpoints are no longer needed."""
        if self.note is not None:
            written = [n for n in list_files(self.outputs) if n != str(self.note)]
            write_sealed_json(self.note, {**self.about, _FILES: written})
        self.finished = True
        self._clean()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.finished:
            return
        if self._signatures() != self._before:
            if self.note is not None:
                # That of what was replaced: it must not speak for what came.
                self.note.unlink(missing_ok=True)
        elif not self.resumed and not self._checkpoints():
            # A refusal on the way leaves nothing behind.
            self._remove()
            for folder in self._made:
                with suppress(OSError):  # Not empty: someone else uses it by now.
                    folder.rmdir()

    def _is_of_this_run(self, stored: Mapping[str, Any] | None) -> bool:
        return stored is not None and {n: stored.get(n) for n in self.about} == self.about

    def _is_finished(self, claimed: Mapping[str, Any] | None) -> bool:
        """Whether the same run has written everything, and all of it is there still."""
        if self.note is None or self.folder is None:
            return False
        note = _read(self.note)
        if note is None or not self._is_of_this_run(note):
            return False
        if os.path.lexists(self.folder / RUN_NOTE) and (
            claimed is None or claimed.get(_REPLACED) == digest_path(self.note)
        ):
            return False  # A later run may have replaced some of it.
        outputs = [str(o.path) for o in self.outputs if o.expected]
        written = note.get(_FILES)
        return isinstance(written, list) and all(
            isinstance(name, str) and os.path.exists(name) for name in outputs + written
        )

    def _begin(self) -> None:
        """Claim the outputs; the note of what is replaced stays until something is."""
        self._remove()
        if self.folder is not None:
            self._made = [p for p in self.folder.parents if not p.exists()]
            there = self.note is not None and self.note.is_file()
            replaced = digest_path(self.note) if self.note and there else None
            write_sealed_json(self.folder / RUN_NOTE, {**self.about, _REPLACED: replaced})

    def _clean(self) -> None:
        """Remove the checkpoints of a finished run, and the claim."""
        for state in self.states:
            if not state.folder:
                state.path.unlink(missing_ok=True)
        self._remove()

    def _remove(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _checkpoints(self) -> list[str]:
        """List the checkpoints that a run left; unfinished files are not among them."""
        if self.folder is None or not self.folder.is_dir():
            return []
        names = sorted(path.name for path in self.folder.iterdir())
        return [n for n in names if n != RUN_NOTE and not n.startswith(".")]

    def _refuse_others(self, claimed: Mapping[str, Any] | None) -> None:
        """Refuse what other runs wrote, or could still finish, unless it may be replaced."""
        if not self.overwrite and self._checkpoints():
            raise StoreError(
                f"{self.outputs[0].option} {self.outputs[0].path} has an interrupted run "
                f"{_find_difference(claimed or {}, self.about)}. Finish it with its own "
                f"command, or pass --overwrite, or delete {self.folder}, to start anew."
            )
        for output in self.outputs:
            output.refuse(output.path, overwrite=self.overwrite)

    def _signatures(self) -> list[tuple[int, int] | None]:
        """What tells whether an output was written since."""
        return [
            (state.st_ino, state.st_mtime_ns)
            if (state := _stat(output.path)) is not None
            else None
            for output in self.outputs
        ]


def hidden_beside(path: Path) -> Path:
    """Name the hidden folder of a run beside its first output."""
    path = Path(os.path.abspath(path))
    name = path.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = sha256(os.fsencode(name)).hexdigest()[:32]
    return path.with_name(f".{name}.run")


def digest_path(path: Path) -> str:
    """Hash a file, or all files under a folder; of a large file its length and 64 samples."""
    # Of very many files the last large ones are known by their names and lengths only.
    digest = sha256()
    files = [path] if path.is_file() else _list_under(path)
    for index, file in enumerate(files):
        size = file.stat().st_size
        digest.update(
            f"{file.relative_to(path).as_posix()} {size}\n".encode(errors="replace")
        )
        if index >= _MOST_FILES and size > _SAMPLE:
            continue
        with file.open("rb") as opened:
            if size <= _WHOLE:
                digest.update(opened.read())
                continue
            for sample in range(_SAMPLES):
                opened.seek(sample * (size - _SAMPLE) // (_SAMPLES - 1))
                digest.update(opened.read(_SAMPLE))
    return digest.hexdigest()


def _list_under(folder: Path) -> list[Path]:
    """List the files under a folder, without hidden ones, such as the claim of a run there."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(
        path
        for path in found
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _find_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Say in what two runs differ first."""
    for part, values in here.items():
        before = there.get(part)
        if not isinstance(values, Mapping) or not isinstance(before, Mapping):
            if before != values:
                return f"of {before!r}, here it is {values!r}"
            continue
        for name in [*values, *before]:
            if before.get(name) != values.get(name):
                if part == "inputs":
                    return f"with another content of {name}"
                return f"with {name} {before.get(name)!r}, here it is {values.get(name)!r}"
    return "that cannot be read"


def _read(path: Path) -> dict[str, Any] | None:
    """Read a description; None if there is none, or not one of ours."""
    try:
        return read_sealed_json(path, what="description of a run", advice="Delete it.")
    except StoreError:
        return None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
