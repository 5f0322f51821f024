"""Factors and output covariances against dense oracles."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2LMHeadModel

import smidgen
from smidgen.curvature.accumulate import accumulate
from smidgen.curvature.kronecker import KroneckerAccumulator
from smidgen.curvature.operators import JOINT, STRUCTURES
from smidgen.curvature.taps import tapped
from smidgen.errors import DataError
from smidgen.outputs.problem import SettledProblem, batch_mask, batch_targets
from smidgen.posterior.output_covariance import output_moments
from smidgen.weights.affine import coverage
from smidgen.weights.blocks import find_blocks
from tests.support.cases import SELECTORS, Case, OneBlock, padded_tokens
from tests.support.oracles import kfac_factors, output_hessian, output_jacobian, seen_by_map
from tests.support.settings import grouped
from tests.support.tiny import gpt2_config
from tests.support.tolerances import EXACT, Z


def kronecker_factors(problem, batches, blocks, approximation="reduce"):
    """Accumulate the factors of all blocks in one pass and decompose them, for unit noise."""
    sums = KroneckerAccumulator(problem, blocks, approximation)
    with tapped(problem, blocks) as taps:
        accumulate(sums, taps, batches)
    return sums.finish()


def mask_for(batch, positions):
    mask = batch_mask(batch)
    if mask is None or mask.shape[1] != positions:
        return None
    return mask


@pytest.mark.parametrize("approximation", ["expand", "reduce"])
@pytest.mark.parametrize("percent", [100, 45])
def test_factors_equal_loops_over_examples_and_positions(case, approximation, percent):
    if not case.padding_is_honoured:
        pytest.skip("positions that the mask is not about: only the Jacobian is exact")
    if not case.one_output_each:
        pytest.skip("a test of its own compares the factors of tokens")
    model, batch = case.make()
    subset = smidgen.select.sparse_kfac(model, percent=percent)
    chosen = find_blocks(model, subset)
    found = kronecker_factors(
        case.problem(model), [batch], chosen, approximation=approximation
    )
    outputs = case.forward(model, batch).detach()
    hessians = torch.stack([output_hessian(case.kind, each) for each in outputs])
    for block in chosen:
        x, jacobian = seen_by_map(model, case.forward, batch, block.layer.modules)
        mask = mask_for(batch, x.shape[1])
        if mask is None:
            mask = torch.ones(x.shape[:2], dtype=torch.bool)
        a, g = kfac_factors(
            x[..., block.columns],
            jacobian[..., block.rows],
            hessians,
            mask,
            approximation,
            block.bias,
        )
        operator = found.operators[block.layer.name]
        torch.testing.assert_close(operator.dense(), torch.kron(g, a), **EXACT)


def able(structure, chosen):
    """Skip what a structure refuses, which a test of its own asserts."""
    if not STRUCTURES[structure].scattered and any(b.entries is not None for b in chosen):
        pytest.skip(f"{structure} holds no scattered entries")


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("selector", SELECTORS)
def test_output_covariance_equals_the_dense_jacobian_sandwich(case, selector, structure):
    model, batch = case.make()
    subset = SELECTORS[selector](model)
    chosen = find_blocks(model, subset)
    able(structure, chosen)
    problem = case.problem(model)
    posterior = smidgen.fit.laplace(problem, [batch], subset, structure=structure)
    precisions = torch.tensor([0.01, 3.0], dtype=torch.float64)
    directions = torch.randn(
        2, case.outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    (moments,) = output_moments(
        problem,
        [batch],
        chosen,
        posterior.covariance_terms(chosen, precisions),
        lambda outputs: directions[:, None].expand(-1, len(outputs), -1),
    )
    expected = torch.zeros_like(moments.total)
    jacobians = {b.layer.name: ordered_jacobian(model, case, batch, b) for b in chosen}
    if structure == "full":
        jacobians = {JOINT: torch.cat(list(jacobians.values()), -1)}
    for name, jacobian in jacobians.items():
        jacobian = torch.einsum("kc,bcp->bkp", directions, jacobian)
        dense = posterior.operators[name].dense()
        for index, precision in enumerate(precisions):
            covariance = torch.linalg.inv(
                dense + precision * torch.eye(len(dense)).double()
            )
            expected[index] += jacobian @ covariance @ jacobian.transpose(1, 2)
    torch.testing.assert_close(moments.total, expected, **EXACT)
    torch.testing.assert_close(moments.outputs, case.forward(model, batch).detach())


@pytest.mark.parametrize("selector", ["sparse-kfac-40", "scattered"])
@pytest.mark.parametrize("structure", ["diag", "ekfac", "full"])
def test_measured_curvature_is_that_of_the_exact_ggn(case, structure, selector):
    """Its diagonal, in the weights or in the eigenbasis of the factors, or all of it."""
    model, batch = case.make()
    subset = SELECTORS[selector](model)
    chosen = find_blocks(model, subset)
    able(structure, chosen)
    posterior = smidgen.fit.laplace(
        case.problem(model),
        [batch],
        subset,
        structure=structure,
        settings=smidgen.fit.LaplaceSettings(approximation="expand"),
    )
    jacobians = [ordered_jacobian(model, case, batch, block) for block in chosen]
    if structure == "full":
        dense = posterior.operators[JOINT].dense()
        ggn = exact_ggn(model, case, batch, torch.cat(jacobians, -1))
        torch.testing.assert_close(dense, ggn, **EXACT)
        return
    for block, jacobian in zip(chosen, jacobians, strict=True):
        ggn = exact_ggn(model, case, batch, jacobian)
        operator = posterior.operators[block.layer.name]
        if structure == "ekfac":
            basis = torch.kron(operator.row_vectors, operator.column_vectors)
            ggn = basis.T @ ggn @ basis
        torch.testing.assert_close(operator.values, ggn.diagonal(), **EXACT)


def exact_ggn(model, case, batch, jacobian):
    """Σ Jᵀ Λ J over the rows that have a label."""
    outputs = case.forward(model, batch).detach()
    hessians = torch.stack([output_hessian(case.kind, each) for each in outputs])
    labels = batch_targets(batch)
    if not case.one_output_each:
        kept = labels.flatten() != -100
        jacobian, hessians = jacobian[kept], hessians[kept]
    return torch.einsum("bcp,bcd,bdq->pq", jacobian, hessians, jacobian)


def ordered_jacobian(model, case, batch, block):
    """The dense Jacobian (R, C, D) in the order of the block's weights."""
    numbers = block.scatter(torch.arange(1, block.size + 1))
    found = output_jacobian(model, case.forward, batch, list(numbers))
    rows, classes = next(iter(found.values())).shape[:2]
    ordered = torch.full((rows, classes, block.size), torch.nan).double()
    for name, order in numbers.items():
        ordered[..., order[order > 0] - 1] = found[name][..., order > 0]
    return ordered


