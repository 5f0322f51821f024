"""Rules of a posterior: those that suit its outputs, and warnings for what cannot be promised."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smidgen
from smidgen import decide
from smidgen.errors import ArgumentError, DataError, SmidgenWarning
from smidgen.workflows.rules import make_rules


def make_posterior(outputs=3, kind="categorical", rows=600):
    """A fitted posterior of a small network, and batches for rules."""
    torch.manual_seed(0)
    x = torch.randn(rows, 5)
    scores = x[:, :outputs] * 2 + 0.5 * torch.randn(rows, outputs)
    if kind == "categorical":
        y, likelihood = scores.argmax(1), smidgen.Categorical(outputs)
    elif kind == "gaussian":
        y, likelihood = scores, smidgen.Gaussian(outputs)
    else:
        y, likelihood = (scores > 0).float(), smidgen.Bernoulli(outputs)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, outputs))
    problem = smidgen.Problem(model, likelihood)
    losses = {
        "categorical": nn.functional.cross_entropy,
        "gaussian": nn.functional.mse_loss,
        "bernoulli": nn.functional.binary_cross_entropy_with_logits,
    }
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        losses[kind](model(x[:200]), y[:200]).backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    train = [(x[:200], y[:200])]
    subset = smidgen.select.last_layer(model, train)
    posterior = smidgen.fit.laplace(problem, train, subset, progress=False)
    return (
        posterior,
        problem,
        list(zip(x[200:].split(100), y[200:].split(100), strict=True)),
    )


def test_classes_get_three_rules(unchanged):
    posterior, problem, batches = make_posterior()
    with unchanged(problem.model):
        rules = make_rules(posterior, problem, batches, max_error=0.2, progress=False)
    assert list(rules.by_name()) == ["abstain", "sets", "strange"]
    predictive = smidgen.predict_batches(posterior, problem, batches, progress=False)
    targets = torch.cat([y for _, y in batches])
    assert rules.abstain == decide.abstain(predictive, targets, max_error=0.2)
    assert rules.sets == decide.sets(predictive, targets, coverage=0.9)
    assert rules.strange == decide.strange(predictive)


def test_a_regression_gets_intervals():
    posterior, problem, batches = make_posterior(2, "gaussian")
    rules = make_rules(posterior, problem, batches, progress=False)
    assert list(rules.by_name()) == ["intervals", "strange"]
    assert rules.intervals.coverage == 0.95
    assert len(rules.intervals.factors) == 2


def test_several_labels_get_what_is_strange():
    posterior, problem, batches = make_posterior(3, "bernoulli")
    rules = make_rules(posterior, problem, batches, coverage=0.8, progress=False)
    assert list(rules.by_name()) == ["strange"]


def test_what_rows_are_too_few_for_is_left_out_with_a_warning():
    posterior, problem, batches = make_posterior()
    few = [(x[:15], y[:15]) for x, y in batches[:1]]
    with pytest.warns(SmidgenWarning) as warnings:
        rules = make_rules(posterior, problem, few, coverage=0.5, progress=False)
    said = [str(warning.message) for warning in warnings]
    assert list(rules.by_name()) == ["sets"]
    assert said[0].startswith(
        "there is no rule to call rows strange: familiar rows must be 19"
    )
    assert said[1].startswith("there is no rule to abstain: targets must be of 45 labelled")
    assert rules.unpromised is None


def test_what_a_model_is_too_wrong_for_is_left_out_with_a_warning():
    posterior, problem, batches = make_posterior()
    wrong = [(x, (y + 1) % 3) for x, y in batches]
    with pytest.warns(SmidgenWarning, match="no rule to abstain: max_error=0.05 cannot be"):
        rules = make_rules(posterior, problem, wrong, progress=False)
    assert list(rules.by_name()) == ["sets", "strange"]
    assert rules.unpromised.startswith("max_error=0.05 cannot be promised")


def test_unlabelled_rows_make_no_rule():
    posterior, problem, batches = make_posterior()
    hidden = [(x, torch.where(torch.arange(len(y)) < 50, y, -100)) for x, y in batches]
    rules = make_rules(posterior, problem, hidden, max_error=0.3, progress=False)
    shown = [(x[:50], y[:50]) for x, y in batches]
    assert rules == make_rules(posterior, problem, shown, max_error=0.3, progress=False)
    with pytest.raises(DataError, match="batch 1: rules need labels, and a batch has none"):
        make_rules(posterior, problem, [x for x, _ in batches], progress=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"coverage": 1.0}, "coverage must be between 0 and 1"),
        ({"max_error": 0}, "max_error must be between 0 and 1"),
        ({"rate": 2}, "rate must be between 0 and 1"),
        ({"confidence": -1}, "confidence must be between 0 and 1"),
    ],
)
def test_wrong_arguments_are_refused_before_the_work(settings, message):
    posterior, problem, _ = make_posterior()
    with pytest.raises(ArgumentError, match=message):
        make_rules(posterior, problem, None, **settings)


def test_the_order_of_arguments_is_said():
    posterior, problem, batches = make_posterior()
    with pytest.raises(ArgumentError, match=r"The order is \(posterior, model, batches\)"):
        make_rules(problem, posterior, batches)
