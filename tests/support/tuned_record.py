"""A record as `smidgen tune` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smidgen.runtime.record import Record

GRID = (0.01, 0.1, 1.0, 10.0, 100.0)


def make_tuned_record(
    *,
    posterior: str | None = "laplace",
    precision: Any = 3.0,
    chosen_nll: float = 0.5353,
    accuracy: float | None = 0.735,
) -> Record:
    """Build one; numbers instead of classes without an accuracy."""
    history = [
        {"number": number, "train_nll": 0.58, "nll": nll, "accuracy": accuracy}
        for number, nll in ((1, 0.5606), (2, 0.5890))
    ]
    results: dict[str, Any] = {
        "delta": "tuned/delta.safetensors",
        "bytes": 816_123,
        "weights": 27_364,
        "head": 770,
        "best": history[0],
        "history": history,
        "chain": _chain(),
    }
    if posterior is not None:
        results["posterior"] = {
            "weights": 27_364,
            "fraction": 0.005,
            "floats": 27_364,
            "precision": precision,
            "temperature": 0.206,
            "tuning": {
                "precisions": GRID,
                "nll": (0.68, 0.66, 0.6, 0.55, 0.56),
                "joint_nll": (0.539, 0.538, 0.536, 0.537, 0.543),
                "map_nll": 0.5606,
                "map_scaled_nll": 0.5438,
                "chosen_nll": chosen_nll,
                "examples": 200,
                "at_edge": False,
            },
        }
        if accuracy is not None:
            results["precision_curve"] = _curve(results["posterior"])
    config = {
        "title": "MiniLM, tuned on train.tsv",
        "head": ["bert.pooler.dense", "classifier"],
        "posterior": posterior or "none",
    }
    return Record("bayestune", config, results, 0)


def _curve(posterior: Mapping[str, Any]) -> dict[str, Any]:
    tuning, chosen = posterior["tuning"], posterior["precision"]
    several = isinstance(chosen, Mapping)
    return {
        "precision": tuning["precisions"],
        "nll": tuning["nll"],
        "nll_with_temperature": tuning["joint_nll"],
        "chosen_precision": None if several else chosen,
        "chosen_precisions": chosen if several else {"all": chosen},
        "chosen_temperature": posterior["temperature"],
        "map_nll": tuning["map_nll"],
        "temperature_nll": tuning["map_scaled_nll"],
    }


def _chain() -> dict[str, Any]:
    return {
        "samples": 3,
        "overlap_of_halves": 0.5,
        "chance": 0.005,
        "acceptance": 0.76,
        "traces": [
            {"step": 2 * n, "nll": 0.6 - 0.1 * n, "scale": 1e-3 + 1e-4 * n}
            | {"displacement": 4e-4 + 5e-5 * n}
            for n in range(1, 4)
        ],
    }
