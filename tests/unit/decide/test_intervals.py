"""Intervals and quantiles of numbers: coverage, MAPIE's, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mapie.regression import SplitConformalRegressor

from smidgen import decide
from smidgen.errors import ArgumentError, DataError, TooFewRowsError
from smidgen.outputs.predictive import GaussianPredictive
from tests.support.decisions import make_classes, make_numbers


def rows_of(predictive, start, stop):
    return predictive.take(range(start, stop))


@pytest.mark.parametrize("scaled", [True, False])
def test_intervals_hold_the_target_as_often_as_asked(scaled):
    predictive, targets = make_numbers(40_000)
    held, draws, rows = 0, 100, 200
    for draw in range(draws):
        start = 2 * rows * draw
        rule = decide.intervals(
            rows_of(predictive, start, start + rows),
            targets[start : start + rows],
            coverage=0.95,
            scaled=scaled,
        )
        low, high = rule.apply(rows_of(predictive, start + rows, start + 2 * rows))
        truth = targets[start + rows : start + 2 * rows]
        held += int(((low <= truth) & (truth <= high)).sum())
    # The rank is 191 of 201; coverages of rules vary as Beta(191, 10).
    expected, total = 191 / 201, draws * rows
    deviation = (expected * (1 - expected) * (1 / total + 1 / 202 / draws)) ** 0.5
    assert abs(held / total - expected) < 3.5 * deviation


def test_scaled_intervals_are_narrow_where_the_variance_is_small():
    predictive, targets = make_numbers(500)
    low, high = decide.intervals(predictive, targets).apply(predictive)
    ratio = (high - low) / predictive.total_variance.sqrt()
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))
    low, high = decide.intervals(predictive, targets, scaled=False).apply(predictive)
    torch.testing.assert_close(high - low, (high - low)[:1].expand_as(high))


class Stored:
    """A regression of scikit-learn's kind that returns the numbers it is given."""

    def fit(self, x, y):
        return self

    def predict(self, x):
        return np.asarray(x)[:, 0]

    def __sklearn_is_fitted__(self):
        return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(("rows", "coverage"), [(57, 0.9), (300, 0.95)])
def test_intervals_are_those_of_mapie(rows, coverage, scaled):
    predictive, targets = make_numbers(2 * rows)
    scale = predictive.total_variance.sqrt() if scaled else torch.ones_like(targets)
    # Scaled residuals are those of the standardised numbers.
    mean, truth = predictive.mean / scale, targets / scale
    mapie = SplitConformalRegressor(Stored(), confidence_level=coverage, prefit=True)
    mapie.conformalize(mean[:rows].numpy(), truth[:rows, 0].numpy())
    _, theirs = mapie.predict_interval(mean[rows:].numpy())
    rule = decide.intervals(
        rows_of(predictive, 0, rows), targets[:rows], coverage=coverage, scaled=scaled
    )
    low, high = rule.apply(rows_of(predictive, rows, 2 * rows))
    for ours, side in ((low, theirs[:, 0]), (high, theirs[:, 1])):
        expected = torch.from_numpy(side.reshape(-1, 1)) * scale[rows:]
        torch.testing.assert_close(ours, expected)


def test_every_output_has_its_own_factor():
    predictive, targets = make_numbers(400, outputs=3)
    targets = predictive.mean + (targets - predictive.mean) * torch.tensor([1.0, 2.0, 4.0])
    rule = decide.intervals(predictive, targets, coverage=0.9)
    low, high = rule.apply(predictive)
    covered = ((low <= targets) & (targets <= high)).double().mean(0)
    assert (covered >= 0.9).all()
    assert (covered < 0.91).all()
    alone = GaussianPredictive(
        predictive.mean[:, 2:], predictive.variance[:, 2:], predictive.noise[:, 2:]
    )
    assert decide.intervals(alone, targets[:, 2:], coverage=0.9).factors == rule.factors[2:]
    widths = (high - low).mean(0)
    assert rule.mean_widths == pytest.approx(tuple(widths.tolist()))
    assert str(rule).startswith(
        "Intervals of each output hold the target with a probability"
    )


def test_quantiles_have_their_levels():
    predictive, targets = make_numbers(20_000)
    rule = decide.quantiles(
        rows_of(predictive, 0, 10_000), targets[:10_000], levels=(0.1, 0.5, 0.9)
    )
    found = rule.apply(rows_of(predictive, 10_000, 20_000))
    assert found.shape == (10_000, 1, 3)
    assert (found.diff(dim=-1) > 0).all()
    below = (targets[10_000:, :, None] <= found).double().mean((0, 1))
    # Of the rows that made the rule, and of as many that are scored.
    deviation = torch.tensor([0.3, 0.5, 0.3]) * (2 / 10_000) ** 0.5
    assert ((below - torch.tensor([0.1, 0.5, 0.9])).abs() < 3.5 * deviation).all()
    assert str(rule).startswith(
        "Quantiles 10 %, 50 %, 90 %: the target is at most as large"
    )


