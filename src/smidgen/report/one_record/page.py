"""The page: one HTML file that needs nothing else, from a record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from smidgen.errors import DataError, SmidgenError
from smidgen.posterior.laplace import format_range
from smidgen.report import fields
from smidgen.report.drawing.palette import Styles
from smidgen.report.drawing.svg import legend_marker
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
from smidgen.report.one_record.decision_verdict import RULES, WHAT_TO_DO
from smidgen.report.one_record.decisions import describe_decisions, mark_chosen
from smidgen.report.one_record.subset_picture import subset_picture
from smidgen.report.one_record.tuned import describe_tuned
from smidgen.report.one_record.verdict import LEADS, list_sides, verdict
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
    """  # noqa: DOC502
    with refuse_unknown_layout(
        "the results of this record cannot be shown",
        "Make it again with 'smidgen evaluate', 'smidgen ramp' or 'smidgen demo'.",
    ):
        return _render(record)


@contextmanager
def refuse_unknown_layout(problem: str, advice: str) -> Iterator[None]:
    """Raise a DataError where results are not laid out as smidgen writes them."""
    try:
        yield
    except SmidgenError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{problem} ({error!r}). {advice}") from error


def _render(record: Record) -> str:
    template = environment().get_template("page.html.j2")
    styles = assign_styles([method["name"] for method in fields.list_methods(record)])
    # What may be automated has a table of its own.
    columns = [c for c in tables.list_columns(record) if c.score != "automation"]
    return template.render(
        record=record,
        title=record.config.get("title")
        or record.config.get("model")
        or "A smidgen of Bayes",
        verdict=[_split_claim(line) for line in verdict(record)],
        firsts=(WHAT_TO_DO, RULES),
        keys={name: legend_marker(style) for name, style in styles.items()},
        columns=columns,
        rows=tables.score_rows(record, columns),
        best=tables.find_best(record),
        scaling=fields.name_scaling(record),
        regression=fields.is_regression(record),
        calibration=fields.CALIBRATION,
        sides=list_sides(record),
        notes=fields.read_part(record, "notes") or (),
        reliability=_draw_reliability(record, styles),
        risk_coverage=_draw_risk_coverage(record, styles),
        decisions=describe_decisions(record, styles),
        detection_rows=tables.detection_rows(record),
        detection_figures=figures.draw_shift_detection(
            fields.collect_part(record, "detection"), styles
        ),
        disagreement=_draw_disagreement(record, styles),
        subset=_draw_subset(record),
        precision=_draw_precision(record, styles),
        tuned=describe_tuned(record),
        chains=describe_chains([record], "chain"),
        ramp=describe_ramp(record, styles),
        meanings=explain_methods(),
        measured=_list_settings(record),
        # Indented for people, but lists of numbers on one line.
        shown=_LIST_OF_NUMBERS.sub(
            lambda match: " ".join(match.group().split()), record.to_json()
        ),
        embedded=embed_json(json.loads(record.to_json())),
    )


def write(record: Record, path: str | Path) -> Path:
    """Write the page of a record, whole or not at all, and make its folder if need be."""
    return write_text(path, render(record))


def environment() -> Environment:
    """Make the environment of the templates, where an unknown name is an error."""
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


def _split_claim(line: str) -> tuple[str, str, str]:
    """Split a line of the verdict into its lead, its claim and the numbers behind it."""
    lead, _, rest = line.partition(": ")
    if lead not in LEADS:
        lead, rest = "", line
    claim, stop, numbers = rest.partition(". ")
    return lead, claim[:1].upper() + claim[1:] + stop.strip(), numbers


def _draw_reliability(record: Record, styles: Styles) -> list[dict[str, Any]]:
    svgs = figures.draw_reliability(fields.collect_part(record, "reliability"), styles)
    rows = tables.score_rows(record)
    return [{"row": row, "svg": svgs[row.name]} for row in rows if row.name in svgs]


def _draw_risk_coverage(record: Record, styles: Styles) -> dict[str, Any] | None:
    curves = fields.collect_part(record, "risk_coverage")
    if not curves:
        return None
    method = fields.find_primary(record)
    if fields.read_part(record, "ramp") and method is not None:
        # The curves of all schemes lie on top of each other; the table has them all.
        names = (fields.MAP, fields.TEMPERATURE, method["name"])
        curves = {name: curve for name, curve in curves.items() if name in names}
    chosen = {k: point for k, point in mark_chosen(record).items() if k in curves}
    max_error = fields.read_max_error(record) if chosen else None
    svg = figures.draw_risk_coverage(curves, styles, chosen, max_error)
    return {"svg": svg, "rows": tables.area_rows(record), "marked": bool(chosen)}


def _draw_disagreement(record: Record, styles: Styles) -> dict[str, Any] | None:
    estimates = fields.collect_part(record, "disagreement")
    if not estimates:
        return None
    svg = figures.draw_disagreement(estimates, styles)
    return {"svg": svg, "rows": tables.disagreement_rows(record)}


def _draw_subset(record: Record) -> dict[str, Any] | None:
    subset = fields.read_part(record, "subset")
    if not subset or not subset.get("maps"):
        return None
    picture = subset_picture(subset["maps"])
    return {**subset, "picture": picture, "count": len(subset["maps"])}


def _draw_precision(record: Record, styles: Styles) -> dict[str, Any] | None:
    curve = fields.read_part(record, "precision_curve")
    if not curve:
        return None
    method = fields.find_primary(record)
    style = styles[method["name"] if method else "sparse-kfac"]
    alone = replace(style, dash=(1.6, 1.2)) if curve.get("nll_with_temperature") else style
    styles = {**styles, "precision": alone, "precision-temperature": style}
    legend = (
        ("precision", "precision alone", "nll"),
        ("precision-temperature", "precision with a temperature", "nll_with_temperature"),
        ("map", "MAP", "map_nll"),
        ("temperature", "temperature scaling", "temperature_nll"),
    )
    return {
        "svg": figures.draw_precision_curve(curve, styles),
        "legend": [
            (legend_marker(styles[name], marker=False), text)
            for name, text, part in legend
            if curve.get(part)
        ],
        "chosen": curve.get("chosen_precision"),
        "several": format_range((curve.get("chosen_precisions") or {}).values()),
        "temperature": curve.get("chosen_temperature"),
    }


def _list_settings(record: Record) -> list[tuple[str, list[tuple[str, str]]]]:
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
        (heading, [(str(name), _format_value(value)) for name, value in part.items()])
        for heading, part in parts.items()
        if part
    ]


def _format_value(value: object) -> str:
    """Show a value of the configuration on a line or two."""
    if value is None:
        return "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return format_count(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shorten_text(text, _LONGEST_VALUE)


def embed_json(value: object) -> Markup:
    """Write a value as JSON in which no string can end the script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)
