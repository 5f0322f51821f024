"""What we found: sentences made of the numbers of many records, and of nothing else."""

from __future__ import annotations

from smidgen.outputs.likelihood import is_extreme
from smidgen.report import fields
from smidgen.report.formats import (
    format_nll,
    format_signed,
    format_significant,
)
from smidgen.report.many_records.aggregate import FEWEST, RecordTable, SeedMean
from smidgen.report.many_records.trials import describe_edges

# Questions one asks of such records: the first of a pair against the second.
_PAIRS = (
    ("sparse-kfac", "full"),
    ("sparse-kfac", "last-layer"),
    ("sparse-kfac", "random"),
    ("random", "max-attention"),
    ("random", "max-mlp"),
    ("max-attention", "min-attention"),
    ("sparse-kfac", "ensemble-temperature"),
    ("sparse-kfac", "dropout-temperature"),
    ("swag-random", "random"),
    ("swag-magnitude", "swag-full"),
    ("laplace-magnitude", "laplace-variance"),
    ("laplace-magnitude", "laplace-random"),
    ("laplace-magnitude", "laplace-full"),
    ("swag-magnitude", "swag-variance"),
    ("swag-magnitude", "laplace-magnitude"),
    ("laplace-bayestune", "laplace-random"),
    ("laplace-bayestune", "laplace-magnitude"),
    ("laplace-bayestune", "laplace-bayestune-warm"),
    ("laplace-ssvi", "laplace-random"),
    ("laplace-variance", "laplace-random"),
    ("laplace-sparse-kfac", "laplace-random"),
    ("laplace-last-layer", "laplace-random"),
    ("swag-bayestune", "swag-random"),
    ("swag-ssvi", "swag-random"),
    ("dense-vi", "dense"),
    ("dense-vi-temperature", "dense-temperature"),
    ("ssvi-10", "sparse-10"),
    ("ssvi-10-temperature", "sparse-10-temperature"),
    ("ssvi-10", "dense-vi-pruned-10"),
    ("ssvi-5", "sparse-5"),
    ("ssvi-5-temperature", "sparse-5-temperature"),
    ("ssvi-5", "dense-vi-pruned-5"),
    ("ssvi-5", "ssvi-5-magnitude"),
    ("ssvi-5", "ssvi-5-expected"),
    ("ssvi-5", "ssvi-5-exponential"),
    ("ssvi-5", "ssvi-5-exponential-snr"),
    ("ssvi-5", "ssvi-5-uniform"),
    ("ssvi-5", "ssvi-5-global"),
)
_CONSTANT = "constant"


def findings(across: RecordTable, baseline: str) -> list[str]:
    """Say what the numbers say, and how surely."""
    lines = [_of_data(across, data, baseline) for data in across.data]
    lines += _counted(across, baseline, "nll", "NLL")
    lines += _counted(across, baseline, "ece_equal_mass", "ECE")
    known = set(across.methods)
    for first, second in _PAIRS:
        if {first, second} <= known:
            found = across.difference(first, second, "nll")
            if found is not None and found.count >= FEWEST:
                lines.append(_compared(across, first, second, found))
    lines += _worse_than_nothing(across)
    lines += _at_edges(across)
    return [line for line in lines if line]


def _of_data(across: RecordTable, data: str, baseline: str) -> str:
    lowest = across.lowest(data)
    mean = lowest and across.mean(data, lowest, "nll")
    if not lowest or not mean:
        return ""
    opening = f"{data}: the lowest mean NLL is {format_nll(mean.value)}, of {_name(across, lowest)}"
    if lowest == baseline:
        return f"{opening}, the baseline itself."
    gap = across.difference(lowest, baseline, "nll", data)
    if gap is None:
        return f"{opening}; {_name(across, baseline)} was not measured beside it."
    if gap.count < FEWEST:
        few = {1: "one pair bears", 2: "two pairs bear"}[gap.count]
        told = f"difference to {_name(across, baseline)} {format_signed(gap.value)}"
        return f"{opening} ({told}; {few} no verdict)."
    clearly = "clearly" if gap.below_zero else "not clearly"
    return f"{opening}, {clearly} below {_name(across, baseline)} ({_said(gap)})."


def _counted(across: RecordTable, baseline: str, score: str, text: str) -> list[str]:
    """How many methods beat the baseline over all data, and which."""
    if baseline not in across.methods:
        return []
    gaps = {
        method: gap
        for method in across.methods
        if (gap := across.difference(method, baseline, score)) is not None
        if gap.count >= FEWEST
    }
    if not gaps:
        return []
    better = sorted((m for m in gaps if gaps[m].below_zero), key=lambda m: gaps[m].value)
    worse = [m for m in gaps if gaps[m].above_zero]
    named = f": {', '.join(_name(across, m) for m in better[:6])}" if better else ""
    more = " and others" if len(better) > 6 else ""
    several = [data for data in across.data if len(across.seeds(data)) > 1]
    whole = len(several) in (0, len(across.data))
    have = _agreeing(len(several), "has", "have")
    where = "all data" if whole else f"{', '.join(several)}, which {have} seeds enough"
    methods = _agreeing(len(gaps), "method", "methods")
    are, are_worse = (_agreeing(len(each), "is", "are") for each in (better, worse))
    return [
        f"Over {where}, {len(better)} of {len(gaps)} {methods} {are} clearly better in "
        f"{text} than {_name(across, baseline)}{named}{more}; {len(worse)} {are_worse} "
        "clearly worse. Of so many comparisons one in twenty would be by chance."
    ]


