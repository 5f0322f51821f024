"""What may be said of the differences on a page: clearly to a side, equal, or not told apart.

A page makes many comparisons, and of twenty differences that are none one would seem clear.
So each family of them (over all data sets: of NLL, and of calibration; data set by data set)
is corrected by Holm's step-down rule: the chance that any verdict of a family is wrong is 5 %
at most. What is not clear is either equal, its whole interval within a margin that hardly
anyone would care for, or cannot be told apart: more seeds or rows might tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from smidgen.report import fields
from smidgen.report.many_records.aggregate import FEWEST, LEVEL, RecordTable, SeedMean
from smidgen.report.wording import ALIKE, EQUAL, HIGHER, LOWER

MARGINS: Mapping[str, float] = {fields.LOSS: 0.01, fields.SQUARED_CALIBRATION: 0.001}
"""What hardly anyone would care for: a hundredth of a nat, a squared error of 0.001."""


class Contrast(NamedTuple):
    """How a method does beside another by a score, on one data set or over all of them."""

    method: str
    other: str
    score: str = fields.LOSS
    data: str | None = None


@dataclass(frozen=True)
class Verdicts:
    """The differences that a page speaks of, and what may be said of each.

    `families` names what is corrected together, and how many comparisons it has.
    """

    gaps: Mapping[Contrast, SeedMean]
    sides: Mapping[Contrast, str]
    families: Mapping[str, int]

    def gap(self, contrast: Contrast) -> SeedMean | None:
        """The difference, or None if too few seeds have both methods."""
        return self.gaps.get(contrast)

    def side(self, contrast: Contrast) -> str:
        """What may be said of the difference."""
        return self.sides.get(contrast, ALIKE)


def judge(
    table: RecordTable, baseline: str, pairs: Sequence[tuple[str, str]] = ()
) -> Verdicts:
    """Judge every method against the baseline, and pairs, over all data and set by set.

    Args:
        table: Records side by side.
        baseline: The method that others are compared with.
        pairs: Two methods each that are compared besides.

    Returns:
        The differences that have three seeds or more, and their verdicts.
    """
    known = [pair for pair in pairs if set(pair) <= set(table.methods)]
    beside = [(method, baseline) for method in table.methods if method != baseline]
    both = dict.fromkeys([*beside, *known])
    calibration = fields.SQUARED_CALIBRATION
    parts = _list_parts(table)
    families = {
        "of NLL": [Contrast(*pair) for pair in both],
        "of calibration": [Contrast(*pair, score=calibration) for pair in beside],
        "of NLL on single data sets": [
            Contrast(*pair, data=data) for data in parts for pair in both
        ],
    }
    gaps: dict[Contrast, SeedMean] = {}
    sides: dict[Contrast, str] = {}
    sizes: dict[str, int] = {}
    for words, family in families.items():
        found = dict(_measure(table, family))
        gaps |= found
        sides |= _name_sides(found)
        if found:
            sizes[words] = len(found)
    return Verdicts(gaps, sides, sizes)


def ask(table: RecordTable, method: str, other: str, data: str) -> Contrast:
    """Ask about one data set: a single one is all the data there are."""
    return Contrast(method, other, data=data if data in _list_parts(table) else None)


def find_clear_best(
    table: RecordTable, data: str, baseline: str, verdicts: Verdicts
) -> str | None:
    """Find the method of the lowest mean NLL, if it is clearly below the baseline."""
    lowest = table.lowest(data)
    side = lowest and verdicts.side(ask(table, lowest, baseline, data))
    return lowest if side == LOWER else None


def _list_parts(table: RecordTable) -> list[str]:
    return table.data if len(table.data) > 1 else []


def _measure(
    table: RecordTable, contrasts: Iterable[Contrast]
) -> Iterable[tuple[Contrast, SeedMean]]:
    for contrast in contrasts:
        gap = table.difference(
            contrast.method, contrast.other, contrast.score, contrast.data
        )
        if gap is not None and gap.count >= FEWEST and gap.chance is not None:
            yield contrast, gap


def _name_sides(gaps: Mapping[Contrast, SeedMean]) -> dict[Contrast, str]:
    contrasts = list(gaps)
    adjusted = adjust_by_holm([gaps[q].chance or 0.0 for q in contrasts])
    sides = {}
    for contrast, chance in zip(contrasts, adjusted, strict=True):
        gap = gaps[contrast]
        if chance < 1 - LEVEL and (gap.below_zero or gap.above_zero):
            sides[contrast] = LOWER if gap.value < 0 else HIGHER
        else:
            sides[contrast] = EQUAL if is_within(gap, MARGINS[contrast.score]) else ALIKE
    return sides


def is_within(gap: SeedMean, margin: float) -> bool:
    """Say whether the whole interval of a difference is closer to zero than a margin."""
    if gap.low is None or gap.high is None:
        return False
    return -margin < gap.low and gap.high < margin


def adjust_by_holm(chances: Sequence[float]) -> list[float]:
    """Correct probabilities for being many, by Holm's step-down rule.

    Args:
        chances: A probability for each comparison of a family.

    Returns:
        The probabilities that may be compared with a level as if each were alone.
    """
    order = sorted(range(len(chances)), key=lambda i: chances[i])
    adjusted, largest = [0.0] * len(chances), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(chances) - rank) * chances[index]))
        adjusted[index] = largest
    return adjusted
