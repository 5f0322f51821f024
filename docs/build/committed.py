"""The records in `results/`, as the study files stand now, and those of the benches."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from smidgen.report.many_records.aggregate import RecordTable, gather
from smidgen.runtime.packed_records import SUFFIX, unpack_records
from smidgen.runtime.record import Record
from smidgen_studies.engine.ledger import Ledger, read_state
from smidgen_studies.engine.study import read_study, shipped_studies

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
BENCHES = ROOT / "bench" / "records"


def list_committed() -> list[str]:
    """List the studies whose cells have records, and pages."""
    return [name for name in shipped_studies() if read_table(name) is not None]


@cache
def read_records(study: str) -> tuple[Record, ...]:
    """Read the records of a study's cells; other records in its file are left out.

    Args:
        study: A study that comes with smidgen.

    Returns:
        The records.
    """
    ledger = Ledger(RESULTS)
    done = read_state(read_study(study).cells, ledger).done
    return tuple(map(ledger.record, done))


@cache
def read_table(study: str) -> RecordTable | None:
    """Put a study's records side by side as its page does, if any of them has scores."""
    records = read_records(study)
    if not any(record.results.get("methods") for record in records):
        return None
    return gather(records, read_study(study).test_to_train)


@cache
def read_packed(name: str) -> dict[str, Record]:
    """Read a file of records by their names, for those that belong to no cell."""
    return unpack_records(RESULTS / f"{name}{SUFFIX}")


def recipe_records() -> dict[str, list[Record]]:
    """Read the records of ways to choose precision and temperature, by task."""
    by_task: dict[str, list[Record]] = {}
    for record in read_packed("recipes").values():
        if "task" in record.config:
            by_task.setdefault(record.config["task"], []).append(record)
    return by_task


def note_missing(study: str) -> str:
    """What a page says in place of a table whose records are not there."""
    command = f"smidgen study run {study} --data FOLDER --out results"
    return f"There are no records yet: `{command}`."


def read_bench(name: str, *keys: str) -> Record | None:
    """Read the record of a bench, if there is one in the form that the bench writes now.

    Args:
        name: The bench.
        keys: What the results must hold.

    Returns:
        The record, or None.
    """
    path = BENCHES / f"{name}.json"
    if not path.is_file():
        return None
    record = Record.load(path)
    return record if all(key in record.results for key in keys) else None


def note_unmeasured(bench: str) -> str:
    """What a page says in place of a table whose bench has no record of this code."""
    return f"There is no record of this code yet: `python -m bench {bench}`."
