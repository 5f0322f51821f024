"""Records with decisions, as `compare` writes them: of classes and of a regression."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from smidgen.runtime.record import Record
from tests.support.report_record import SETS, difference, make_record

SHARES = {"map": 0.612, "temperature": 0.634, "last-layer": 0.66, "sparse-kfac": 0.712}
AREAS = {"map": 0.064, "temperature": 0.063, "last-layer": 0.06, "sparse-kfac": 0.051}
CLASSES = ("negative", "neutral", "positive", "unclear")
TEXTS = (
    "An odd, inert and oddly moving film that never says what it is about.",
    "So bad it is good.",
    "Plot? What plot?",
)


def interval(value: float, half: float = 0.03) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half}


def make_decided(**changes: Any) -> Record:
    """Build a full record of classes with decisions; changes replace parts of those."""
    record = make_record()
    methods = [
        {**method, **_decided(method["name"])} for method in record.results["methods"]
    ]
    gaps = [
        *record.results["differences"],
        difference("sparse-kfac", "map", "automation", 0.1, 0.04),
        difference("sparse-kfac", "temperature", "automation", 0.078, 0.03),
        difference("sparse-kfac", "map", "risk_coverage", -0.013, 0.004),
        difference("sparse-kfac", "temperature", "risk_coverage", -0.012, 0.004),
        difference("sparse-kfac", "map", "error_detection.confidence", 0.02, 0.01),
        difference("sparse-kfac", "map", "error_detection.logit_variance", -0.05, 0.02),
        difference("sparse-kfac", "map", "detection.tweets.logit_variance", 0.001, 0.02),
    ]
    decisions = {
        "max_error": 0.05,
        "multilabel": False,
        "classes_left_out": 0,
        "least_certain": [_row(i, 0.26 + 0.01 * i) for i in range(6)],
        "strangest": [{**_row(i, 0.8), "score": 31.4 - i} for i in range(6)],
        "strange_score": "logit_variance",
        "rules": make_rules(),
    }
    decisions = {k: v for k, v in {**decisions, **changes}.items() if v is not None}
    results = {
        **record.results,
        "methods": methods,
        "differences": gaps,
        "decisions": decisions,
    }
    return replace(record, results=results)


def make_rules() -> dict[str, Any]:
    return {
        "abstain": {
            "sentence": "Answer where the confidence is at least 0.91: at most 5 % wrong.",
            "max_error": 0.05,
            "answered": interval(0.688),
            "error": interval(0.041, 0.01),
        },
        "sets": {
            "sentence": "Sets that hold the truth on 90 % of the rows.",
            "coverage": 0.9,
            "covered": interval(0.907, 0.012),
            "size": interval(1.23),
            "single": 0.79,
            "empty": 0.0,
        },
        "strange": {
            "sentence": "Strange where the variance is above 12.3: 5 % false alarms.",
            "rate": 0.05,
            "flagged": interval(0.048, 0.01),
            "shifted": {"tweets": interval(0.31)},
        },
    }


def make_regression(rows: int = 60, **changes: Any) -> Record:
    """Build the record of a regression with intervals and their truth."""
    generator = np.random.default_rng(1)
    truth = np.sort(generator.normal(30, 14, rows))
    mean = truth + generator.normal(0, 3, rows)
    half = 5 + 3 * generator.random(rows)
    picture = {"name": "strength", "truth": truth, "mean": mean}
    picture |= {"low": mean - half, "high": mean + half}
    methods = [
        {
            "name": name,
            "scores": {
                "nll": interval(nll),
                "rmse": interval(3.1),
                "coverage": interval(0.9),
            },
            "intervals": [
                {
                    "coverage": c,
                    "covered": interval(c + off, 0.02),
                    "width": interval(10 * c + wide),
                }
                for c in (0.5, 0.8, 0.9, 0.95)
            ],
        }
        for name, nll, off, wide in (
            ("map", 3.2, -0.1, 0.2),
            ("temperature", 2.9, 0.0, 1.4),
            ("sparse-kfac", 2.8, -0.005, 1.1),
        )
    ]
    decisions: dict[str, Any] = {
        "least_certain": [
            {"row": 10 + i, "label": 31.25, "answer": 28.5, "deviation": 7.5}
            for i in range(4)
        ],
        "strangest": [
            {"row": i, "label": 31.25, "answer": 28.5, "deviation": 7.5, "score": 1.5}
            for i in range(4)
        ],
        "strange_score": "logit_variance",
        "truth": {
            "coverage": 0.95,
            "by_rule": False,
            "outputs": [
                {k: v if k == "name" else v.tolist() for k, v in picture.items()}  # type: ignore[attr-defined]
            ],
        },
    }
    results = {"methods": methods, "differences": [], "decisions": {**decisions, **changes}}
    return Record(kind="evaluate", config={"title": "Concrete"}, results=results)


def _decided(name: str) -> dict[str, Any]:
    share = SHARES[name]
    scores = {"confidence": interval(0.78 + share / 20, 0.02)}
    if name in ("last-layer", "sparse-kfac"):
        scores["logit_variance"] = interval(0.7, 0.02)
    return {
        "automation": [
            {"max_error": 0.05, **interval(share), "threshold": 0.93, "error": 0.0499},
            {"max_error": 0.01, **interval(share / 2), "threshold": 0.99, "error": 0.0099},
        ],
        "by_class": [
            {
                "name": label,
                "rows": 500 - 100 * i,
                "accuracy": 0.9 - 0.1 * i,
                "confidence": 0.87,
                "automation": share - 0.1 * i,
            }
            for i, label in enumerate(CLASSES)
        ],
        "same_rules": {
            "abstain": {"answered": interval(share - 0.02), "error": interval(0.04, 0.01)},
            "sets": {"covered": interval(0.9), "size": interval(1.9 - share)},
        },
        "error_detection": scores,
        "score_detection": dict.fromkeys(SETS, scores),
    }


def _row(i: int, confidence: float) -> dict[str, Any]:
    return {
        "row": 7 * i,
        "label": CLASSES[i % 4],
        "answer": CLASSES[(i // 2) % 4],
        "confidence": confidence,
        "text": TEXTS[i % 3],
    }
