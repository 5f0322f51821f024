"""Averages of several networks' probabilities, without and with a temperature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from smidgen.errors import ArgumentError
from smidgen.fit.calibration.samples import HeldOut
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.problem import Problem
from smidgen.prediction import point_outputs
from smidgen.workflows.method import Method, score_methods
from smidgen_studies.data.text import TextSplit
from smidgen_studies.engine.cell import Job

Member = tuple[nn.Module | Problem, PreTrainedTokenizerBase, int]
"""A network of an ensemble, its tokenizer, and how many floats of it are its own."""


def score_ensemble(
    job: Job, data: TextSplit, load: Callable[[Path], Member]
) -> dict[str, Any]:
    """Average the probabilities of the members that a cell needs, and score them."""
    if len(job.needs) < 2:
        raise ArgumentError(
            f"an ensemble must need 2 members or more, got {len(job.needs)}. Add to needs."
        )
    outputs: dict[str, list[Tensor]] = {"validation": [], "test": []}
    for member in job.needs:
        network, tokenizer, size = load(member.artifact)
        loaders = data.loaders(tokenizer)
        for name, members in outputs.items():
            members.append(point_outputs(network, loaders[name])[0])
    methods = mixture_methods(
        "ensemble",
        (torch.stack(outputs["validation"]), data.labels("validation")),
        torch.stack(outputs["test"]),
        floats=(len(job.needs) - 1) * size,
        settings={"members": len(job.needs)},
    )
    return score_methods(methods, data.labels("test"))


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
