"""The page of many records: tables with intervals over seeds, figures, what we found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import pi, sqrt
from pathlib import Path
from typing import Any

from markupsafe import Markup

from smidgen.errors import DataError, SmidgenError
from smidgen.report import fields
from smidgen.report.drawing.palette import Style, legend_marker
from smidgen.report.formats import (
    format_count,
    format_fraction,
    format_nll,
    format_percent,
    format_rate,
    format_signed,
)
from smidgen.report.many_records.aggregate import FEWEST, RecordTable, SeedMean, gather
from smidgen.report.many_records.chains import describe_chains
from smidgen.report.many_records.figures import (
    draw_intervals,
    draw_levels,
    draw_ramps,
    join_ramps,
    pool_bins,
)
from smidgen.report.many_records.findings import findings
from smidgen.report.many_records.trials import describe_trial, lay_out_trials
from smidgen.report.names import assign_styles
from smidgen.report.one_record import figures
from smidgen.report.one_record.page import embed_json, environment
from smidgen.report.one_record.tables import Bound, Column, TableCell
from smidgen.report.ramp.page import BY_NORM, draw_norm_groups
from smidgen.runtime.files import write_text
from smidgen.runtime.record import Record

_NLL = Column("nll", "NLL", "↓", format_nll)
_COLUMNS = (
    Column("metric", "Task's own score", "↑", format_rate),
    _NLL,
    Column("ece_equal_mass", "ECE", "↓", format_rate),
    Column("ece_equal_width", "ECE, equal widths", "↓", format_rate),
    Column("accuracy", "Accuracy", "↑", format_percent),
    Column("rmse", "RMSE", "↓", format_nll),
    Column("ood_auroc", "OOD AUROC", "↑", format_rate),
    Column("fraction", "Weights stochastic", "", format_fraction),
    Column("trained", "Weights trained", "↓", format_count),
    Column("floats", "Floats stored", "↓", format_count),
    Column("stored_bytes", "Bytes stored", "↓", format_count),
    Column("stored_ratio", "Bytes ÷ dense VI", "↓", format_rate),
    Column("operations_ratio", "Operations ÷ dense VI", "↓", format_rate),
    Column("seconds_ratio", "Step time ÷ dense VI", "↓", format_rate),
)
_PLAIN = ("fraction", "trained", "floats", "stored_bytes", "stored_ratio")
# The papers' ECE has bins of equal width, so it stands beside ours of that kind.
_PAPER = {"nll": "nll", "ece_equal_width": "ece"}
_BESIDE_A_PAPER = ("ece_equal_width",)
_FAR = (fields.MAP, "constant")
# Of the ECE in bins of equal mass.
_BINS = 20
_CALIBRATED = ("map", "temperature", "sparse-kfac", "full", "ensemble-temperature")


@dataclass(frozen=True)
class About:
    """What a page says of itself: a study's words, or those for any records.

    `size` tells how large it was, `missing` how many cells are not done. `test_to_train` is
    that of `stratified`: seeds are splits of the same rows.
    `paper` holds published figures: a label, a note, and values by method, data, score.
    `found` are sentences by a study's own statistics: they stand in place of those on NLL,
    and of what counts every seed of every data set as one more of its kind.
    """

    title: str = "Records side by side"
    about: str = ""
    size: str = ""
    missing: int = 0
    baseline: str | None = None
    test_to_train: float = 0.0
    paper: Mapping[str, Any] = field(default_factory=dict)
    found: tuple[str, ...] = ()


def render_many(records: Sequence[Record], about: About | None = None) -> str:
    """Write records as one self-contained HTML page.

    Args:
        records: Records of any kind, of any data and seeds.
        about: What to say of them.

    Returns:
        The page, which loads nothing from anywhere.

    Raises:
        DataError: If the results are not laid out as smidgen writes them.
        SmidgenError: If they cannot be compared.
    """
    about = about or About()
    try:
        return _render(gather(records, about.test_to_train), about)
    except SmidgenError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"the results of these records cannot be shown ({error!r}). Make them again "
            "with 'smidgen study run', 'smidgen ramp' or 'smidgen evaluate'."
        ) from error


def write_many(
    records: Sequence[Record], path: str | Path, about: About | None = None
) -> Path:
    """Write the page of several records, whole or not at all."""
    return write_text(path, render_many(records, about))


def choose_baseline(across: RecordTable, wanted: str | None) -> str:
    """The method that others are compared with: temperature scaling if it is there."""
    names = (wanted, fields.TEMPERATURE, fields.MAP, across.methods[0])
    return next(name for name in names if name in across.methods)


def _render(across: RecordTable, about: About) -> str:
    baseline = choose_baseline(across, about.baseline)
    styles = assign_styles(across.methods)
    return (
        environment()
        .get_template("across.html.j2")
        .render(
            title=about.title,
            about=about.about,
            size=about.size,
            missing=about.missing,
            splits=any(across.test_to_train.values()),
            baseline=across.labels[baseline],
            paper=about.paper,
            findings=about.found or findings(across, baseline),
            own_words=bool(about.found),
            data=[
                _data_part(across, name, place, baseline, styles, about.paper)
                for place, name in enumerate(across.data)
            ],
            methods={name: across.labels[name] for name in across.methods},
            keys={name: Markup(legend_marker(style)) for name, style in styles.items()},
            notes=_notes(across),
            overall=[] if about.found else _overall(across, baseline),
            created=max(record.created for record in across.records)[:10],
            versions=across.records[0].versions,
            count=len(across.records),
            embedded=_embedded(across),
        )
    )


def _data_part(
    across: RecordTable,
    data: str,
    place: int,
    baseline: str,
    styles: Mapping[str, Style],
    paper: Mapping[str, Any],
) -> dict[str, Any]:
    """What the page shows of one data set."""
    own = [m for m in across.methods if across.mean(data, m, "nll")]
    published = bool(paper) and any(data in each for each in paper["values"].values())
    columns = [
        column
        for column in _COLUMNS
        if published or column.score not in _BESIDE_A_PAPER
        if any(across.mean(data, method, column.score) for method in own)
    ]
    best = across.best(data, baseline)
    name = f"d{place}-{re.sub(r'[^a-z0-9]+', '-', data.lower())[:20]}"
    return {
        "name": data,
        "seeds": across.seeds(data),
        "few": len(across.seeds(data)) < FEWEST,
        "columns": columns,
        "best": best,
        "chance": _chance(across, data, baseline),
        "paper": published,
        "rows": [
            {
                "name": method,
                "label": across.labels[method],
                "seeds": len(across.values(data, method, "nll")),
                "at_edge": _at_edge(across, data, method),
                "cells": [
                    {
                        "cell": _measured(across, data, method, column),
                        "paper": _published(paper, method, data, column),
                        "best": column is _NLL and method == best,
                    }
                    for column in columns
                ],
                "difference": _cell(
                    Column("nll.difference", "", "", format_signed),
                    across.difference(method, baseline, "nll", data),
                ),
            }
            for method in own
        ],
        "trials": lay_out_trials(across.parts(data, "trial")),
        "shown": describe_trial,
        "chains": describe_chains(across.records_of(data), name),
        "figures": _figures(across, data, own, baseline, styles, name),
    }


def _published(
    paper: Mapping[str, Any], method: str, data: str, column: Column
) -> TableCell | None:
    score = _PAPER.get(column.score, "")
    value = paper.get("values", {}).get(method, {}).get(data, {}).get(score)
    return (
        None if value is None else TableCell(f"paper.{column.score}", f"{value:.2f}", value)
    )


def _measured(across: RecordTable, data: str, method: str, column: Column) -> TableCell:
    """A mean over seeds; of sizes, which no mean is one of, from where to where."""
    values = across.values(data, method, column.score)
    if column.score in _PLAIN and values and min(values) < max(values):
        ends = (column.format(min(values)), column.format(max(values)))
        return TableCell(column.score, " – ".join(ends))
    return _cell(column, across.mean(data, method, column.score))


def _cell(column: Column, found: SeedMean | None) -> TableCell:
    if found is None:
        return TableCell(column.score, "–")
    bounds: tuple[Bound, ...] = ()
    if found.low is not None and found.high is not None and column.score not in _PLAIN:
        ends, form = {"low": found.low, "high": found.high}, column.format
        # Student's interval of two numbers is a dozen standard errors wide.
        if found.count < FEWEST and found.error is not None:
            ends = {"error": found.error}
            form = format_nll if column.format is format_signed else column.format
        bounds = tuple(
            Bound(f"{column.score}.{end}", value, form(value))
            for end, value in ends.items()
        )
    return TableCell(column.score, column.format(found.value), found.value, bounds)


def _at_edge(across: RecordTable, data: str, method: str) -> bool:
    """Whether in some seed validation data chose a precision at an end of its grid."""
    entries = (across.entries.get((*pair, method), {}) for pair in across.pairs(data))
    return any(entry.get("precision_at_edge") for entry in entries)


def _notes(across: RecordTable) -> dict[str, int]:
    """What was warned of while the records were made, and in how many, the most first."""
    told = Counter(
        note
        for record in across.records
        for note in fields.read_part(record, "notes") or ()
    )
    return dict(told.most_common())


def _chance(across: RecordTable, data: str, baseline: str) -> str:
    """The ECE that chance alone gives a predictor that is right as often as it says."""
    right = across.mean(data, baseline, "accuracy")
    sizes = [part["test"] for part in across.parts(data, "data") if part.get("test")]
    if right is None or not sizes or not across.mean(data, baseline, "ece_equal_mass"):
        return ""
    spread = right.value * (1 - right.value)
    # The mean |accuracy − confidence| in a bin of n/B rows.
    return format_rate(sqrt(2 / pi * spread * _BINS / min(sizes)))


def _figures(
    across: RecordTable,
    data: str,
    own: Sequence[str],
    baseline: str,
    styles: Mapping[str, Style],
    name: str,
) -> dict[str, Any]:
    intervals = []
    for score, text in (("nll", "NLL"), ("ece_equal_mass", "ECE")):
        gaps = {
            m: each
            for m in own
            if (each := across.difference(m, baseline, score, data)) is not None
        }
        if gaps:
            svg = draw_intervals(
                gaps,
                across.labels,
                styles,
                aside=_FAR,
                xlabel=f"test {text} less that of {across.labels[baseline]}",
                name=f"{name}-{score}",
            )
            intervals.append(Markup(svg))
    levels = draw_levels(across, data, styles, baseline, f"{name}-levels")
    norms = next(iter(across.parts(data, "norms")), ())
    return {
        "intervals": intervals,
        "levels": {family: Markup(svg) for family, svg in levels.items()},
        "ramps": _ramps(across, data, styles, name),
        "reliability": _reliability(across, data, styles, name),
        "norms": draw_norm_groups(norms, styles, f"{name}-norms"),
    }


def _ramps(
    across: RecordTable, data: str, styles: Mapping[str, Style], name: str
) -> dict[str, list[Markup]]:
    """Validation curves: the schemes but those by norm, those by norm, and SWAG's."""
    joined = join_ramps(across.parts(data, "ramp"))
    if joined is None:
        return {}
    schemes = list(dict.fromkeys(point["scheme"] for point in joined["points"]))
    swag = [s for s in schemes if s.startswith("swag-")]
    norm = [s for s in schemes if s in BY_NORM]
    groups = {
        "Every scheme": [s for s in schemes if s not in (*swag, *norm)],
        "By norm, beside random modules": [*norm, "random"] if norm else [],
        "SWAG": swag,
    }
    found = {}
    for place, (heading, some) in enumerate(groups.items()):
        points = [point for point in joined["points"] if point["scheme"] in some]
        if points:
            drawn = draw_ramps({**joined, "points": points}, styles, f"{name}-ramp{place}")
            found[heading] = [Markup(svg) for svg in drawn]
    return found


