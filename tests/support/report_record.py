"""A record as a demo run would write it, from a fixed seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from smidgen.runtime.record import Record

LAYERS = 6
PERCENT = 10
NLL = {"map": 0.5204, "temperature": 0.3951, "last-layer": 0.3934, "sparse-kfac": 0.3819}
ECE = {"map": 0.107, "temperature": 0.0541, "last-layer": 0.0532, "sparse-kfac": 0.0311}
LABELS = {
    "map": "MAP",
    "temperature": "Temperature scaling",
    "last-layer": "Last layer",
    "sparse-kfac": "Sparse-KFAC",
}
SETS = ("tweets", "amazon", "editorials", "ambiguous")


def make_record(**changes: Any) -> Record:
    """Build a full record; changes replace parts of its results, None removes them."""
    generator = np.random.default_rng(0)
    results: dict[str, Any] = {
        "methods": [_method(name, generator) for name in NLL],
        "differences": [
            difference("sparse-kfac", "map", "nll", -0.1385, 0.02),
            difference("sparse-kfac", "map", "squared_calibration", -0.0101, 0.004),
            difference("sparse-kfac", "temperature", "nll", -0.0132, 0.0071),
            difference("sparse-kfac", "temperature", "squared_calibration", -0.001, 0.002),
            *(
                difference("sparse-kfac", "temperature", f"detection.{name}", gap, 0.02)
                for name, gap in zip(SETS, (0.03, -0.03, 0.01, 0.024), strict=True)
            ),
            difference("sparse-kfac", "temperature", "disagreement", -0.05, 0.04),
            difference("last-layer", "temperature", "nll", -0.0017, 0.003),
        ],
        "precision_curve": _precision_curve(),
        "subset": _subset(generator),
        "data": {"train": 1500, "validation": 1000, "test": 2000},
    }
    results.update(changes)
    return Record(
        kind="demo",
        config={
            "title": "Sentiment of film reviews, MiniLM",
            "model": "sentence-transformers/all-MiniLM-L6-v2",
            "percent": PERCENT,
            "task": "sst2",
            "learning_rate": 5e-5,
        },
        results={key: part for key, part in results.items() if part is not None},
        seed=7,
        versions={"python": "3.11.2", "smidgen": "0.1.0", "torch": "2.9.0"},
        machine={"system": "Linux", "processor": "x86_64", "cores": 2},
        created="2026-11-15T21:00:00+00:00",
    )


def difference(
    method: str, baseline: str, score: str, value: float, half: float
) -> dict[str, Any]:
    """Build one paired difference."""
    bounds = {"value": value, "low": value - half, "high": value + half}
    return {"method": method, "baseline": baseline, "score": score, **bounds}


def _interval(value: float, half: float) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half}


def _method(name: str, generator: np.random.Generator) -> dict[str, Any]:
    ece = ECE[name]
    position = list(NLL).index(name)
    coverage = np.linspace(0.0005, 1, 2000)
    risk = 0.163 * coverage**1.7 + 0.004 * (3 - position) * coverage * (1 - coverage)
    risk += generator.normal(0, 0.0008, 2000) / np.sqrt(coverage)
    edges = 1 - np.geomspace(0.47, 0.004, 15)
    hit = edges - 2.2 * ece * (edges - 0.45) + generator.normal(0, 0.012, 15)
    method: dict[str, Any] = {
        "name": name,
        "label": LABELS[name],
        "scores": {
            "accuracy": _interval(0.8365 - 0.0005 * position, 0.0162),
            "nll": _interval(NLL[name], 0.031),
            "brier": _interval(0.2411 - 0.004 * position, 0.019),
            "ece_equal_mass": {**_interval(ece, 0.012), "floor": 0.0183 + 0.001 * position},
            "ece_equal_width": {**_interval(ece + 0.0023, 0.012), "floor": 0.0171},
        },
        "floats": (0, 1, 149_000, 170_352)[position],
        "relative_seconds": (1.0, 1.0003, 1.021, 2.31)[position],
        "reliability": {
            "confidence": edges.tolist(),
            "accuracy": hit.clip(0, 1).tolist(),
            "count": [133] * 14 + [138],
        },
        "risk_coverage": {
            "coverage": coverage.tolist(),
            "risk": risk.clip(0, 1).tolist(),
            "area": float(risk.mean()),
        },
        "detection": {
            shifted: _interval(0.58 + 0.07 * i + 0.012 * position, 0.017)
            for i, shifted in enumerate(SETS)
        },
        "disagreement": _interval(0.21 + 0.02 * position, 0.04),
    }
    if position > 1:
        method["precision"] = 12.34
    if position % 2:
        method["temperature"] = 1.83 - 0.2 * position
    return method


def _precision_curve() -> dict[str, Any]:
    precision = np.geomspace(1e-1, 1e4, 26)
    exponent = np.log10(precision)
    return {
        "precision": precision.tolist(),
        "nll": (0.378 + 0.016 * (exponent - 1.3) ** 2).clip(0, 0.515).tolist(),
        "nll_with_temperature": (
            0.368 + 0.011 * (exponent - 1.0) ** 2 / (1 + 0.3 * abs(exponent - 1.0))
        )
        .clip(0, 0.39)
        .tolist(),
        "chosen_precision": float(precision[10]),
        "chosen_temperature": 1.23,
        "map_nll": 0.517,
        "temperature_nll": 0.3921,
    }


def _subset(generator: np.random.Generator) -> dict[str, Any]:
    kinds = {
        "attention.self.query": ("attention", 384, 384),
        "attention.self.key": ("attention", 384, 384),
        "attention.self.value": ("attention", 384, 384),
        "attention.output.dense": ("attention", 384, 384),
        "intermediate.dense": ("mlp", 1536, 384),
        "output.dense": ("mlp", 384, 1536),
    }
    shapes = {
        f"bert.encoder.layer.{layer}.{kind}": shape
        for layer in range(LAYERS)
        for kind, shape in kinds.items()
    }
    shapes["bert.pooler.dense"] = ("mlp", 384, 384)
    shapes["classifier"] = ("mlp", 2, 384)
    layers = [
        {
            "name": name,
            "group": group,
            "outputs": outputs,
            "inputs": inputs,
            "rows": _chosen(outputs, generator),
            "columns": _chosen(inputs, generator),
        }
        for name, (group, outputs, inputs) in shapes.items()
    ]
    size = sum(len(entry["rows"]) * len(entry["columns"]) for entry in layers)
    total = sum(entry["outputs"] * entry["inputs"] for entry in layers)
    return {
        "percent": float(PERCENT),
        "size": size,
        "total": total,
        "fraction": size / total,
        "maps": layers,
    }


def _chosen(bound: int, generator: np.random.Generator) -> list[int]:
    number = -(-bound * PERCENT // 100)
    return sorted(generator.choice(bound, number, replace=False).tolist())
