"""The committed records of a study, as its file has it now."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from smidgen.report.many_records.aggregate import RecordTable, gather
from smidgen.runtime.record import Record
from smidgen_studies.engine.ledger import Ledger, state_of
from smidgen_studies.engine.study import Study, read_study

ROOT = Path(__file__).parents[1]


@cache
def records_of(study: str) -> tuple[Record, ...]:
    """Read the records of its cells; what else lies in the folder is left out.

    Args:
        study: A study that comes with smidgen, or one of this folder.

    Returns:
        The records.
    """
    ledger = Ledger(ROOT / "results" / study)
    return tuple(map(ledger.record, state_of(_read(study).cells, ledger).done))


@cache
def across_of(study: str) -> RecordTable | None:
    """Put a study's records side by side as its page does, if one scores anything."""
    known = records_of(study)
    if not any(each.results.get("methods") for each in known):
        return None
    return gather(known, _read(study).test_to_train)


@cache
def recipe_records() -> dict[str, list[Record]]:
    """Read the records of `studies.recipes`, by task."""
    by_task: dict[str, list[Record]] = {}
    for path in sorted((ROOT / "results" / "recipes").glob("*.json")):
        record = Record.load(path)
        by_task.setdefault(record.config["task"], []).append(record)
    return by_task


def _read(study: str) -> Study:
    own = ROOT / "studies" / f"{study}.toml"
    return read_study(str(own) if own.is_file() else study)


def missing(study: str) -> str:
    """What a page says where a table will be."""
    told = f"smidgen study run {study} --data FOLDER --out results/{study}"
    return f"No record is there yet: `{told}`."
