"""The committed records of a study, as its file has it now."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from smidgen.record import Record
from smidgen.study.definition import read_study
from smidgen.study.ledger import Ledger, state_of

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
    own = ROOT / "studies" / f"{study}.toml"
    cells = read_study(str(own) if own.is_file() else study).cells
    return tuple(map(ledger.record, state_of(cells, ledger).done))


def missing(study: str) -> str:
    """What a page says where a table will be."""
    told = f"smidgen study run {study} --data FOLDER --out results/{study}"
    return f"No record is there yet: `{told}`."
