"""A record as a ramping study would write it, from a fixed seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from smidgen.runtime.record import Record
from tests.support.report_record import difference, make_record

LABELS = {
    "sparse-kfac": "Sparse-KFAC",
    "max-mlp": "Max norm, MLP",
    "min-mlp": "Min norm, MLP",
    "max-attention": "Max norm, attention",
    "min-attention": "Min norm, attention",
    "random": "Random modules",
    "last-layer": "Last layer",
    "full": "All maps",
    "best-budget": "Best budget",
    "isotropic": "Isotropic",
    "head-isotropic": "Last layer | isotropic body",
}
REPEATS = 3
GROWING = {"max-mlp": 14, "min-mlp": 14, "max-attention": 24, "min-attention": 24}
TOTAL = 10_700_000
BEST = "best-budget"
SECONDS = {
    "curvature pass and decompositions": 68.71,
    "validation pass": 1272.4,
    "choosing": 3.52,
    "test pass": 37.83,
}


def make_ramp_record(**changes: Any) -> Record:
    """Build a full record; changes replace parts of its results, None removes them."""
    base = make_record()
    points = _points(np.random.default_rng(1), base.results["subset"]["maps"])
    chosen = _chosen(points)
    baselines = [
        _without(method, "detection", "disagreement")
        for method in base.results["methods"][:2]
    ]
    results: dict[str, Any] = {
        "methods": [
            *({**method, "relative_seconds": None} for method in baselines),
            *(_method(base, points[place]) for place in chosen.values()),
        ],
        "differences": [
            difference(scheme, baseline, "nll", gap, 0.006)
            for scheme in chosen
            for baseline, gap in (("map", -0.13), ("temperature", -0.004))
        ],
        "ramp": {
            "points": points,
            "chosen": chosen,
            "map": {"nll": 0.5804, "ece": 0.1337, "ece_floor": 0.0831},
            "temperature": {
                "nll": 0.4526,
                "ece": 0.1029,
                "ece_floor": 0.0912,
                "temperature": 2.104,
            },
            "best": BEST,
        },
        "norms": _norms(base.results["subset"]["maps"]),
        "data": {"train": 300, "validation": 200, "test": 200},
        "seconds": SECONDS,
    }
    results.update(changes)
    return replace(
        base,
        kind="ramp",
        config={
            "title": "How much of MiniLM must be stochastic?",
            "schemes": list(LABELS),
            "most_stochastic": 0.1,
        },
        results={key: part for key, part in results.items() if part is not None},
    )


def _without(method: dict[str, Any], *parts: str) -> dict[str, Any]:
    return {key: value for key, value in method.items() if key not in parts}


def _method(base: Record, point: dict[str, Any]) -> dict[str, Any]:
    scheme = point["scheme"]
    place = list(LABELS).index(scheme)
    method = _without(base.results["methods"][3], "detection", "disagreement")
    scores = {
        name: {end: value + 0.0007 * place for end, value in one.items()}
        for name, one in method["scores"].items()
    }
    kept = (
        "precision",
        "body_precision",
        "temperature",
        "level",
        "weights",
        "fraction",
        "floats",
    )
    return {
        **method,
        "name": scheme,
        "label": LABELS[scheme],
        "scores": scores,
        "relative_seconds": None,
        **{name: point[name] for name in kept if name in point},
        "precision_at_edge": scheme == "full",
        "validation_nll": point["nll"],
    }


def _points(
    generator: np.random.Generator, layers: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    found = []

    def add(scheme: str, level: float, share: float, repeat: int = 0) -> None:
        weights = max(1, round(share * TOTAL))
        found.append(
            {
                "scheme": scheme,
                "level": level,
                "repeat": repeat,
                "floats": round(3.5 * weights + generator.integers(1000)),
                "weights": weights,
                "fraction": weights / TOTAL,
                "precision": float(10 ** generator.integers(0, 5)),
                "temperature": float(generator.uniform(1.5, 2.1)),
                "nll": float(0.451 + 0.0012 * generator.random()),
                "ece": float(0.1 + 0.02 * generator.random()),
                "ece_floor": float(0.09 + 0.001 * generator.random()),
            }
        )

    percents = (1.0, 3.0, 10.0, 30.0, 100.0)
    for percent in percents:
        add("sparse-kfac", percent, (percent / 100) ** 2)
    for scheme, count in GROWING.items():
        for number in range(1, count + 1):
            add(scheme, number, number / 38 * (0.4 if "attention" in scheme else 1))
    for repeat in range(REPEATS):
        for number in range(1, 39):
            add("random", number, number / 38, repeat)
    add("last-layer", 1, 0.0000719)
    add("full", 38, 1.0)
    for place, percent in enumerate(percents[:3]):
        add("best-budget", 10_000.0 * (place + 1), (percent / 100) ** 2)
        found[-1]["nll"] = 0.4505 - 0.0002 * place
        own = layers[: 12 + 2 * place]
        found[-1]["shares"] = [[percents[i % 5], m["name"]] for i, m in enumerate(own)]
    for percent in percents:
        add("isotropic", percent, (percent / 100) ** 2)
        found[-1]["floats"] = 0
    add("head-isotropic", 38, 1.0)
    found[-1] |= {"floats": 148_000, "body_precision": 31_600.0}
    return found


def _chosen(points: list[dict[str, Any]]) -> dict[str, int]:
    chosen = {}
    for scheme in LABELS:
        own = [i for i, point in enumerate(points) if point["scheme"] == scheme]
        small = [i for i in own if points[i]["fraction"] <= 0.1 or scheme == "full"]
        chosen[scheme] = min(small or own, key=lambda i: points[i]["nll"])
    return chosen


def _norms(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"name": m["name"], "group": m["group"], "norm": 2.0 + (i * 7 % 31) / 3}
        for i, m in enumerate(layers)
    ]
