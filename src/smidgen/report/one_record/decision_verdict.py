"""What to do, in one or two lines of plain words: they stand before all other verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smidgen.report import fields
from smidgen.report.fields import Estimate, MethodFields
from smidgen.report.formats import format_percent, format_share, format_significant
from smidgen.report.wording import ALIKE, HIGHER, LOWER, name_side
from smidgen.runtime.record import Record

WHAT_TO_DO = "What to do"
RULES = "With the saved rules"
_SCORE = "automation"


def list_decisions(record: Record) -> list[str]:
    """Say what the rules answer, or what the intervals hold, if it was measured."""
    method = fields.find_primary(record)
    if method is None:
        return []
    lines = (
        _advise_answers(record, method),
        _advise_intervals(record, method),
        _advise_rules(record),
    )
    return [line for line in lines if line is not None]


def _advise_answers(record: Record, method: MethodFields) -> str | None:
    """Say what the rule did, then what the best threshold could do: only the first holds."""
    decisions = fields.read_part(record, "decisions") or {}
    rules, best = decisions.get("rules"), _describe_best(record, method)
    tried = (rules or {}).get("abstain")
    if tried:
        lead = _describe_answered(tried)
    elif best is None:
        return None
    elif decisions.get("multilabel"):
        lead = "no rule promises the error rate of several labels"
    elif rules is not None:
        lead = "no error rate can be promised yet, as there is no rule to abstain"
        lead += _describe_needed(decisions.get("rows_for_promise"))
    else:
        # What is read off the test rows permits nothing.
        hold = "Make a rule on rows that chose nothing else to hold it."
        return f"{WHAT_TO_DO}: {best}. {hold} {_judge_automation(record, method)}"
    if best is None:
        return f"{WHAT_TO_DO}: {lead}."
    best = best[:1].upper() + best[1:]
    return f"{WHAT_TO_DO}: {lead}. {best}. {_judge_automation(record, method)}"


def _describe_answered(tried: Mapping[str, Any]) -> str:
    """Say how much of the test rows a rule answers, and how much of that is wrong."""
    if not tried.get("error"):
        return "the rule answers none of the rows"
    text = (
        f"the rule answers {format_share(tried['answered']['value'])} of the rows, "
        f"{format_percent(tried['error']['value'])} of them wrong"
    )
    if tried.get("max_error") is None:
        return f"{text} (no error rate was asked for)"
    return f"{text} (asked: at most {format_share(tried['max_error'])})"


def _describe_needed(rows: Mapping[str, Any] | None) -> str:
    """Say how many rows a rule to abstain takes, or why they did not do; empty if unknown."""
    if not rows:
        return ""
    if rows.get("reason"):
        return f". On its rows, {rows['reason'].rstrip('.')}"
    if (rows.get("made") or 0) >= rows["needed"]:
        return (
            f". There were rows enough ({rows['made']:,}; it takes {rows['needed']:,}), but too "
            "many of the most certain ones are wrong"
        )
    made = f" ({rows['made']:,} made the other rules)" if rows.get("made") else ""
    return (
        f". It takes {rows['needed']:,} labelled rows or more{made}, and few errors among the "
        "most certain"
    )


def _describe_best(record: Record, method: MethodFields) -> str | None:
    """Say what the best threshold of each method could automate, known only afterwards."""
    max_error = fields.read_max_error(record)
    share = None if max_error is None else fields.read_automation(method, max_error)
    if max_error is None or share is None:
        return None
    accuracy, others = format_share(1 - max_error), _list_others(record, max_error)
    part = f"{format_share(share['value'])} of the answers"
    if share["value"] in (0, 1):
        part = "every answer" if share["value"] else "no answers"
    interval = ""
    if fields.has_bounds(share):
        ends = f"{format_share(share['low'])} to {format_share(share['high'])}"
        interval = f" (95\u202f% interval {ends})"
    beside = "; " + ", ".join(f"{name} {text}" for name, text in others.items())
    if list(others.values()) == [format_share(share["value"])]:
        beside = f", and {next(iter(others))} as much"
    return (
        f"at best, with the threshold chosen afterwards on these test rows, {part} could be "
        f"automated at {accuracy} accuracy{interval}{beside if others else ''}"
    )


def _list_others(record: Record, max_error: float) -> dict[str, str]:
    """List what the baselines could automate; those that could do the same, together."""
    shares: dict[str, list[str]] = {}
    names = {fields.MAP: "the plain model", fields.TEMPERATURE: fields.name_scaling(record)}
    for key, name in names.items():
        share = fields.read_automation(fields.find_method(record, key), max_error)
        if share is not None:
            shares.setdefault(format_share(share["value"]), []).append(name)
    return {" and ".join(named): text for text, named in shares.items()}


def _judge_automation(record: Record, method: MethodFields) -> str:
    """Say whether the posterior automates more than what is there without it."""
    scaling = fields.name_scaling(record)
    sides = {}
    for key, name in ((fields.MAP, "the plain model"), (fields.TEMPERATURE, scaling)):
        gap = fields.read_difference(record, method["name"], key, _SCORE)
        if gap is not None:
            sides[name] = name_side(gap["low"], gap["high"])
    ours = fields.read_label(method)
    if not sides:
        return "Nothing was there to compare it with."
    if LOWER in sides.values():
        better = next(name for name, side in sides.items() if side == LOWER)
        return f"{ours} automates clearly less than {better}: use that instead."
    if set(sides.values()) == {HIGHER}:
        than = "either" if len(sides) > 1 else next(iter(sides))
        return f"{ours} automates clearly more than {than}."
    # The plain model comes first: what it does as well needs no rescaling either.
    enough = next(name for name, side in sides.items() if side == ALIKE)
    more = [name for name, side in sides.items() if side == HIGHER]
    if more:
        return (
            f"{ours} automates clearly more than {more[0]}, but no more that can be told "
            f"than {enough}: for this, that is enough."
        )
    return f"{ours} automates no more that can be told: for this, {enough} is enough."


def _advise_intervals(record: Record, method: MethodFields) -> str | None:
    entry = find_widest_intervals(method)
    if entry is None:
        return None
    goal, covered = entry["coverage"], entry["covered"]
    promise = format_share(goal)
    claim = f"give each number with its {promise} interval"
    fault = judge_coverage(covered, goal)
    if fault == LOWER:
        claim = f"do not trust the {promise} intervals, they are too narrow"
    elif fault == HIGHER:
        claim = f"the {promise} intervals are safe, but wider than need be"
    names = {fields.MAP: "the plain model", fields.TEMPERATURE: fields.name_scaling(record)}
    others = [
        f"{name} {_describe_interval(other)}"
        for key, name in names.items()
        if (other := find_widest_intervals(fields.find_method(record, key)))
    ]
    beside = f" Beside it: {'; '.join(others)}." if others else ""
    return (
        f"{WHAT_TO_DO}: {claim}. Those of {fields.read_label(method)} hold the truth on "
        f"{_describe_interval(entry)}.{beside}"
    )


def find_widest_intervals(method: MethodFields | None) -> Mapping[str, Any] | None:
    """Find the intervals of the largest coverage that a method has."""
    entries = (method or {}).get("intervals") or ()
    return max(entries, key=lambda entry: entry["coverage"], default=None)


def judge_coverage(covered: Estimate, goal: float) -> str | None:
    """Say on which side of its promise a measured coverage lies; None if as promised."""
    if not fields.has_bounds(covered):
        return None
    side = name_side(covered["low"] - goal, covered["high"] - goal)
    return None if side == ALIKE else side


def _describe_interval(entry: Mapping[str, Any]) -> str:
    width = format_significant(entry["width"]["value"])
    return f"{format_percent(entry['covered']['value'])} of the rows, mean width {width}"


def _advise_rules(record: Record) -> str | None:
    rules = (fields.read_part(record, "decisions") or {}).get("rules") or {}
    # What the rule to abstain does has been said first.
    parts = []
    sets = rules.get("sets")
    if sets:
        parts.append(
            f"sets of {sets['size']['value']:.2f} classes on average hold the truth on "
            f"{format_percent(sets['covered']['value'])} (asked: "
            f"{format_share(sets['coverage'])})"
        )
    intervals = rules.get("intervals")
    if intervals:
        parts.append(
            f"{format_share(intervals['coverage'])} intervals hold the truth on "
            f"{format_percent(intervals['covered']['value'])}, mean width "
            f"{format_significant(intervals['width']['value'])}"
        )
    strange = rules.get("strange")
    if strange:
        share = format_percent(strange["flagged"]["value"])
        part = f"{share} of the test rows are flagged as strange"
        if strange.get("rate") is not None:
            part += f" (false alarms, {format_share(strange['rate'])} expected)"
        parts.append(part)
    if not parts:
        return None
    first, *rest = parts
    more = "; ".join(rest)
    return f"{RULES}: {first}." + (f" {more[:1].upper()}{more[1:]}." if rest else "")
