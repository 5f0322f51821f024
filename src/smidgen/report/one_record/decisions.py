"""What a page says of decisions, before everything else: parts that are absent are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smidgen.report import fields
from smidgen.report.drawing.palette import Styles
from smidgen.report.formats import format_percent, format_share, format_significant
from smidgen.report.one_record.decision_figures import draw_intervals
from smidgen.report.one_record.decision_tables import (
    SCORE_NAMES,
    list_examples,
    tabulate_automation,
    tabulate_classes,
    tabulate_intervals,
    tabulate_scores,
)
from smidgen.runtime.record import Record

Point = tuple[float, float]


def describe_decisions(record: Record, styles: Styles) -> dict[str, Any]:
    """Prepare what a page shows of decisions."""
    part = fields.read_part(record, "decisions") or {}
    examples = {
        name: list_examples(record, name) for name in ("least_certain", "strangest")
    }
    score = part.get("strange_score")
    return {
        "max_error": fields.read_max_error(record),
        "ours": _name_primary(record),
        "automation": tabulate_automation(record),
        "multilabel": bool(part.get("multilabel")),
        "rules": _list_rules(part.get("rules") or {}),
        "classes": tabulate_classes(record),
        "classes_left_out": part.get("classes_left_out") or 0,
        **examples,
        "has_texts": any(row.text for rows in examples.values() for row in rows),
        "strange_score": SCORE_NAMES.get(score, score),
        "intervals": tabulate_intervals(record),
        "truth": _draw_truth(record, part.get("truth") or {}, styles),
        "scores": tabulate_scores(record),
    }


def mark_chosen(record: Record) -> dict[str, Point]:
    """Find the point of each method's risk–coverage curve up to which it may answer."""
    max_error = fields.read_max_error(record)
    if max_error is None:
        return {}
    shares = {
        method["name"]: fields.read_automation(method, max_error)
        for method in fields.list_contenders(record)
    }
    return {
        name: (share["value"], share["error"])
        for name, share in shares.items()
        if share and share["value"] > 0 and share.get("error") is not None
    }


def _name_primary(record: Record) -> str:
    primary = fields.find_primary(record)
    return fields.read_label(primary) if primary else ""


def _draw_truth(
    record: Record, truth: Mapping[str, Any], styles: Styles
) -> dict[str, Any] | None:
    primary = fields.find_primary(record)
    if not truth or primary is None:
        return None
    return {
        "coverage": truth["coverage"],
        "by_rule": bool(truth.get("by_rule")),
        "rows": len(truth["outputs"][0]["truth"]),
        "figures": draw_intervals(truth["outputs"], styles[primary["name"]]),
    }


def _list_rules(rules: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List what each rule promises and what it did on the test rows."""
    lines: list[tuple[str, str, str, str]] = []
    abstain = rules.get("abstain")
    if abstain:
        wrong = _format_estimate(abstain.get("error"))
        asked = abstain.get("max_error")
        promise = "" if asked is None else f"at most {format_share(asked)} wrong"
        done = f"answers {_format_estimate(abstain['answered'])} of the rows"
        done += f", {wrong} of those wrongly" if wrong else ""
        lines.append(("Answer or not", promise, done, abstain["sentence"]))
    sets = rules.get("sets")
    if sets:
        done = f"hold the truth on {_format_estimate(sets['covered'])}; {sets['size']:.2f} classes each"
        if sets.get("single") is not None:
            done += f", {format_percent(sets['single'])} hold one class"
        promise = f"{format_share(sets['coverage'])} hold the truth"
        lines.append(("Sets of classes", promise, done, sets["sentence"]))
    intervals = rules.get("intervals")
    if intervals:
        done = f"hold the truth on {_format_estimate(intervals['covered'])}"
        done += f"; mean width {format_significant(intervals['width'])}"
        promise = f"{format_share(intervals['coverage'])} hold the truth"
        lines.append(("Intervals", promise, done, intervals["sentence"]))
    strange = rules.get("strange")
    if strange:
        done = f"flags {_format_estimate(strange['flagged'])} of the test rows"
        for name, flagged in (strange.get("shifted") or {}).items():
            done += f"; {_format_estimate(flagged)} of {name}"
        promise = f"{format_share(strange['rate'])} false alarms"
        lines.append(("Strange inputs", promise, done, strange["sentence"]))
    keys = ("name", "promise", "done", "sentence")
    return [dict(zip(keys, line, strict=True)) for line in lines]


def _format_estimate(estimate: fields.Estimate | None) -> str:
    """Write a share with its interval in brackets."""
    if not estimate:
        return ""
    text = format_percent(estimate["value"])
    if not fields.has_bounds(estimate):
        return text
    return (
        f"{text} ({format_percent(estimate['low'])} to {format_percent(estimate['high'])})"
    )
