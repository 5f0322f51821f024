"""The metrics for torchmetrics give what the functions give, however rows come."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

import smidgen
from smidgen import evaluate
from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.predictive import (
    BernoulliPredictive,
    CategoricalPredictive,
    GaussianPredictive,
)

torchmetrics = pytest.importorskip("torchmetrics")
metrics = pytest.importorskip("smidgen.evaluate.metrics")

ROWS = 157


def draw(kind):
    """A predictive and its targets, with ties, fp32 and rows without a label."""
    generator = torch.Generator().manual_seed(0)
    if kind == "gaussian":
        mean = torch.randn(ROWS, 2, generator=generator)
        variance = torch.rand(ROWS, 2, generator=generator)
        noise = torch.full((ROWS, 2), 0.3)
        targets = mean + torch.randn(ROWS, 2, generator=generator)
        return GaussianPredictive(mean, variance, noise), targets
    logits = (2 * torch.randn(ROWS, 3, generator=generator)).round(decimals=1)
    if kind == "bernoulli":
        targets = torch.randint(2, (ROWS, 3), generator=generator)
        return BernoulliPredictive.from_logits(logits), targets
    targets = torch.randint(3, (ROWS,), generator=generator)
    targets[::10] = -100
    return CategoricalPredictive.from_logits(logits), targets


def intervals_rule():
    predictive, targets = draw("gaussian")
    return smidgen.decide.intervals(predictive, targets, coverage=0.8)


def answers(predictive, targets):
    return evaluate.scores.confidence_and_correct("test", predictive, targets)


CLASSES = {
    "nll": (metrics.NllMetric, lambda p, t: evaluate.nll(p, t).mean()),
    "brier": (metrics.BrierMetric, lambda p, t: evaluate.brier(p, t).mean()),
    "ece": (metrics.EceMetric, evaluate.expected_calibration_error),
    "ece of few equal bins": (
        lambda: metrics.EceMetric(bins=5, binning="equal-width"),
        lambda p, t: evaluate.expected_calibration_error(
            p, t, bins=5, binning="equal-width"
        ),
    ),
    "floor": (metrics.EceFloorMetric, evaluate.calibration_floor),
    "automation": (
        lambda: metrics.AutomationRateMetric(0.4),
        lambda p, t: evaluate.automation_rate(p, t, max_error=0.4).value,
    ),
}
AREA = {
    "aurc": (
        metrics.AurcMetric,
        lambda p, t: evaluate.risk_coverage(*(x.flatten() for x in answers(p, t))).area,
    )
}
NUMBERS = {
    "nll": CLASSES["nll"],
    "coverage": (
        lambda: metrics.CoverageMetric(level=0.9),
        lambda p, t: evaluate.covered(p, t, level=0.9).mean(),
    ),
    "coverage of a rule": (
        lambda: metrics.CoverageMetric(intervals_rule()),
        lambda p, t: evaluate.interval_coverage(*intervals_rule().apply(p), t).value,
    ),
    "width": (
        lambda: metrics.WidthMetric(level=0.9),
        lambda p, _: (2 * 1.6448536269514722 * p.total_variance.double().sqrt()).mean(),
    ),
    "width of a rule": (
        lambda: metrics.WidthMetric(intervals_rule()),
        lambda p, _: evaluate.interval_width(*intervals_rule().apply(p)).value,
    ),
}
EVERY = [
    (kind, name, *both)
    for kind, table in {
        "categorical": CLASSES | AREA,
        "bernoulli": CLASSES | AREA,
        "gaussian": NUMBERS,
    }.items()
    for name, both in table.items()
]
every = pytest.mark.parametrize(
    ("kind", "name", "make", "expect"), EVERY, ids=[f"{k}: {n}" for k, n, *_ in EVERY]
)


def parts(kind, size=40):
    predictive, targets = draw(kind)
    for rows in torch.arange(ROWS).split(size):
        yield predictive.take(rows), targets[rows]


def feed(metric, batches):
    for predictive, targets in batches:
        metric.update(predictive, targets)
    return metric


def value(computed):
    assert computed.shape == ()
    assert computed.dtype == torch.float64
    return float(computed)


@every
def test_they_give_what_the_functions_give(kind, name, make, expect):
    predictive, targets = draw(kind)
    wanted = float(expect(predictive, targets))
    found = value(feed(make(), [(predictive, targets)]).compute())
    if name == "width":  # no function has it, and the test multiplies in another order
        assert found == pytest.approx(wanted, rel=1e-14)
    else:
        assert found == wanted
    # torch's exp may differ in the last bit, by how many numbers it is given at once.
    by_batch = value(feed(make(), parts(kind)).compute())
    assert by_batch == pytest.approx(wanted, rel=1e-13)


@every
def test_two_states_merge_into_that_of_all_rows(kind, name, make, expect):
    batches = list(parts(kind))
    first, second = feed(make(), batches[:2]), feed(make(), batches[2:])
    second.merge_state(first)  # the state that is given comes first
    assert value(second.compute()) == value(feed(make(), batches).compute())


@every
def test_forward_gives_the_batch_and_keeps_the_sum(kind, name, make, expect):
    metric = make()
    for predictive, targets in parts(kind):
        of_batch = value(metric(predictive, targets))
        assert of_batch == value(feed(make(), [(predictive, targets)]).compute())
    assert value(metric.compute()) == value(feed(make(), parts(kind)).compute())
    metric.reset()
    with (
        pytest.raises(ArgumentError, match=r"must have a row, got none\. Call update"),
        pytest.warns(UserWarning, match="was called before the ``update``"),
    ):
        metric.compute()
    feed(metric, parts(kind))
    assert value(deepcopy(metric).compute()) == value(metric.compute())


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_they_stand_together_in_a_collection(kind):
    table = {"categorical": CLASSES | AREA, "gaussian": NUMBERS}[kind]
    collection = torchmetrics.MetricCollection(
        {name.replace(" ", "_"): make() for name, (make, _) in table.items()}
    )
    for predictive, targets in parts(kind):
        collection.update(predictive, targets)
    found = collection.compute()
    for name, (make, _) in table.items():
        alone = feed(make(), parts(kind)).compute()
        assert torch.equal(found[name.replace(" ", "_")], alone)


def test_what_is_wrong_is_refused_at_once():
    with pytest.raises(ArgumentError, match="binning must be one of equal-mass"):
        metrics.EceMetric(binning="equal")
    with pytest.raises(ArgumentError, match="max_error must be between 0 and 1"):
        metrics.AutomationRateMetric(5)
    with pytest.raises(ArgumentError, match="level must be between 0 and 1"):
        metrics.CoverageMetric(level=95)
    predictive, targets = draw("categorical")
    with pytest.raises(ArgumentError, match="predictive must be gaussian for WidthMetric"):
        metrics.WidthMetric().update(predictive, targets)
    with pytest.raises(ArgumentError, match="predictive must be a Predictive, got Tensor"):
        metrics.NllMetric().update(predictive.probs, targets)
    with pytest.raises(DataError, match="targets must be as many as the predictions"):
        metrics.NllMetric().update(predictive, targets[:3])


def test_their_own_calibration_error_takes_our_probabilities():
    predictive, targets = draw("categorical")
    theirs = torchmetrics.CalibrationError(
        task="multiclass", num_classes=3, n_bins=20, ignore_index=-100
    )
    for some, labels in parts("categorical"):
        theirs.update(some.probs.float(), labels)
    ours = evaluate.expected_calibration_error(predictive, targets, binning="equal-width")
    assert float(theirs.compute()) == pytest.approx(ours, abs=1e-5)
