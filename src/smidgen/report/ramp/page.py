"""What the page of a ramping study shows besides scores: curves, norms, numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from smidgen.report.one_record import tables
from smidgen.report.one_record.tables import Row, TableCell
from smidgen.report.ramp.figures import (
    collect_lines,
    draw_norms,
    draw_score_lines,
    score_limits,
    size_limits,
)
from smidgen.report.ramp.layers import LayerPosition, locate_layers
from smidgen.runtime.record import BASELINES, Record

BY_NORM = ("max-mlp", "min-mlp", "max-attention", "min-attention")
_REFERENCE = "sparse-kfac"
_SCORES = {"nll": "NLL", "ece": "ECE"}
_GROUPS = {"attention": "Attention layers", "mlp": "MLP layers"}
_MOST_KINDS = 8
# Where the shade of a percentage is too dark for dark letters.
_DEEP = 0.55
_POINT = (
    tables.Column("floats", "Floats stored", "", format_count),
    tables.Column("weights", "Weights", "", format_count),
    tables.Column("fraction", "Share", "", format_fraction),
    tables.Column("precision", "τ", "", format_significant),
    tables.Column("temperature", "T", "", format_significant),
    tables.Column("nll", "NLL", "↓", format_nll),
    tables.Column("ece", "ECE", "↓", format_rate),
)


def describe_ramp(record: Record, styles: Styles) -> dict[str, Any] | None:
    """Prepare the sections of a ramping study."""
    ramp = fields.read_part(record, "ramp")
    if ramp is None:
        return None
    best = fields.find_primary(record)
    norms = fields.read_part(record, "norms") or ()
    where = locate_layers([entry["name"] for entry in norms])
    return {
        "curves": _curves(ramp, styles),
        "schemes": list(dict.fromkeys(p["scheme"] for p in ramp["points"])),
        "best": best and fields.read_label(best),
        "count": len(ramp["points"]),
        "labels": {m["name"]: fields.read_label(m) for m in fields.list_methods(record)},
        "limit": record.config.get("most_stochastic"),
        "precisions": record.config.get("method") != "swag",
        "repeats": 1 + max((p["repeat"] for p in ramp["points"]), default=0),
        "allocation": _allocation(ramp, where),
        "norms": draw_norm_groups(norms, styles),
        "norm_rows": _norm_rows(norms),
        "point_columns": _POINT,
        "points": _point_rows(record, ramp),
        "seconds": _second_rows(record),
    }


def _curves(ramp: Mapping[str, Any], styles: Styles) -> dict[str, Any]:
    """Draw the score figures: all schemes but those by norm, and those by norm."""
    drawn: dict[str, list[Markup]] = {"all": [], "norm": []}
    for score, text in _SCORES.items():
        own = collect_lines(ramp, score)
        levels = {key: ramp[key][score] for key in BASELINES if ramp.get(key)}
        heights = score_limits(own, levels)
        # Of one point each there is no crowd of lines to part.
        crowded = any(len(line.sizes) > 1 for line in own)
        by_norm = [line for line in own if crowded and line.scheme in BY_NORM]
        parts = {"all": [line for line in own if line not in by_norm], "norm": by_norm}
        # Sparse-KFAC stands beside the norms too, so that the two figures compare.
        reference = [line for line in own if line.scheme == _REFERENCE]
        for part, some in parts.items():
            if some:
                svg = draw_score_lines(
                    some if part == "all" else reference + some,
                    levels,
                    styles,
                    (size_limits(some), heights),
                    ylabel=f"{text} on validation data",
                    name=f"ramp-{part}-{score}",
                )
                drawn[part].append(Markup(svg))
    return drawn


def draw_norm_groups(
    norms: Sequence[Mapping[str, Any]], styles: Styles, prefix: str = "norms"
) -> dict[str, Any] | None:
    """Draw the norms of both groups on common axes; by place where kinds are many."""
    if not norms:
        return None
    where: Mapping[str, LayerPosition] = locate_layers([entry["name"] for entry in norms])
    kinds = {place.kind for place in where.values()}
    by_layer = len(kinds) <= _MOST_KINDS
    if not by_layer:
        where = {
            entry["name"]: LayerPosition(_GROUPS.get(entry["group"], entry["group"]), i)
            for i, entry in enumerate(norms)
        }
    layers = [place.depth for place in where.values() if place.depth is not None] or [0]
    highest = max(entry["norm"] for entry in norms)
    axis = ((min(layers), max(layers)), (0.0, 1.06 * highest or 1.0))
    figures = {}
    for group, heading in _GROUPS.items():
        own = {e["name"]: e["norm"] for e in norms if e["group"] == group}
        if own:
            figures[heading] = Markup(
                draw_norms(
                    own,
                    {name: where[name] for name in own},
                    styles[f"max-{group}"].colour,
                    axis,
                    xlabel="layer" if by_layer else "place in the model",
                    title=f"Operator norms: {heading}",
                    name=f"{prefix}-{group}",
                )
            )
    outside = any(place.depth is None for place in where.values())
    return {"figures": figures, "by_layer": by_layer, "outside": outside}


def _allocation(
    ramp: Mapping[str, Any], positions: Mapping[str, LayerPosition]
) -> dict[str, Any] | None:
    """Lay out the percentage of every layer under the chosen budget: kinds by depth."""
    index = ramp["chosen"].get("best-budget")
    if index is None or not positions:
        return None
    point = ramp["points"][index]
    percents = {name: percent for percent, name in point["shares"]}
    numbers = {place.depth for place in positions.values()}
    depths: list[int | None] = [*sorted(depth for depth in numbers if depth is not None)]
    depths += [None] * (None in numbers)
    names = {(place.kind, place.depth): name for name, place in positions.items()}
    kinds = dict.fromkeys(place.kind for place in positions.values())
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


def _norm_rows(norms: Sequence[Mapping[str, Any]]) -> list[Row]:
    column = tables.Column("norm", "Operator norm", "", format_significant)
    ranked = sorted(norms, key=lambda entry: -entry["norm"])
    return [
        Row(e["name"], e["group"], (tables.make_cell(column, e["norm"]),)) for e in ranked
    ]


def _point_rows(record: Record, ramp: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the baselines and every point, as numbers."""
    labels = {m["name"]: fields.read_label(m) for m in fields.list_methods(record)}
    rows: list[dict[str, Any]] = []
    for key in BASELINES:
        if ramp.get(key):
            cells = _point_cells(ramp[key], "validation")
            row = {"name": key, "label": labels.get(key, key), "cells": cells}
            rows.append({**row, "level": None, "chosen": False})
    chosen = set(ramp["chosen"].values())
    for i, point in enumerate(ramp["points"]):
        scheme = point["scheme"]
        level = tables.describe_level(scheme, point["level"])
        if scheme == "random":
            level += f", draw {point['repeat'] + 1}"
        rows.append(
            {
                "name": scheme,
                "label": labels.get(scheme, scheme),
                "level": TableCell(f"points.{i}.level", level, point["level"]),
                "cells": _point_cells(point, f"points.{i}"),
                "chosen": i in chosen,
            }
        )
    return rows


def _point_cells(found: Mapping[str, Any], prefix: str) -> list[TableCell]:
    cells = [tables.make_cell(column, found.get(column.score)) for column in _POINT]
    return [
        TableCell(f"{prefix}.{cell.score}", cell.text, cell.value, cell.bounds)
        for cell in cells
    ]


def _second_rows(record: Record) -> list[tuple[str, TableCell]]:
    found = fields.read_part(record, "seconds") or {}
    return [
        (phase, TableCell(phase, format_seconds(value), value))
        for phase, value in found.items()
    ]
