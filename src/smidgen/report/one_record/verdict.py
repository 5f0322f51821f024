"""The verdict: whether Bayes helped, in three lines of plain words."""

from __future__ import annotations

from smidgen.report import fields
from smidgen.report.fields import Estimate, MethodFields
from smidgen.report.formats import (
    format_count,
    format_fraction,
    format_nll,
    format_rate,
    format_ratio,
    format_signed,
)
from smidgen.report.one_record.tuned import KIND, TUNED, tuned_verdict
from smidgen.runtime.record import Record

LEADS = (
    "Against the MAP",
    "Against temperature scaling",
    "Against fitted noise",
    "Cost",
    TUNED,
)


def verdict(record: Record) -> list[str]:
    """Say in plain words whether Bayes helped.

    Args:
        record: The record.

    Returns:
        Three lines: against the MAP, against temperature scaling (for a regression, against
        fitted noise), and the cost. For `smidgen bayestune`, what was tuned and the first
        two. Or one line that says why there is nothing to compare.
    """
    if record.kind == KIND:
        return tuned_verdict(record)
    method = fields.find_primary(record)
    if method is None:
        return [
            "This record compares no Bayesian method with a point estimate, so there is "
            "nothing to judge. 'smidgen evaluate' makes one that does."
        ]
    return [
        f"Against the MAP: {_judge(record, method, fields.MAP)}",
        f"Against {fields.name_scaling(record)}: {_judge(record, method, fields.TEMPERATURE)}",
        f"Cost: {_describe_cost(record, method)}",
    ]


def _judge(record: Record, method: MethodFields, baseline: str) -> str:
    numbers = _compare_numbers(record, method, baseline)
    if numbers is None:
        unknown = ", so whether it would have been enough is unknown"
        return f"not measured{unknown if baseline == fields.TEMPERATURE else ''}."
    gap = fields.read_difference(record, method["name"], baseline, "nll")
    if gap is None:
        return f"no paired interval was recorded, so no gain is claimed. {numbers}"
    if baseline == fields.TEMPERATURE:
        return _judge_against_scaling(record, method, gap, numbers)
    if gap["high"] < 0:
        return f"Bayes helped, {fields.read_label(method)} is clearly better. {numbers}"
    if gap["low"] > 0:
        return f"Bayes did harm, {fields.read_label(method)} is clearly worse. {numbers}"
    return f"Bayes made no clear difference. {numbers}"


def _judge_against_scaling(
    record: Record, method: MethodFields, gap: Estimate, numbers: str
) -> str:
    if gap["high"] < 0:
        return f"clearly better. {numbers}"
    finding = "clearly worse" if gap["low"] > 0 else "no clear gain"
    better = _clearly_better(record, fields.TEMPERATURE)
    if not better:
        return f"{finding}, {fields.name_scaling(record)} is enough on this data. {numbers}"
    if fields.read_part(record, "ramp"):
        # Test data pick no other scheme, they only count those that would be better.
        names = ", ".join(map(fields.read_label, better))
        return (
            f"{finding} for the scheme that validation data chose. {numbers} Clearly "
            f"better on test data, each taken by itself: {names}."
        )
    ours, other = fields.read_label(method), fields.read_label(better[0])
    opening = f"{ours} is {finding}" if gap["low"] > 0 else f"{finding} from {ours}"
    others = _compare_numbers(record, better[0], fields.TEMPERATURE)
    return f"{opening}, but {other} is clearly better. {numbers} {other}: {others}"


def _clearly_better(record: Record, baseline: str) -> list[MethodFields]:
    """List methods whose paired NLL difference lies wholly below zero, best first."""
    gaps = [
        (gap["value"], method["name"], method)
        for method in fields.list_methods(record)
        if (gap := fields.read_difference(record, method["name"], baseline, "nll"))
        and gap["high"] < 0
    ]
    return [method for _, _, method in sorted(gaps, key=lambda item: item[:2])]


def _compare_numbers(record: Record, method: MethodFields, baseline: str) -> str | None:
    """Put NLL and calibration error of a method beside those of a baseline."""
    other = fields.find_method(record, baseline)
    ours, theirs = fields.read_score(method, "nll"), fields.read_score(other, "nll")
    if ours is None or theirs is None:
        return None
    text = f"NLL {format_nll(ours['value'])} against {format_nll(theirs['value'])}"
    gap = fields.read_difference(record, method["name"], baseline, "nll")
    if gap:
        text += f" (difference {_format_gap(gap)})"
    name = fields.find_calibration_score(method) or ""
    ours, theirs = (fields.read_score(m, name) for m in (method, other))
    if ours and theirs:
        text += f", ECE {format_rate(ours['value'])} against {format_rate(theirs['value'])}"
        gap = fields.read_difference(record, method["name"], baseline, name)
        if gap and gap["low"] <= 0 <= gap["high"]:
            text += ", which may be chance"
    return f"{text}."


def _format_gap(gap: Estimate) -> str:
    low, high = format_signed(gap["low"]), format_signed(gap["high"])
    return f"{format_signed(gap['value'])}, 95\u202f% interval {low} to {high}"


def _describe_cost(record: Record, method: MethodFields) -> str:
    parts = []
    if method.get("floats") is not None:
        parts.append(f"{format_count(method['floats'])} floats stored")
    if method.get("relative_seconds") is not None:
        ratio = format_ratio(method["relative_seconds"])
        parts.append(f"{ratio} the time of a plain forward pass")
    if method.get("fraction") is not None:
        parts.append(f"{format_fraction(method['fraction'])} of the weights stochastic")
    lines = [" and ".join(parts) + "." if parts else "not measured."]
    whole = fields.find_method(record, "full")
    loss = fields.read_score(whole, "nll")
    if whole is not None and loss is not None and whole.get("floats") is not None:
        floats = format_count(whole["floats"])
        lines.append(f"All layers: {floats} floats, NLL {format_nll(loss['value'])}.")
    baseline = fields.find_method(record, fields.TEMPERATURE)
    if baseline is not None:
        lines += [
            *_compare_detection(method, baseline, fields.name_scaling(record)),
            *_compare_disagreement(method, baseline),
        ]
    return " ".join(lines)


def _compare_detection(
    method: MethodFields, baseline: MethodFields, scaling: str
) -> list[str]:
    ours, theirs = method.get("detection") or {}, baseline.get("detection") or {}
    shared = [name for name in ours if ours[name] and theirs.get(name)]
    if not shared:
        return []
    means = [
        format_rate(sum(sets[name]["value"] for name in shared) / len(shared))
        for sets in (ours, theirs)
    ]
    higher = sum(_is_above(ours[name], theirs[name]) for name in shared) or "none"
    sets = "1 shifted set" if len(shared) == 1 else f"{len(shared)} shifted sets"
    return [
        f"Mean AUROC over {sets}: {means[0]} against {means[1]} for {scaling}, clearly "
        f"higher on {higher}."
    ]


def _compare_disagreement(method: MethodFields, baseline: MethodFields) -> list[str]:
    ours, theirs = method.get("disagreement"), baseline.get("disagreement")
    if not ours or not theirs:
        return []
    values = f"{format_rate(ours['value'])} against {format_rate(theirs['value'])}"
    clearly = "clearly" if _is_above(ours, theirs) else "not clearly"
    return [f"Human disagreement: {values}, {clearly} higher."]


def _is_above(ours: Estimate, theirs: Estimate) -> bool:
    """Say whether one interval lies wholly above another."""
    both = fields.has_bounds(ours) and fields.has_bounds(theirs)
    return both and ours["low"] > theirs["high"]