def test_a_structure_that_needs_rows_and_columns_says_which_do_not():
    model, batch = Case("one-block", OneBlock, 2, padded_tokens).make()
    subset = SELECTORS["scattered"](model)
    with pytest.raises(smidgen.SmidgenError, match="Use structure='diag' or 'full'"):
        smidgen.fit.laplace(model, [batch], subset, structure="kron")


@pytest.mark.parametrize("approximation", ["expand", "reduce"])
def test_positions_without_a_label_count_nowhere(approximation):
    """Factors of tokens that do not see each other equal a loop over the kept ones."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    net = net.double()
    x = torch.randn(2, 5, 3, dtype=torch.float64, generator=generator)
    labels = torch.randint(3, (2, 5), generator=generator)
    labels[0, 1], labels[1, 3:] = -100, -100
    kept = labels.flatten() != -100
    subset = smidgen.select.sparse_kfac(net, percent=100)
    tokens, rows = (
        smidgen.fit.laplace(
            smidgen.Problem(net, smidgen.Categorical(3)),
            [data],
            subset,
            settings=smidgen.fit.LaplaceSettings(approximation=approximation),
        )
        for data in ((x, labels), (x.flatten(0, 1)[kept], labels.flatten()[kept]))
    )
    assert tokens.num_data == rows.num_data == 7
    for name, operator in tokens.operators.items():
        torch.testing.assert_close(operator.dense(), rows.operators[name].dense(), **EXACT)


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_drawn_labels_average_to_the_exact_curvature(case, structure):
    """The Monte-Carlo Fisher is unbiased: traces agree within standard errors."""
    model, batch = case.make()
    subset = smidgen.select.last_layer(model)

    def trace_of(**options):
        posterior = smidgen.fit.laplace(
            case.problem(model),
            [batch],
            subset,
            structure=structure,
            **grouped(smidgen.fit.LaplaceSettings, **options),
        )
        return float(next(iter(posterior.operators.values())).values.sum())

    exact = trace_of(approximation="expand")
    drawn = torch.tensor(
        [trace_of(approximation="expand", fisher_draws=10, seed=seed) for seed in range(30)]
    )
    assert abs(float(drawn.mean()) - exact) < Z * float(drawn.std()) / 30**0.5


def test_a_smaller_percent_is_a_leading_block_of_a_larger_one():
    """Nested selections: factors of the smaller are principal blocks of the larger's."""
    model, batch = Case("one-block", OneBlock, 2, padded_tokens).make()
    problem = SettledProblem(model, smidgen.Categorical(2))
    dense = {}
    for percent in (30, 70):
        chosen = find_blocks(model, smidgen.select.sparse_kfac(model, percent=percent))
        found = kronecker_factors(problem, [batch], chosen)
        dense[percent] = {b.layer.name: (b, found.operators[b.layer.name]) for b in chosen}
    for name, (small, operator) in dense[30].items():
        large, wider = dense[70][name]
        rows = [large.rows.tolist().index(i) for i in small.rows.tolist()]
        columns = [large.columns.tolist().index(j) for j in small.columns.tolist()]
        if small.bias:
            columns = [0] + [j + 1 for j in columns]
        width = large.column_count
        index = torch.tensor([i * width + j for i in rows for j in columns])
        torch.testing.assert_close(
            operator.dense(), wider.dense()[index][:, index], **EXACT
        )


