"""Weight samples: their covariance, where linearising is exact, and what they leave."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import smidgen
from smidgen.curvature.operators import JOINT, STRUCTURES
from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.problem import model_outputs
from smidgen.weights.blocks import find_blocks
from tests.support.cases import (
    SELECTORS,
    Case,
    OneBlock,
    Shared,
    linear,
    mlp,
    padded_tokens,
    vectors,
)
from tests.support.tolerances import EXACT, Z

IDLE_MAPS_ARE_FINE = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
SAMPLES = 200
PRECISION = 0.8


def recorded_weights(case, model, batch, posterior, samples):
    """The chosen weights' deviations under every sample, seen from inside the model."""
    chosen = find_blocks(model, posterior.subset)
    places = {b.layer.name: b.scatter(torch.arange(1, b.size + 1)) for b in chosen}
    trained = {n: p.detach().clone() for n, p in model.named_parameters()}
    seen = []

    def forward(net, own):
        if not seen:
            # One that never runs the model it is given would be refused.
            model_outputs(net, own)
        now = dict(net.named_parameters())
        moved = {n: now[n].detach() - p for n, p in trained.items()}
        seen.append({b.layer.name: torch.empty(b.size).double() for b in chosen})
        for name, numbers in places.items():
            for parameter, place in numbers.items():
                seen[-1][name][place[place > 0] - 1] = moved[parameter][place > 0]
                moved[parameter] = moved[parameter][place == 0]
        # Nothing but the chosen weights has moved.
        assert all(not each.any() for each in moved.values())
        return torch.zeros(1, case.outputs).double()

    problem = smidgen.Problem(model, forward=forward)
    smidgen.predict(posterior, problem, batch, samples=samples)
    found = {name: torch.stack([each[name] for each in seen]) for name in places}
    if JOINT in posterior.operators:
        return {JOINT: torch.cat(list(found.values()), -1)}
    return found


@IDLE_MAPS_ARE_FINE
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("selector", ["sparse-kfac-40", "scattered"])
def test_samples_have_the_posteriors_covariance(case, selector, structure):
    """Whitened by the dense σ²(H + τσ²)⁻¹ they are standard normal."""
    model, batch = case.make()
    subset = SELECTORS[selector](model)
    scattered = any(block.entries is not None for block in find_blocks(model, subset))
    if scattered and not STRUCTURES[structure].scattered:
        pytest.skip(f"{structure} holds no scattered entries")
    posterior = smidgen.fit.laplace(
        case.problem(model), [batch], subset, structure=structure, precision=PRECISION
    )
    scale = posterior.likelihood.scale
    drawn = recorded_weights(case, model, batch, posterior, SAMPLES)
    assert set(drawn) == set(posterior.operators)
    generator = torch.Generator().manual_seed(1)
    for name, found in drawn.items():
        dense = posterior.operators[name].dense() / scale
        precision = dense + PRECISION * torch.eye(len(dense)).double()
        white = found @ torch.linalg.cholesky(precision)
        total, count = float(white.square().sum()), white.numel()
        assert abs(total - count) < Z * (2 * count) ** 0.5
        # In a few random directions also every mean, variance and correlation.
        drawn_directions = torch.randn(
            len(dense), min(3, len(dense)), dtype=torch.float64, generator=generator
        )
        few = white @ torch.linalg.qr(drawn_directions).Q
        assert (few.mean(0).abs() < Z / SAMPLES**0.5).all()
        moments = few.T @ few / SAMPLES
        eye = torch.eye(len(moments)).double()
        assert ((moments - eye).abs() < Z * ((1 + eye) / SAMPLES).sqrt()).all()


def test_a_linear_regression_has_the_linearised_mean_and_variance():
    model, batch = Case("linear", linear, 2, vectors, "gaussian").make()
    subset = smidgen.select.last_layer(model)
    posterior = smidgen.fit.laplace(model, [batch], subset, precision=0.3)
    exact = smidgen.predict(posterior, model, batch)
    count = 3000
    found = smidgen.predict(posterior, model, batch, samples=count)
    error = (exact.variance / count).sqrt()
    assert ((found.mean - exact.mean).abs() < Z * error).all()
    error = exact.variance * (2 / (count - 1)) ** 0.5
    assert ((found.variance - exact.variance).abs() < Z * error).all()
    torch.testing.assert_close(found.noise, exact.noise, **EXACT)


