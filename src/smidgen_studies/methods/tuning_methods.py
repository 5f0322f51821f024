"""Names of the ways to fine-tune, as cells of kind `tuning` have them."""

from __future__ import annotations

from typing import Literal

TuningMethod = Literal[
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


def base_method(method: TuningMethod) -> TuningMethod:
    """What a method does: "longer" is the same for more epochs."""
    known: dict[TuningMethod, TuningMethod] = {"full-longer": "full", "lora-longer": "lora"}
    return known.get(method, method)
