"""Every score against a slow loop over examples, positions and classes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smidgen
from smidgen.curvature.operators import STRUCTURES
from smidgen.errors import ArgumentError, DataError, SmidgenWarning
from smidgen.outputs.problem import batch_mask, batch_targets
from smidgen.select import scores
from smidgen.weights.affine import coverage
from smidgen.weights.blocks import find_blocks
from tests.support.cases import (
    CASES,
    SELECTORS,
    Case,
    OneBlock,
    mlp,
    padded_tokens,
    vectors,
)
from tests.support.oracles import (
    inputs_of_map,
    kfac_factors,
    output_hessian,
    seen_by_map,
    subset_jacobian,
)
from tests.support.tolerances import EXACT

one_row_each = pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.one_output_each and case.padding_is_honoured],
    ids=lambda case: case.name,
)


def assert_scores(found, expected, model):
    assert list(found) == list(expected) == list(coverage(model).universe)
    for name, shape in coverage(model).universe.items():
        assert (found[name].dtype, found[name].device.type) == (torch.float64, "cpu")
        assert tuple(found[name].shape) == shape
        torch.testing.assert_close(found[name], expected[name], **EXACT)


def test_magnitudes_are_those_of_the_weights(case, unchanged):
    model, _ = case.make()
    with unchanged(model):
        found = scores.magnitude(model)
    expected = {n: model.get_parameter(n).detach().abs() for n in coverage(model).universe}
    assert_scores(found, expected, model)


def test_random_scores_are_uniform_and_follow_the_seed():
    model = nn.Linear(200, 100)
    first, again, other = (scores.random(model, seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["weight"], other["weight"])
    drawn = first["weight"].flatten()
    assert drawn.unique().numel() == drawn.numel()
    # Mean of uniform draws: standard error 1/√(12 n).
    assert abs(drawn.mean() - 0.5) < 4 / (12 * drawn.numel()) ** 0.5


def examples(batch):
    """The batch, one example at a time."""
    if isinstance(batch, dict):
        count = len(batch["input_ids"])
        return [{k: v[i : i + 1] for k, v in batch.items()} for i in range(count)]
    return [(batch[0][i : i + 1], batch[1][i : i + 1]) for i in range(len(batch[0]))]


def loss(case, outputs, targets):
    if case.kind == "categorical":
        return F.cross_entropy(outputs, targets.flatten(), reduction="sum")
    if case.kind == "bernoulli":
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="sum")
    return (outputs - targets).square().sum() / 2


def test_squared_gradients_equal_a_loop_over_examples(case, unchanged):
    model, batch = case.make()
    expected = {n: torch.zeros(s).double() for n, s in coverage(model).universe.items()}
    for example in examples(batch):
        weights = [model.get_parameter(name) for name in expected]
        value = loss(case, case.forward(model, example), batch_targets(example))
        gradients = torch.autograd.grad(value, weights, allow_unused=True)
        for name, gradient in zip(expected, gradients, strict=True):
            if gradient is not None:
                expected[name] += gradient.square()
    with unchanged(model):
        found = scores.squared_gradient(case.problem(model), [batch])
    assert_scores(found, expected, model)


def test_activations_equal_a_loop_over_unpadded_positions(case, unchanged):
    model, batch = case.make()
    with unchanged(model):
        found = scores.activation(case.problem(model), [batch])
    expected = {}
    for each in coverage(model).layers:
        x = inputs_of_map(model, case.forward, batch, each.modules, len(examples(batch)))
        sizes = []
        for group in range(each.groups):
            own = x[:, group :: each.groups]
            kept = mask_of(batch, own).nonzero().tolist()
            sizes.append((sum(own[b, t] ** 2 for b, t in kept) / len(kept)).sqrt())
        wide = each.outputs // each.groups
        rows = enumerate(each.matrix(model))
        scored = torch.stack([row.abs() * sizes[i // wide] for i, row in rows])
        expected[each.weight] = each.as_stored(scored)
        if each.bias is not None:
            expected[each.bias] = model.get_parameter(each.bias).detach().abs()
    assert_scores(found, {n: expected[n] for n in found}, model)


def mask_of(batch, x):
    mask = batch_mask(batch)
    if mask is None or mask.shape != x.shape[:2]:
        return torch.ones(x.shape[:2], dtype=torch.bool)
    return mask


@one_row_each
@pytest.mark.parametrize("approximation", ["expand", "reduce"])
def test_curvature_is_the_diagonal_of_the_factors(case, approximation, unchanged):
    model, batch = case.make()
    with unchanged(model):
        found = scores.curvature(case.problem(model), [batch], approximation=approximation)
    outputs = case.forward(model, batch).detach()
    hessians = torch.stack([output_hessian(case.kind, each) for each in outputs])
    expected = {}
    for each in coverage(model).layers:
        x, jacobian = seen_by_map(model, case.forward, batch, each.modules)
        a, g = kfac_factors(
            x, jacobian, hessians, mask_of(batch, x), approximation, bias=False
        )
        scored = torch.outer(g.diagonal(), a.diagonal()).sqrt()
        expected[each.weight] = each.as_stored(scored)
        if each.bias is not None:
            expected[each.bias] = g.diagonal().sqrt()
    assert_scores(found, {n: expected[n] for n in found}, model)


@one_row_each
@pytest.mark.parametrize("structure", [s for s in STRUCTURES if s != "isotropic"])
def test_variances_are_those_of_the_inverse(case, structure, unchanged):
    """Dense inverse: of the exact GGN, its diagonal, or what the factors stand for."""
    model, batch = case.make()
    subset = SELECTORS[
        "scattered" if STRUCTURES[structure].scattered else "sparse-kfac-40"
    ](model)
    posterior = smidgen.fit.laplace(
        case.problem(model), [batch], subset, structure=structure, precision=0.3
    )
    with unchanged(model):
        found = scores.variance(posterior, model)
    noise = posterior.likelihood.scale
    expected = {n: torch.zeros(s).double() for n, s in coverage(model).universe.items()}
    if structure in ("kron", "ekfac"):
        for block in find_blocks(model, subset):
            dense = posterior.operators[block.layer.name].dense()
            expected.update(block.scatter(inverse_diagonal(dense, noise)))
    else:
        jacobian = subset_jacobian(model, case.forward, batch, subset)
        outputs = case.forward(model, batch).detach()
        hessians = torch.stack([output_hessian(case.kind, each) for each in outputs])
        ggn = torch.einsum("bcp,bcd,bdq->pq", jacobian, hessians, jacobian)
        dense = ggn if structure == "full" else ggn.diagonal().diag()
        variances = inverse_diagonal(dense, noise).split(list(subset.sizes().values()))
        for name, values in zip(subset.parts, variances, strict=True):
            expected[name].view(-1)[subset.indices(name)] = values
    assert_scores(found, expected, model)


def inverse_diagonal(dense, noise, precision=0.3):
    eye = torch.eye(len(dense)).double()
    return torch.linalg.inv(dense / noise + precision * eye).diagonal()


def test_several_batches_are_one_large_one():
    case = Case("one-block-3", OneBlock, 3, padded_tokens)
    model, batch = case.make()
    for score in (scores.squared_gradient, scores.activation, scores.curvature):
        at_once, apart = score(model, [batch]), score(model, iter(examples(batch)))
        for name in at_once:
            torch.testing.assert_close(at_once[name], apart[name], **EXACT)


def test_labels_are_asked_for_only_where_they_count():
    model, (x, y) = Case("mlp", mlp, 3, vectors).make()
    scores.activation(model, [x])
    scores.curvature(model, [x])
    with pytest.raises(DataError, match="need labels"):
        scores.squared_gradient(model, [x])
    with pytest.raises(DataError, match="no example has a label"):
        scores.squared_gradient(model, [(x, torch.full_like(y, -100))])


def test_the_ranking_by_variance_does_not_depend_on_the_precision():
    model, batch = Case("mlp", mlp, 3, vectors).make()
    whole = smidgen.select.sparse_kfac(model, percent=100)
    posterior = smidgen.fit.laplace(model, [batch], whole, structure="diag")
    chosen = [
        smidgen.select.weights(
            model, fraction=0.2, by=scores.variance(posterior.with_precision(p), model)
        )
        for p in (0.1, 100.0)
    ]
    assert chosen[0] == chosen[1]


def test_variances_are_of_the_model_the_posterior_was_fitted_to():
    model, batch = Case("mlp", mlp, 3, vectors).make()
    posterior = smidgen.fit.laplace(model, [batch], smidgen.select.last_layer(model))
    model[0].weight.data += 1
    with pytest.raises(ArgumentError, match="must be the one the posterior was fitted to"):
        scores.variance(posterior, model)


class Mixing(nn.Module):
    """Its second layer sees the rows in another order; its third never runs."""

    def __init__(self):
        super().__init__()
        self.first, self.mixes, self.idle = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return x + self.mixes(x.flip(0)).flip(0)


@pytest.mark.parametrize("score", ["squared_gradient", "activation", "curvature"])
def test_maps_that_cannot_be_treated_score_zero(score):
    model = Mixing()
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(5, 4, generator=generator), torch.tensor([0, 1, 2, 3, 0])
    with pytest.warns(SmidgenWarning, match="layers score zero: .*mixes"):
        found = getattr(scores, score)(model, [batch])
    assert found["first.weight"].all()
    assert not any(found[f"{name}.weight"].any() for name in ("mixes", "idle"))


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ({}, "got none"),
        ({"0.weight": torch.zeros(3)}, r"got '0.weight' of shape \(3,\)"),
        ({"9.weight": torch.zeros(3)}, "got '9.weight'"),
        ({"0.bias": [1.0]}, "got a list for '0.bias'"),
        ({"0.bias": torch.full((7,), torch.nan)}, "NaN for '0.bias'"),
        ("best", "got 'best'"),
        (None, "got None"),
    ],
)
def test_scores_are_checked_in_one_place(by, message):
    model, _ = Case("mlp", mlp, 2, vectors).make()
    for select in (
        lambda: smidgen.select.weights(model, fraction=0.5, by=by),
        lambda: smidgen.select.sparse_kfac(model, percent=50, by=by),
    ):
        with pytest.raises(ArgumentError, match=message):
            select()


def test_rows_and_columns_by_given_scores():
    model, _ = Case("mlp", mlp, 2, vectors).make()
    given = torch.zeros(7, 4)
    given[5, 1], given[2, 3] = 2.0, 1.0
    subset = smidgen.select.sparse_kfac(model, percent=25, by={"0.weight": given})
    (block,) = find_blocks(model, subset)
    assert (block.rows.tolist(), block.columns.tolist()) == ([2, 5], [1])
    with pytest.raises(ArgumentError, match="biases only"):
        smidgen.select.sparse_kfac(model, percent=25, by={"0.bias": torch.ones(7)})
    by_hand = smidgen.select.sparse_kfac(model, percent=30, by=scores.magnitude(model))
    assert by_hand == smidgen.select.sparse_kfac(model, percent=30)
