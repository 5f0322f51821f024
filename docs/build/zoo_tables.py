"""Tables of docs/models.md: what the zoo's record says of every architecture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from docs.build.measured import DASH, make_rows, of_bench

from smidgen.runtime.record import Record

_HEADS = (
    "architecture",
    "outputs",
    "weights covered",
    "layers fitted",
    "whole path",
    "verify",
)
_Row = Mapping[str, Any]


@of_bench("zoo", "architectures")
def short_line(record: Record) -> str:
    """One sentence for the README."""
    rows = _list_rows(record)
    most = sum(2 * row["covered"] > row["weights"] for row in rows)
    # A name says after a comma how the network was made.
    names = {row["name"].partition(",")[0] for row in rows}
    return (
        f"**Real models.** {len(names)} architectures of transformers "
        f"{record.versions['transformers']} and plain torch, tiny and random, with heads for "
        f"{len(rows)} tasks in all, go the whole path in a test: "
        f"{sum(not row['refused'] for row in rows)} of the {len(rows)} without any refusal, {most} "
        "with more than half of their weights covered ([table](docs/models.md))."
    )


@of_bench("zoo", "architectures")
def summary(record: Record) -> str:
    """What was run, and how many of all rows went through."""
    rows, config = _list_rows(record), record.config
    versions = {**record.versions, **config}
    named = ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "transformers", "peft")
    )
    compared, lost = (sum(row.get(key, 0) for row in rows) for key in ("agree", "lost"))
    return (
        f"{len(rows)} rows, {sum(not row['refused'] for row in rows)} of them without any refusal "
        f"({named}; `python -m bench zoo`, {sum(row['seconds'] for row in rows):.0f} s of "
        f"processor time). {compared:,} layers agree with the exact computation; of {lost} of "
        "these `kron` keeps no curvature."
    )


@of_bench("zoo", "architectures")
def tables(record: Record) -> str:
    """A table for each kind of input."""
    kinds: dict[str, list[_Row]] = {}
    for row in _list_rows(record):
        kinds.setdefault(row["kind"], []).append(row)
    parts = [
        f"### {kind[0].upper()}{kind[1:]}\n\n"
        + "\n".join(make_rows(_HEADS, map(_cells, rows)))
        for kind, rows in kinds.items()
    ]
    return "\n\n".join(parts)


@of_bench("zoo", "architectures")
def refusals(record: Record) -> str:
    """Every sentence by which a row is refused."""
    return "\n".join(
        f"- {row['name']}, {row['task']}; {step}: “{sentence}”"
        for row in _list_rows(record)
        for step, sentence in row["refused"].items()
    )


def _list_rows(record: Record) -> list[_Row]:
    return list(record.results["architectures"].values())


def _cells(row: _Row) -> Iterator[str]:
    own = row["kind"] == "plain torch"
    yield row["name"] if own else f"{row['name']} (`{row['class']}`)"
    yield row["task"]
    yield f"{100 * row['covered'] / row['weights']:.0f} %"
    yield f"{row['fitted']} of {row['layers']}"
    refused = [step for step in row["refused"] if step != "verify"]
    yield f"refused: {', '.join(refused)}" if refused else "yes"
    if "agree" not in row:
        yield "refused" if refused else "**disagrees**"
    elif not row["agree"]:
        yield DASH
    else:
        lost = f", {row['lost']} lost by `kron`" if row["lost"] else ""
        yield f"{row['agree']} agree{lost}"


TABLES = {
    "zoo-short": short_line,
    "zoo-summary": summary,
    "zoo-tables": tables,
    "zoo-refusals": refusals,
}
