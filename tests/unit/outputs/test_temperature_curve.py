"""The NLL of targets alone, against all classes; its slopes, against autograd."""

from __future__ import annotations

import pytest
import torch

from smidgen.outputs.links import at_temperatures, pick_class, standard_normals
from smidgen.outputs.temperature_curve import TargetDraws, means_of_all
from smidgen.outputs.top_classes import TopClasses
from tests.support.tolerances import EXACT, SOLVER

ROWS, CLASSES, DRAWS = 30, 6, 32


def drawn(variance, top=None, spread=20.0):
    source = torch.Generator().manual_seed(1)
    size = (top or CLASSES) - 1
    root = torch.randn(2, ROWS, size, size, generator=source, dtype=torch.float64)
    covariance = variance * root @ root.mT
    logits = spread * torch.randn(ROWS, CLASSES, generator=source, dtype=torch.float64)
    targets = torch.randint(CLASSES, (ROWS,), generator=source)
    normals = standard_normals(DRAWS, size)
    if top is None:
        return (
            logits,
            covariance,
            targets,
            normals,
            (targets, means_of_all(logits, targets)),
        )
    found = TopClasses.of(logits, top).means_for(logits, targets)
    return logits, covariance, targets, normals, found


def of_every_class(logits, covariance, normals, top):
    if top is None:
        return at_temperatures("sampling", logits, covariance, normals=normals)
    followed = TopClasses.of(logits, top)
    return followed.at_temperatures(logits, covariance, normals=normals)


@pytest.mark.parametrize("top", [None, 2, 4, CLASSES])
@pytest.mark.parametrize("variance", [0.0, 1.0, 1e4, 1e8])
@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
def test_the_targets_alone_have_the_probabilities_of_all(variance, temperature, top):
    logits, covariance, targets, normals, (places, means) = drawn(variance, top)
    temperatures = torch.tensor([temperature, 2 * temperature], dtype=torch.float64)
    one = TargetDraws(normals, places, means, covariance).log_probs(temperatures)
    every = of_every_class(logits, covariance, normals, top)(temperatures)
    torch.testing.assert_close(one, pick_class(every, targets), **EXACT)


# Autograd's second derivative of the oracle is NaN for the largest variance with `top`.
@pytest.mark.parametrize(
    ("top", "variance"),
    [(None, 0.0), (None, 1.0), (None, 1e3), (None, 1e8), (3, 0.0), (3, 1.0), (3, 1e3)],
)
@pytest.mark.parametrize("temperature", [0.1, 1.0, 30.0])
def test_slopes_are_those_of_the_values(variance, temperature, top):
    logits, covariance, targets, normals, (places, means) = drawn(variance, top, 3.0)
    draws = TargetDraws(normals, places, means, covariance)
    logs = torch.tensor([temperature, 2 * temperature]).double().log().requires_grad_()
    every = of_every_class(logits, covariance, normals, top)(logs.exp())
    values = -pick_class(every, targets).mean(-1)
    (first,) = torch.autograd.grad(values.sum(), logs, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), logs)
    found = draws.curve.slopes(logs.detach().exp())
    for ours, theirs in zip(found, (values, first, second), strict=True):
        torch.testing.assert_close(ours, theirs.detach(), **SOLVER)
