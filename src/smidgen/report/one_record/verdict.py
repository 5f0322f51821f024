"""The verdict: whether Bayes helped, in three lines of plain words.

Only what lies beyond temperature scaling is called help. Every score is said to be clearly
lower, clearly higher, or not to be told apart, by the interval of its paired difference.
"""

from __future__ import annotations

from collections.abc import Mapping

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
from smidgen.report.one_record.decision_verdict import RULES, WHAT_TO_DO, list_decisions
from smidgen.report.one_record.tuned import KIND, TUNED, tuned_verdict
from smidgen.report.wording import ALIKE, HIGHER, LOWER, name_side
from smidgen.runtime.record import Record

LEADS = (
    WHAT_TO_DO,
    RULES,
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
        What to do, where that was measured: what saved rules do and what could be automated
        at best. Then three lines: against the MAP, against temperature scaling (for a regression,
        against fitted noise), and the cost. For `smidgen bayestune`, what was tuned and the first
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
        *list_decisions(record),
        f"Against the MAP: {_judge(record, method, fields.MAP)}",
        f"Against {fields.name_scaling(record)}: {_judge(record, method, fields.TEMPERATURE)}",
        f"Cost: {_describe_cost(record, method)}",
    ]


def _judge(record: Record, method: MethodFields, baseline: str) -> str:
    numbers = _compare_numbers(record, method, baseline)
    if numbers is None:
        unknown = ", so whether it would have been enough is unknown"
        return f"not measured{unknown if baseline == fields.TEMPERATURE else ''}."
    side = find_side(record, method["name"], baseline, "nll")
    if side is None:
        return f"no paired interval was recorded, so no gain is claimed. {numbers}"
    if baseline == fields.TEMPERATURE:
        return _judge_against_scaling(record, method, side, numbers)
    label, scaling = fields.read_label(method), fields.name_scaling(record)
    if side == ALIKE:
        what = scaling.capitalize() if method["name"] == fields.POINT else "Bayes"
        return f"{what} made no clear difference, the NLLs cannot be told apart. {numbers}"
    # Temperature scaling alone may do as much: only what lies beyond is due to Bayes.
    beyond = find_side(record, method["name"], fields.TEMPERATURE, "nll")
    if side == HIGHER:
        claim = {
            HIGHER: f"Bayes did harm, also beyond {scaling}: the NLL of {label} is clearly "
            "higher",
            ALIKE: f"the NLL of {label} is clearly higher, but cannot be told apart from that "
            f"of {scaling}: beyond it Bayes did no clear harm",
            LOWER: f"the NLL of {label} is clearly higher, but {scaling} alone does more harm",
            None: f"the NLL of {label} is clearly higher, whether by {scaling} or by Bayes is "
            "unknown",
        }[beyond]
        return f"{claim}. {numbers}"
    claim = {
        LOWER: f"Bayes helped, also beyond {scaling}: the NLL of {label} is clearly lower",
        ALIKE: f"the NLL of {label} is clearly lower, but no more than {scaling} brings",
        HIGHER: f"the NLL of {label} is clearly lower, but {scaling} alone brings more",
        None: f"the NLL of {label} is clearly lower, whether {scaling} would do is unknown",
    }[beyond]
    return f"{claim}. {numbers}"


def _judge_against_scaling(
    record: Record, method: MethodFields, side: str, numbers: str
) -> str:
    ours, scaling = fields.read_label(method), fields.name_scaling(record)
    if method["name"] == fields.POINT:
        return f"what was kept is {scaling} itself, so there is nothing to tell apart."
    if side == LOWER:
        return (
            f"Bayes helped beyond {scaling}, the NLL of {ours} is clearly lower. {numbers}"
        )
    finding = f"{ours} is no better than {scaling}, the NLLs cannot be told apart"
    if side == HIGHER:
        finding = f"{ours} is worse than {scaling}, its NLL is clearly higher"
    better = _clearly_lower(record, fields.TEMPERATURE)
    if not better:
        return f"{finding}: {scaling} is enough on this data. {numbers}"
    if fields.read_part(record, "ramp"):
        # Test data pick no other scheme, they only count those that would be better.
        names = ", ".join(map(fields.read_label, better))
        return (
            f"{finding} for the scheme that validation data chose. {numbers} Clearly "
            f"lower on test data, each taken by itself: {names}."
        )
    other = fields.read_label(better[0])
    others = _compare_numbers(record, better[0], fields.TEMPERATURE)
    return f"{finding}, but that of {other} is clearly lower. {numbers} {other}: {others}"


