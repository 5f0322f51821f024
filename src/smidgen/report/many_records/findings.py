"""What we found: sentences made of the numbers of many records, and of nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from smidgen.outputs.likelihood import is_extreme
from smidgen.report import fields
from smidgen.report.formats import format_nll, format_signed, format_significant
from smidgen.report.many_records.aggregate import FEWEST, RecordTable, SeedMean
from smidgen.report.many_records.trials import describe_edges
from smidgen.report.many_records.verdicts import (
    MARGINS,
    Contrast,
    Verdicts,
    ask,
    judge,
)
from smidgen.report.wording import ALIKE, EQUAL, HIGHER, LOWER

PAIRS = (
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
    ("last-layer", "isotropic"),
    ("last-layer", "head-isotropic"),
    ("sparse-kfac", "isotropic"),
    ("sparse-kfac-head", "last-layer"),
    ("sparse-kfac-head", "ensemble-temperature"),
    ("last-layer", "ensemble-temperature"),
    ("adapter", "adapter-isotropic"),
    ("adapter", "last-layer"),
    ("adapter", "tfb-temperature"),
    ("adapter", "swag-adapter"),
    ("adapter", "ensemble-temperature"),
)
"""Pairs of methods that pages compare besides, where both are there."""
_CONSTANT = "constant"
_MOST_NAMED = 6


def findings(
    table: RecordTable, baseline: str, verdicts: Verdicts | None = None
) -> list[str]:
    """Say what the numbers show, and how surely: of each data set and of each contrast."""
    verdicts = verdicts or judge(table, baseline, PAIRS)
    lines = [_describe_lowest(table, data, baseline, verdicts) for data in table.data]
    lines += _count_sides(table, baseline, verdicts, fields.LOSS, "NLL")
    calibration = "squared calibration error"
    lines += _count_sides(
        table, baseline, verdicts, fields.SQUARED_CALIBRATION, calibration
    )
    for first, second in PAIRS:
        gap = verdicts.gap(Contrast(first, second))
        if gap is not None:
            lines.append(_compare_pair(table, Contrast(first, second), gap, verdicts))
    lines += _explain_verdicts(verdicts)
    lines += _list_worse_than_constant(table)
    lines += _list_edges(table)
    return [line for line in lines if line]


def _describe_lowest(
    table: RecordTable, data: str, baseline: str, verdicts: Verdicts
) -> str:
    lowest = table.lowest(data)
    mean = lowest and table.mean(data, lowest, fields.LOSS)
    if not lowest or not mean:
        return ""
    other = _quote(table, baseline)
    opening = f"{data}: the lowest mean NLL is {format_nll(mean.value)}, of {_quote(table, lowest)}"
    if lowest == baseline:
        return f"{opening}, the baseline itself."
    gap = table.difference(lowest, baseline, fields.LOSS, data)
    if gap is None:
        return f"{opening}; {other} was not measured beside it."
    if gap.count < FEWEST:
        few = {1: "one pair allows", 2: "two pairs allow"}[gap.count]
        difference = f"difference to {other} {format_signed(gap.value)}"
        return f"{opening} ({difference}; {few} no verdict)."
    words = {
        LOWER: f"{LOWER} than that of {other}",
        EQUAL: f"{EQUAL} to that of {other}",
        ALIKE: f"which {ALIKE} from that of {other}",
    }
    side = words[verdicts.side(ask(table, lowest, baseline, data))]
    return f"{opening}, {side} ({_describe_gap(gap)})."


def _count_sides(
    table: RecordTable, baseline: str, verdicts: Verdicts, score: str, text: str
) -> list[str]:
    """Count and name the methods that lie clearly to a side of the baseline over all data."""
    contrasts = [Contrast(method, baseline, score) for method in table.methods]
    gaps = {q.method: gap for q in contrasts if (gap := verdicts.gap(q)) is not None}
    if not gaps:
        return []
    ordered = sorted(gaps, key=lambda m: gaps[m].value)
    sides = {m: verdicts.side(Contrast(m, baseline, score)) for m in ordered}
    lower, equal, alike = (
        [m for m in ordered if sides[m] == side] for side in (LOWER, EQUAL, ALIKE)
    )
    higher = [m for m in reversed(ordered) if sides[m] == HIGHER]
    several = [data for data in table.data if len(table.seeds(data)) > 1]
    where = "all data"
    if len(several) not in (0, len(table.data)):
        have = _agree(len(several), "has", "have")
        where = f"{', '.join(several)}, which {have} enough seeds"
    methods = _agree(len(gaps), "method", "methods")
    has, has_higher, is_equal = (
        _agree(len(group), *words)
        for group, words in (
            (lower, ("has", "have")),
            (higher, ("has", "have")),
            (equal, ("is", "are")),
        )
    )
    return [
        f"Over {where}, {len(lower)} of {len(gaps)} {methods} {has} a {LOWER} {text} than "
        f"{_quote(table, baseline)}{_name_some(table, lower)}; {len(higher)} {has_higher} a "
        f"{HIGHER} one{_name_some(table, higher)}; {len(equal)} {is_equal} {EQUAL}"
        f"{_name_some(table, equal)}; {len(alike)} {ALIKE}."
    ]


def _name_some(table: RecordTable, methods: Sequence[str]) -> str:
    named = ", ".join(_quote(table, m) for m in methods[:_MOST_NAMED])
    more = " and others" if len(methods) > _MOST_NAMED else ""
    return f": {named}{more}" if methods else ""


def _compare_pair(
    table: RecordTable, contrast: Contrast, gap: SeedMean, verdicts: Verdicts
) -> str:
    verb = {
        LOWER: f"has a {LOWER} NLL than",
        HIGHER: f"has a {HIGHER} NLL than",
        EQUAL: f"has an NLL {EQUAL} to that of",
        ALIKE: f"{ALIKE} in NLL from",
    }[verdicts.side(contrast)]
    first, second = contrast.method, contrast.other
    claim = f"{_quote(table, first)} {verb} {_quote(table, second)}"
    by_data = _compare_by_data(table, contrast, verdicts)
    return f"{claim} ({_describe_gap(gap)}).{by_data}"


def _compare_by_data(table: RecordTable, contrast: Contrast, verdicts: Verdicts) -> str:
    """Compare on each data set by itself: a mean over all may be due to one."""
    asked = {data: contrast._replace(data=data) for data in table.data}
    known = [data for data, part in asked.items() if verdicts.gap(part) is not None]
    if len(known) < 2:
        return ""
    parts = []
    for side in (LOWER, HIGHER, EQUAL):
        names = [data for data in known if verdicts.side(asked[data]) == side]
        if names:
            parts.append(f"{side} on {', '.join(names)}")
    return f" Data set by data set: {' and '.join(parts) or f'{ALIKE} on any'}."


def _explain_verdicts(verdicts: Verdicts) -> list[str]:
    if not verdicts.families:
        return []
    counts = ", ".join(f"{size} {words}" for words, size in verdicts.families.items())
    margin, square = (f"{value:g}" for value in MARGINS.values())
    return [
        f"Verdicts are corrected for being many (Holm; comparisons that are corrected together: "
        f"{counts}). “{EQUAL.capitalize()}” is a whole interval within ±{margin} of NLL or "
        f"±{square} of the squared calibration error; what cannot be told apart may differ by "
        "more."
    ]


def _list_worse_than_constant(table: RecordTable) -> list[str]:
    lines = []
    for data in table.data:
        floor = table.mean(data, _CONSTANT, "nll")
        gaps = {m: table.difference(m, _CONSTANT, "nll", data) for m in table.methods}
        above = [m for m, gap in gaps.items() if gap and gap.value > 0]
        if floor is not None and above:
            names = ", ".join(_quote(table, m) for m in above)
            lines.append(
                f"{data}: a constant prediction has NLL {format_nll(floor.value)}; averaged "
                f"over the same seeds, {names} {_agree(len(above), 'has', 'have')} a higher one."
            )
    return lines


def _list_edges(table: RecordTable) -> list[str]:
    """List chosen settings where better ones might lie beyond those tried."""
    choices = {
        f"{data}: {fields.read_label(methods[0])}": fields.read_part(record, "choice")
        for data, record in zip(table.names, table.records, strict=True)
        if fields.read_part(record, "choice") and (methods := fields.list_methods(record))
    }
    return [
        *describe_edges(choices),
        *_list_edge_precisions(table),
        *_list_extreme_temperatures(table),
        *_count_edge_rates(table),
    ]


def _list_edge_precisions(table: RecordTable) -> list[str]:
    at_edge = [
        (data, bool(entry["precision_at_edge"]))
        for (data, _, _), entry in table.entries.items()
        if entry.get("precision_at_edge") is not None
    ]
    data_at_edge = [data for data, edge in at_edge if edge]
    if not data_at_edge:
        return []
    counts = ", ".join(f"{data} {count}" for data, count in Counter(data_at_edge).items())
    posteriors = _agree(len(at_edge), "posterior", "posteriors")
    have = _agree(len(data_at_edge), "has", "have")
    return [
        f"{len(data_at_edge)} of {len(at_edge)} {posteriors} {have} a precision at an end of "
        f"its grid ({counts}), marked † in tables: at the lower end a wider prior might do "
        "better, at the upper end hardly anything of the posterior is left."
    ]


def _list_extreme_temperatures(table: RecordTable) -> list[str]:
    extremes = [
        f"{_quote(table, method)} on {data} (seed {seed}: {format_significant(temperature)})"
        for (data, seed, method), entry in table.entries.items()
        if (temperature := entry.get("temperature")) is not None and is_extreme(temperature)
    ]
    if not extremes:
        return []
    return [
        f"The temperature is more than tenfold from one for {', '.join(extremes)}: the "
        "held-out rows were too few to choose by, or the model knows little about them."
    ]


def _count_edge_rates(table: RecordTable) -> list[str]:
    """Count the runs of SWAG whose learning rate is at an end of those tried."""
    lowest = highest = count = 0
    for record in table.records:
        study_rates = (record.config.get("settings") or {}).get("rates") or ()
        for method in fields.list_methods(record):
            rates, rate = method.get("rates") or study_rates, method.get("learning_rate")
            if rate is not None and len(rates) > 1:
                count += 1
                lowest += rate <= min(rates)
                highest += rate >= max(rates)
    if not lowest + highest:
        return []
    return [
        f"Of {count} {_agree(count, 'run', 'runs')} of SWAG, {lowest} took the lowest rate "
        f"that was tried and {highest} the highest, so better may lie beyond."
    ]


def _agree(count: int, one: str, several: str) -> str:
    """Choose the word that goes with a number."""
    return one if count == 1 else several


def _describe_gap(gap: SeedMean) -> str:
    text = f"difference {format_signed(gap.value)}"
    if gap.low is None or gap.high is None:
        return f"{text}, one pair of each data set, so no interval"
    ends = f"{format_signed(gap.low)} to {format_signed(gap.high)}"
    return f"{text}, 95\u202f% interval {ends}, {gap.count} pairs"


def _quote(table: RecordTable, method: str) -> str:
    # Names have commas of their own.
    return f"“{table.labels.get(method, method)}”"
