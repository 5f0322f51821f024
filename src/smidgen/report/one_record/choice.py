"""What `smidgen.bayesify` tried and kept, as a small table with one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from smidgen.report import fields
from smidgen.report.formats import (
    format_count,
    format_nll,
    format_ratio,
    format_signed,
)
from smidgen.report.one_record.decision_tables import Table
from smidgen.report.one_record.tables import Column, Row, make_cell
from smidgen.runtime.record import Record


def describe_choice(record: Record) -> dict[str, Any] | None:
    """Prepare what a page shows of the choice among candidates, if there was one."""
    choice: Mapping[str, Any] | None = fields.read_part(record, "choice")
    if not choice or not choice.get("candidates"):
        return None
    return {
        "sentence": choice.get("verdict") or "",
        "kept": choice["kept"],
        "rows": choice["rows"],
        "table": _tabulate_candidates(choice["candidates"]),
        "left_out": [
            f"Not tried: {each['label']}: {each['reason']}."
            for each in choice.get("left_out") or ()
        ],
    }


def _tabulate_candidates(candidates: list[Mapping[str, Any]]) -> Table:
    first = candidates[0]
    signed = partial(format_signed, places=4)
    columns = (
        Column("choice.nll", "NLL, held-out", "↓", format_nll),
        Column("choice.difference", "Against the first", "↓", signed),
        Column("choice.floats", "Floats stored", "↓", format_count),
        Column("choice.relative_seconds", "Time / forward", "↓", format_ratio),
    )
    rows = []
    for each in candidates:
        gap = {"value": each["difference"], "low": each["low"], "high": each["high"]}
        measured = (
            each["nll"],
            None if each is first else gap,
            each["floats"],
            each["relative_seconds"],
        )
        cells = (make_cell(*pair) for pair in zip(columns, measured, strict=True))
        rows.append(Row(each["name"], each["label"], tuple(cells)))
    return Table(columns, rows)