def _compared(across: RecordTable, first: str, second: str, found: SeedMean) -> str:
    verb = "cannot be told from"
    if found.below_zero:
        verb = "is clearly better than"
    elif found.above_zero:
        verb = "is clearly worse than"
    said = f"{_name(across, first)} {verb} {_name(across, second)} in NLL"
    return f"{said} ({_said(found)}).{_by_data(across, first, second)}"


def _by_data(across: RecordTable, first: str, second: str) -> str:
    """On which data sets by themselves: a mean over them may be that of one."""
    gaps = {data: across.difference(first, second, "nll", data) for data in across.data}
    known = {data: gap for data, gap in gaps.items() if gap and gap.low is not None}
    if len(known) < 2:
        return ""
    sides = {
        "clearly better on": [data for data, gap in known.items() if gap.below_zero],
        "clearly worse on": [data for data, gap in known.items() if gap.above_zero],
    }
    parts = [f"{side} {', '.join(some)}" for side, some in sides.items() if some]
    return f" Data set by data set: {' and '.join(parts) or 'on none clearly'}."


def _worse_than_nothing(across: RecordTable) -> list[str]:
    found = []
    for data in across.data:
        floor = across.mean(data, _CONSTANT, "nll")
        gaps = {m: across.difference(m, _CONSTANT, "nll", data) for m in across.methods}
        above = [m for m, gap in gaps.items() if gap and gap.value > 0]
        names = ", ".join(_name(across, m) for m in above)
        if floor is not None and above:
            verb = _agreeing(len(above), "has", "have")
            found.append(
                f"{data}: a constant prediction has NLL {format_nll(floor.value)}; on average of "
                f"the same seeds {names} {verb} a higher one."
            )
    return found


def _at_edges(across: RecordTable) -> list[str]:
    """Which settings that were chosen might be better still beyond what was tried."""
    choices = {
        f"{data}: {fields.read_label(methods[0])}": fields.read_part(record, "choice")
        for data, record in zip(across.names, across.records, strict=True)
        if fields.read_part(record, "choice") and (methods := fields.list_methods(record))
    }
    return [
        *describe_edges(choices),
        *_precisions_at_edges(across),
        *_extreme_temperatures(across),
        *_rates_at_edges(across),
    ]


def _precisions_at_edges(across: RecordTable) -> list[str]:
    """Of posteriors whose precision validation data chose at an end of its grid."""
    told = [
        (data, bool(entry["precision_at_edge"]))
        for (data, _, _), entry in across.entries.items()
        if entry.get("precision_at_edge") is not None
    ]
    ends = [data for data, at_edge in told if at_edge]
    if not ends:
        return []
    parts = ", ".join(f"{data} {ends.count(data)}" for data in dict.fromkeys(ends))
    posteriors = _agreeing(len(told), "posterior", "posteriors")
    have = _agreeing(len(ends), "has", "have")
    return [
        f"{len(ends)} of {len(told)} {posteriors} {have} a precision at an end of its grid "
        f"({parts}), marked † in tables: at the lower end a wider prior might do better, "
        "at the upper end hardly anything of the posterior is left."
    ]


def _extreme_temperatures(across: RecordTable) -> list[str]:
    """Of predictions whose temperature no well-sized validation set would ask for."""
    found = [
        f"{_name(across, method)} on {data} (seed {seed}: {format_significant(scale)})"
        for (data, seed, method), entry in across.entries.items()
        if (scale := entry.get("temperature")) is not None and is_extreme(scale)
    ]
    if not found:
        return []
    return [
        f"The temperature is more than tenfold from one for {', '.join(found)}: the "
        "held-out rows were too few to choose by, or the model knows little of them."
    ]


def _rates_at_edges(across: RecordTable) -> list[str]:
    """Of runs of SWAG whose rate validation data chose at an end of those tried."""
    lowest = highest = count = 0
    for record in across.records:
        told = (record.config.get("settings") or {}).get("rates") or ()
        for method in fields.list_methods(record):
            tried, rate = method.get("rates") or told, method.get("learning_rate")
            if rate is not None and len(tried) > 1:
                count += 1
                lowest += rate <= min(tried)
                highest += rate >= max(tried)
    if not lowest + highest:
        return []
    runs = _agreeing(count, "run", "runs")
    return [
        f"Of {count} {runs} of SWAG, {lowest} took the lowest rate that was tried and "
        f"{highest} the highest, so better may lie beyond."
    ]


def _agreeing(count: int, one: str, several: str) -> str:
    """The word that goes with a number."""
    return one if count == 1 else several


def _said(gap: SeedMean) -> str:
    text = f"difference {format_signed(gap.value)}"
    if gap.low is None or gap.high is None:
        return f"{text}, one pair of each data set, so no interval"
    ends = f"{format_signed(gap.low)} to {format_signed(gap.high)}"
    return f"{text}, 95\u202f% interval {ends}, {gap.count} pairs"


def _name(across: RecordTable, method: str) -> str:
    # Names have commas of their own.
    return f"“{across.labels.get(method, method)}”"
