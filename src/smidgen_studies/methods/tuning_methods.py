"""Names of the ways to fine-tune, as cells of kind `tuning` and as people know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Method = Literal[
    "full",
    "full-longer",
    "lora",
    "lora-longer",
    "bitfit",
    "head",
    "random",
    "magnitude",
    "gradient",
    "displacement",
    "published",
    "bayestune",
    "constant",
]
LABELS: Mapping[Method, str] = {
    "full": "All weights",
    "full-longer": "All weights, longer",
    "lora": "LoRA",
    "lora-longer": "LoRA, longer",
    "bitfit": "BitFit",
    "head": "Head only",
    "random": "Random weights",
    "magnitude": "Largest weights",
    "gradient": "Largest squared gradients",
    "displacement": "Largest mean |Δ| of the chain",
    "published": "BayesTune, published update",
    "bayestune": "BayesTune",
    "constant": "Constant predictor",
}


def base_method(method: Method) -> Method:
    """What a method does: "longer" is the same for more epochs."""
    known: dict[Method, Method] = {"full-longer": "full", "lora-longer": "lora"}
    return known.get(method, method)