def list_sides(record: Record) -> list[str]:
    """Say of several methods, in one line, on which side of temperature scaling each is."""
    sides: dict[str, list[str]] = {LOWER: [], HIGHER: [], ALIKE: []}
    for method in fields.list_methods(record):
        side = find_side(record, method["name"], fields.TEMPERATURE, "nll")
        if side is not None:
            sides[side].append(fields.read_label(method))
    if sum(map(len, sides.values())) < 2:
        return []
    parts = [f"{side}: {', '.join(names) or 'none'}" for side, names in sides.items()]
    return [f"NLL against {fields.name_scaling(record)}, {'; '.join(parts)}."]


def find_side(record: Record, method: str, baseline: str, score: str) -> str | None:
    """Say on which side of a baseline a method lies by its paired difference, if known."""
    gap = fields.read_difference(record, method, baseline, score)
    return None if gap is None else name_side(gap["low"], gap["high"])


def _clearly_lower(record: Record, baseline: str) -> list[MethodFields]:
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
        floors = [fields.read_floor(m, name) for m in (method, other)]
        known = [format_rate(floor) for floor in floors if floor is not None]
        if len(known) == len(floors):
            text += f" ({' and '.join(dict.fromkeys(known))} by chance alone)"
        # What chance adds does not cancel in a difference of two samples, so the squared
        # errors decide, to which it adds nothing.
        side = find_side(record, method["name"], baseline, fields.SQUARED_CALIBRATION)
        text += f", {side} with chance taken out" if side else ""
    return f"{text}."


def _format_gap(gap: Estimate) -> str:
    low, high = format_signed(gap["low"]), format_signed(gap["high"])
    return f"{format_signed(gap['value'])}, 95\u202f% interval {low} to {high}"


def _describe_cost(record: Record, method: MethodFields) -> str:
    parts = []
    if method.get("floats") is not None:
        parts.append(f"{format_count(method['floats'])} floats stored")
    if method == fields.find_kept(record):
        parts.append("a plain forward pass")
    elif method.get("relative_seconds") is not None:
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
            *_compare_detection(record, method, baseline),
            *_compare_disagreement(record, method, baseline),
        ]
    return " ".join(lines)


def _compare_detection(
    record: Record, method: MethodFields, baseline: MethodFields
) -> list[str]:
    ours, theirs = method.get("detection") or {}, baseline.get("detection") or {}
    shared = [name for name in ours if ours[name] and theirs.get(name)]
    if not shared:
        return []
    means = [
        format_rate(sum(sets[name]["value"] for name in shared) / len(shared))
        for sets in (ours, theirs)
    ]
    sides, how = _compare_pairs(
        record, method, {f"detection.{name}": (ours[name], theirs[name]) for name in shared}
    )
    opening = f"{means[0]} against {means[1]} for {fields.name_scaling(record)}"
    if len(shared) == 1:
        return [f"AUROC on the shifted set: {opening}, {sides[0]}{how}."]
    counts = ", ".join(
        f"{side} on {sides.count(side) or 'none'}" for side in (HIGHER, LOWER, ALIKE)
    )
    return [f"Mean AUROC over {len(shared)} shifted sets: {opening}, {counts}{how}."]


def _compare_disagreement(
    record: Record, method: MethodFields, baseline: MethodFields
) -> list[str]:
    ours, theirs = method.get("disagreement"), baseline.get("disagreement")
    if not ours or not theirs:
        return []
    values = f"{format_rate(ours['value'])} against {format_rate(theirs['value'])}"
    (side,), how = _compare_pairs(record, method, {"disagreement": (ours, theirs)})
    return [f"Human disagreement: {values}, {side}{how}."]


def _compare_pairs(
    record: Record, method: MethodFields, pairs: Mapping[str, tuple[Estimate, Estimate]]
) -> tuple[list[str], str]:
    """Say the side of each score to that of temperature scaling, and how it was found."""
    sides, how = [], ""
    for score, (ours, theirs) in pairs.items():
        side = find_side(record, method["name"], fields.TEMPERATURE, score)
        if side is None:
            # Without a paired difference, two intervals apart from each other are clear.
            how = " (by unpaired intervals)"
            side = ALIKE
            if fields.has_bounds(ours) and fields.has_bounds(theirs):
                side = name_side(ours["low"] - theirs["high"], ours["high"] - theirs["low"])
        sides.append(side)
    return sides, how
