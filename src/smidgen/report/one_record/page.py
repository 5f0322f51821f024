"""The page: one HTML file that needs nothing else, from a record."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from smidgen.errors import DataError, SmidgenError
from smidgen.posterior.laplace import format_range
from smidgen.report import fields
from smidgen.report.drawing.palette import Style, legend_marker
from smidgen.report.formats import (
    format_count,
    format_nll,
    format_percent,
    format_significant,
    shorten_text,
)
from smidgen.report.many_records.chains import describe_chains
from smidgen.report.names import assign_styles, explain_methods
from smidgen.report.one_record import figures, tables
from smidgen.report.one_record.subset_picture import subset_picture
from smidgen.report.one_record.tuned import describe_tuned
from smidgen.report.one_record.verdict import LEADS, verdict
from smidgen.report.ramp.page import describe_ramp
from smidgen.runtime.files import write_text
from smidgen.runtime.record import Record

_LIST_OF_NUMBERS = re.compile(r"\[\n[\s\d.,eE+-]*\]")
_LONGEST_VALUE = 300


def render(record: Record) -> str:
    """Write a record as one self-contained HTML page.

    Args:
        record: The record; parts of its results that are absent are left out.

    Returns:
        The page, which loads nothing from anywhere.

    Raises:
        DataError: If the results are not laid out as smidgen writes them.
        SmidgenError: If a value is one that JSON cannot hold.
    """
    try:
        return _render(record)
    except SmidgenError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"the results of this record cannot be shown ({error!r}). Make it again "
            "with 'smidgen evaluate', 'smidgen ramp' or 'smidgen demo'."
        ) from error


def _render(record: Record) -> str:
    template = environment().get_template("page.html.j2")
    styles = assign_styles([method["name"] for method in fields.list_methods(record)])
    return template.render(
        record=record,
        title=_title(record),
        verdict=[_split(line) for line in verdict(record)],
        keys={name: Markup(legend_marker(style)) for name, style in styles.items()},
        columns=tables.list_columns(record),
        rows=tables.score_rows(record),
        best=tables.find_best(record),
        scaling=fields.name_scaling(record),
        regression=fields.is_regression(record),
        notes=fields.read_part(record, "notes") or (),
        reliability=_reliability(record, styles),
        risk_coverage=_risk_coverage(record, styles),
        detection=_detection(record, styles),
        disagreement=_disagreement(record, styles),
        subset=_subset(record),
        precision=_precision(record, styles),
        tuned=describe_tuned(record),
        chains=describe_chains([record], "chain"),
        ramp=describe_ramp(record, styles),
        meanings=explain_methods(),
        measured=_measured(record),
        shown=_shown(record),
        embedded=embed_json(json.loads(record.to_json())),
    )


def write(record: Record, path: str | Path) -> Path:
    """Write the page of a record, whole or not at all.

    Args:
        record: The record.
        path: The file; its folder is made if need be.

    Returns:
        The path.
    """
    return write_text(path, render(record))


def environment() -> Environment:
    """Make what fills the templates in; names that are not there are errors."""
    folder = resources.files("smidgen.report") / "templates"
    environment = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=format_count,
        nll=format_nll,
        percent=format_percent,
        significant=format_significant,
    )
    return environment


def _title(record: Record) -> str:
    title = record.config.get("title") or record.config.get("model")
    return str(title) if title else "A smidgen of Bayes"


def _split(line: str) -> tuple[str, str, str]:
    """Part a line of the verdict into its lead, its claim and the numbers behind it."""
    lead, _, rest = line.partition(": ")
    if lead not in LEADS:
        lead, rest = "", line
    claim, stop, numbers = rest.partition(". ")
    return lead, claim[:1].upper() + claim[1:] + stop.strip(), numbers


def _reliability(record: Record, styles: Mapping[str, Style]) -> list[dict[str, Any]]:
    drawn = figures.draw_reliability(fields.collect_part(record, "reliability"), styles)
    return [
        {"row": row, "svg": Markup(drawn[row.name])}
        for row in tables.score_rows(record)
        if row.name in drawn
    ]


def _risk_coverage(record: Record, styles: Mapping[str, Style]) -> dict[str, Any] | None:
    curves = fields.collect_part(record, "risk_coverage")
    if not curves:
        return None
    method = fields.find_primary(record)
    if fields.read_part(record, "ramp") and method is not None:
        # The schemes' curves lie on each other; the table beside has them all.
        drawn = (fields.MAP, fields.TEMPERATURE, method["name"])
        curves = {name: curve for name, curve in curves.items() if name in drawn}
    svg = Markup(figures.draw_risk_coverage(curves, styles))
    return {"svg": svg, "rows": tables.area_rows(record)}


def _detection(record: Record, styles: Mapping[str, Style]) -> dict[str, Any] | None:
    found = fields.collect_part(record, "detection")
    if not found:
        return None
    drawn = figures.draw_shift_detection(found, styles)
    return {
        "figures": {name: Markup(svg) for name, svg in drawn.items()},
        "rows": tables.detection_rows(record),
    }


def _disagreement(record: Record, styles: Mapping[str, Style]) -> dict[str, Any] | None:
    found = fields.collect_part(record, "disagreement")
    if not found:
        return None
    svg = Markup(figures.draw_disagreement(found, styles))
    return {"svg": svg, "rows": tables.disagreement_rows(record)}


def _subset(record: Record) -> dict[str, Any] | None:
    subset = fields.read_part(record, "subset")
    if not subset or not subset.get("maps"):
        return None
    picture = subset_picture(subset["maps"])
    return {**subset, "picture": picture, "count": len(subset["maps"])}


def _precision(record: Record, styles: Mapping[str, Style]) -> dict[str, Any] | None:
    curve = fields.read_part(record, "precision_curve")
    if not curve:
        return None
    method = fields.find_primary(record)
    style = styles[method["name"] if method else "sparse-kfac"]
    own = {"precision": replace(style, dash=(1.6, 1.2)), "precision-temperature": style}
    if not curve.get("nll_with_temperature"):
        own["precision"] = style
    all_looks = {**styles, **own}
    legend = (
        ("precision", "precision alone", "nll"),
        ("precision-temperature", "precision with a temperature", "nll_with_temperature"),
        ("map", "MAP", "map_nll"),
        ("temperature", "temperature scaling", "temperature_nll"),
    )
    return {
        "svg": Markup(figures.draw_precision_curve(curve, all_looks)),
        "legend": [
            (Markup(legend_marker(all_looks[name], marker=False)), text)
            for name, text, part in legend
            if curve.get(part)
        ],
        "chosen": curve.get("chosen_precision"),
        "several": format_range((curve.get("chosen_precisions") or {}).values()),
        "temperature": curve.get("chosen_temperature"),
    }


def _measured(record: Record) -> list[tuple[str, list[tuple[str, str]]]]:
    run: dict[str, Any] = {"kind": record.kind, "status": record.status}
    run |= {"seed": record.seed, "date": record.created, "schema": record.schema}
    parts: dict[str, Mapping[str, Any]] = {
        "Data": fields.read_part(record, "data") or {},
        "Configuration": record.config,
        "Run": run,
        "Versions": record.versions,
        "Machine": record.machine,
    }
    return [
        (heading, [(str(name), _value(found)) for name, found in part.items()])
        for heading, part in parts.items()
        if part
    ]


def _value(found: object) -> str:
    """Show a value of the configuration on a line or two."""
    if found is None:
        return "none"
    if isinstance(found, int) and not isinstance(found, bool):
        return format_count(found)
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return shorten_text(text, _LONGEST_VALUE)


def _shown(record: Record) -> str:
    """Indent the record for people, lists of numbers on one line."""
    return _LIST_OF_NUMBERS.sub(
        lambda match: " ".join(match.group().split()), record.to_json()
    )


def embed_json(value: object) -> Markup:
    """Write a value as JSON in which no string can end the script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)