def test_rows_labelled_minus_100_are_left_out():
    model, batch = Case("one-block", OneBlock, 3, padded_tokens).make()
    problem = SettledProblem(model, smidgen.Categorical(3))
    chosen = find_blocks(model, smidgen.select.sparse_kfac(model, percent=60))
    keep = torch.tensor([0, 2])
    masked = dict(batch, labels=batch["labels"].clone())
    masked["labels"][[1, 3]] = -100
    kept = {k: v[keep] for k, v in batch.items()}
    left = kronecker_factors(problem, [masked], chosen)
    right = kronecker_factors(problem, [kept], chosen)
    assert left.num_data == right.num_data == 2
    for name in left.operators:
        torch.testing.assert_close(
            left.operators[name].dense(), right.operators[name].dense(), **EXACT
        )


def test_factors_do_not_depend_on_the_batching():
    model, batch = Case("one-block", OneBlock, 2, padded_tokens).make()
    problem = SettledProblem(model, smidgen.Categorical(2))
    chosen = find_blocks(model, smidgen.select.sparse_kfac(model, percent=50))
    # Trimmed to its own length, the short half has less padding than in the whole.
    halves = [
        {k: v[:2] for k, v in batch.items()},
        {k: (v[2:, :5] if v.dim() == 2 else v[2:]) for k, v in batch.items()},
    ]
    whole = kronecker_factors(problem, [batch], chosen)
    parts = kronecker_factors(problem, iter(halves), chosen)
    for name in whole.operators:
        torch.testing.assert_close(
            whole.operators[name].dense(), parts.operators[name].dense(), **EXACT
        )


