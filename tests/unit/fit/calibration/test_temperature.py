"""Temperatures chosen on few rows: the prior on log T, by draws of 64 rows."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from scipy.optimize import minimize_scalar

import smidgen
from smidgen.fit.calibration.objective import Objective
from smidgen.fit.calibration.precision import choose_precisions
from smidgen.fit.calibration.samples import HeldOut
from smidgen.outputs.likelihood import Bernoulli, Categorical
from smidgen.posterior.variance_table import VarianceTable
from tests.support.tolerances import SOLVER

# Logits so wide that some draws of 64 rows are all right: their lowest NLL is at T = 0.
WORLDS = {
    "two classes": (Categorical(2), 20.0),
    "two classes, sure": (Categorical(2), 60.0),
    "four classes": (Categorical(4), 15.0),
    "labels": (Bernoulli(1), 30.0),
}
FEW, DRAWS, MANY = 64, 20, 1000


def make_rows(likelihood, width, rows=DRAWS * FEW + MANY):
    """Logits and targets drawn from them, so that the right temperature is one."""
    generator = torch.Generator().manual_seed(0)
    logits = width * torch.randn(
        rows, likelihood.outputs, generator=generator, dtype=torch.float64
    )
    return logits, likelihood.draw_targets(logits, generator)


def draws_of(*tensors):
    """Twenty draws of 64 rows, and after them one of a thousand."""
    few = [tuple(t[FEW * i : FEW * (i + 1)] for t in tensors) for i in range(DRAWS)]
    return few, tuple(t[-MANY:] for t in tensors)


def point_temperature(likelihood, logits, targets):
    return HeldOut(likelihood, logits[None], logits[None], targets).best(logits[None])[0]


@pytest.mark.parametrize("world", WORLDS)
def test_temperature_stays_near_one_on_few_rows_where_many_say_one(world):
    likelihood, width = WORLDS[world]
    few, many = draws_of(*make_rows(likelihood, width))
    assert 0.6 < point_temperature(likelihood, *many) < 1.6
    found = [point_temperature(likelihood, *rows) for rows in few]
    assert all(0.3 < temperature < 5 for temperature in found), found
    if isinstance(likelihood, Categorical):
        exported = [smidgen.fit.temperature(*rows) for rows in few]
        assert exported == pytest.approx(found, rel=SOLVER["rtol"])
    separable = [bool((likelihood.log_prob(x, y) > log(0.5)).all()) for x, y in few]
    assert any(separable) or world == "four classes"


def lean_table(likelihood, logits, targets, jacobian):
    grid = torch.logspace(-4, 6, 21, dtype=torch.float64)
    link = likelihood.resolve_link("auto")
    covariance = jacobian.square()[None, :, None, None] / grid[:, None, None, None]
    objective = Objective(likelihood, logits, targets, link)
    return objective, VarianceTable(logits, targets, grid, {"all": covariance})


@pytest.mark.filterwarnings("ignore:the best precision:smidgen.SmidgenWarning")
@pytest.mark.parametrize("width", [6.0, 20.0])
def test_precision_and_temperature_do_not_run_off_together(width):
    """A small precision and a small temperature can stand in for each other."""
    likelihood = Categorical(2)
    logits, targets = make_rows(likelihood, width)
    generator = torch.Generator().manual_seed(1)
    jacobian = 10 * torch.rand(len(logits), generator=generator, dtype=torch.float64)
    few, many = draws_of(logits, targets, jacobian)
    _, well_known = choose_precisions(*lean_table(likelihood, *many))
    assert 0.6 < well_known.scale < 1.6
    test_objective, test_table = lean_table(likelihood, *many)
    for rows in few:
        _, choice = choose_precisions(*lean_table(likelihood, *rows))
        assert 0.3 < choice.scale < 5
        # Variances stay in the order of the logits' own squares.
        ((_, precision),) = choice.precisions.items()
        assert float((rows[2].square() / precision).mean()) < 2 * width**2
        covariance = test_table.at("all", precision)[None]
        nll = float(test_objective.nll(covariance, choice.scale))
        assert nll < 2 * float(test_objective.nll(None))


@pytest.mark.parametrize("true", [0.5, 1.0, 2.5])
def test_a_thousand_rows_do_not_notice_the_prior(true):
    logits, targets = make_rows(Categorical(3), 4.0, MANY)
    logits = true * logits

    def score(log_t):
        return float(torch.nn.functional.cross_entropy(logits / exp(log_t), targets))

    exact = minimize_scalar(score, bounds=(-3, 3), options={"xatol": 1e-10})
    found = log(smidgen.fit.temperature(logits, targets))
    assert found == pytest.approx(exact.x, abs=0.01)
    assert score(found) - exact.fun < 1e-5


def test_temperature_minimises_the_nll_with_its_penalty():
    logits, targets = make_rows(Categorical(3), 4.0, 64)

    def score(log_t):
        nll = torch.nn.functional.cross_entropy(logits / exp(log_t), targets)
        return float(nll) + log_t**2 / 2 / 64

    best = minimize_scalar(score, bounds=(-3, 3), options={"xatol": 1e-10})
    found = smidgen.fit.temperature(logits, targets)
    assert log(found) == pytest.approx(best.x, abs=1e-5)
