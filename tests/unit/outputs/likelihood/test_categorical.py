"""Many classes by default: what is settled, said once, near the exact, and refused."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import ArgumentError, ResourceError, SmidgenWarning
from smidgen.outputs.likelihood.categorical import FISHER_DRAWS
from smidgen.outputs.links import EXACT_CLASSES, FOLLOWED
from smidgen.posterior.cost.model import Setting

CLASSES = 60
QUIET = pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
EXACTLY = smidgen.fit.LaplaceSettings(fisher_draws="exact")
ALL = smidgen.Link(top="all")


def trained(classes=CLASSES, rows=600):
    """A classifier of points around centres, and its training and held-out batches."""
    torch.manual_seed(0)
    centres = torch.randn(classes, 8)
    targets = torch.randint(classes, (2 * rows,))
    inputs = centres[targets] + 0.5 * torch.randn(2 * rows, 8)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, classes))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(120):
        loss = nn.functional.cross_entropy(model(inputs[:rows]), targets[:rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pairs = list(zip(inputs.split(100), targets.split(100), strict=True))
    return model, pairs[: rows // 100], pairs[rows // 100 :]


@pytest.mark.parametrize(
    ("classes", "followed", "draws"),
    [(2, None, None), (EXACT_CLASSES, None, None), (EXACT_CLASSES + 1, FOLLOWED, 4)],
)
def test_few_classes_are_exact_and_many_are_not(classes, followed, draws):
    likelihood = smidgen.Categorical(classes)
    link = likelihood.settle_link(smidgen.Link())
    assert link.followed == followed
    assert likelihood.settle_link(link) == link
    assert likelihood.settle_draws(None) == draws
    assert likelihood.settle_draws("exact") is None
    assert likelihood.settle_draws(7) == 7
    assert likelihood.settle_link(ALL).followed is None
    assert likelihood.settle_link(smidgen.Link(top=2)).followed == 2


def test_a_link_that_needs_all_classes_has_them():
    link = smidgen.Categorical(CLASSES).settle_link(smidgen.Link("laplace-bridge"))
    assert link.followed is None


def test_the_cost_is_that_of_what_is_done_by_default(monkeypatch):
    model, train, held = trained(rows=100)
    problem = smidgen.Problem(model).with_likelihood(smidgen.Categorical(CLASSES))
    setting = Setting.of(problem)
    assert (setting.columns, setting.directions) == (FISHER_DRAWS, FOLLOWED - 1)
    exact = Setting.of(problem, "exact", "all")
    assert (exact.columns, exact.directions) == (CLASSES - 1, CLASSES - 1)
    # Not the last layer, which may need no backward pass.
    subset = smidgen.select.named(model, ["0.*"])
    calls, original = [], torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *a, **k: calls.append(1) or original(*a, **k)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = smidgen.fit.laplace(model, train, subset)
        # And the pass that looks for layers that mix examples, and the one for the head.
        assert len(calls) <= setting.columns + 2
        calls.clear()
        smidgen.predict(posterior, model, held[0])
    assert len(calls) == setting.directions


def test_what_is_done_by_default_is_said_in_a_line_each():
    model, train, held = trained(rows=100)
    subset = smidgen.select.last_layer(model)
    with pytest.warns(SmidgenWarning) as said:
        posterior = smidgen.fit.laplace(model, train, subset)
    assert [str(each.message) for each in said] == [
        "the curvature of 60 classes is that of 4 drawn labels an example. "
        "LaplaceSettings(fisher_draws='exact') takes all classes."
    ]
    with pytest.warns(SmidgenWarning) as said:
        smidgen.predict_batches(posterior, model, held * 3)
    assert [str(each.message) for each in said] == [
        "of 60 classes the 10 likeliest of each example get a covariance, and the others "
        "keep their distance to the likeliest. Link(top='all') follows all."
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact = smidgen.fit.laplace(model, train, subset, settings=EXACTLY)
        smidgen.predict_batches(exact, model, held, link=ALL)


@QUIET
def test_by_default_predictions_are_near_the_exact():
    """Sixty classes: probabilities within 0.05, the NLL within 0.02 nats."""
    model, train, held = trained()
    subset = smidgen.select.sparse_kfac(model, percent=100)
    usual = smidgen.fit.laplace(model, train, subset)
    exact = smidgen.fit.laplace(model, train, subset, settings=EXACTLY)
    scalar = smidgen.fit.CalibrationSettings(
        scope="scalar", precisions=[1.0, 10.0, 100.0, 1e3], refine=False
    )
    targets = torch.cat([batch[1] for batch in held])
    usual = smidgen.calibrate(usual, model, held, settings=scalar)
    exact = smidgen.calibrate(exact, model, held, settings=scalar, link=ALL)
    ours = smidgen.predict_batches(usual, model, held)
    theirs = smidgen.predict_batches(exact, model, held, link=ALL)
    scores = [float(smidgen.evaluate.nll(each, targets).mean()) for each in (ours, theirs)]
    assert scores[0] == pytest.approx(scores[1], abs=0.02)
    same = exact.with_precision(usual.precision).with_temperature(usual.temperature)
    theirs = smidgen.predict_batches(same, model, held, link=ALL)
    assert (ours.probs - theirs.probs).abs().max() < 0.05


@QUIET
def test_classes_of_every_token_are_fitted_by_default():
    """Drawn labels go back token by token where positions are summed: not refused."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    batch = (torch.randn(4, 6, 3), torch.randint(CLASSES, (4, 6)))
    subset = smidgen.select.named(model, ["0.*"])
    posterior = smidgen.fit.laplace(model, [batch], subset)
    assert smidgen.predict(posterior, model, batch).predicted.shape == (24,)


@QUIET
def test_more_classes_than_memory_holds_are_refused_before_they_are_followed(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 20_000))
    batch = (torch.randn(2, 3), torch.randint(20_000, (2,)))
    subset = smidgen.select.named(model, ["0.*"])
    posterior = smidgen.fit.laplace(model, [batch], subset)
    monkeypatch.setenv("SMIDGEN_MEMORY", "1e9")
    with pytest.raises(
        ResourceError,
        match=r"all of 20,000 outputs at once need .* GB of memory for 2 rows, and 1.00 GB "
        r"are available. Use LaplaceSettings\(fisher_draws=4\), or smaller batches",
    ):
        smidgen.fit.laplace(model, [batch], subset, settings=EXACTLY)
    for call in (
        lambda: smidgen.predict(posterior, model, batch, link=ALL),
        lambda: smidgen.calibrate(posterior, model, [batch], link=ALL),
    ):
        with pytest.raises(ResourceError, match=r"Use Link\(top=10\), or smaller"):
            call()
    smidgen.predict(posterior, model, batch)


@pytest.mark.parametrize("draws", ["all", "Exact", ""])
def test_words_that_are_none_are_refused(draws):
    with pytest.raises(
        ArgumentError, match="fisher_draws must be a whole number or 'exact'"
    ):
        smidgen.Categorical(CLASSES).settle_draws(draws)
    with pytest.raises(
        ArgumentError, match="top must be a whole number.*or 'all', got 'x'"
    ):
        smidgen.Categorical(CLASSES).settle_link(smidgen.Link(top="x"))
