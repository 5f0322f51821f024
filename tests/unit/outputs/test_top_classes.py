"""The likeliest classes only: against dense sampling, all classes, and in its memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import smidgen
from smidgen.errors import ArgumentError
from smidgen.outputs.links import (
    DRAWS,
    at_temperatures,
    centre,
    directions,
    matrix_root,
    standard_normals,
    with_first_class,
)
from smidgen.outputs.top_classes import TopClasses
from tests.support.cases import Case, mlp, vectors
from tests.support.tolerances import EXACT, PROBIT, SOLVER

CLASSES = 6


def fitted(classes=CLASSES, temperature=1.4):
    model, batch = Case("mlp", mlp, classes, vectors).make()
    subset = smidgen.select.sparse_kfac(model, percent=60)
    posterior = smidgen.fit.laplace(model, [batch], subset, precision=0.2)
    return posterior.with_temperature(temperature), model, batch


def drawn_densely(predictive, normals):
    """Log-probabilities under every draw, (B, S, C), with a row of noise per class."""
    logits = predictive.logits / predictive.temperature
    full = predictive.logit_covariance
    between = full[:, 1:, 1:] + full[:, :1, :1] - full[:, 1:, :1] - full[:, :1, 1:]
    root = matrix_root(between)
    noise = with_first_class(torch.einsum("bij,sj->bsi", root, normals))
    everywhere = torch.zeros(*noise.shape[:2], logits.shape[1]).double()
    index = predictive.classes[:, None].expand(-1, len(normals), -1)
    return (logits[:, None] + everywhere.scatter(-1, index, noise)).log_softmax(-1)


@pytest.mark.parametrize("top", [2, 4, CLASSES])
def test_probabilities_and_information_equal_dense_sampling(top):
    posterior, model, batch = fitted()
    found = smidgen.predict(posterior, model, batch, link=smidgen.Link(draws=512, top=top))
    normals = standard_normals(512, top - 1)
    drawn = drawn_densely(found, normals)
    torch.testing.assert_close(found.probs, drawn.exp().mean(1), **EXACT)
    mean = drawn.exp().mean(1)
    entropy = torch.special.entr(mean).sum(-1)
    within = torch.special.entr(drawn.exp()).sum(-1).mean(-1)
    torch.testing.assert_close(found.mutual_information, entropy - within, **EXACT)


def test_two_followed_classes_have_nearly_the_information_of_quadrature():
    posterior, model, batch = fitted()
    found = smidgen.predict(posterior, model, batch, link=smidgen.Link(top=2))
    grid = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    drawn = drawn_densely(found, grid[:, None]).exp()
    weights = (-0.5 * grid**2).exp() / (-0.5 * grid**2).exp().sum()
    mean = (weights[:, None] * drawn).sum(1)
    within = (weights * torch.special.entr(drawn).sum(-1)).sum(-1)
    expected = torch.special.entr(mean).sum(-1) - within
    torch.testing.assert_close(found.mutual_information, expected, **PROBIT)
    assert (expected > PROBIT["atol"]).all()


@pytest.mark.parametrize("top", [2, 4, CLASSES])
def test_the_covariance_is_that_of_all_classes_where_they_are_followed(top):
    posterior, model, batch = fitted()
    found = smidgen.predict(posterior, model, batch, link=smidgen.Link(top=top))
    everything = smidgen.predict(posterior, model, batch, link="sampling")
    assert found.classes.shape == (6, top)
    assert (found.classes[:, 0] == found.logits.argmax(-1)).all()
    centring = torch.eye(top).double() - 1 / top
    for row, classes in enumerate(found.classes):
        own = everything.logit_covariance[row][classes][:, classes]
        torch.testing.assert_close(
            found.logit_covariance[row], centring @ own @ centring, **EXACT
        )


def test_all_classes_followed_is_the_ordinary_link_in_another_order():
    """The same normals on logits sorted by size give the very same probabilities."""
    posterior, model, batch = fitted()
    found = smidgen.predict(posterior, model, batch, link=smidgen.Link(top=CLASSES))
    ordinary = smidgen.predict(posterior, model, batch, link="sampling")
    order = found.classes
    sorted_covariance = torch.stack(
        [full[o][:, o] for full, o in zip(ordinary.logit_covariance, order, strict=True)]
    )
    lift = directions("sampling", CLASSES)
    at = at_temperatures(
        "sampling",
        ordinary.logits.gather(-1, order),
        lift @ sorted_covariance @ lift.T,
        normals=standard_normals(DRAWS, CLASSES - 1),
    )
    expected = at(posterior.temperature)
    torch.testing.assert_close(found.log_probs.gather(-1, order), expected, **EXACT)
    torch.testing.assert_close(
        centre(lift @ sorted_covariance @ lift.T, CLASSES), found.logit_covariance, **EXACT
    )


def test_top_minus_one_backward_passes(monkeypatch):
    posterior, model, batch = fitted()
    passes = []
    original = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *a, **k: passes.append(1) or original(*a, **k)
    )
    smidgen.predict(posterior, model, batch, link=smidgen.Link(top=3))
    assert len(passes) == 2


def test_the_nll_for_tuning_is_that_of_predicting():
    posterior, model, (x, y) = fitted()
    likelihood = posterior.likelihood
    found = smidgen.predict(posterior, model, x, link=smidgen.Link(top=3))
    full = found.logit_covariance
    between = full[:, 1:, 1:] + full[:, :1, :1] - full[:, 1:, :1] - full[:, :1, 1:]
    nll = likelihood.nll_curves(
        found.logits, y, link="sampling", normals=standard_normals(DRAWS, 2), top=3
    )(between)
    expected = smidgen.evaluate.nll(found, y).mean()
    torch.testing.assert_close(nll(posterior.temperature), expected, **EXACT)
    for top, covariance in ((3, between), (CLASSES, torch.eye(CLASSES - 1).double())):
        temperature = torch.tensor(1.1, dtype=torch.float64, requires_grad=True)
        likelihood.nll_curves(
            found.logits,
            y,
            link="sampling",
            normals=standard_normals(64, top - 1),
            top=top,
        )(covariance.expand(len(y), -1, -1))(temperature).backward()
        assert torch.isfinite(temperature.grad)


def test_many_covariances_and_temperatures_at_once():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(3, CLASSES, dtype=torch.float64, generator=generator)
    root = torch.randn(2, 3, 3, 3, dtype=torch.float64, generator=generator)
    covariance, temperatures = root @ root.mT, torch.tensor([0.7, 1.9]).double()
    followed, normals = TopClasses.of(logits, 4), standard_normals(16, 3)
    together = followed.at_temperatures(logits, covariance, normals=normals)
    for index, temperature in enumerate(temperatures):
        alone = followed.at_temperatures(logits, covariance[index], normals=normals)
        expected = alone(float(temperature))
        torch.testing.assert_close(together(temperatures)[index], expected, **EXACT)
        common = together(float(temperature))[index]
        torch.testing.assert_close(common, expected, **EXACT)


def test_equal_logits_are_taken_in_the_order_of_the_classes():
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0, 1.0]])
    found = TopClasses.of(logits, 4)
    assert found.numbers.tolist() == [[1, 2, 0, 4]]
    assert found.directions(logits)[:, 0].tolist() == [
        [0, -1, 1, 0, 0],
        [1, -1, 0, 0, 0],
        [0, -1, 0, 0, 1],
    ]


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation made."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            # A view holds no memory of its own.
            if isinstance(each, torch.Tensor) and not func.is_view:
                self.numbers = max(self.numbers, each.numel())
        return found


def test_memory_follows_the_classes_that_are_followed():
    classes, rows, width, top = 1500, 8, 6, 4
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, classes))
    batch = (torch.randn(rows, 3), torch.randint(classes, (rows,)))
    posterior = smidgen.fit.laplace(
        model,
        [batch],
        smidgen.select.named(model, ["0.*"]),
        settings=smidgen.fit.LaplaceSettings(fisher_draws=2),
    )
    with Largest() as largest:
        found = smidgen.predict(posterior, model, batch, link=smidgen.Link(top=top))
        information = found.mutual_information
    assert torch.isfinite(information).all()
    assert largest.numbers <= 2 * top * rows * classes
    assert largest.numbers < rows * classes**2 / 100
    assert found.logit_covariance.shape == (rows, top, top)
    assert found.log_probs.shape == (rows, classes)
    assert found.to_dict()["classes"] == found.classes.tolist()


@pytest.mark.filterwarnings("ignore:the best temperature")
def test_counting_and_temperatures_of_many_classes_make_no_matrix_of_them():
    classes, rows = 3000, 4
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, classes))
    batch = (torch.randn(rows, 3), torch.randint(classes, (rows,)))
    logits = model(batch[0]).detach()
    with Largest() as largest:
        smidgen.fit.laplace(
            model,
            [batch],
            smidgen.select.named(model, ["0.*"]),
            settings=smidgen.fit.LaplaceSettings(fisher_draws=1),
        )
        smidgen.fit.temperature(logits, logits.argmax(-1).flip(0))
    assert largest.numbers <= 4 * rows * classes
    assert smidgen.Categorical(classes).root_count == classes - 1


@pytest.mark.parametrize("outputs", [2, 5])
def test_counts_are_those_of_what_is_made(outputs):
    logits = torch.randn(1, outputs)
    for likelihood in (
        smidgen.Categorical(outputs),
        smidgen.Bernoulli(outputs),
        smidgen.Gaussian(outputs),
    ):
        assert len(likelihood.root_columns(logits)) == likelihood.root_count
        for link in ("sampling", "diagonal-probit"):
            count = likelihood.direction_count(link)
            assert len(likelihood.directions(link)) == count


@pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
@pytest.mark.parametrize("top", [2, 3, CLASSES])
def test_the_precision_can_be_tuned_for_the_classes_that_are_followed(top, monkeypatch):
    posterior, model, batch = fitted()
    passes = []
    original = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *a, **k: passes.append(1) or original(*a, **k)
    )
    tuned = smidgen.calibrate(
        posterior,
        model,
        [batch],
        settings=smidgen.fit.CalibrationSettings(refine=False),
        link=smidgen.Link(top=top),
    )
    # And one over two examples, which shows the head.
    assert len(passes) == top - 1 + 1
    found = smidgen.predict(tuned, model, batch, link=smidgen.Link(top=top))
    nll = float(smidgen.evaluate.nll(found, batch[1]).mean())
    assert nll == pytest.approx(tuned.calibration.chosen_nll, rel=1e-6)


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
def test_tuning_scores_what_predicting_with_top_gives():
    posterior, model, batch = fitted()
    grid = [0.05, 0.5, 5.0]
    tuned = smidgen.calibrate(
        posterior,
        model,
        [batch],
        settings=smidgen.fit.CalibrationSettings(
            scope="scalar", precisions=grid, refine=False
        ),
        link=smidgen.Link(top=3),
    )
    for index, precision in enumerate(grid):
        for temperature, curve in [
            (posterior.temperature, tuned.calibration.nll),
            (tuned.calibration.scales[index], tuned.calibration.joint_nll),
        ]:
            candidate = posterior.with_precision(precision).with_temperature(temperature)
            predictive = smidgen.predict(candidate, model, batch, link=smidgen.Link(top=3))
            nll = float(smidgen.evaluate.nll(predictive, batch[1]).mean())
            assert curve[index] == pytest.approx(nll, rel=SOLVER["rtol"])
    scale = smidgen.fit.temperature(*smidgen.point_outputs(model, [batch]))
    assert tuned.calibration.map_scale == pytest.approx(scale, rel=SOLVER["rtol"])


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
def test_memory_of_tuning_follows_them_too():
    classes, rows, top, precisions = 1500, 8, 4, 3
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, classes))
    batch = (torch.randn(rows, 3), torch.randint(classes, (rows,)))
    subset = smidgen.select.named(model, ["0.*"])
    posterior = smidgen.fit.laplace(
        model, [batch], subset, settings=smidgen.fit.LaplaceSettings(fisher_draws=2)
    )
    with Largest() as largest:
        smidgen.calibrate(
            posterior,
            model,
            [batch],
            settings=smidgen.fit.CalibrationSettings(precisions=[0.1, 1.0, 10.0]),
            link=smidgen.Link(top=top),
        )
        smidgen.fit.temperature(*smidgen.point_outputs(model, [batch]))
    assert largest.numbers <= 2 * top * precisions * rows * classes
    assert largest.numbers < rows * classes**2 / 100


@pytest.mark.parametrize("top", [1, 0, -3, CLASSES + 1, 2.0, True])
def test_top_is_checked(top):
    posterior, model, batch = fitted()
    with pytest.raises(
        ArgumentError, match="top must be a whole number of classes, 2 to 6"
    ):
        smidgen.predict(posterior, model, batch, link=smidgen.Link(top=top))


def test_top_is_for_sampling_of_classes():
    posterior, model, batch = fitted()
    with pytest.raises(ArgumentError, match="top is for link 'sampling', got 'laplace-b"):
        smidgen.predict(posterior, model, batch, link=smidgen.Link("laplace-bridge", top=2))
    labels = smidgen.Problem(model, smidgen.Bernoulli(CLASSES))
    subset = smidgen.select.last_layer(model)
    posterior = smidgen.fit.laplace(labels, [batch[0]], subset)
    with pytest.raises(ArgumentError, match="top is for outputs that are classes.*bernou"):
        smidgen.predict(posterior, labels, batch, link=smidgen.Link(top=2))


def test_followed_classes_do_not_hold_the_order_of_all():
    found = TopClasses.of(torch.randn(3, 1000), 4)
    assert found.numbers.untyped_storage().nbytes() == found.numbers.nbytes


def test_classes_are_those_of_a_stable_sort_also_where_many_are_equal():
    source = torch.Generator().manual_seed(0)
    rough = torch.randint(4, (200, 30), generator=source).double()
    fine = torch.randn(200, 30, generator=source, dtype=torch.float64)
    for logits in (rough, fine, torch.cat([rough, fine])):
        for count in (2, 7, 30):
            order = logits.sort(stable=True, dim=-1, descending=True).indices
            assert torch.equal(TopClasses.of(logits, count).numbers, order[:, :count])
