"""What is chosen in folds is what a calibration of all other rows would choose."""

from __future__ import annotations

import pytest
import torch

import smidgen
from smidgen.fit.calibration.folds import Folds, choose_in_folds
from smidgen.fit.calibration.objective import Objective
from smidgen.fit.calibration.precision import score_precisions, search_precisions
from smidgen.posterior.variance_table import VarianceTable

ROWS = 90
GRID = torch.logspace(-4, 6, 21, dtype=torch.float64)


def make_table(likelihood, labels, seed, directions):
    """Outputs, targets of a colder model, and variances of layers with different curvature."""
    generator = torch.Generator().manual_seed(seed)
    outputs = 3 * torch.randn(ROWS, likelihood.outputs, generator=generator).double()
    targets = likelihood.draw_targets(outputs / 3, generator)
    covariance = {}
    for label in labels:
        root = torch.randn(ROWS, directions, 6, generator=generator).double()
        curvature = torch.rand(6, generator=generator).double() * 20
        weights = 1 / (curvature + GRID[:, None])  # (P, 6)
        covariance[label] = torch.einsum("nks,ps,nls->pnkl", root, weights, root)
    return VarianceTable(outputs, targets, GRID, covariance)


@pytest.mark.parametrize("labels", [("all",), ("head", "body"), ("a", "b", "c")])
@pytest.mark.parametrize(
    ("likelihood", "link"),
    [
        (smidgen.Categorical(2), "quadrature"),
        (smidgen.Categorical(3), "sampling"),
        (smidgen.Bernoulli(2), "quadrature"),
        (smidgen.Gaussian(1), "auto"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_the_choice_is_that_of_a_search_of_its_own(likelihood, link, labels):
    link = likelihood.resolve_link(link)
    directions = likelihood.direction_count(link)
    table = make_table(likelihood, labels, 0, directions)
    every = torch.arange(ROWS)
    rows = [every[number::3] for number in range(3)]
    others = [every[~torch.isin(every, fold)] for fold in rows]

    def objective(some, draws=64):
        return Objective(
            likelihood, table.outputs[some], table.targets[some], link, draws=draws
        )

    folds = Folds(
        rows,
        objective(every),
        objective(every, draws=8),
        *(list(map(objective, s)) for s in (rows, others)),
    )
    for number, choice in enumerate(choose_in_folds(table, folds)):
        alone, part = objective(others[number]), table.take(others[number])
        curve = score_precisions(alone, part, part.covariance)
        wanted = search_precisions(alone, part, curve, refine=False)
        assert choice.nll <= wanted.nll + 1e-6
        assert choice.precisions == pytest.approx(dict(wanted.precisions))
        assert choice.scale == pytest.approx(wanted.scale, rel=1e-4)
