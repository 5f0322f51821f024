"""Precisions of several groups against every combination on the grid."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from smidgen.fit.calibration.brent import minimize
from smidgen.fit.calibration.grid_search import SPREAD
from smidgen.fit.calibration.objective import Objective
from smidgen.fit.calibration.precision import choose_precisions
from smidgen.outputs.likelihood import Bernoulli, Categorical, Gaussian
from smidgen.posterior.variance_table import VarianceTable

LIKELIHOODS = {
    "two classes": Categorical(2),
    "four classes": Categorical(4),
    "labels": Bernoulli(2),
    "regression": Gaussian(2, noise=0.5),
}


def make_table(likelihood, groups, points, rows, seed):
    """Held-out outputs that err where some groups' variances are large, and those."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    outputs = 3 * normal(rows, likelihood.outputs)
    hard, grid = uniform(rows), torch.logspace(-4, 6, points, dtype=torch.float64)
    link = likelihood.resolve_link("auto")
    covariance = {}
    for group in range(groups):
        curvature, size = 10 ** (6 * uniform(12) - 2), 10 ** (3 * uniform() - 0.5)
        jacobian = normal(rows, likelihood.direction_count(link), 12) * size
        jacobian *= (uniform(rows) ** 2 + 0.3 * hard)[:, None, None]
        weights = 1 / (curvature + grid[:, None])
        covariance[group] = torch.einsum("nkd,pd,nld->pnkl", jacobian, weights, jacobian)
    if isinstance(likelihood, Gaussian):
        targets = outputs + normal(*outputs.shape) * (0.3 + 2 * hard[:, None])
    else:
        targets = likelihood.draw_targets(outputs / (1 + 4 * hard[:, None]), generator)
    objective = Objective(likelihood, outputs, targets, link)
    return objective, VarianceTable(outputs, targets, grid, covariance)


def with_penalty(objective, scales, nlls):
    """The NLL with the prior on log T, written out again."""
    if isinstance(objective.likelihood, Gaussian):
        return nlls
    return nlls + scales.log() ** 2 / 2 / len(objective)


def find_scores(objective, curve):
    """What the precisions common to all are compared by, each at its best scale."""
    pairs = zip(curve.scales, curve.joint_nll, strict=True)
    scales, nlls = torch.tensor(list(pairs), dtype=torch.float64).T
    return with_penalty(objective, scales, nlls).tolist()


def score_all(objective, table, common, jointly):
    """The NLL with the priors of every combination of grid points, by places."""
    places = torch.tensor(
        list(product(range(len(table.precisions)), repeat=len(table.covariance)))
    )
    logs = table.precisions.log()
    prior = (logs - logs[common]).square() / (2 * SPREAD**2 * len(objective))
    scores = []
    for some in places.split(500):
        total = sum(c[at] for c, at in zip(table.covariance.values(), some.T, strict=True))
        nll = with_penalty(objective, *objective.best(total))
        nll = nll if jointly else objective.nll(total)
        scores += (nll + prior[some].sum(-1)).tolist()
    return dict(zip(map(tuple, places.tolist()), scores, strict=True))


# On the grid it finds the very combination, so nothing is allowed for but rounding.
@pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
@pytest.mark.parametrize("jointly", [True, False], ids=["joint", "precision"])
@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_no_combination_on_the_grid_is_better(kind, groups, jointly):
    many = kind == "four classes"
    points = {2: 9 if many else 41, 3: 5 if many else 9}[groups]
    for seed in range(2) if many else (0, 4, 5, 11):
        objective, table = make_table(
            LIKELIHOODS[kind], groups, points, 40 if many else 80, seed
        )
        curve, choice = choose_precisions(objective, table, jointly=jointly)
        nlls = find_scores(objective, curve) if jointly else curve.nll
        common = min(range(points), key=nlls.__getitem__)
        scores = score_all(objective, table, common, jointly)
        grid = table.precisions.tolist()
        places = tuple(grid.index(tau) for tau in choice.precisions.values())
        assert scores[places] <= min(scores.values()) + 1e-6, seed


@pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
def test_many_labels_do_better_than_one_precision_and_no_single_move_helps():
    objective, table = make_table(LIKELIHOODS["two classes"], 6, 13, 120, seed=3)
    curve, choice = choose_precisions(objective, table)
    assert choice.nll < min(curve.joint_nll)
    logs, grid = table.precisions.log(), table.precisions.tolist()
    common = min(range(13), key=find_scores(objective, curve).__getitem__)
    prior = (logs - logs[common]).square() / (2 * SPREAD**2 * len(objective))

    def score(places):
        total = sum(c[at] for c, at in zip(table.covariance.values(), places, strict=True))
        found = with_penalty(objective, *objective.best(total[None]))
        return float(found) + float(prior[list(places)].sum())

    found = tuple(grid.index(tau) for tau in choice.precisions.values())
    for label, place in enumerate(found):
        for moved in (place - 1, place + 1):
            if 0 <= moved < 13:
                other = (*found[:label], moved, *found[label + 1 :])
                assert score(found) <= score(other) + 1e-6


def test_brents_method_finds_many_lowest_points_at_once():
    wanted = torch.tensor([-1.3, 0.0, 2.0, 5.0], dtype=torch.float64)
    evaluations = []

    def score(places):
        evaluations.append(1)
        return (places - wanted).cosh() + 0.1 * (places - wanted) ** 3

    low, high = torch.full_like(wanted, -3), torch.full_like(wanted, 4)
    found = minimize(score, low, high)
    # The last one's lowest point is beyond the end.
    assert torch.allclose(found, wanted.clamp(max=4.0), atol=1e-5, rtol=0)
    assert len(evaluations) < 40
    kinked = minimize(lambda x: (x - 0.7).abs(), low[:1], high[:1])
    assert float(kinked) == pytest.approx(0.7, abs=1e-5)
