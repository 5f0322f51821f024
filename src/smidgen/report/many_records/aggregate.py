"""Many records side by side: means over seeds, and differences of what shares a seed.

Intervals are Student's, over seeds (or splits): what another seed would change. Where seeds
share test rows, nothing is said of other rows. Splits of the same rows into training and
test rows overlap, so their numbers vary too little: the variance of a mean of n is
s²(1/n + r) then, with r test rows to a training row (Nadeau and Bengio, 2003). Two methods
are compared by the differences within each seed, on the same test rows. Over all data sets
each counts alike and only its seeds vary: nothing is said of other data sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isclose, sqrt
from statistics import fmean, variance
from typing import Any

from scipy.stats import t as student

from smidgen.errors import DataError
from smidgen.report import fields
from smidgen.runtime.record import Record

LEVEL = 0.95
FEWEST = 3
"""How many differences bear a verdict."""
_SAME = 1e-4
DataSeed = tuple[str, int]
"""The name of a data set and a seed."""


@dataclass(frozen=True)
class SeedMean:
    """A mean over seeds and its interval; without one if there is but one seed.

    Fewer than three numbers bear no verdict, wherever their interval lies. `error` is the
    standard error of the mean.
    """

    value: float
    low: float | None
    high: float | None
    count: int
    error: float | None = None

    @property
    def below_zero(self) -> bool:
        """Whether the whole interval lies below zero."""
        return self.high is not None and self.high < 0 and self.count >= FEWEST

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval lies above zero."""
        return self.low is not None and self.low > 0 and self.count >= FEWEST


def average_seeds(values: Sequence[float], test_to_train: float = 0.0) -> SeedMean:
    """Mean and Student's interval of numbers that are one for each seed."""
    return average_groups([values], [test_to_train])


def average_groups(
    groups: Sequence[Sequence[float]], test_to_train: Sequence[float] | None = None
) -> SeedMean:
    """Mean of the means of groups, which count alike, and its interval.

    Its variance is Σ s²_g(1/n_g + r_g) / G², its degrees of freedom Satterthwaite's.
    """
    mean, count = fmean(map(fmean, groups)), sum(map(len, groups))
    if any(len(group) < 2 for group in groups):
        return SeedMean(mean, None, None, count)
    shares = [
        (
            variance(group) * (1 / len(group) + ratio) / len(groups) ** 2,
            len(group) - 1,
        )
        for group, ratio in zip(groups, test_to_train or [0.0] * len(groups), strict=True)
    ]
    error = sqrt(sum(share for share, _ in shares))
    return SeedMean(mean, *find_interval(mean, shares), count, error)


def find_interval(
    mean: float, shares: Iterable[tuple[float, int]], known: float = 0.0
) -> tuple[float, float]:
    """Student's interval of a mean whose variance is a sum of estimates."""
    found = list(shares)
    error = known + sum(share for share, _ in found)
    spent = sum(share**2 / freedom for share, freedom in found)
    freedom = error**2 / spent if spent else inf
    half = float(student.ppf((1 + LEVEL) / 2, freedom)) * sqrt(error)
    return mean - half, mean + half


