"""What the records say of the papers' claims: the generated parts of docs/findings.md."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from typing import get_args

from docs.build.committed import note_missing, read_table, recipe_records
from docs.build.measured import find_clear, make_rows

from smidgen.report.fields import SQUARED_CALIBRATION
from smidgen.report.formats import format_count, format_nll, format_ratio, format_signed
from smidgen.report.many_records.aggregate import (
    RecordTable,
    SeedMean,
    average_groups,
    average_seeds,
)
from smidgen.report.many_records.findings import findings
from smidgen.report.names import FAMILIES, label_method, label_within
from smidgen.runtime.record import Record
from smidgen_studies.methods.uci_choices import UciSelector

_FAMILIES = ("laplace", "swag")


def found_by(study: str, baseline: str) -> Callable[[], str]:
    """What a study's page says it found, as a list."""

    def text() -> str:
        found = read_table(study)
        if found is None:
            return note_missing(study)
        return "\n".join(f"- {line}" for line in findings(found, baseline))

    return text


def _committed(study: str) -> RecordTable:
    found = read_table(study)
    assert found is not None, f"no record of {study} in results/ has scores"
    return found


def temperature_claim() -> str:
    """Laplace on a tenth of the rows and columns against temperature scaling."""
    return _recipe_gap("10 %, joint, by group", "temperature")


def last_layer_claim() -> str:
    """Sparse-KFAC against the last layer alone."""
    return _recipe_gap("10 %, joint, by group", "last layer, joint")


def _recipe_gap(first: str, second: str) -> str:
    by_task = recipe_records()
    gaps = {
        score: [
            [_gap(each, first, second, score) for each in own] for own in by_task.values()
        ]
        for score in ("nll", "ece")
    }
    means = zip(by_task, map(mean, gaps["nll"]), strict=True)
    found = {score: average_groups(own) for score, own in gaps.items()}
    return (
        f"Test NLL of “{first}” less that of “{second}”: {_interval(found['nll'])}, "
        f"by task {', '.join(f'{task} {format_signed(value)}' for task, value in means)}; sample "
        f"ECE {_interval(found['ece'])}, with what chance adds to each. 95 % intervals over "
        f"{found['nll'].count} pairs of task and seed, tasks counting alike; seeds of "
        "a task share test rows, all or some."
    )


def _gap(record: Record, first: str, second: str, score: str) -> float:
    scored = record.results["recipes"]
    return float(scored[first][score] - scored[second][score])


def _interval(gap: SeedMean) -> str:
    if gap.low is None or gap.high is None:
        return format_signed(gap.value)
    return f"{format_signed(gap.value)} ({format_signed(gap.low)} to {format_signed(gap.high)})"


def scores_by_task(study: str, *, costs: bool = False) -> Callable[[], str]:
    """Every method of a study: NLL by task, and its differences to temperature scaling.

    Args:
        study: The study.
        costs: Whether to add the floats that are stored and the time of a prediction.

    Returns:
        What writes the table.
    """

    def text() -> str:
        across = read_table(study)
        return note_missing(study) if across is None else _write_scores(across, costs)

    return text


def _write_scores(across: RecordTable, costs: bool) -> str:
    seeds = len(across.seeds(across.data[0]))
    whole = across.ranks("nll")
    left = [f"“{across.labels[m]}”" for m in across.methods if m not in whole]
    more = f"; not yet done on every split: {', '.join(left)}" if left else ""
    headings = [
        "",
        *across.data,
        "NLL − temperature",
        "squared calibration error − temperature",
        *(["floats stored", "time / forward"] if costs else []),
    ]
    scores = ("nll", SQUARED_CALIBRATION)
    gaps = {
        (method, score): gap
        for score in scores
        for method in whole
        if (gap := across.difference(method, "temperature", score)) is not None
    }
    # A column is a family.
    clear = set().union(
        *(find_clear({k: gap for k, gap in gaps.items() if k[1] == s}) for s in scores)
    )
    rows = []
    for method in whole:
        means = (across.values(data, method, "nll") for data in across.data)
        cells = [across.labels[method], *(format_nll(mean(each)) for each in means)]
        for key in ((method, score) for score in scores):
            text = _interval(gaps[key]) if key in gaps else ""
            cells.append(f"**{text}**" if key in clear else text)
        rows.append([*cells, *(_describe_cost(across, method) if costs else [])])
    return "\n".join(
        [
            f"Mean test NLL over {seeds} splits a task, and over all tasks NLL and squared "
            "calibration error (its estimate has no bias, unlike a difference of ECEs) less "
            "those of temperature scaling, with 95 % intervals, bold where a difference is clear "
            f"after correction for all in its column (Holm){more}:",
            "",
            *make_rows(headings, rows),
        ]
    )


