"""The page of many records: what we found, tables with intervals over seeds, figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from markupsafe import Markup

from smidgen.report import fields
from smidgen.report.drawing.palette import Styles
from smidgen.report.drawing.svg import legend_marker
from smidgen.report.formats import (
    format_count,
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
from smidgen.report.many_records.findings import PAIRS, findings
from smidgen.report.many_records.trials import describe_trial, lay_out_trials
from smidgen.report.many_records.verdicts import Verdicts, find_clear_best, judge
from smidgen.report.names import assign_styles
from smidgen.report.one_record.figures import draw_reliability
from smidgen.report.one_record.page import embed_json, environment, refuse_unknown_layout
from smidgen.report.one_record.tables import (
    FLOATS,
    FRACTION,
    NLL,
    RMSE,
    Column,
    TableCell,
    add_floor,
)
from smidgen.report.ramp.figures import SIZES
from smidgen.report.ramp.page import (
    BY_NORM,
    REFERENCE,
    STORING_NOTHING,
    WITHOUT_CURVATURE,
    draw_norm_groups,
)
from smidgen.runtime.files import write_text
from smidgen.runtime.record import Record

# A few splits of a regression may have an NLL that outweighs all others.
_MEDIAN = Column("nll.median", "Median NLL", "↓", format_nll)
_COLUMNS = (
    Column("metric", "Task's own score", "↑", format_rate),
    NLL,
    _MEDIAN,
    Column("ece_equal_mass", "ECE", "↓", format_rate),
    Column("ece_equal_width", "ECE, equal widths", "↓", format_rate),
    Column("accuracy", "Accuracy", "↑", format_percent),
    RMSE,
    Column("ood_auroc", "OOD AUROC", "↑", format_rate),
    FRACTION,
    Column("trained", "Weights trained", "↓", format_count),
    FLOATS,
    Column("stored_bytes", "Bytes stored", "↓", format_count),
    Column("stored_ratio", "Bytes ÷ dense VI", "↓", format_rate),
    Column("operations_ratio", "Operations ÷ dense VI", "↓", format_rate),
    Column("seconds_ratio", "Step time ÷ dense VI", "↓", format_rate),
)
# Sizes have no interval: no seed has the mean of two sizes.
_SIZES = ("fraction", "trained", "floats", "stored_bytes", "stored_ratio")
# The papers' ECE has bins of equal width, so ours of that kind is shown beside it only.
_PAPER_ECE = "ece_equal_width"
_PAPER_SCORES = {"nll": "nll", _PAPER_ECE: "ece"}
_CALIBRATED = ("map", "temperature", "sparse-kfac", "full", "ensemble-temperature")


@dataclass(frozen=True)
class About:
    """What a page says about itself: a study's own words, or the defaults for any records.

    `missing` counts the cells that are not done. `test_to_train` is set where seeds are
    splits of the same rows. `paper` holds published figures: a label, a note, and values by
    method, data and score. `found` are findings by a study's own statistics: they replace
    those on NLL, and the table over all data, which counts all seeds of all data alike.
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
        about: What to say about them.

    Returns:
        The page, which loads nothing from anywhere.

    Raises:
        DataError: If the results are not laid out as smidgen writes them.
        SmidgenError: If they cannot be compared.
    """  # noqa: DOC502
    about = about or About()
    with refuse_unknown_layout(
        "the results of these records cannot be shown",
        "Make them again with 'smidgen study run', 'smidgen ramp' or 'smidgen evaluate'.",
    ):
        return _render(gather(records, about.test_to_train), about)


def write_many(
    records: Sequence[Record], path: str | Path, about: About | None = None
) -> Path:
    """Write the page of several records, whole or not at all."""
    return write_text(path, render_many(records, about))


def choose_baseline(table: RecordTable, preferred: str | None) -> str:
    """Choose the method that others are compared with, if possible temperature scaling."""
    names = (preferred, fields.TEMPERATURE, fields.MAP, table.methods[0])
    return next(name for name in names if name in table.methods)


def _render(table: RecordTable, about: About) -> str:
    baseline = choose_baseline(table, about.baseline)
    styles, verdicts = assign_styles(table.methods), judge(table, baseline, PAIRS)
    template = environment().get_template("across.html.j2")
    return template.render(
        about=about,
        splits=any(table.test_to_train.values()),
        baseline=table.labels[baseline],
        findings=about.found or findings(table, baseline, verdicts),
        rows_unknown=_count_without_losses(table),
        data=[
            _describe_data(table, name, index, baseline, styles, about.paper, verdicts)
            for index, name in enumerate(table.data)
        ],
        describe_trial=describe_trial,
        methods={name: table.labels[name] for name in table.methods},
        keys={name: legend_marker(style) for name, style in styles.items()},
        notes=_count_notes(table),
        overall=[] if about.found else _rank_methods(table, baseline),
        created=max(record.created for record in table.records)[:10],
        versions=table.records[0].versions,
        count=len(table.records),
        embedded=_embed_scores(table),
    )


def _describe_data(
    table: RecordTable,
    data: str,
    index: int,
    baseline: str,
    styles: Styles,
    paper: Mapping[str, Any],
    verdicts: Verdicts,
) -> dict[str, Any]:
    """Prepare what the page shows of one data set."""
    methods = [m for m in table.methods if table.mean(data, m, "nll")]
    published = any(data in values for values in paper.get("values", {}).values())
    columns = [
        column
        for column in _COLUMNS
        if published or column.score != _PAPER_ECE
        if column is not _MEDIAN or any(table.values(data, m, RMSE.score) for m in methods)
        if column is _MEDIAN
        or any(table.mean(data, method, column.score) for method in methods)
    ]
    best = find_clear_best(table, data, baseline, verdicts)
    gap_column = Column("nll.difference", "", "", format_signed)
    name = f"d{index}-{re.sub(r'[^a-z0-9]+', '-', data.lower())[:20]}"
    return {
        "name": data,
        "seeds": table.seeds(data),
        "few": len(table.seeds(data)) < FEWEST,
        "columns": columns,
        "best": best,
        "calibration": [c for c in columns if c.score in fields.CALIBRATION],
        "paper": published,
        "rows": [
            {
                "name": method,
                "label": table.labels[method],
                "seeds": len(table.values(data, method, "nll")),
                "at_edge": bool(_list_parts(table, data, method, "precision_at_edge")),
                "cells": [
                    {
                        "cell": _make_score_cell(table, data, method, column),
                        "paper": _make_paper_cell(paper, method, data, column),
                        "best": column is NLL and method == best,
                    }
                    for column in columns
                ],
                "difference": _make_cell(
                    gap_column, table.difference(method, baseline, "nll", data)
                ),
            }
            for method in methods
        ],
        "trials": lay_out_trials(table.parts(data, "trial")),
        "chains": describe_chains(table.records_of(data), name),
        "figures": _draw_figures(table, data, methods, baseline, styles, name),
    }


def _list_parts(table: RecordTable, data: str, method: str, part: str) -> list[Any]:
    """List one part of a method in every seed that has it."""
    entries = (table.entries.get((*pair, method), {}) for pair in table.pairs(data))
    return [entry[part] for entry in entries if entry.get(part)]


def _make_paper_cell(
    paper: Mapping[str, Any], method: str, data: str, column: Column
) -> TableCell | None:
    score = _PAPER_SCORES.get(column.score, "")
    value = paper.get("values", {}).get(method, {}).get(data, {}).get(score)
    if value is None:
        return None
    return TableCell(f"paper.{column.score}", f"{value:.2f}", value)


def _make_score_cell(
    table: RecordTable, data: str, method: str, column: Column
) -> TableCell:
    """Show a mean over seeds; of sizes that differ, the smallest and the largest."""
    if column is _MEDIAN:
        middle = table.median(data, method, NLL.score)
        shown = "–" if middle is None else column.format(middle)
        return TableCell(column.score, shown, middle)
    values = table.values(data, method, column.score)
    if column.score in _SIZES and values and min(values) < max(values):
        ends = (column.format(min(values)), column.format(max(values)))
        return TableCell(column.score, " – ".join(ends))
    cell = _make_cell(column, table.mean(data, method, column.score))
    floor = table.mean(data, method, f"{column.score}.floor")
    return add_floor(cell, column, floor.value if floor else None)


def _make_cell(column: Column, mean: SeedMean | None) -> TableCell:
    if mean is None:
        return TableCell(column.score, "–")
    bounds: tuple[TableCell, ...] = ()
    if mean.low is not None and mean.high is not None and column.score not in _SIZES:
        ends, form = {"low": mean.low, "high": mean.high}, column.format
        # Student's interval of two numbers is a dozen standard errors wide.
        if mean.count < FEWEST and mean.error is not None:
            ends = {"error": mean.error}
            form = format_nll if column.format is format_signed else column.format
        bounds = tuple(
            TableCell(f"{column.score}.{end}", form(value), value)
            for end, value in ends.items()
        )
    return TableCell(column.score, column.format(mean.value), mean.value, bounds)


def _count_notes(table: RecordTable) -> dict[str, int]:
    """Count the records that carry each warning, the most frequent first."""
    notes = (fields.read_part(record, "notes") or () for record in table.records)
    return dict(Counter(chain.from_iterable(notes)).most_common())


def _count_without_losses(table: RecordTable) -> int:
    """Count the scored methods whose records do not hold the loss of every test row."""
    shared = [data for data in table.data if not table.test_to_train[data]]
    return sum(
        not entry.get("losses")
        for (data, _, _), entry in table.entries.items()
        if data in shared
    )


def _draw_figures(
    table: RecordTable,
    data: str,
    methods: Sequence[str],
    baseline: str,
    styles: Styles,
    name: str,
) -> dict[str, Any]:
    intervals = []
    for score, text in (
        ("nll", "test NLL less that of"),
        (fields.SQUARED_CALIBRATION, "squared calibration error −"),
    ):
        gaps = {m: table.difference(m, baseline, score, data) for m in methods}
        known = {m: gap for m, gap in gaps.items() if gap is not None}
        if known:
            svg = draw_intervals(
                known,
                table.labels,
                styles,
                aside=(fields.MAP, "constant"),
                xlabel=f"{text} {table.labels[baseline]}",
                name=f"{name}-{score}",
            )
            intervals.append(svg)
    norms = next(iter(table.parts(data, "norms")), ())
    return {
        "intervals": intervals,
        "levels": draw_levels(table, data, styles, baseline, f"{name}-levels"),
        "ramps": _draw_ramps(table, data, styles, name),
        "reliability": _draw_reliability(table, data, styles, name),
        "norms": draw_norm_groups(norms, styles, f"{name}-norms"),
    }


def _draw_ramps(
    table: RecordTable, data: str, styles: Styles, name: str
) -> dict[str, list[Markup]]:
    """Draw validation curves: of schemes by norm, of SWAG's, and of all others."""
    ramp = join_ramps(table.parts(data, "ramp"))
    if ramp is None:
        return {}
    schemes = dict.fromkeys(point["scheme"] for point in ramp["points"])
    swag = [scheme for scheme in schemes if scheme.startswith("swag-")]
    by_norm = [scheme for scheme in schemes if scheme in BY_NORM]
    bare = [scheme for scheme in schemes if scheme in WITHOUT_CURVATURE]
    apart = (*swag, *by_norm, *STORING_NOTHING)
    by_weights = "With curvature and without"
    groups = {
        "Every scheme": [s for s in schemes if s not in apart],
        "By norm, beside random modules": [*by_norm, "random"] if by_norm else [],
        "SWAG": swag,
        by_weights: [REFERENCE, *bare] if bare else [],
    }
    figures = {}
    for index, (heading, group) in enumerate(groups.items()):
        points = [point for point in ramp["points"] if point["scheme"] in group]
        if points:
            group_ramp = {**ramp, "points": points}
            size = "weights" if heading == by_weights else "floats"
            drawn = draw_ramps(group_ramp, styles, f"{name}-ramp{index}", size)
            figures[f"{heading}: scores on validation data against {SIZES[size]}"] = drawn
    return figures


