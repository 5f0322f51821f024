"""Outputs for each token: every column counts where a layer was reached, not the first alone."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.func import jacrev

import smidgen
from smidgen.curvature.operators import JOINT
from smidgen.weights.blocks import find_blocks
from tests.support.oracles import output_hessian, output_jacobian
from tests.support.tolerances import EXACT

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")

BATCH, TOKENS, WIDTH = 3, 4, 5


class Tokens(nn.Module):
    """A body for each token by itself; how its heads make outputs is for others to say."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.body = nn.Linear(3, WIDTH)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(outputs))

    def forward(self, x, attention_mask=None):
        hidden = torch.tanh(self.body(x))
        return torch.cat([head(hidden) for head in self.heads], -1)


class Plain(nn.Module):
    """One head of all outputs."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, WIDTH), nn.Linear(WIDTH, outputs)

    def forward(self, x, attention_mask=None):
        return self.head(torch.tanh(self.body(x)))


class Underflowing(Plain):
    """Class 0 is so unlikely that its probability, and the first column, are exactly 0."""

    def forward(self, x, attention_mask=None):
        logits = super().forward(x)
        return logits - 3000 * torch.eye(logits.shape[-1], dtype=logits.dtype)[0]


class SharedHeads(nn.Module):
    """One layer that runs twice for output 1 and never for output 0."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.body, self.again = nn.Linear(3, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.first, self.rest = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, outputs - 1)

    def forward(self, x, attention_mask=None):
        hidden = torch.tanh(self.body(x))
        deeper = torch.tanh(self.again(torch.tanh(self.again(hidden))))
        return torch.cat([self.first(hidden), self.rest(deeper)], -1)


class Mixing(Tokens):
    """Tokens see the mean of those that are not padding, so one output reaches many."""

    def forward(self, x, attention_mask):
        weights = attention_mask[..., None] / attention_mask.sum(1)[:, None, None]
        hidden = torch.tanh(self.body(x))
        hidden = torch.tanh(hidden + (weights * hidden).sum(1, keepdim=True))
        return torch.cat([head(hidden) for head in self.heads], -1)


@dataclass(frozen=True)
class TokenCase:
    build: type[nn.Module]
    kind: str
    outputs: int = 2

    def make(self):
        generator = torch.Generator().manual_seed(2)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = self.build(self.outputs).double()
        mask = (torch.arange(TOKENS) < torch.tensor([[4], [2], [3]])).double()
        x = torch.randn(BATCH, TOKENS, 3, dtype=torch.float64, generator=generator)
        labels = torch.randint(self.outputs, (BATCH, TOKENS), generator=generator)
        labels[mask == 0], labels[0, 1] = -100, -100
        if self.kind != "categorical":
            shape = (BATCH, TOKENS, self.outputs)
            labels = torch.randn(shape, dtype=torch.float64, generator=generator)
        if self.kind == "bernoulli":
            labels = (labels > 0).long()
            labels[mask == 0], labels[0, 1] = -100, -100
        return model, {"x": x, "attention_mask": mask, "labels": labels}

    def problem(self, model):
        kinds = {
            "categorical": smidgen.Categorical,
            "bernoulli": smidgen.Bernoulli,
            "gaussian": smidgen.Gaussian,
        }
        return smidgen.Problem(model, kinds[self.kind](self.outputs))

    def kept(self, batch):
        """Rows (B·T,) that have a target; those of a regression all do."""
        labels = batch["labels"].reshape(BATCH * TOKENS, -1)
        if self.kind == "gaussian":
            return torch.ones(len(labels), dtype=torch.bool)
        return (labels != -100).all(-1)