def _describe_cost(across: RecordTable, method: str) -> list[str]:
    """Means over all data sets and seeds: floats, and time of a prediction to a forward."""
    shown = []
    for score, write in (("floats", format_count), ("relative_seconds", format_ratio)):
        values = [v for data in across.data for v in across.values(data, method, score)]
        shown.append(write(mean(values)) if values else "–")
    return shown


def uci_table() -> str:
    """Five percent of the weights less all of them, by both posteriors, by data set."""
    across = _committed("uci")
    level = 5
    lines = [
        f"Mean test NLL of {level} % of the weights less that of all of them, "
        f"{len(across.seeds(across.data[0]))} splits; bold where the 95 % interval, "
        "widened for overlapping splits, leaves zero out:",
        "",
        f"| | {' | '.join(across.data)} |",
        "|---" * (len(across.data) + 1) + "|",
    ]
    for family in _FAMILIES:
        for by in ("magnitude", "variance", "random"):
            cells = [_less_all(across, data, family, by, level) for data in across.data]
            lines.append(
                f"| {label_method(by, 'uci', family=family)} | {' | '.join(cells)} |"
            )
    return "\n".join(lines)


def _less_all(across: RecordTable, data: str, family: str, by: str, level: int) -> str:
    found: dict[tuple[str, float], dict[int, float]] = {}
    for record in across.records_of(data):
        for each in record.results.get("levels") or ():
            own = found.setdefault((each["scheme"], each["level"]), {})
            own[record.seed or 0] = each["scores"]["nll"]["value"]
    some, whole = found[f"{family}-{by}", level], found[f"{family}-full", 100]
    gaps = [some[seed] - whole[seed] for seed in whole]
    return _marked(average_seeds(gaps, across.test_to_train[data]))


def bridges_table() -> str:
    """Every choice of weights less random ones, for both posteriors, by data set."""
    across = _committed("bridges")
    columns = [(family, data) for family in _FAMILIES for data in across.data]
    headings = (f"{FAMILIES[family]}, {data}" for family, data in columns)
    lines = [
        f"Mean test NLL over {len(across.seeds(across.data[0]))} splits, less that of "
        "random weights; below zero is better, bold where the 95 % interval, widened for "
        "overlapping splits, leaves zero out:",
        "",
        f"| chosen | weights | {' | '.join(headings)} |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for by in get_args(UciSelector):
        label = label_within(by, "uci")
        shares = [
            found.value
            for data in across.data
            if (found := across.mean(data, f"laplace-{by}", "fraction"))
        ]
        if by != "random" and shares:
            cells = [_less_random(across, family, by, data) for family, data in columns]
            lines.append(f"| {label} | {100 * mean(shares):.2g} % | {' | '.join(cells)} |")
    return "\n".join(lines)


def _less_random(across: RecordTable, family: str, by: str, data: str) -> str:
    gap = across.difference(f"{family}-{by}", f"{family}-random", "nll", data)
    return "" if gap is None else _marked(gap)


def _marked(gap: SeedMean, text: str | None = None) -> str:
    """A difference, bold where its interval leaves zero out."""
    text = text or format_signed(gap.value)
    return f"**{text}**" if gap.above_zero or gap.below_zero else text


TABLES = {
    "bridges-short": bridges_table,
    "claim-uci": uci_table,
    "claim-temperature": temperature_claim,
    "claim-last-layer": last_layer_claim,
    "claim-table2": scores_by_task("glue-table2"),
    "scores-llm": scores_by_task("llm", costs=True),
    "found-llm": found_by("llm", "temperature"),
    "scores-mpnet": scores_by_task("mpnet", costs=True),
    "found-mpnet": found_by("mpnet", "temperature"),
    "found-glue-ramp": found_by("glue-ramp", "temperature"),
    "found-uci": found_by("uci", "map"),
    "found-bridges": found_by("bridges", "map"),
}