def _reliability(
    across: RecordTable, data: str, styles: Mapping[str, Style], name: str
) -> dict[str, Markup]:
    """Calibration curves of the methods one asks about first, averaged over seeds."""
    points = {}
    for method in _CALIBRATED:
        entries = (across.entries.get((*pair, method), {}) for pair in across.pairs(data))
        curves = [each["reliability"] for each in entries if each.get("reliability")]
        if curves:
            points[method] = pool_bins(curves)
    if not points:
        return {}
    drawn = figures.draw_reliability(points, styles, f"{name}-reliability")
    return {method: Markup(svg) for method, svg in drawn.items()}


def _overall(across: RecordTable, baseline: str) -> list[dict[str, Any]]:
    """Every method over all data: its mean rank, and its difference to the baseline."""
    ranks = across.ranks("nll")
    rank = Column("rank", "Mean rank", "↓", lambda value: f"{value:.1f}")
    gap = Column("overall.difference", "", "", format_signed)
    found = [
        {
            "name": method,
            "label": across.labels[method],
            "rank": TableCell(rank.score, rank.format(ranks[method]), ranks[method]),
            "difference": _cell(gap, across.difference(method, baseline, "nll")),
        }
        for method in ranks
    ]
    return sorted(found, key=lambda row: row["rank"].value)


def _embedded(across: RecordTable) -> Markup:
    """Embed the numbers that the page was made of."""
    numbers = [
        {
            "data": data,
            "seed": seed,
            "method": method,
            "scores": {n: found["value"] for n, found in entry.get("scores", {}).items()},
        }
        for (data, seed, method), entry in across.entries.items()
    ]
    return embed_json(numbers)
