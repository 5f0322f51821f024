"""What the page of a ramping study shows besides scores: curves, norms, numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from markupsafe import Markup

from smidgen.report import fields as reading
from smidgen.report.drawing.palette import Style
from smidgen.report.one_record import tables
from smidgen.report.one_record.tables import Cell, Row
from smidgen.report.ramp.figures import (
    float_limits,
    lines,
    norm_figure,
    score_figure,
    score_limits,
)
from smidgen.report.ramp.layers import Place, places
from smidgen.runtime.record import BASELINES, Record

BY_NORM = ("max-mlp", "min-mlp", "max-attention", "min-attention")
_REFERENCE = "sparse-kfac"
_SCORES = {"nll": "NLL", "ece": "ECE"}
_GROUPS = {"attention": "Attention layers", "mlp": "MLP layers"}
_MOST_KINDS = 8
# Where the shade of a percentage is too dark for dark letters.
_DEEP = 0.55
_POINT = (
    tables.Column("floats", "Floats stored", "", tables.count),
    tables.Column("weights", "Weights", "", tables.count),
    tables.Column("fraction", "Share", "", tables.share),
    tables.Column("precision", "τ", "", tables.significant),
    tables.Column("temperature", "T", "", tables.significant),
    tables.Column("nll", "NLL", "↓", tables.nll),
    tables.Column("ece", "ECE", "↓", tables.rate),
)


def ramp_parts(record: Record, looks: Mapping[str, Style]) -> dict[str, Any] | None:
    """Prepare the sections of a ramping study.

    Args:
        record: The record.
        looks: How each scheme is drawn.

    Returns:
        What the template fills in; None for a record of another kind.
    """
    ramp = reading.ramp(record)
    if ramp is None:
        return None
    best = reading.primary(record)
    norms = record.results.get("norms") or ()
    where = places([entry["name"] for entry in norms])
    return {
        "curves": _curves(ramp, looks),
        "schemes": list(dict.fromkeys(p["scheme"] for p in ramp["points"])),
        "best": best and reading.label(best),
        "count": len(ramp["points"]),
        "labels": {m["name"]: reading.label(m) for m in reading.methods(record)},
        "limit": record.config.get("most_stochastic"),
        "precisions": record.config.get("method") != "swag",
        "repeats": 1 + max((p["repeat"] for p in ramp["points"]), default=0),
        "allocation": _allocation(ramp, where),
        "norms": norm_figures(norms, looks),
        "norm_rows": _norm_rows(norms),
        "point_columns": _POINT,
        "points": _point_rows(record, ramp),
        "seconds": _second_rows(record),
    }


def _curves(ramp: Mapping[str, Any], looks: Mapping[str, Style]) -> dict[str, Any]:
    """Draw the score figures: all schemes but those by norm, and those by norm."""
    drawn: dict[str, list[Markup]] = {"all": [], "norm": []}
    for score, text in _SCORES.items():
        own = lines(ramp, score)
        levels = {key: ramp[key][score] for key in BASELINES if ramp.get(key)}
        heights = score_limits(own, levels)
        # Of one point each there is no crowd of lines to part.
        crowded = any(len(line.floats) > 1 for line in own)
        by_norm = [line for line in own if crowded and line.scheme in BY_NORM]
        parts = {
            "all": [line for line in own if line not in by_norm],
            "norm": by_norm,
        }
        # Sparse-KFAC stands beside the norms too, so that the two figures compare.
        reference = [line for line in own if line.scheme == _REFERENCE]
        for part, some in parts.items():
            if some:
                svg = score_figure(
                    some if part == "all" else reference + some,
                    levels,
                    looks,
                    (float_limits(some), heights),
                    ylabel=f"{text} on validation data",
                    name=f"ramp-{part}-{score}",
                )
                drawn[part].append(Markup(svg))
    return drawn


def norm_figures(
    norms: Sequence[Mapping[str, Any]], looks: Mapping[str, Style], prefix: str = "norms"
) -> dict[str, Any] | None:
    """Draw the norms of both groups on common axes; by place where kinds are many.

    Args:
        norms: Name, group and norm of every layer.
        looks: How each scheme is drawn.
        prefix: Stands before the names of the figures.

    Returns:
        Figures by heading, and whether they are by layer; None without norms.
    """
    if not norms:
        return None
    where: Mapping[str, Place] = places([entry["name"] for entry in norms])
    kinds = {place.kind for place in where.values()}
    by_layer = len(kinds) <= _MOST_KINDS
    if not by_layer:
        where = {
            entry["name"]: Place(_GROUPS.get(entry["group"], entry["group"]), i)
            for i, entry in enumerate(norms)
        }
    layers = [place.layer for place in where.values() if place.layer is not None] or [0]
    highest = max(entry["norm"] for entry in norms)
    axis = ((min(layers), max(layers)), (0.0, 1.06 * highest or 1.0))
    figures = {}
    for group, heading in _GROUPS.items():
        own = {e["name"]: e["norm"] for e in norms if e["group"] == group}
        if own:
            figures[heading] = Markup(
                norm_figure(
                    own,
                    {name: where[name] for name in own},
                    looks[f"max-{group}"].colour,
                    axis,
                    xlabel="layer" if by_layer else "place in the model",
                    title=f"Operator norms: {heading}",
                    name=f"{prefix}-{group}",
                )
            )
    outside = any(place.layer is None for place in where.values())
    return {"figures": figures, "by_layer": by_layer, "outside": outside}


def _allocation(
    ramp: Mapping[str, Any], where: Mapping[str, Place]
) -> dict[str, Any] | None:
    """Lay out the percentage of every layer under the chosen budget: kinds by layers."""
    place = ramp["chosen"].get("best-budget")
    if place is None or not where:
        return None
    point = ramp["points"][place]
    percents = {name: percent for percent, name in point["shares"]}
    numbers = {each.layer for each in where.values() if each.layer is not None}
    layers: list[int | None] = [*sorted(numbers)]
    if any(each.layer is None for each in where.values()):
        layers.append(None)
    at = {(each.kind, each.layer): name for name, each in where.items()}
    kinds = dict.fromkeys(each.kind for each in where.values())
    return {
        "layers": layers,
        "point": point,
        "mapped": len(percents),
        "maps": len(where),
        "rows": [
            (kind, [_shade(at.get((kind, layer)), percents) for layer in layers])
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
        "cell": Cell("percent", text, percent),
        "shade": f"{shade:.3f}",
        "deep": shade > _DEEP,
    }


def _norm_rows(norms: Sequence[Mapping[str, Any]]) -> list[Row]:
    column = tables.Column("norm", "Operator norm", "", tables.significant)
    ranked = sorted(norms, key=lambda entry: -entry["norm"])
    return [
        Row(e["name"], e["group"], (tables.plain_cell(column, e["norm"]),)) for e in ranked
    ]


def _point_rows(record: Record, ramp: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the baselines and every point, as numbers."""
    labels = {m["name"]: reading.label(m) for m in reading.methods(record)}
    rows: list[dict[str, Any]] = []
    for key in BASELINES:
        if ramp.get(key):
            cells = _point_cells(ramp[key], "validation")
            row = {"name": key, "label": labels.get(key, key), "cells": cells}
            rows.append({**row, "level": None, "chosen": False})
    chosen = set(ramp["chosen"].values())
    for i, point in enumerate(ramp["points"]):
        scheme = point["scheme"]
        level = tables.level_text(scheme, point["level"])
        if scheme == "random":
            level += f", draw {point['repeat'] + 1}"
        rows.append(
            {
                "name": scheme,
                "label": labels.get(scheme, scheme),
                "level": Cell(f"points.{i}.level", level, point["level"]),
                "cells": _point_cells(point, f"points.{i}"),
                "chosen": i in chosen,
            }
        )
    return rows


def _point_cells(found: Mapping[str, Any], prefix: str) -> list[Cell]:
    cells = [tables.plain_cell(column, found.get(column.score)) for column in _POINT]
    return [
        Cell(f"{prefix}.{cell.score}", cell.text, cell.value, cell.bounds) for cell in cells
    ]


def _second_rows(record: Record) -> list[tuple[str, Cell]]:
    found = record.results.get("seconds") or {}
    return [
        (phase, Cell(phase, tables.seconds(value), value)) for phase, value in found.items()
    ]
