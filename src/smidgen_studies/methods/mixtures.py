"""Averages of several networks' probabilities, without and with a temperature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from smidgen.fit.calibration.samples import HeldOut
from smidgen.outputs.likelihood import Categorical
from smidgen.workflows.method import Method


def mixture_methods(
    name: str,
    validation: tuple[Tensor, Tensor],
    test: Tensor,
    *,
    floats: int,
    settings: Mapping[str, Any],
) -> list[Method]:
    """Average the probabilities of S networks, as they are and with a temperature."""
    # Outputs are (S, N, C), targets (N,); the temperature divides the mean of the logits.
    outputs, targets = validation
    likelihood = Categorical(outputs.shape[-1])
    held = HeldOut(likelihood, outputs, outputs.mean(0, keepdim=True), targets)
    return [
        Method(
            method,
            likelihood.mixture(test, temperature),
            floats=floats,
            settings={**settings, "temperature": temperature, "validation_nll": nll},
        )
        for method, temperature, nll in (
            (name, 1.0, held.nll(outputs, 1.0)),
            (f"{name}-temperature", *held.best(outputs)),
        )
    ]
