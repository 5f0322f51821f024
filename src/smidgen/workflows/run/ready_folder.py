"""The folder that a run leaves: a model, its posterior with rules, and what training saw."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from smidgen import report
from smidgen.decide import Rules
from smidgen.errors import StoreError
from smidgen.integrations.reading.task_note import TASK_NOTE, TaskNote
from smidgen.posterior.store import load_saved
from smidgen.runtime.files import new_folder, refuse_taken
from smidgen.runtime.record import Record
from smidgen.runtime.writing.claim import RUN_NOTE
from smidgen.runtime.writing.rules_note import RULES_NOTE
from smidgen.workflows.predictor.card import write_card
from smidgen.workflows.predictor.predictor import Predictor
from smidgen.workflows.run.task_model import load_task_model

_MODEL, _POSTERIOR, _RECORD = "model", "posterior", "record.json"
_PAGE = "report.html"
CARD = "README.md"
"""The card of a ready folder."""


@dataclass(frozen=True)
class RunParts:
    """What the steps of a run leave, in its work folder and then in the ready one."""

    folder: Path

    @property
    def model(self) -> Path:
        """The folder of the model."""
        return self.folder / _MODEL

    @property
    def posterior(self) -> Path:
        """The folder of the posterior."""
        return self.folder / _POSTERIOR

    @property
    def rules(self) -> Path:
        """The file of the rules, in the posterior's folder."""
        return self.posterior / RULES_NOTE

    @property
    def record(self) -> Path:
        """The file of the record."""
        return self.folder / _RECORD

    @property
    def page(self) -> Path:
        """The page."""
        return self.folder / _PAGE


def find_ready_folder(name: str | Path) -> RunParts | None:
    """Find a folder that `smidgen run` made, or return None."""
    parts = RunParts(Path(name).expanduser())
    there = os.path.isfile(parts.folder / TASK_NOTE) and os.path.isdir(parts.posterior)
    return parts if there else None


def load_predictor(
    parts: RunParts, *, device: str = "cpu", base: str | Path | None = None
) -> Predictor:
    """Load a ready folder.

    Args:
        parts: The folder.
        device: Where to compute.
        base: A folder with the base that its model was made of, if it names one.

    Returns:
        What predicts.
    """
    note = TaskNote.load(parts.folder)
    task = load_task_model(parts.model, note, device=device, base=base)
    posterior = load_saved(parts.posterior, task.problem)
    rules = Rules.load(parts.posterior) if parts.rules.is_file() else Rules()
    return Predictor(task, posterior, rules)


def refuse_taken_ready(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds anything but an earlier run's results to be replaced."""
    refuse_taken(
        folder,
        overwrite=overwrite,
        needed=TASK_NOTE,
        written=(_MODEL, _POSTERIOR, TASK_NOTE, _RECORD, _PAGE, CARD, RUN_NOTE),
        what="run's results",
    )


def fill_ready_folder(
    work: RunParts, folder: Path, note: TaskNote, *, overwrite: bool
) -> RunParts:
    """Put all that a run made into its folder, whole or not at all.

    Args:
        work: Where the steps left it.
        folder: The folder that the user named.
        note: What training saw.
        overwrite: Replace an earlier run's results.

    Returns:
        The ready folder.

    Raises:
        StoreError: If the folder is taken.
    """
    refuse_taken_ready(folder, overwrite=overwrite)
    record = Record.load(work.record)
    for part in (work.model, work.posterior):
        if not part.is_dir():
            raise StoreError(f"{part} is gone. Start the command again.")
    with new_folder(folder, overwrite=overwrite) as new:
        parts = RunParts(new)
        shutil.copytree(work.model, parts.model)
        shutil.copytree(work.posterior, parts.posterior)
        note.save(new)
        shutil.copyfile(work.record, parts.record)
        report.write(record, parts.page)
        rules = Rules.load(work.posterior)
        card = write_card(str(folder), note, rules, record)
        (new / CARD).write_text(card, encoding="utf-8")
    return RunParts(folder)
