"""Names of the ways to fine-tune, as cells of kind `tuning` and as people know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Method = Literal[
    "full",
    "lora",
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
    "lora": "LoRA",
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
