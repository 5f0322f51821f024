"""The sections of a ramping study: curves, norms and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

from markupsafe import Markup

from smidgen.report import fields
from smidgen.report.drawing.palette import Styles
from smidgen.report.formats import (
    format_count,
    format_fraction,
    format_nll,
    format_rate,
    format_seconds,
    format_significant,
)
from smidgen.report.one_record.tables import (
    BODY_PRECISION,
    Column,
    Row,
    TableCell,
    describe_level,
    make_cell,
)
from smidgen.report.ramp.figures import (
    RAMP_SCORES,
    SIZES,
    collect_lines,
    draw_norms,
    draw_score_lines,
    score_limits,
    size_limits,
)
from smidgen.report.ramp.layers import LayerPosition, locate_layers
from smidgen.runtime.record import BASELINES, Record

BY_NORM = ("max-mlp", "min-mlp", "max-attention", "min-attention")
STORING_NOTHING = ("isotropic",)
"""Schemes that have no place on an axis of floats."""
WITHOUT_CURVATURE = ("isotropic", "head-isotropic")
"""Schemes with layers of which no curvature is kept."""
REFERENCE = "sparse-kfac"
"""The scheme that stands in every figure, so that they compare."""
_GROUPS = {"attention": "Attention layers", "mlp": "MLP layers"}
_MOST_KINDS = 8
# Where the shade of a percentage is too dark for dark letters.
_DEEP = 0.55
_POINT = (
    Column("floats", "Floats stored", "", format_count),
    Column("weights", "Weights", "", format_count),
    Column("fraction", "Share", "", format_fraction),
    Column("precision", "τ", "", format_significant),
    Column("temperature", "T", "", format_significant),
    Column("nll", "NLL", "↓", format_nll),
    Column("ece", "ECE", "↓", format_rate),
    Column("ece_floor", "ECE by chance", "", format_rate),
)


def describe_ramp(record: Record, styles: Styles) -> dict[str, Any] | None:
    """Prepare the sections of a ramping study."""
    ramp = fields.read_part(record, "ramp")
    if ramp is None:
        return None
    best = fields.find_primary(record)
    norms = fields.read_part(record, "norms") or ()
    labels = {m["name"]: fields.read_label(m) for m in fields.list_methods(record)}
    column = Column("norm", "Operator norm", "", format_significant)
    seconds = fields.read_part(record, "seconds") or {}
    return {
        "curves": _draw_curves(ramp, styles),
        "schemes": list(dict.fromkeys(p["scheme"] for p in ramp["points"])),
        "best": best and fields.read_label(best),
        "count": len(ramp["points"]),
        "labels": labels,
        "limit": record.config.get("most_stochastic"),
        "floor": _find_floor(ramp),
        "precisions": record.config.get("method") != "swag",
        "repeats": 1 + max((p["repeat"] for p in ramp["points"]), default=0),
        "allocation": _lay_out_budget(ramp, locate_layers([e["name"] for e in norms])),
        "norms": draw_norm_groups(norms, styles),
        "norm_rows": [
            Row(entry["name"], entry["group"], (make_cell(column, entry["norm"]),))
            for entry in sorted(norms, key=lambda entry: -entry["norm"])
        ],
        "point_columns": _POINT,
        "points": _list_points(ramp, labels),
        "seconds": [
            (phase, TableCell(phase, format_seconds(value), value))
            for phase, value in seconds.items()
        ],
    }


def _find_floor(ramp: Mapping[str, Any]) -> str:
    """Say the ECE that chance gives temperature scaling on validation data, if known."""
    floor = (ramp.get(fields.TEMPERATURE) or {}).get("ece_floor")
    return "" if floor is None else format_rate(floor)


def _draw_curves(ramp: Mapping[str, Any], styles: Styles) -> dict[str, list[Markup]]:
    """Draw the score figures: of most schemes, of those by norm, and without curvature."""
    figures: dict[str, list[Markup]] = {"all": [], "norm": [], "isotropic": []}
    for score, text in RAMP_SCORES.items():
        lines = collect_lines(ramp, score)
        levels = {key: ramp[key][score] for key in BASELINES if ramp.get(key)}
        heights = score_limits(lines, levels)
        # Schemes of a single point each are no crowd of lines to part.
        crowded = any(len(line.sizes) > 1 for line in lines)
        by_norm = [line for line in lines if crowded and line.scheme in BY_NORM]
        apart = {line.scheme for line in by_norm} | set(STORING_NOTHING)
        by_weights = collect_lines(ramp, score, "weights")
        parts = {
            "all": ([line for line in lines if line.scheme not in apart], "floats"),
            "norm": (by_norm, "floats"),
            "isotropic": (
                [x for x in by_weights if x.scheme in WITHOUT_CURVATURE],
                "weights",
            ),
        }
        for part, (members, size) in parts.items():
            if members:
                beside = lines if size == "floats" else by_weights
                reference = [line for line in beside if line.scheme == REFERENCE]
                svg = draw_score_lines(
                    members if part == "all" else reference + members,
                    levels,
                    styles,
                    (size_limits(members), heights),
                    ylabel=f"{text} on validation data",
                    xlabel=SIZES[size],
                    name=f"ramp-{part}-{score}",
                )
                figures[part].append(svg)
    return figures


def draw_norm_groups(
    norms: Sequence[Mapping[str, Any]], styles: Styles, prefix: str = "norms"
) -> dict[str, Any] | None:
    """Draw the norms of both groups on common axes; by place where kinds are many."""
    if not norms:
        return None
    positions = locate_layers([entry["name"] for entry in norms])
    by_layer = len({position.kind for position in positions.values()}) <= _MOST_KINDS
    if not by_layer:
        positions = {
            entry["name"]: LayerPosition(_GROUPS.get(entry["group"], entry["group"]), i)
            for i, entry in enumerate(norms)
        }
    depths = [p.depth for p in positions.values() if p.depth is not None] or [0]
    highest = max(entry["norm"] for entry in norms)
    figures = {}
    for group, heading in _GROUPS.items():
        members = {e["name"]: e["norm"] for e in norms if e["group"] == group}
        if members:
            figures[heading] = draw_norms(
                members,
                {name: positions[name] for name in members},
                styles[f"max-{group}"].colour,
                ((min(depths), max(depths)), (0.0, 1.06 * highest or 1.0)),
                xlabel="layer" if by_layer else "place in the model",
                title=f"Operator norms: {heading}",
                name=f"{prefix}-{group}",
            )
    outside = any(position.depth is None for position in positions.values())
    return {"figures": figures, "by_layer": by_layer, "outside": outside}


def _lay_out_budget(
    ramp: Mapping[str, Any], positions: Mapping[str, LayerPosition]
) -> dict[str, Any] | None:
    """Lay out the percentage of every layer under the chosen budget: kinds by depth."""
    index = ramp["chosen"].get("best-budget")
    if index is None or not positions:
        return None
    point = ramp["points"][index]
    percents = {name: percent for percent, name in point["shares"]}
    # Layers outside the stack have no depth and stand last.
    depths = sorted(
        {position.depth for position in positions.values()},
        key=lambda depth: (depth is None, depth or 0),
    )
    names = {(position.kind, position.depth): name for name, position in positions.items()}
    kinds = dict.fromkeys(position.kind for position in positions.values())
    return {
        "depths": depths,
        "point": point,
        "chosen_count": len(percents),
        "layer_count": len(positions),
        "rows": [
            (kind, [_shade(names.get((kind, depth)), percents) for depth in depths])
            for kind in kinds
        ],
    }


def _shade(name: str | None, percents: Mapping[str, float]) -> dict[str, Any] | None:
    if name is None:
        return None
    percent = percents.get(name)
    shade = sqrt((percent or 0.0) / 100)
    text = "0" if percent is None else f"{percent:g}"
    return {
        "name": name,
        "cell": TableCell("percent", text, percent),
        "shade": f"{shade:.3f}",
        "deep": shade > _DEEP,
    }


def _list_points(
    ramp: Mapping[str, Any], labels: Mapping[str, str]
) -> list[dict[str, Any]]:
    """List the baselines and every point, as numbers."""
    rows: list[dict[str, Any]] = [
        {"name": name, "cells": _make_cells(ramp[name], "validation"), "level": None}
        for name in BASELINES
        if ramp.get(name)
    ]
    for i, point in enumerate(ramp["points"]):
        level = describe_level(point["scheme"], point["level"])
        if point["scheme"] == "random":
            level += f", draw {point['repeat'] + 1}"
        rows.append(
            {
                "name": point["scheme"],
                "cells": _make_cells(point, f"points.{i}"),
                "level": TableCell(f"points.{i}.level", level, point["level"]),
                "chosen": i in ramp["chosen"].values(),
            }
        )
    return [
        {"label": labels.get(row["name"], row["name"]), "chosen": False, **row}
        for row in rows
    ]


def _make_cells(point: Mapping[str, Any], prefix: str) -> list[TableCell]:
    cells = [make_cell(column, point.get(column.score)) for column in _POINT]
    if point.get("body_precision") is not None:
        body = make_cell(BODY_PRECISION, point["body_precision"])
        body = replace(body, text=f"body {body.text}")
        cells = [replace(c, count=body) if c.score == "precision" else c for c in cells]
    return [_prefix(cell, prefix) for cell in cells]


def _prefix(cell: TableCell, prefix: str) -> TableCell:
    beneath = cell.count and _prefix(cell.count, prefix)
    return replace(cell, score=f"{prefix}.{cell.score}", count=beneath)