CASES = {
    "two heads, regression": TokenCase(Tokens, "gaussian"),
    "two heads, labels": TokenCase(Tokens, "bernoulli"),
    "three heads, labels": TokenCase(Tokens, "bernoulli", 3),
    "class 0 underflows": TokenCase(Underflowing, "categorical", 3),
    "plain classes": TokenCase(Plain, "categorical", 3),
    "shared layer, regression": TokenCase(SharedHeads, "gaussian"),
    "shared layer, labels": TokenCase(SharedHeads, "bernoulli"),
    "padded tokens mixed, regression": TokenCase(Mixing, "gaussian"),
    "padded tokens mixed, labels": TokenCase(Mixing, "bernoulli"),
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def tokens(request):
    return request.param


def fit(tokens, model, batch, structure, approximation="expand", subset=None):
    return smidgen.fit.laplace(
        tokens.problem(model),
        [batch],
        subset or smidgen.select.sparse_kfac(model, percent=100),
        structure=structure,
        settings=smidgen.fit.LaplaceSettings(approximation=approximation),
        progress=False,
    )


def forward(model, batch):
    return model(batch["x"], batch["attention_mask"]).flatten(0, 1)


def factors_by_loops(tokens, model, batch, block, approximation):
    """G and A of one layer: one output row at a time, over the positions that it reaches."""
    inputs, shapes = [], []

    def record(module, args, out):
        inputs.append(args[0].detach())
        shapes.append(out.shape)

    def run(hook):
        handle = model.get_submodule(block.layer.name).register_forward_hook(hook)
        try:
            return forward(model, batch)
        finally:
            handle.remove()

    outputs = run(record).detach()

    def shifted(zeros):
        left = list(zeros)
        return run(lambda *args: args[2] + left.pop(0))

    zeros = tuple(torch.zeros(shape, dtype=torch.float64) for shape in shapes)
    jacobian = torch.cat(jacrev(shifted)(zeros), 3)  # (R, C, B, uses·T, n)
    x = torch.cat(inputs, 1)  # (B, uses·T, m)
    x = torch.cat([torch.ones(*x.shape[:2], 1).double(), x], -1)
    g = torch.zeros(jacobian.shape[-1], jacobian.shape[-1]).double()
    a = torch.zeros(x.shape[-1], x.shape[-1]).double()
    count = 0
    for row in tokens.kept(batch).nonzero().flatten().tolist():
        example = row // TOKENS
        own = jacobian[row, :, example]  # (C, uses·T, n)
        hessian = output_hessian(tokens.kind, outputs[row])
        reached = [t for t in range(own.shape[1]) if (hessian @ own[:, t]).abs().max() > 0]
        if not reached:
            continue
        if approximation == "reduce":
            mean, total = x[example, reached].mean(0), own.sum(1)
            a, count = a + torch.outer(mean, mean), count + 1
            g = g + total.T @ hessian @ total
            continue
        for t in reached:
            a, count = a + torch.outer(x[example, t], x[example, t]), count + 1
            g = g + own[:, t].T @ hessian @ own[:, t]
    return g, a / max(count, 1)


@pytest.mark.parametrize("approximation", ["expand", "reduce"])
def test_factors_equal_loops_over_outputs_and_the_positions_they_reach(
    tokens, approximation, unchanged
):
    model, batch = tokens.make()
    with unchanged(model):
        posterior = fit(tokens, model, batch, "kron", approximation)
    for block in find_blocks(model, posterior.subset):
        factors = factors_by_loops(tokens, model, batch, block, approximation)
        found = posterior.operators[block.layer.name].dense()
        torch.testing.assert_close(found, torch.kron(*factors), **EXACT)


@pytest.mark.parametrize("approximation", ["expand", "reduce"])
def test_no_layer_loses_the_curvature_that_ekfac_measures(tokens, approximation):
    model, batch = tokens.make()
    kron, measured = (
        fit(tokens, model, batch, structure, approximation)
        for structure in ("kron", "ekfac")
    )
    for name, operator in measured.operators.items():
        assert float(operator.values.sum()) > 0
        # The trace of either is the mean square of J, up to how positions are treated.
        ratio = float(kron.operators[name].values.sum() / operator.values.sum())
        assert 0.2 < ratio < 5, name


def exact_ggn(tokens, model, batch, names):
    found = output_jacobian(model, forward, batch, names)
    jacobian = torch.cat([found[name].flatten(2) for name in names], -1)
    outputs = forward(model, batch).detach()
    hessians = torch.stack([output_hessian(tokens.kind, each) for each in outputs])
    kept = tokens.kept(batch)
    return torch.einsum("rcp,rcd,rdq->pq", jacobian[kept], hessians[kept], jacobian[kept])


@pytest.mark.parametrize("approximation", ["expand", "reduce"])
def test_heads_of_a_regression_on_tokens_have_the_exact_curvature(approximation):
    """There G ⊗ A is no approximation: it equals the dense GGN, and what `full` keeps."""
    tokens = CASES["two heads, regression"]
    model, batch = tokens.make()
    heads = smidgen.select.named(model, "heads.*")
    kron, full = (
        fit(tokens, model, batch, structure, approximation, heads)
        for structure in ("kron", "full")
    )
    for name, operator in kron.operators.items():
        ggn = exact_ggn(tokens, model, batch, [f"{name}.bias", f"{name}.weight"])
        torch.testing.assert_close(operator.dense(), ggn, **EXACT)
    joined = torch.block_diag(*(operator.dense() for operator in kron.operators.values()))
    torch.testing.assert_close(full.operators[JOINT].dense(), joined, **EXACT)
    variances = [
        smidgen.predict(posterior, tokens.problem(model), batch).total_variance
        for posterior in (kron, full)
    ]
    torch.testing.assert_close(*variances, **EXACT)


def test_drawn_labels_also_count_every_draw():
    """A draw that equals the saturated class sends nothing back; the next one may."""
    tokens = CASES["plain classes"]
    model, batch = tokens.make()
    subset = smidgen.select.sparse_kfac(model, percent=100)
    settings = smidgen.fit.LaplaceSettings(approximation="expand", fisher_draws=3)
    posterior = smidgen.fit.laplace(
        tokens.problem(model), [batch], subset, settings=settings, progress=False
    )
    for block in find_blocks(model, subset):
        _, a = factors_by_loops(tokens, model, batch, block, "expand")
        operator = posterior.operators[block.layer.name]
        found = operator.column_vectors * operator.column_values @ operator.column_vectors.T
        torch.testing.assert_close(found, a, **EXACT)


def test_a_layer_ran_though_all_its_outputs_are_saturated():
    """No column is left to send back then, which is no reason to say it never ran."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    nn.init.zeros_(model.weight)
    model.bias.data = torch.tensor([3000.0, 0.0]).double()
    x = torch.randn(2, 3, 3).double()
    batch = (x, torch.zeros(2, 3, dtype=torch.long))
    problem = smidgen.Problem(model, smidgen.Categorical(2))
    subset = smidgen.select.sparse_kfac(model, percent=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior = smidgen.fit.laplace(problem, [batch], subset, progress=False)
    (operator,) = posterior.operators.values()
    assert not operator.values.any()