@pytest.mark.parametrize("rows", [20, 25, 39])
def test_a_pair_of_quantiles_holds_at_least_its_nominal_part(rows):
    predictive, targets = make_numbers(400 * (rows + 20))
    held, draws = torch.zeros(3), 400
    for draw in range(draws):
        start = draw * (rows + 20)
        rule = decide.quantiles(
            rows_of(predictive, start, start + rows),
            targets[start : start + rows],
            levels=(0.05, 0.95),
        )
        low, high = rule.apply(rows_of(predictive, start + rows, start + rows + 20)).unbind(
            -1
        )
        truth = targets[start + rows : start + rows + 20]
        sides = ((low <= truth) & (truth <= high), low <= truth, truth <= high)
        held += torch.stack([side.double().sum() for side in sides])
    total = 20 * draws
    # Ranks k of n + 1; the coverage of a rule varies as a Beta of mean k / (n + 1).
    for part, nominal in zip((held / total).tolist(), (0.9, 0.95, 0.95), strict=True):
        spread = nominal * (1 - nominal) * (1 / total + 1 / (rows + 2) / draws)
        assert part >= nominal - 3.5 * spread**0.5
    ranks = torch.tensor(rule.factors, dtype=torch.float64)[:, 0]
    start = (draws - 1) * (rows + 20)
    last = rows_of(predictive, start, start + rows)
    residuals = (targets[start : start + rows] - last.mean) / last.total_variance.sqrt()
    below = (residuals[:, 0, None] <= ranks + 1e-12).sum(0)
    expected = [(rows + 1) * 5 // 100, -(-(rows + 1) * 95 // 100)]
    assert below.tolist() == expected


def test_low_quantiles_of_too_few_rows_are_refused():
    predictive, targets = make_numbers(15)
    with pytest.raises(TooFewRowsError, match="19 or more for the level 0.05, got 15"):
        decide.quantiles(predictive, targets, levels=(0.05, 0.5))
    rule = decide.quantiles(*make_numbers(19), levels=(0.05, 0.5, 0.95))
    assert str(rule) == (
        "Quantiles 5 %, 50 %, 95 %: the target is at most as large with at least that "
        "probability, or, at levels below 50 %, smaller with at most that; made from 19 rows."
    )


def test_too_few_rows_are_refused_with_how_many_would_do():
    predictive, targets = make_numbers(15)
    message = "labelled rows must be 19 or more for coverage=0.95, got 15"
    with pytest.raises(TooFewRowsError, match=message):
        decide.intervals(predictive, targets)
    with pytest.raises(TooFewRowsError, match="99 or more for the level 0.99, got 15"):
        decide.quantiles(predictive, targets, levels=(0.5, 0.99))


def test_what_does_not_suit_is_refused():
    predictive, targets = make_numbers(50)
    with pytest.raises(ArgumentError, match="coverage must be between 0 and 1, got 1.5"):
        decide.intervals(predictive, targets, coverage=1.5)
    with pytest.raises(ArgumentError, match="levels must be one or more, got none"):
        decide.quantiles(predictive, targets, levels=())
    with pytest.raises(ArgumentError, match="levels must be between 0 and 1, got 0"):
        decide.quantiles(predictive, targets, levels=(0, 0.5))
    with pytest.raises(
        DataError, match="finite numbers, got .nan. for row 3. Leave out rows"
    ):
        decide.intervals(predictive, targets.index_fill(0, torch.tensor(3), torch.nan))
    with pytest.raises(DataError, match=r"of shape \(50, 1\), got \(50, 2\)"):
        decide.intervals(predictive, targets.expand(-1, 2))
    with pytest.raises(DataError, match=r"as many as the predictions \(50\), got 49"):
        decide.intervals(predictive, targets[1:])
    certain = GaussianPredictive(predictive.mean, 0 * targets, 0 * targets)
    with pytest.raises(DataError, match="positive variance, got 0.0. Fit the noise first"):
        decide.intervals(certain, targets)
    assert decide.intervals(certain, targets, scaled=False).rows == 50
    classes, labels = make_classes(50)
    with pytest.raises(
        ArgumentError, match="got categorical. Use smidgen.decide.abstain or"
    ):
        decide.intervals(classes, labels)
    rule = decide.intervals(predictive, targets)
    with pytest.raises(ArgumentError, match="must have 1 outputs, as the rule has, got 2"):
        rule.apply(make_numbers(5, outputs=2)[0])


def test_one_output_may_have_a_vector_of_targets():
    predictive, targets = make_numbers(50)
    assert decide.intervals(predictive, targets[:, 0]) == decide.intervals(
        predictive, targets
    )
