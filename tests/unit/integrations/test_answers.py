"""Language models that choose among answers, against the plain model, prompt by prompt."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, jacrev
from torch.testing import assert_close

import smidgen
from smidgen.integrations.answers import (
    Answers,
    make_answer_loader,
    make_answer_problem,
)
from tests.support.oracles import centred, output_hessian
from tests.support.tiny import byte_tokenizer, tiny_llama
from tests.support.tolerances import EXACT, SOLVER

TEMPLATE = "Review: {text}\nSentiment:"
ONE = (" positive", " negative")
SEVERAL = (" positive film", " negative", " mixed plot plot")
TEXTS = ["a fine film", "a dull dull film, a plot", "mixed", "so so"]
PRECISION = 0.7


def asked(model, choices=ONE, *, side="right", chat=False):
    """A problem and one batch of padded prompts."""
    tokenizer = byte_tokenizer(padding_side=side)
    answers = Answers(TEMPLATE, choices, chat=chat)
    table = answers.fill({"text": TEXTS}, labels=[0, 1, 1, 0])
    problem = make_answer_problem(model, tokenizer, answers)
    loader = make_answer_loader(table, tokenizer, answers, batch_size=4, max_length=60)
    return problem, list(loader)


def plain(model, batch, tokens):
    """Outputs (B, C) of the model itself: one prompt, one choice, one token at a time."""
    rows = []
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        own, row = ids[mask.bool()], []
        for choice in tokens:
            whole = torch.cat([own, torch.tensor(choice)])
            logits = model(whole[None], use_cache=False).logits[0]
            if max(map(len, tokens)) > 1:
                logits = logits.log_softmax(-1)
            places = range(len(own) - 1, len(whole) - 1)
            row.append(sum(logits[p, t] for p, t in zip(places, choice, strict=True)))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def untied(model):
    """The same weights in a model whose output layer is its own."""
    twin = tiny_llama(tied=False)
    twin.load_state_dict(model.state_dict())
    return twin


def plain_jacobian(model, batch, problem, subset):
    """Jacobian (B, C, |S|) of the plain outputs in the weights a subset of the problem names."""
    rows = list(problem.model.rows)
    known = {
        "head.weight": ("lm_head.weight", rows),
        **{
            f"backbone.{name.removeprefix('model.')}": (name, None)
            for name, _ in model.named_parameters()
        },
    }
    weights = {n: p.detach() for n, p in model.named_parameters()}
    chosen = {}
    for name in subset.parts:
        own, only = known[name]
        chosen[name] = weights[own] if only is None else weights[own][only]

    class Asking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, batch):
            return plain(self.model, batch, problem.model.tokens)

    def outputs(values):
        changed = dict(weights)
        for name, value in values.items():
            own, only = known[name]
            if only is not None:
                value = weights[own].index_copy(0, torch.tensor(only), value)
            changed[own] = value
        return functional_call(
            Asking(), {f"model.{n}": p for n, p in changed.items()}, (batch,)
        )

    found = jacrev(outputs)(chosen)
    return torch.cat(
        [found[n].flatten(2)[:, :, subset.indices(n)] for n in subset.parts], -1
    )


def expected_covariance(jacobian, outputs, *, isotropic=False):
    """Centred covariance of the outputs under the dense posterior."""
    dense = torch.zeros(jacobian.shape[-1], jacobian.shape[-1], dtype=torch.float64)
    if not isotropic:
        hessians = torch.stack([output_hessian("categorical", each) for each in outputs])
        dense = torch.einsum("bcp,bcd,bdq->pq", jacobian, hessians, jacobian)
    covariance = torch.linalg.inv(dense + PRECISION * torch.eye(len(dense)).double())
    return centred(jacobian @ covariance @ jacobian.mT)


def choose(problem, how, batches):
    if how == "last":
        return smidgen.select.last_layer(problem, batches)
    if how == "sparse":
        return smidgen.select.sparse_kfac(problem.model, percent=30)
    return smidgen.select.named(problem.model, how)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("choices", [ONE, SEVERAL])
@pytest.mark.parametrize("tied", [True, False])
def test_outputs_are_those_of_the_model(tied, choices, side, unchanged):
    model = tiny_llama(tied=tied)
    with unchanged(model):
        problem, (batch,) = asked(model, choices, side=side)
        outputs = problem.outputs(batch)
    tokens = problem.model.tokens
    assert [len(own) for own in tokens] == ([1, 1] if choices == ONE else [2, 1, 3])
    with torch.no_grad():
        assert_close(outputs, plain(model, batch, tokens), **EXACT)
    assert problem.model.head.weight.shape == (len(problem.model.rows), 8)
    shared = {id(parameter) for parameter in model.parameters()}
    assert all(id(p) in shared for p in problem.model.backbone.parameters())


@pytest.mark.parametrize("choices", [ONE, SEVERAL])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("how", ["last", "sparse"])
@pytest.mark.parametrize("structure", ["full", "isotropic"])
def test_variances_are_those_of_the_dense_oracle(tied, choices, how, structure, unchanged):
    model = tiny_llama(tied=tied)
    problem, batches = asked(model, choices, side="left")
    subset = choose(problem, how, batches)
    if how == "last":
        assert list(subset.parts) == ["head.weight"]
    with unchanged(model):
        if structure == "isotropic":
            posterior = smidgen.fit.isotropic(problem, subset, precision=PRECISION)
        else:
            posterior = smidgen.fit.laplace(
                problem, batches, subset, structure="full", precision=PRECISION
            )
        found = smidgen.predict(posterior, problem, batches[0], link="diagonal-probit")
    twin = untied(model)
    jacobian = plain_jacobian(twin, batches[0], problem, subset)
    outputs = plain(twin, batches[0], problem.model.tokens).detach()
    wanted = expected_covariance(jacobian, outputs, isotropic=structure == "isotropic")
    assert_close(found.logit_covariance, wanted, **SOLVER)
