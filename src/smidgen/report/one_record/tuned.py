"""What `smidgen bayestune` did: the weights it moved, their delta, and the posterior."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smidgen.posterior.laplace import format_range
from smidgen.report import fields
from smidgen.report.fields import read_part
from smidgen.report.formats import format_count, format_fraction, format_nll, format_percent
from smidgen.report.names import FAMILIES
from smidgen.runtime.memory import format_bytes
from smidgen.runtime.record import Record

TUNED = "Tuned"
KIND = "bayestune"


def describe_tuned(record: Record) -> dict[str, Any] | None:
    """Prepare what a page shows of a tuned model."""
    if record.kind != KIND:
        return None
    best = read_part(record, "best")
    posterior = read_part(record, "posterior") or {}
    calibration = posterior.get("tuning") or {}
    return {
        "weights": describe_weights(
            read_part(record, "weights"), read_part(record, "head")
        ),
        "head": ", ".join(record.config.get("head") or ()),
        "size": format_bytes(read_part(record, "bytes")),
        "epochs": [
            {**epoch, "kept": epoch == best} for epoch in read_part(record, "history")
        ],
        "posterior": _describe_posterior(record, posterior) if posterior else None,
        "examples": calibration.get("examples", 0),
        "scores": _list_scores(record, calibration) if calibration else [],
        "at_edge": bool(calibration.get("at_edge")),
        # Answers are right or wrong, numbers are neither.
        "classes": best["accuracy"] is not None,
    }


def describe_weights(total: int, head: int | None) -> str:
    """Say how many weights are tuned, with those of the head apart where it is known."""
    if head is None:
        return f"{format_count(total)} weights"
    pretrained = format_count(total - head)
    return f"{pretrained} pretrained weights and {format_count(head)} of the head"


def tuned_verdict(record: Record) -> list[str]:
    """Say how a tuned model does on the validation data that chose it."""
    tuned = describe_tuned(record)
    assert tuned is not None
    best = read_part(record, "best")
    accuracy = f", accuracy {format_percent(best['accuracy'])}" if tuned["classes"] else ""
    lines = [
        f"{TUNED}: {tuned['weights']}. A delta of {tuned['size']}. Epoch {best['number']} "
        f"of {len(tuned['epochs'])} was kept: validation NLL {format_nll(best['nll'])}"
        f"{accuracy}."
    ]
    if not tuned["scores"]:
        return lines
    plain, scaled, ours = tuned["scores"]
    scaling = "temperature scaling" if tuned["classes"] else "fitted noise"
    advice = " 'smidgen evaluate' tests it on test data." if tuned["classes"] else ""
    return [
        *lines,
        f"Against the MAP: {_compare_scores(ours, plain)}",
        f"Against {scaling}: {_compare_scores(ours, scaled)}{advice}",
    ]


def _compare_scores(ours: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Compare two scores that the same data chose, so that nothing is claimed."""
    same, lower = ours["text"] == other["text"], ours["nll"] < other["nll"]
    opening = "the same" if same else "lower" if lower else "higher"
    doubt = "; no gain is claimed from that" if lower and not same else ""
    return (
        f"{opening} NLL on the validation data that chose the posterior. {ours['text']} "
        f"against {other['text']}{doubt}."
    )


def _list_scores(record: Record, calibration: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the validation NLL of the MAP, of the rescaled MAP and of the posterior."""
    numbers = read_part(record, "best")["accuracy"] is None
    scaled = "MAP with its noise fitted" if numbers else "temperature scaling"
    rows = (
        (fields.MAP, "MAP", calibration["map_nll"]),
        (fields.TEMPERATURE, scaled, calibration["map_scaled_nll"]),
        ("posterior", f"{_name_family(record)} posterior", calibration["chosen_nll"]),
    )
    return [
        {"name": name, "label": label, "nll": nll, "text": format_nll(nll)}
        for name, label, nll in rows
    ]


def _describe_posterior(record: Record, posterior: Mapping[str, Any]) -> str:
    """Say what was chosen on validation data, and what is stored."""
    parts = [
        f"{_name_family(record)} over {format_count(posterior['weights'])} weights, "
        f"{format_fraction(posterior['fraction'])} of those that could be chosen"
    ]
    if "precision" in posterior:
        precision = posterior["precision"]
        several = precision.values() if isinstance(precision, Mapping) else (precision,)
        parts.append(f"precision {format_range(several)}")
    if "learning_rate" in posterior:
        parts.append(f"learning rate {posterior['learning_rate']:g}")
    if read_part(record, "best")["accuracy"] is not None:
        parts.append(f"temperature {posterior['temperature']:.3g}")
    return "; ".join([", ".join(parts), f"{format_count(posterior['floats'])} floats"])


def _name_family(record: Record) -> str:
    family = str(record.config.get("posterior", "posterior"))
    return FAMILIES.get(family, family)