def test_frozen_weights_are_treated_like_others():
    model, batch = Case("one-block", OneBlock, 2, padded_tokens).make()
    problem = SettledProblem(model, smidgen.Categorical(2))
    chosen = find_blocks(model, smidgen.select.sparse_kfac(model, percent=50))
    free = kronecker_factors(problem, [batch], chosen)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    frozen = kronecker_factors(problem, [batch], chosen)
    for name in free.operators:
        torch.testing.assert_close(
            free.operators[name].dense(), frozen.operators[name].dense(), **EXACT
        )


def test_coverage_names_what_is_left_out():
    tied = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5, bias=False))
    tied[1].weight = tied[0].weight
    attention = type("Own", (torch.nn.MultiheadAttention,), {"forward": None})(4, 2)
    norm = torch.nn.LayerNorm(4)
    found = coverage(torch.nn.ModuleList([tied, attention, norm, torch.nn.Linear(4, 3)]))
    assert [each.name for each in found.layers] == ["3"]
    assert "tied to 0.0 (Embedding)" in found.left_out["0.1"]
    assert "Own is not an affine layer" in found.left_out["1"]
    assert "MultiheadAttention" in found.left_out["1.out_proj"]
    assert "LayerNorm is not an affine layer" in found.left_out["2"]
    assert "left out" in str(found)


def test_a_linear_with_a_forward_of_its_own_is_left_out():
    class Tripled(torch.nn.Linear):
        def forward(self, x):
            return torch.nn.functional.linear(x, 3 * self.weight, self.bias)

    class Conv1D(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(3, 2))

    found = coverage(torch.nn.ModuleList([Tripled(3, 2), Conv1D(), torch.nn.Linear(2, 2)]))
    assert [each.name for each in found.layers] == ["2"]
    assert set(found.left_out) == {"0", "1"}


def test_a_map_that_mixes_examples_is_found_also_with_centred_logits():
    class Centred(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

        def forward(self, x):
            batch, positions, _ = x.shape
            # Positions first, then examples: rows cannot be told apart by example.
            rows = self.inner(x.transpose(0, 1).reshape(-1, 3)).reshape(positions, batch, 4)
            z = self.head(torch.tanh(rows).mean(0))
            return torch.cat([-z, z], -1)

    torch.manual_seed(0)
    model = Centred().double()
    batch = (torch.randn(4, 5, 3).double(), torch.tensor([0, 1, 0, 1]))
    subset = smidgen.select.sparse_kfac(model, percent=100)
    with pytest.warns(smidgen.SmidgenWarning, match="inner"):
        posterior = smidgen.fit.laplace(model, [batch], subset)
    assert list(posterior.operators) == ["head"]


def test_a_bias_of_two_maps_leaves_both_out():
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(4, 2)
    second.bias = first.bias
    found = coverage(torch.nn.ModuleList([first, second, torch.nn.Linear(2, 2)]))
    assert [each.name for each in found.layers] == ["2"]
    assert "shares its bias" in found.left_out["0"]


def test_a_language_model_must_say_how_its_labels_are_shifted():
    model = GPT2LMHeadModel(gpt2_config(vocab_size=11)).double().eval()
    ids = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids}
    subset = smidgen.select.named(model, "transformer.h.0.mlp.c_proj.weight")
    with pytest.raises(DataError, match="labels must be shifted"):
        smidgen.fit.laplace(model, [batch], subset, structure="diag")
    problem = smidgen.Problem(
        model,
        smidgen.Categorical(11),
        forward=lambda net, own: net(own["input_ids"]).logits[:, :-1],
        targets=lambda own: own["labels"][:, 1:],
    )
    posterior = smidgen.fit.laplace(problem, [batch], subset, structure="diag")
    loss = float(model(**batch).loss.detach())
    assert posterior.log_likelihood == pytest.approx(-10 * loss, rel=1e-6)