def test_a_linear_classifier_has_the_integral_over_its_logits():
    model, batch = Case("linear", linear, 2, vectors).make()
    subset = smidgen.select.last_layer(model)
    posterior = smidgen.fit.laplace(model, [batch], subset, precision=0.3)
    posterior = posterior.with_temperature(1.7)
    exact = smidgen.predict(posterior, model, batch)
    full = exact.logit_covariance
    variance = full[:, 0, 0] + full[:, 1, 1] - 2 * full[:, 0, 1]
    means = exact.logits[:, 1] - exact.logits[:, 0]
    grid = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    weights = (-0.5 * grid**2).exp() / (-0.5 * grid**2).exp().sum()
    # The temperature divides the mean and not the deviations.
    drawn = (means[:, None] / 1.7 + variance.sqrt()[:, None] * grid).sigmoid()
    expected = (drawn * weights).sum(-1)
    spread = ((drawn - expected[:, None]).square() * weights).sum(-1).sqrt()
    count = 3000
    found = smidgen.predict(posterior, model, batch, samples=count)
    assert ((found.probs[:, 1] - expected).abs() < Z * spread / count**0.5).all()
    sample = found.logit_covariance
    between = sample[:, 0, 0] + sample[:, 1, 1] - 2 * sample[:, 0, 1]
    error = variance * (2 / (count - 1)) ** 0.5
    assert ((between - variance).abs() < Z * error).all()


@pytest.mark.parametrize(
    ("outputs", "kind"),
    [(2, "categorical"), (3, "categorical"), (1, "bernoulli"), (3, "bernoulli")],
)
@pytest.mark.parametrize("temperature", [0.4, 3.0])
def test_draws_of_a_linear_model_agree_with_the_linearised_one(outputs, kind, temperature):
    """Whatever the temperature: it divides the mean of both, and the noise of neither."""
    case = Case("linear", linear, outputs, vectors, kind)
    model, batch = case.make()
    subset = smidgen.select.last_layer(model)
    posterior = smidgen.fit.laplace(case.problem(model), [batch], subset, precision=0.3)
    posterior = posterior.with_temperature(temperature)
    many = smidgen.Link(draws=2**13)
    exact = smidgen.predict(posterior, model, batch, link=many).probs
    runs = [
        smidgen.predict(posterior, model, batch, samples=400, seed=seed).probs
        for seed in range(16)
    ]
    error = torch.stack(runs).std(0) / len(runs) ** 0.5
    assert ((torch.stack(runs).mean(0) - exact).abs() < Z * error).all()
    # Small enough to tell another temperature.
    other = smidgen.predict(posterior.with_temperature(1.2), model, batch, link=many).probs
    assert ((other - exact).abs() > 2 * Z * error).any()


@pytest.mark.parametrize(
    ("likelihood", "kind"),
    [(smidgen.Categorical(3), "categorical"), (smidgen.Bernoulli(3), "bernoulli")],
)
def test_probabilities_and_information_are_those_of_the_samples(likelihood, kind):
    model, batch = Case("mlp", mlp, 3, vectors, kind).make()
    outputs = []

    def forward(net, own):
        outputs.append(net(own[0]).detach())
        return outputs[-1]

    problem = smidgen.Problem(model, likelihood)
    subset = smidgen.select.sparse_kfac(model, percent=50)
    posterior = smidgen.fit.laplace(problem, [batch], subset).with_temperature(0.6)
    watched = smidgen.Problem(model, forward=forward)
    found = smidgen.predict(posterior, watched, batch, samples=7)
    assert len(outputs) == 7
    centre = torch.stack(outputs).mean(0)
    scaled = centre / 0.6 + torch.stack(outputs) - centre
    if kind == "categorical":
        probs = scaled.softmax(-1)
    else:
        probs = torch.stack([scaled.sigmoid(), (-scaled).sigmoid()], -1)
    mean = probs.mean(0) if kind == "categorical" else probs[..., 0].mean(0)
    torch.testing.assert_close(found.probs, mean, **EXACT)
    axes = tuple(range(1, probs.dim() - 1))
    total = torch.special.entr(probs.mean(0)).sum(axes)
    within = torch.special.entr(probs).mean(0).sum(axes)
    torch.testing.assert_close(found.mutual_information, total - within, **EXACT)
    torch.testing.assert_close(found.logits, torch.stack(outputs).mean(0), **EXACT)
    if kind == "categorical":
        stacked = torch.stack(outputs)
        logits = stacked - stacked.mean(-1, keepdim=True)
        expected = torch.stack([torch.cov(logits[:, b].T) for b in range(6)])
        torch.testing.assert_close(found.logit_covariance, expected, **EXACT)


@pytest.mark.filterwarnings(
    "ignore:the curvature of 80 classes:smidgen.errors.SmidgenWarning"
)
def test_many_classes_keep_no_covariance_but_their_information():
    model, batch = Case("linear", linear, 80, vectors).make()
    subset = smidgen.select.last_layer(model)
    posterior = smidgen.fit.laplace(model, [batch], subset, structure="diag")
    found = smidgen.predict(posterior, model, batch, samples=4)
    assert found.logit_covariance is None
    assert (found.mutual_information > 0).all()


