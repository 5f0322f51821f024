"""`Choice`: what was tried beside a posterior, and why it was kept.

`smidgen.bayesify` tries candidates in the order of their cost and keeps the cheapest that is
not clearly worse than the best. The account of it stays with the posterior, in its folder too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from smidgen.errors import StoreError
from smidgen.runtime.reading import convert_json, make_from_json
from smidgen.runtime.showing.html import Printed, PrintedTable, ShownAsTable


@dataclass(frozen=True)
class TriedCandidate:
    """One way to predict, and how it did on rows that did not calibrate it.

    Args:
        name: Its name in records, such as "last-layer".
        label: Its name for readers.
        floats: How many floats it keeps beside the model.
        relative_seconds: What a prediction takes over a plain forward pass, if measured.
        nll: The mean NLL of the held-out rows, each predicted with a precision and
            temperature that were chosen on other folds.
        difference: By how much that is above the first candidate's: below zero is better.
        low: The lower end of its interval.
        high: The upper end.
        clearly_worse: Whether it is above the best candidate's by more than the choice of rows
            explains.
    """

    name: str
    label: str
    floats: int
    relative_seconds: float | None
    nll: float
    difference: float
    low: float
    high: float
    clearly_worse: bool


@dataclass(frozen=True)
class LeftOutCandidate:
    """One that was not tried, and the reason, which ends a sentence."""

    name: str
    label: str
    reason: str


@dataclass(frozen=True)
class _Plain:
    """The fields of a choice that JSON has as they are."""

    kept: str
    rows: int
    folds: int


@dataclass(frozen=True)
class Choice(ShownAsTable):
    """The candidates in the order of their cost, and the one that was kept.

    The first is temperature scaling; of a regression, the model with its noise refitted.
    Print it for the account in words and a table.

    Args:
        kept: The name of the candidate that was kept.
        candidates: Those that were tried, the cheapest first.
        left_out: Those that were not.
        rows: How many held-out rows scored them.
        folds: In how many folds.
    """

    kept: str
    candidates: tuple[TriedCandidate, ...]
    left_out: tuple[LeftOutCandidate, ...]
    rows: int
    folds: int

    def __post_init__(self) -> None:
        if self.kept not in [candidate.name for candidate in self.candidates]:
            raise StoreError(
                f"the kept candidate {self.kept[:80]!r} is not among the tried"
            )

    @property
    def kept_candidate(self) -> TriedCandidate:
        """The candidate that was kept."""
        return next(each for each in self.candidates if each.name == self.kept)

    @property
    def best_candidate(self) -> TriedCandidate:
        """The candidate with the lowest NLL, whatever it costs."""
        return min(self.candidates, key=lambda candidate: candidate.nll)

    def verdict(self) -> str:
        """Say what was kept and why, in a sentence."""
        kept, best = self.kept_candidate, self.best_candidate
        first, *others = self.candidates
        if not others:
            return f"{first.label}: nothing else was tried."
        if best is first:
            return f"{first.label}: nothing that was tried has a lower NLL."
        if kept is first:
            return (
                f"{first.label}: nothing is clearly better. The best, {_within(best.label)}, "
                f"has an NLL {_compare(best, first)}."
            )
        after = self.candidates[self.candidates.index(kept) + 1 :]
        if not after:
            rest = "nothing cheaper does as well"
        elif kept.name == "last-layer":
            rest = "deeper layers add nothing that can be told"
        else:
            rest = "what costs more adds nothing that can be told"
        return f"{kept.label}: NLL {_compare(kept, first)}; {rest}."

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values, for `from_json`."""
        values = asdict(self)
        return {
            **values,
            **{name: list(values[name]) for name in ("candidates", "left_out")},
        }

    def describe(self) -> dict[str, Any]:
        """List the same for a record, with the verdict in words."""
        return {**self.to_json(), "verdict": self.verdict()}

    @classmethod
    def from_json(cls, stored: object) -> Choice:
        """Read what `to_json` wrote, refusing all else."""
        values = convert_json(stored, dict, "choice")
        # Their entries are objects themselves, so each is read by its own kind.
        tried, left_out = (
            convert_json(values.pop(name, None), list, f"choice[{name}]")
            for name in ("candidates", "left_out")
        )
        plain = make_from_json(_Plain, values)
        return cls(
            kept=plain.kept,
            candidates=tuple(make_from_json(TriedCandidate, x) for x in tried),
            left_out=tuple(make_from_json(LeftOutCandidate, x) for x in left_out),
            rows=plain.rows,
            folds=plain.folds,
        )

    def printed_parts(self) -> list[Printed]:
        """List the verdict, the table of candidates and the notes."""
        first, *_ = self.candidates
        heading = f"against {_within(first.label)}"
        rows = [("", "NLL", heading, "95 % interval", "floats", "cost", "")]
        for each in self.candidates:
            cost, gap, interval = each.relative_seconds, "", ""
            if each is not first:
                gap = f"{each.difference:+.4f}"
                interval = f"{each.low:+.4f} to {each.high:+.4f}"
            rows.append(
                (
                    each.label,
                    f"{each.nll:.4f}",
                    gap,
                    interval,
                    f"{each.floats:,}",
                    "–" if cost is None else f"{cost:.2f} ×",
                    "kept" if each.name == self.kept else "",
                )
            )
        note = (
            f"{self.rows:,} held-out rows in {self.folds} folds, each scored with what the others "
            "chose. Cost: a prediction's time over a plain forward pass's. The order: what "
            "needs no backward pass through the network first, then by floats."
        )
        left_out = [f"Not tried: {each.label}: {each.reason}." for each in self.left_out]
        return [self.verdict(), "", PrintedTable(rows, left=(0, 6)), "", note, *left_out]


def _compare(candidate: TriedCandidate, first: TriedCandidate) -> str:
    """Write how far a candidate is from the first: "0.019 below temperature scaling (…)"."""
    value, low, high = candidate.difference, candidate.low, candidate.high
    side = "above"
    if value <= 0:
        value, low, high, side = -value, -high, -low, "below"
    return f"{value:.3f} {side} {_within(first.label)} ({low:.3f} to {high:.3f})"


def _within(label: str) -> str:
    """Write a label inside a sentence, where only proper names keep their capitals."""
    proper = label.startswith(("MAP", "Sparse-KFAC"))
    return label if proper else label[0].lower() + label[1:]