@dataclass(frozen=True)
class RecordTable:
    """What several records say: one entry for each data set, seed and method.

    `names` are of the data of each record; `test_to_train` is `average_groups`'s r by data set.
    """

    records: tuple[Record, ...]
    names: tuple[str, ...]
    entries: Mapping[tuple[str, int, str], Mapping[str, Any]]
    labels: Mapping[str, str]
    test_to_train: Mapping[str, float]

    @property
    def data(self) -> list[str]:
        """The data sets, in the order of the records."""
        return list(dict.fromkeys(data for data, _, _ in self.entries))

    @property
    def methods(self) -> list[str]:
        """The methods, in the order of the records."""
        return list(dict.fromkeys(method for _, _, method in self.entries))

    def seeds(self, data: str) -> list[int]:
        """The seeds of a data set."""
        return sorted({seed for own, seed, _ in self.entries if own == data})

    def pairs(self, data: str | None = None) -> list[DataSeed]:
        """Every data set and seed, or those of one data set."""
        found = ((own, seed) for own, seed, _ in self.entries if data in (None, own))
        return list(dict.fromkeys(found))

    def value(self, pair: DataSeed, method: str, score: str) -> float | None:
        """One number of one method on one data set and seed."""
        entry = self.entries.get((*pair, method))
        if entry is None:
            return None
        found = fields.read_score(entry, score)
        plain = entry.get(score) if found is None else found["value"]
        return None if plain is None else float(plain)

    def values(self, data: str, method: str, score: str) -> list[float]:
        """A method's numbers on a data set, one for each seed that has it."""
        found = (self.value(pair, method, score) for pair in self.pairs(data))
        return [each for each in found if each is not None]

    def mean(self, data: str, method: str, score: str) -> SeedMean | None:
        """A method's mean over the seeds of a data set."""
        known = self.values(data, method, score)
        return average_seeds(known, self.test_to_train[data]) if known else None

    def difference(
        self, method: str, other: str, score: str, data: str | None = None
    ) -> SeedMean | None:
        """A method less another, within each seed."""
        found: dict[str, list[float]] = {}
        for pair in self.pairs(data):
            ours, theirs = (self.value(pair, each, score) for each in (method, other))
            if ours is not None and theirs is not None:
                found.setdefault(pair[0], []).append(ours - theirs)
        if not found or method == other:
            return None
        several = {own: gaps for own, gaps in found.items() if len(gaps) > 1} or found
        return average_groups(
            list(several.values()), [self.test_to_train[own] for own in several]
        )

    def ranks(self, score: str) -> dict[str, float]:
        """Mean rank by a score, lowest first, of methods that every pair has."""
        pairs = self.pairs()
        whole = [
            method
            for method in self.methods
            if all(self.value(pair, method, score) is not None for pair in pairs)
        ]
        places: dict[str, list[int]] = {method: [] for method in whole}
        for pair in pairs:
            ordered = sorted(whole, key=lambda m: (self.value(pair, m, score), m))
            for place, method in enumerate(ordered, 1):
                places[method].append(place)
        return {method: fmean(found) for method, found in places.items()}

    def lowest(self, data: str, score: str = "nll") -> str | None:
        """The method of the lowest mean, whether clearly or not."""
        found = {m: own for m in self.methods if (own := self.values(data, m, score))}
        most = max(map(len, found.values()), default=0)
        # A mean over fewer seeds may be low because of them.
        means = {m: fmean(own) for m, own in found.items() if len(own) == most}
        return min(means, key=lambda m: means[m], default=None)

    def best(self, data: str, baseline: str, score: str = "nll") -> str | None:
        """The method of the lowest mean, if it is clearly below the baseline."""
        lowest = self.lowest(data, score)
        if lowest is None:
            return None
        gap = self.difference(lowest, baseline, score, data)
        return lowest if gap is not None and gap.below_zero else None

    def parts(self, data: str, part: str) -> list[Any]:
        """One part of the results of every record of a data set that has it."""
        own = self.records_of(data)
        return [
            fields.read_part(each, part) for each in own if fields.read_part(each, part)
        ]

    def records_of(self, data: str) -> list[Record]:
        """The records of a data set."""
        named = zip(self.names, self.records, strict=True)
        return [record for name, record in named if name == data]


def gather(records: Iterable[Record], test_to_train: float = 0.0) -> RecordTable:
    """Put records side by side."""
    kept = tuple(records)
    names = tuple(_names(kept))
    entries: dict[tuple[str, int, str], Mapping[str, Any]] = {}
    labels: dict[str, str] = {}
    for data, record in zip(names, kept, strict=True):
        for method in fields.list_methods(record):
            place = (data, record.seed or 0, method["name"])
            _require_same(place, entries.setdefault(place, method), method)
            labels.setdefault(method["name"], fields.read_label(method))
    if not entries:
        kinds = ", ".join(dict.fromkeys(record.kind for record in kept))
        raise DataError(
            "the records must hold at least one method scored on test data, as those of "
            "'smidgen study run', 'ramp' or 'evaluate' do, got none in records "
            f"of {kinds}: trials and chains alone have no page."
        )
    ratios = dict.fromkeys(names, test_to_train)
    for data, record in zip(names, kept, strict=True):
        ratios[data] = max(ratios[data], float(record.config.get("test_to_train", 0.0)))
    return RecordTable(kept, names, entries, labels, ratios)


def _names(records: Iterable[Record]) -> Iterator[str]:
    """Name the data of each record: as its study does, or by its title."""
    known: dict[str, list[object]] = {}
    for record in records:
        config = record.config
        told = config.get("data")
        if isinstance(told, Mapping):
            name = str(told.get("name", "data"))
        else:
            name = str(told or config.get("title") or config.get("model") or "data")
        drawn = known.setdefault(name, [])
        if told not in drawn:
            drawn.append(told)
        place = drawn.index(told)
        yield f"{name} ({place + 1})" if place else name


def _require_same(
    place: tuple[str, int, str], first: Mapping[str, Any], second: Mapping[str, Any]
) -> None:
    """Several cells may score one method, as the point estimate; never otherwise."""
    for score in first.get("scores") or ():
        ours, theirs = (fields.read_score(each, score) for each in (first, second))
        if ours is None or theirs is None:
            continue
        values = ours["value"], theirs["value"]
        if not isclose(*values, rel_tol=_SAME, abs_tol=_SAME):
            data, seed, name = place
            raise DataError(
                "records on one page must not contradict each other, as those of two "
                f"studies or posteriors may. Got {values[0]:.6g} and {values[1]:.6g} for "
                f"the {score} of {name!r} on {data}, seed {seed}. Make a page of each; "
                "'smidgen evaluate' gives a posterior a --name of its own."
            )
