"""What a page says of decisions, before everything else: parts that are absent are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smidgen.report import fields
from smidgen.report.drawing.palette import Styles
from smidgen.report.formats import format_percent, format_share, format_significant
from smidgen.report.one_record.choice import describe_choice
from smidgen.report.one_record.decision_figures import draw_against_truth
from smidgen.report.one_record.decision_tables import (
    SCORE_NAMES,
    list_examples,
    tabulate_automation,
    tabulate_classes,
    tabulate_intervals,
    tabulate_same_rules,
    tabulate_scores,
)
from smidgen.runtime.record import Record


def describe_decisions(record: Record, styles: Styles) -> dict[str, Any]:
    """Prepare what a page shows of decisions."""
    part = fields.read_part(record, "decisions") or {}
    examples = {
        name: list_examples(record, name) for name in ("least_certain", "strangest")
    }
    score = str(part.get("strange_score"))
    return {
        "max_error": fields.read_max_error(record),
        "ours": _name_primary(record),
        "automation": tabulate_automation(record),
        "multilabel": bool(part.get("multilabel")),
        "rules": _list_rules(part.get("rules") or {}),
        "same_rules": tabulate_same_rules(record),
        "classes": tabulate_classes(record),
        "classes_left_out": part.get("classes_left_out") or 0,
        **examples,
        "has_texts": any(row.text for rows in examples.values() for row in rows),
        "strange_score": SCORE_NAMES.get(score, score),
        "intervals": tabulate_intervals(record),
        "truth": _draw_truth(record, part.get("truth") or {}, styles),
        "scores": tabulate_scores(record),
        "choice": describe_choice(record),
    }


def mark_chosen(record: Record) -> dict[str, tuple[float, float]]:
    """Find the point of each method's risk–coverage curve up to which it may answer."""
    max_error = fields.read_max_error(record)
    if max_error is None:
        return {}
    shares = {
        method["name"]: fields.read_automation(method, max_error)
        for method in fields.list_compared(record)
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
        "figures": draw_against_truth(truth["outputs"], styles[primary["name"]]),
    }


def _list_rules(rules: Mapping[str, Any]) -> list[dict[str, str]]:
    """List what each rule promises and what it did on the test rows."""
    makers = {
        "Answer or not": ("abstain", _describe_abstain),
        "Sets of classes": ("sets", _describe_sets),
        "Intervals": ("intervals", _describe_intervals),
        "Strange inputs": ("strange", _describe_strange),
    }
    described = []
    for name, (key, describe) in makers.items():
        if rules.get(key):
            promise, done = describe(rules[key])
            sentence = rules[key].get("sentence", "")
            described.append(
                {"name": name, "promise": promise, "done": done, "sentence": sentence}
            )
    return described


def _describe_abstain(rule: Mapping[str, Any]) -> tuple[str, str]:
    asked, wrong = rule.get("max_error"), _format_estimate(rule.get("error"))
    promise = "" if asked is None else f"at most {format_share(asked)} wrong"
    done = f"It answers {_format_estimate(rule['answered'])} of the test rows"
    return promise, f"{done}, {wrong} of those wrongly" if wrong else done


def _describe_sets(rule: Mapping[str, Any]) -> tuple[str, str]:
    done = f"The sets hold {_format_estimate(rule['covered'])}"
    done += f"; they have {rule['size']['value']:.2f} classes on average"
    if rule.get("single") is not None:
        done += f", and {format_percent(rule['single'])} of them have just one"
    return f"the truth in {format_share(rule['coverage'])} of the sets", done


def _describe_intervals(rule: Mapping[str, Any]) -> tuple[str, str]:
    done = f"The intervals hold {_format_estimate(rule['covered'])}"
    done += f"; their mean width is {format_significant(rule['width']['value'])}"
    return f"the truth in {format_share(rule['coverage'])} of the intervals", done


def _describe_strange(rule: Mapping[str, Any]) -> tuple[str, str]:
    done = f"It flags {_format_estimate(rule['flagged'])} of the test rows"
    for name, flagged in (rule.get("shifted") or {}).items():
        done += f"; {_format_estimate(flagged)} of {name}"
    return f"at most {format_share(rule['rate'])} false alarms", done


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
