"""One pass for many subsets: everything equals fitting and predicting each anew."""

from __future__ import annotations

import pytest
import torch
from tests.tolerances import EXACT

import smidgen
from smidgen.curvature.table import variance_table

PERCENTS = (20, 45, 100)


def levels(model):
    found = {p: smidgen.select.sparse_kfac(model, percent=p) for p in PERCENTS}
    found["last"] = smidgen.select.last_layer(model)
    # Not nested in any of them: the block around all is larger than each.
    universe = smidgen.coverage(model).universe
    parts = {}
    for each in smidgen.coverage(model).maps:
        rows = torch.arange(each.outputs - 1, each.outputs)
        parts.update(each.parts(rows, torch.arange(min(2, each.inputs))))
    found["elsewhere"] = smidgen.Subset(universe, parts)
    return found


@pytest.mark.parametrize("approximation", ["expand", "reduce"])
def test_posteriors_equal_those_fitted_alone(case, approximation, unchanged):
    model, batch = case.make()
    problem = case.problem(model)
    with unchanged(model):
        found = smidgen.fit.laplace_many(
            problem, [batch], levels(model), approximation=approximation
        )
    for level, subset in levels(model).items():
        alone = smidgen.fit.laplace(problem, [batch], subset, approximation=approximation)
        assert found[level].subset == subset
        assert found[level].num_data == alone.num_data
        assert found[level].log_likelihood == pytest.approx(alone.log_likelihood)
        for name, operator in alone.operators.items():
            torch.testing.assert_close(
                found[level].operators[name].dense(), operator.dense(), **EXACT
            )


def test_the_table_equals_predicting_with_each_posterior_alone(case):
    """Every level, every map, every precision: a sum of shares is the covariance."""
    model, batch = case.make()
    problem = case.problem(model)
    posteriors = smidgen.fit.laplace_many(problem, [batch], levels(model))
    grid = torch.tensor([0.01, 1.0, 50.0], dtype=torch.float64)
    link = problem.likelihood.resolved_link("auto")
    table = variance_table(problem, [batch], posteriors, grid, link)
    for level, subset in levels(model).items():
        alone = smidgen.fit.laplace(problem, [batch], subset)
        for index, precision in enumerate(grid.tolist()):
            refitted = variance_table(
                problem,
                [batch],
                {"": alone.with_precision(precision / alone.likelihood.scale)},
                None,
                link,
                label=lambda *_: "all",
            )
            total = table.total([(level, name) for name in alone.operators])
            torch.testing.assert_close(
                total[index], refitted.covariance["all"][0].double(), **EXACT
            )
