"""Many records side by side: means over seeds, and differences of what shares a seed.

Intervals are Student's, over seeds (or splits): what another seed would change. Splits of
the same rows into training and test rows overlap, so their numbers vary too little: the
variance of a mean of n is s²(1/n + r) then, with r test rows to a training row (Nadeau and
Bengio, 2003). Two methods are compared by the differences within each seed, on the same test
rows. Where seeds share test rows, other rows would change the difference too: the variance
that rows bring is added, from the losses of every row that records hold (older ones do not).
Over all data sets each counts alike and only its seeds and rows vary: nothing is said of
other data sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isclose, sqrt
from statistics import fmean, median, variance
from typing import Any

from scipy.stats import t as student

from smidgen.errors import DataError
from smidgen.report import fields
from smidgen.runtime.record import Record

LEVEL = 0.95
FEWEST = 3
"""How many differences it takes for a verdict."""
_TOLERANCE = 1e-4
DataSeed = tuple[str, int]
"""The name of a data set and a seed."""


@dataclass(frozen=True)
class SeedMean:
    """A mean over seeds, its standard error and interval (None if there is one seed only).

    Fewer than three numbers allow no verdict, wherever their interval lies. `chance` is the
    probability of a mean so far from zero if it were zero (Student's, two-sided).
    """

    value: float
    low: float | None
    high: float | None
    count: int
    error: float | None = None
    chance: float | None = None

    @property
    def below_zero(self) -> bool:
        """Whether the whole interval lies below zero."""
        return self.high is not None and self.high < 0 and self.count >= FEWEST

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval lies above zero."""
        return self.low is not None and self.low > 0 and self.count >= FEWEST


def average_seeds(values: Sequence[float], test_to_train: float = 0.0) -> SeedMean:
    """Compute the mean and Student's interval of one number per seed."""
    return average_groups([values], [test_to_train])


def average_groups(
    groups: Sequence[Sequence[float]],
    test_to_train: Sequence[float] | None = None,
    of_rows: float = 0.0,
) -> SeedMean:
    """Average the means of groups (one number per seed in each), which count alike.

    Args:
        groups: Numbers by data set, one for each seed.
        test_to_train: By data set, test rows to a training row where seeds are splits.
        of_rows: What test rows add to the variance of the mean of a data set, averaged over
            data sets.

    Returns:
        The mean, with an interval if every group has several seeds.
    """
    mean, count = fmean(map(fmean, groups)), sum(map(len, groups))
    if any(len(group) < 2 for group in groups):
        return SeedMean(mean, None, None, count)
    # The variance is Σ s²_g(1/n_g + r_g) / G².
    shares = [
        (variance(group) * (1 / len(group) + ratio) / len(groups) ** 2, len(group) - 1)
        for group, ratio in zip(groups, test_to_train or [0.0] * len(groups), strict=True)
    ]
    known = of_rows / len(groups)
    error, freedom = _find_error(shares, known)
    chance = 2 * float(student.sf(abs(mean) / error, freedom)) if error else float(not mean)
    return SeedMean(mean, *find_interval(mean, shares, known), count, error, chance)


def find_interval(
    mean: float, shares: Sequence[tuple[float, int]], known: float = 0.0
) -> tuple[float, float]:
    """Find Student's interval of a mean whose variance is a sum of estimates."""
    error, freedom = _find_error(shares, known)
    half = float(student.ppf((1 + LEVEL) / 2, freedom)) * error
    return mean - half, mean + half


def _find_error(shares: Sequence[tuple[float, int]], known: float) -> tuple[float, float]:
    """The standard error of a mean, and its degrees of freedom."""
    # Each share has its degrees of freedom (those of the sum are Satterthwaite's), while
    # `known` is so well known that it costs none.
    error = known + sum(share for share, _ in shares)
    spent = sum(share**2 / freedom for share, freedom in shares)
    return sqrt(error), error**2 / spent if spent else inf


@dataclass(frozen=True)
class RecordTable:
    """The methods of several records by data set, seed and name.

    `names` are the data sets of the records; `test_to_train` holds, by data set, the test
    rows to a training row where seeds are splits of the same rows, else zero.
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
        """List the seeds of a data set."""
        return sorted(seed for _, seed in self.pairs(data))

    def pairs(self, data: str | None = None) -> list[DataSeed]:
        """List every data set and seed, or those of one data set."""
        keys = ((name, seed) for name, seed, _ in self.entries if data in (None, name))
        return list(dict.fromkeys(keys))

    def value(self, pair: DataSeed, method: str, score: str) -> float | None:
        """Read one number of a method on a data set and seed."""
        entry = self.entries.get((*pair, method), {})
        if score == fields.SQUARED_CALIBRATION:
            return fields.read_squared_calibration(entry)
        name, _, part = score.partition(".")
        if part == "floor":
            return fields.read_floor(entry, name)
        estimate = fields.read_score(entry, score)
        value = entry.get(score) if estimate is None else estimate["value"]
        return None if value is None else float(value)

    def values(self, data: str, method: str, score: str) -> list[float]:
        """List a method's numbers on a data set, one for each seed that has it."""
        values = (self.value(pair, method, score) for pair in self.pairs(data))
        return [value for value in values if value is not None]

    def mean(self, data: str, method: str, score: str) -> SeedMean | None:
        """Average a method's numbers over the seeds of a data set."""
        values = self.values(data, method, score)
        return average_seeds(values, self.test_to_train[data]) if values else None

    def difference(
        self, method: str, other: str, score: str, data: str | None = None
    ) -> SeedMean | None:
        """Average a method's score less another's, within each seed that has both."""
        gaps: dict[str, list[float]] = {}
        for pair in self.pairs(data):
            ours, theirs = (self.value(pair, name, score) for name in (method, other))
            if ours is not None and theirs is not None:
                gaps.setdefault(pair[0], []).append(ours - theirs)
        if not gaps or method == other:
            return None
        # Over all data sets, those with a single such seed only count if no other has more.
        gaps = {name: values for name, values in gaps.items() if len(values) > 1} or gaps
        of_rows = [self._vary_rows(name, method, other) for name in gaps]
        return average_groups(
            list(gaps.values()),
            [self.test_to_train[name] for name in gaps],
            fmean(of_rows) if score == fields.LOSS else 0.0,
        )

    def median(self, data: str, method: str, score: str) -> float | None:
        """Take the median of a method's numbers over the seeds of a data set."""
        values = self.values(data, method, score)
        return median(values) if values else None

    def _vary_rows(self, data: str, method: str, other: str) -> float:
        """The variance that test rows bring to the mean NLL difference of two methods."""
        if self.test_to_train[data]:
            # Each split has test rows of its own, so seeds vary by them too.
            return 0.0
        pairs = [
            [
                (self.entries.get((*pair, name)) or {}).get("losses")
                for name in (method, other)
            ]
            for pair in self.pairs(data)
        ]
        held = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
        if not held or len({len(losses) for pair in held for losses in pair}) > 1:
            return 0.0
        # Seeds share the rows, so a row's differences are averaged over seeds first.
        gaps = [[a - b for a, b in zip(*pair, strict=True)] for pair in held]
        by_row = [fmean(row) for row in zip(*gaps, strict=True)]
        return variance(by_row) / len(by_row) if len(by_row) > 1 else 0.0

    def ranks(self, score: str) -> dict[str, float]:
        """Average the ranks by a score, lowest first, of methods that every pair has."""
        pairs = self.pairs()
        ranks: dict[str, list[int]] = {
            method: []
            for method in self.methods
            if all(self.value(pair, method, score) is not None for pair in pairs)
        }
        for pair in pairs:
            ordered = sorted(ranks, key=lambda m: (self.value(pair, m, score), m))
            for rank, method in enumerate(ordered, 1):
                ranks[method].append(rank)
        return {method: fmean(values) for method, values in ranks.items()}

    def lowest(self, data: str) -> str | None:
        """Find the method of the lowest mean NLL, whether clearly or not."""
        losses = {
            m: values for m in self.methods if (values := self.values(data, m, "nll"))
        }
        most = max(map(len, losses.values()), default=0)
        # A mean over fewer seeds may be low because of them.
        means = {m: fmean(values) for m, values in losses.items() if len(values) == most}
        return min(means, key=lambda m: means[m], default=None)

    def parts(self, data: str, part: str) -> list[Any]:
        """List one part of the results of every record of a data set that has it."""
        parts = (fields.read_part(record, part) for record in self.records_of(data))
        return [part for part in parts if part]

    def records_of(self, data: str) -> list[Record]:
        """List the records of a data set."""
        named = zip(self.names, self.records, strict=True)
        return [record for name, record in named if name == data]


def gather(records: Iterable[Record], test_to_train: float = 0.0) -> RecordTable:
    """Put records of any kind side by side; a larger `test_to_train` of theirs counts."""
    records = tuple(records)
    names = tuple(_name_data(records))
    entries: dict[tuple[str, int, str], Mapping[str, Any]] = {}
    labels: dict[str, str] = {}
    ratios = dict.fromkeys(names, test_to_train)
    for data, record in zip(names, records, strict=True):
        ratios[data] = max(ratios[data], float(record.config.get("test_to_train", 0.0)))
        for method in fields.list_methods(record):
            key = (data, record.seed or 0, method["name"])
            _require_same(key, entries.setdefault(key, method), method)
            labels.setdefault(method["name"], fields.read_label(method))
    if not entries:
        kinds = ", ".join(dict.fromkeys(record.kind for record in records))
        raise DataError(
            "the records must hold at least one method scored on test data, as those of "
            "'smidgen study run', 'ramp' or 'evaluate' do, got none in records "
            f"of {kinds}: trials and chains alone have no page."
        )
    return RecordTable(records, names, entries, labels, ratios)


def _name_data(records: Iterable[Record]) -> Iterator[str]:
    """Name the data of each record; a number tells data of one name apart."""
    variants: dict[str, list[object]] = {}
    for record in records:
        config = record.config
        data = config.get("data")
        if isinstance(data, Mapping):
            name = str(data.get("name", "data"))
        else:
            name = str(data or config.get("title") or config.get("model") or "data")
        seen = variants.setdefault(name, [])
        if data not in seen:
            seen.append(data)
        index = seen.index(data)
        yield f"{name} ({index + 1})" if index else name


def _require_same(
    key: tuple[str, int, str], first: Mapping[str, Any], second: Mapping[str, Any]
) -> None:
    """Check that cells that score the same method, as the point estimate, agree on it."""
    for score in first.get("scores") or ():
        ours, theirs = (fields.read_score(method, score) for method in (first, second))
        if ours is None or theirs is None:
            continue
        values = ours["value"], theirs["value"]
        if not isclose(*values, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            data, seed, name = key
            raise DataError(
                "records on one page must not contradict each other, as those of two "
                f"studies or posteriors may. Got {values[0]:.6g} and {values[1]:.6g} for "
                f"the {score} of {name!r} on {data}, seed {seed}. Make a page of each; "
                "'smidgen evaluate' gives a posterior a --name of its own."
            )
