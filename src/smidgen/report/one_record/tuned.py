"""What `smidgen tune` found: the weights it moved, their delta, and the posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen.posterior.laplace import format_range
from smidgen.report import fields as reading
from smidgen.report.names import FAMILIES
from smidgen.report.one_record.tables import count, nll, percent, share
from smidgen.runtime.memory import format_bytes
from smidgen.runtime.record import Record

TUNED = "Tuned"
KIND = "tune"


@dataclass(frozen=True)
class Scored:
    """A predictive's NLL on validation data.

    Args:
        name: Its name, of which it has its look.
        label: As people read it.
        nll: The NLL.
        text: The same, to be read.
    """

    name: str
    label: str
    nll: float
    text: str


@dataclass(frozen=True)
class Tuned:
    """What a page shows of a tuned model.

    Args:
        weights: How many weights were tuned, in words.
        head: The modules that are new, in words; empty where they are not known.
        size: The delta's bytes, in words.
        epochs: Each epoch as it was recorded, and whether it was `kept`.
        posterior: What is over the tuned weights, in words; none if none was fitted.
        examples: How many validation examples scored it.
        scores: The point estimate, the scaled one and the posterior.
        at_edge: Whether a better precision may lie beyond those tried.
    """

    weights: str
    head: str
    size: str
    epochs: list[dict[str, Any]]
    posterior: str | None
    examples: int
    scores: list[Scored]
    at_edge: bool

    @property
    def classes(self) -> bool:
        """Whether answers are right or wrong; numbers are neither."""
        return all(epoch["accuracy"] is not None for epoch in self.epochs)


def tuned_of(record: Record) -> Tuned | None:
    """Read what a page shows of a tuned model.

    Args:
        record: The record.

    Returns:
        It, if the record is of `smidgen tune`.
    """
    if record.kind != KIND:
        return None
    found = record.results
    posterior = found.get("posterior") or {}
    tuning = posterior.get("tuning") or {}
    return Tuned(
        tuned_weights(found["weights"], found.get("head")),
        ", ".join(record.config.get("head") or ()),
        format_bytes(found["bytes"]),
        [{**epoch, "kept": epoch == found["best"]} for epoch in found["history"]],
        _settings(record, posterior) if posterior else None,
        tuning.get("examples", 0),
        _scores(record, tuning) if tuning else [],
        bool(tuning.get("at_edge")),
    )


def tuned_weights(total: int, head: int | None) -> str:
    """Say how many weights are tuned, those of the head apart where they are known."""
    if head is None:
        return f"{count(total)} weights"
    return f"{count(total - head)} pretrained weights and {count(head)} of the head"


def tuned_verdict(record: Record) -> list[str]:
    """Say what validation data say of a tuned model, and that they chose it.

    Args:
        record: The record of `smidgen tune`.

    Returns:
        What was tuned; and where there is a posterior a line against the MAP and one
        against the scaled MAP.
    """
    found = tuned_of(record)
    assert found is not None
    best = record.results["best"]
    hits = "" if best["accuracy"] is None else f", accuracy {percent(best['accuracy'])}"
    lines = [
        f"{TUNED}: {found.weights}. A delta of {found.size}. Epoch {best['number']} of "
        f"{len(found.epochs)} was kept: validation NLL {nll(best['nll'])}{hits}."
    ]
    if not found.scores:
        return lines
    plain, scaled, ours = found.scores
    lead = "temperature scaling" if found.classes else "fitted noise"
    # 'smidgen evaluate' is for classes.
    advice = " 'smidgen evaluate' tells on test data." if found.classes else ""
    return [
        *lines,
        f"Against the MAP: {_beside(ours, plain)}",
        f"Against {lead}: {_beside(ours, scaled)}{advice}",
    ]


def _beside(ours: Scored, other: Scored) -> str:
    """Compare two scores that the same data chose, so that nothing is claimed."""
    same, lower = ours.text == other.text, ours.nll < other.nll
    opening = "the same" if same else "lower" if lower else "higher"
    doubt = "; no gain is claimed from that" if lower and not same else ""
    return (
        f"{opening} NLL on the validation data that chose the posterior. {ours.text} "
        f"against {other.text}{doubt}."
    )


def _scores(record: Record, tuning: Mapping[str, Any]) -> list[Scored]:
    numbers = record.results["best"]["accuracy"] is None
    kind = _kind(record)
    rows = {
        (reading.MAP, "MAP"): tuning["map_nll"],
        (
            reading.TEMPERATURE,
            "MAP with its noise fitted" if numbers else "temperature scaling",
        ): tuning["map_scaled_nll"],
        ("posterior", f"{FAMILIES.get(kind, kind)} posterior"): tuning["chosen_nll"],
    }
    return [Scored(*names, value, nll(value)) for names, value in rows.items()]


def _settings(record: Record, posterior: Mapping[str, Any]) -> str:
    """What was chosen on validation data, and what is stored."""
    kind = _kind(record)
    parts = [
        f"{FAMILIES.get(kind, kind)} over {count(posterior['weights'])} weights, "
        f"{share(posterior['fraction'])} of those that could be chosen"
    ]
    if "precision" in posterior:
        found = posterior["precision"]
        several = found.values() if isinstance(found, Mapping) else (found,)
        parts.append(f"precision {format_range(several)}")
    if "learning_rate" in posterior:
        parts.append(f"learning rate {posterior['learning_rate']:g}")
    if record.results["best"]["accuracy"] is not None:
        parts.append(f"temperature {posterior['temperature']:.3g}")
    return "; ".join([", ".join(parts), f"{count(posterior['floats'])} floats"])


def _kind(record: Record) -> str:
    return str(record.config.get("posterior", "posterior"))
