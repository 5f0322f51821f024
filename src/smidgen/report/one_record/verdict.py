"""The verdict: whether Bayes helped, in three lines of plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smidgen.report import fields as reading
from smidgen.report.fields import Interval
from smidgen.report.one_record.tables import count, nll, rate, share, signed, times
from smidgen.report.one_record.tuned import KIND, TUNED, tuned_verdict
from smidgen.runtime.record import Record

_JUDGED = ("Against the MAP", "Against temperature scaling", "Cost")
LEADS = (*_JUDGED, TUNED, "Against fitted noise")


def verdict(record: Record) -> list[str]:
    """Say in plain words whether Bayes helped.

    Args:
        record: The record.

    Returns:
        Three lines, against the MAP, against temperature scaling, and the cost; what was
        tuned and the first two for `smidgen bayestune`; or one line that says why there is
        nothing to compare.
    """
    if record.kind == KIND:
        return tuned_verdict(record)
    method = reading.primary(record)
    if method is None:
        return [
            "This record compares no Bayesian method with a point estimate, so there is "
            "nothing to judge. 'smidgen evaluate' makes one that does."
        ]
    texts = (_against_map(record, method), _against_temperature(record, method))
    return [
        f"{lead}: {text}"
        for lead, text in zip(_JUDGED, (*texts, _cost(record, method)), strict=True)
    ]


def _against_map(record: Record, method: Mapping[str, Any]) -> str:
    numbers = _numbers(record, method, reading.MAP)
    if numbers is None:
        return "not measured."
    gap = reading.difference(record, method["name"], reading.MAP, "nll")
    if gap is None:
        return f"no paired interval was recorded, so no gain is claimed. {numbers}"
    if gap["high"] < 0:
        opening = f"Bayes helped, {reading.label(method)} is clearly better"
    elif gap["low"] > 0:
        opening = f"Bayes did harm, {reading.label(method)} is clearly worse"
    else:
        opening = "Bayes made no clear difference"
    return f"{opening}. {numbers}"


def _against_temperature(record: Record, method: Mapping[str, Any]) -> str:
    numbers = _numbers(record, method, reading.TEMPERATURE)
    if numbers is None:
        return "not measured, so whether it would have been enough is unknown."
    gap = reading.difference(record, method["name"], reading.TEMPERATURE, "nll")
    if gap is None:
        return f"no paired interval was recorded, so no gain is claimed. {numbers}"
    if gap["high"] < 0:
        return f"clearly better. {numbers}"
    finding = "clearly worse" if gap["low"] > 0 else "no clear gain"
    if reading.ramp(record):
        return _among_schemes(record, finding, numbers)
    other = _clearly_better(record, reading.TEMPERATURE)
    if other is not None:
        ours, best = reading.label(method), _numbers(record, other, reading.TEMPERATURE)
        mine = f"{ours} is {finding}" if gap["low"] > 0 else f"{finding} from {ours}"
        return (
            f"{mine}, but {reading.label(other)} is clearly better. {numbers} "
            f"{reading.label(other)}: {best}"
        )
    return f"{finding}, temperature scaling is enough on this data. {numbers}"


def _among_schemes(record: Record, finding: str, numbers: str) -> str:
    """Judge what validation chose; test data pick no other scheme, they only count."""
    better = _all_clearly_better(record, reading.TEMPERATURE)
    if not better:
        return f"{finding}, temperature scaling is enough on this data. {numbers}"
    names = ", ".join(reading.label(method) for method in better)
    return (
        f"{finding} for the scheme that validation data chose. {numbers} Clearly better on "
        f"test data, each taken by itself: {names}."
    )


def _clearly_better(record: Record, baseline: str) -> Mapping[str, Any] | None:
    """Find the best method whose paired NLL difference lies wholly below zero."""
    return next(iter(_all_clearly_better(record, baseline)), None)


def _all_clearly_better(record: Record, baseline: str) -> list[Mapping[str, Any]]:
    better = [
        (found["value"], method["name"], method)
        for method in reading.methods(record)
        if (found := reading.difference(record, method["name"], baseline, "nll"))
        and found["high"] < 0
    ]
    return [method for _, _, method in sorted(better, key=lambda item: item[:2])]


def _numbers(record: Record, method: Mapping[str, Any], baseline: str) -> str | None:
    """Put NLL and ECE of a method beside those of a baseline."""
    other = reading.named(record, baseline)
    ours, theirs = reading.score(method, "nll"), reading.score(other, "nll")
    if ours is None or theirs is None:
        return None
    text = f"NLL {nll(ours['value'])} against {nll(theirs['value'])}"
    gap = reading.difference(record, method["name"], baseline, "nll")
    if gap:
        text += f" (difference {_interval(gap)})"
    ours, theirs = (reading.score(m, "ece_equal_mass") for m in (method, other))
    if ours and theirs:
        text += f", ECE {rate(ours['value'])} against {rate(theirs['value'])}"
        gap = reading.difference(record, method["name"], baseline, "ece_equal_mass")
        if gap and gap["low"] <= 0 <= gap["high"]:
            text += ", which may be chance"
    return f"{text}."


def _interval(gap: Interval) -> str:
    low, high = signed(gap["low"]), signed(gap["high"])
    return f"{signed(gap['value'])}, 95\u202f% interval {low} to {high}"


def _cost(record: Record, method: Mapping[str, Any]) -> str:
    parts = []
    if method.get("floats") is not None:
        parts.append(f"{count(method['floats'])} floats stored")
    if method.get("relative_seconds") is not None:
        parts.append(
            f"{times(method['relative_seconds'])} the time of a plain forward pass"
        )
    if method.get("fraction") is not None:
        parts.append(f"{share(method['fraction'])} of the weights stochastic")
    lines = [" and ".join(parts) + "." if parts else "not measured.", *_whole(record)]
    baseline = reading.named(record, reading.TEMPERATURE)
    if baseline is not None:
        lines += [*_detection(method, baseline), *_disagreement(method, baseline)]
    return " ".join(lines)


def _whole(record: Record) -> list[str]:
    """Say what a posterior over everything costs and gives, where a study has one."""
    whole = reading.named(record, "full")
    found = reading.score(whole, "nll")
    if whole is None or found is None or whole.get("floats") is None:
        return []
    return [f"All layers: {count(whole['floats'])} floats, NLL {nll(found['value'])}."]


def _detection(method: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    ours, theirs = method.get("detection") or {}, baseline.get("detection") or {}
    shared = [name for name in ours if ours[name] and theirs.get(name)]
    if not shared:
        return []
    means = [
        sum(found[name]["value"] for name in shared) / len(shared)
        for found in (ours, theirs)
    ]
    above = sum(_above(ours[name], theirs[name]) for name in shared) or "none"
    sets = "1 shifted set" if len(shared) == 1 else f"{len(shared)} shifted sets"
    return [
        f"Mean AUROC over {sets}: {rate(means[0])} against {rate(means[1])} for "
        f"temperature scaling, clearly higher on {above}."
    ]


def _disagreement(method: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    ours, theirs = method.get("disagreement"), baseline.get("disagreement")
    if not ours or not theirs:
        return []
    apart = "clearly higher" if _above(ours, theirs) else "not clearly higher"
    return [
        f"Human disagreement: {rate(ours['value'])} against {rate(theirs['value'])}, "
        f"{apart}."
    ]


def _above(ours: Interval, theirs: Interval) -> bool:
    """Say whether one interval lies wholly above another."""
    both = reading.bounded(ours) and reading.bounded(theirs)
    return both and ours["low"] > theirs["high"]
