"""One pass for many subsets: everything equals fitting and predicting each anew."""

from __future__ import annotations

import pytest
import torch

import smidgen
from smidgen.errors import ArgumentError, DataError
from smidgen.posterior.variance_table import variance_table
from tests.support.tolerances import EXACT

PERCENTS = (20, 45, 100)


def levels(model):
    found = {p: smidgen.select.sparse_kfac(model, percent=p) for p in PERCENTS}
    found["last"] = smidgen.select.last_layer(model)
    # Not nested in any of them: the block around all is larger than each.
    universe = smidgen.coverage(model).universe
    parts = {}
    for each in smidgen.coverage(model).layers:
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
            problem,
            [batch],
            levels(model),
            settings=smidgen.fit.LaplaceSettings(approximation=approximation),
        )
    for level, subset in levels(model).items():
        alone = smidgen.fit.laplace(
            problem,
            [batch],
            subset,
            settings=smidgen.fit.LaplaceSettings(approximation=approximation),
        )
        assert found[level].subset == subset
        assert found[level].num_data == alone.num_data
        assert found[level].log_likelihood == pytest.approx(alone.log_likelihood)
        for name, operator in alone.operators.items():
            torch.testing.assert_close(
                found[level].operators[name].dense(), operator.dense(), **EXACT
            )


def test_the_table_equals_predicting_with_each_posterior_alone(case):
    """Every level, every layer, every precision: a sum of shares is the covariance."""
    model, batch = case.make()
    problem = case.problem(model)
    posteriors = smidgen.fit.laplace_many(problem, [batch], levels(model))
    grid = torch.tensor([0.01, 1.0, 50.0], dtype=torch.float64)
    link = problem.likelihood.resolve_link("auto")
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


def test_a_position_counts_whichever_rows_were_chosen():
    """Dead units: a token whose chosen units are all off still counts in A."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    net = net.double()
    x = torch.randn(4, 5, 6, dtype=torch.float64)
    labels = torch.randint(3, (4, 5))
    problem = smidgen.Problem(net, smidgen.Categorical(3))
    subsets = {p: smidgen.select.sparse_kfac(net, percent=p) for p in (25, 100)}
    many = smidgen.fit.laplace_many(problem, [(x, labels)], subsets)
    alone = smidgen.fit.laplace(problem, [(x, labels)], subsets[25])
    for name, operator in alone.operators.items():
        torch.testing.assert_close(
            many[25].operators[name].dense(), operator.dense(), **EXACT
        )


def test_bad_words_are_refused_before_any_pass():
    model = torch.nn.Linear(3, 2)
    subsets = {1: smidgen.select.last_layer(model)}
    with pytest.raises(ArgumentError, match="approximation must be one of"):
        smidgen.fit.laplace_many(
            model,
            iter([]),
            subsets,
            settings=smidgen.fit.LaplaceSettings(approximation="reduced"),
        )
    with pytest.raises(ArgumentError, match="precision must be > 0 and finite, got 0"):
        smidgen.fit.laplace(model, iter([]), subsets[1], precision=0)


def test_factors_that_only_fp64_holds_are_refused():
    """1e25 squared is beyond fp32, in which the factors are kept."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
    )
    batches = [(torch.randn(3, 4), torch.tensor([0, 1, 1])) for _ in range(3)]
    batches[2][0][1, 1] = 1e25
    subset = smidgen.select.sparse_kfac(model, percent=100)
    wanted = "the sums of squares must be finite.*Check"
    with pytest.raises(DataError, match=wanted):
        smidgen.fit.laplace(model, batches, subset)
    with pytest.raises(DataError, match=wanted):
        smidgen.fit.laplace_many(model, batches, {1: subset})