def _draw_reliability(
    table: RecordTable, data: str, styles: Styles, name: str
) -> dict[str, Markup]:
    """Draw calibration curves of the main methods, averaged over seeds."""
    pooled = {
        method: pool_bins(curves)
        for method in _CALIBRATED
        if (curves := _list_parts(table, data, method, "reliability"))
    }
    return draw_reliability(pooled, styles, f"{name}-reliability")


def _rank_methods(table: RecordTable, baseline: str) -> list[dict[str, Any]]:
    """List every method's mean rank over all data and its difference to the baseline."""
    gap_column = Column("overall.difference", "", "", format_signed)
    ranks = table.ranks("nll")
    return [
        {
            "name": method,
            "label": table.labels[method],
            "rank": TableCell("rank", f"{rank:.1f}", rank),
            "difference": _make_cell(gap_column, table.difference(method, baseline, "nll")),
        }
        for method, rank in sorted(ranks.items(), key=lambda item: item[1])
    ]


def _embed_scores(table: RecordTable) -> Markup:
    """Embed the numbers that the page was made from."""
    numbers = [
        {
            "data": data,
            "seed": seed,
            "method": method,
            "scores": {n: score["value"] for n, score in entry.get("scores", {}).items()},
        }
        for (data, seed, method), entry in table.entries.items()
    ]
    return embed_json(numbers)