def test_all_batches_see_the_same_samples():
    model, batch = Case("one-block", OneBlock, 3, padded_tokens).make()
    subset = smidgen.select.sparse_kfac(model, percent=50)
    posterior = smidgen.fit.laplace(model, [batch], subset)
    single = [{k: v[i : i + 1] for k, v in batch.items()} for i in range(4)]
    whole = smidgen.predict(posterior, model, batch, samples=5)
    parts = smidgen.predict_batches(posterior, model, iter(single), samples=5)
    torch.testing.assert_close(parts.log_probs, whole.log_probs, **EXACT)


def test_tied_weights_are_sampled_together():
    model, batch = Case("shared", Shared, 3, vectors).make()
    subset = smidgen.select.named(model, ["hidden.*"])
    posterior = smidgen.fit.laplace(model, [batch], subset)

    def forward(net, own):
        assert net.twin.weight is net.hidden.weight
        return net(own[0])

    problem = smidgen.Problem(model, forward=forward)
    found = smidgen.predict(posterior, problem, batch, samples=3)
    assert (found.mutual_information > 0).all()


class Trap(Exception):
    pass


@pytest.mark.parametrize("where", ["nowhere", "loader", "forward"])
@IDLE_MAPS_ARE_FINE
def test_the_model_is_left_alone_also_by_an_exception(case, unchanged, where):
    model, batch = case.make()
    model.train()
    next(model.parameters()).requires_grad_(False)
    last = list(model.parameters())[-1]
    last.grad = torch.ones_like(last)
    problem = case.problem(model)
    subset = smidgen.select.sparse_kfac(model, percent=50)
    posterior = smidgen.fit.laplace(problem, [batch], subset)
    calls = []

    def forward(net, own):
        calls.append(torch.rand(()))
        if where == "forward" and len(calls) == 4:
            raise Trap
        return case.forward(net, own)

    def batches():
        yield batch
        if where == "loader":
            raise Trap
        yield batch

    watched = smidgen.Problem(model, forward=forward)
    with unchanged(model):
        if where == "nowhere":
            smidgen.predict_batches(posterior, watched, batches(), samples=3)
        else:
            with pytest.raises(Trap):
                smidgen.predict_batches(posterior, watched, batches(), samples=3)
    # Evaluation mode throughout: no dropout on top of the samples.
    assert model.training


def test_bf16_models_are_sampled_in_their_own_type():
    model, batch = Case("one-block", OneBlock, 2, padded_tokens).make()
    model = model.to(torch.bfloat16)
    subset = smidgen.select.sparse_kfac(model, percent=60)
    posterior = smidgen.fit.laplace(model, [batch], subset)
    found = smidgen.predict(posterior, model, batch, samples=4)
    assert torch.isfinite(found.log_probs).all()
    assert (found.mutual_information > 0).all()


def test_refusals():
    model, batch = Case("mlp", mlp, 2, vectors).make()
    posterior = smidgen.fit.laplace(model, [batch], smidgen.select.last_layer(model))
    with pytest.raises(ArgumentError, match="samples must be 2 or more, or 0, got 1"):
        smidgen.predict(posterior, model, batch, samples=1)
    with pytest.raises(ArgumentError, match="got a DataLoader. Use smidgen.predict_bat"):
        smidgen.predict(posterior, model, DataLoader([1]))
    with pytest.raises(DataError, match="yielded no batch"):
        smidgen.predict_batches(posterior, model, [])
    with pytest.raises(DataError, match="holds no example"):
        smidgen.predict(posterior, model, batch[0][:0])
    with torch.no_grad():
        model[0].weight[0, 0] += 1
    with pytest.raises(ArgumentError, match="must be the one the posterior was fitted to"):
        smidgen.predict(posterior, model, batch)


class Twice(nn.Module):
    """One module under two names."""

    def __init__(self):
        super().__init__()
        self.first = self.second = nn.Linear(4, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_a_module_under_two_names_is_drawn_and_left_as_it_was(unchanged):
    torch.manual_seed(0)
    model, x = Twice(), torch.randn(8, 4)
    batches = [(x, torch.randint(2, (8,)))]
    subset = smidgen.select.sparse_kfac(model, percent=100)
    posterior = smidgen.fit.laplace(model, batches, subset, progress=False)
    with unchanged(model):
        first, second = (smidgen.predict(posterior, model, x, samples=4) for _ in range(2))
    assert torch.equal(first.probs, second.probs)
    assert float(first.mutual_information.max()) > 0
