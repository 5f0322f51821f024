"""Next-token uncertainty of documents, against the dense Jacobian of the plain model."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, jacrev
from torch.testing import assert_close

import smidgen
from smidgen.errors import ArgumentError, DataError, SmidgenWarning
from smidgen.integrations.answers.next_tokens import (
    make_document_batches,
    make_next_token_problem,
)
from smidgen.integrations.causal import make_causal_problem
from smidgen.outputs.links import Link
from tests.support.tiny import byte_tokenizer, tiny_llama
from tests.support.tolerances import EXACT

# They say which classes are followed, and are tested where they are made.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:(of|the curvature of) 350 classes:smidgen.errors.SmidgenWarning"
)

TEXT = "Review: a fine film, a dull plot\nSentiment: positive"
PRECISION = 0.7


def padded():
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    ids = torch.tensor([[5, 9, 3, 7, 8], [4, 6, 2, 0, 0]])
    labels = ids.clone()
    labels[0, 2] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


ROWS = [(0, 0), (0, 2), (0, 3), (1, 0), (1, 1)]


@pytest.mark.parametrize("tied", [True, False])
def test_rows_are_tokens_and_variances_those_of_the_dense_jacobian(tied, unchanged):
    model, batch = tiny_llama(tied=tied), padded()
    with unchanged(model):
        problem = make_next_token_problem(model)
        subset = smidgen.select.last_layer(problem, [batch])
        posterior = smidgen.fit.isotropic(problem, subset, precision=PRECISION)
        found = smidgen.predict(
            posterior, problem, batch, link=Link(top=4, keep="followed")
        )
        outputs, targets = smidgen.point_outputs(problem, [batch])
    assert list(subset.parts) == ["head.weight"]
    assert targets.tolist() == [9, 7, 8, 6, 2]
    with torch.no_grad():
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    rows = torch.stack([logits[row] for row in ROWS])
    assert_close(outputs, rows, **EXACT)
    # The output layer as a function of a matrix of its own.
    twin = tiny_llama(tied=False)
    twin.load_state_dict(model.state_dict())
    weights = {name: p.detach() for name, p in twin.named_parameters()}
    order = rows.topk(4).indices
    assert torch.equal(found.classes, order)

    def picked(matrix):
        changed = {**weights, "lm_head.weight": matrix}
        own = functional_call(
            twin,
            changed,
            (batch["input_ids"],),
            {"attention_mask": batch["attention_mask"]},
        ).logits
        return torch.stack([own[row] for row in ROWS]).gather(1, order)

    jacobian = jacrev(picked)(weights["lm_head.weight"]).flatten(2)  # (R, m, V·d)
    centring = torch.eye(4).double() - 1 / 4
    wanted = centring @ jacobian @ jacobian.mT @ centring / PRECISION
    assert_close(found.logit_covariance, wanted, **EXACT)


def test_the_head_takes_no_memory_of_its_own():
    model = tiny_llama(tied=True)
    head = make_next_token_problem(model).model.head
    assert head.weight.data_ptr() == model.lm_head.weight.data_ptr()


def test_every_token_of_a_document_is_predicted_once():
    tokenizer = byte_tokenizer()
    model, ids = tiny_llama(tied=True), tokenizer(TEXT)["input_ids"]
    batches = make_document_batches(TEXT, tokenizer, window=8, overlap=3)
    assert all(batch["input_ids"].shape[1] <= 8 for batch in batches)
    problem = make_next_token_problem(model)
    _, targets = smidgen.point_outputs(problem, batches)
    assert targets.tolist() == ids[1:]
    subset = smidgen.select.last_layer(problem, batches)
    posterior = smidgen.fit.isotropic(problem, subset)
    posterior = smidgen.calibrate(posterior, problem, batches, progress=False)
    link = Link(top=5, keep="followed")
    found = smidgen.predict_batches(posterior, problem, batches, link=link, progress=False)
    assert found.classes.shape == (len(ids) - 1, 5)
    assert torch.isfinite(found.mutual_information).all()
    whole = make_document_batches(TEXT, tokenizer, window=60, overlap=3)
    assert [batch["labels"].tolist() for batch in whole] == [[ids]]


def test_what_cannot_be_predicted_is_refused():
    model, tokenizer = tiny_llama(), byte_tokenizer()
    problem = make_next_token_problem(model)
    empty = {**padded(), "labels": torch.tensor([[1, 2, 3, 4, 5], [-100] * 5])}
    with pytest.raises(DataError, match=r"every text must have a token to predict"):
        smidgen.point_outputs(problem, [empty])
    with pytest.raises(
        DataError, match=r"input_ids of shape \(texts, tokens\), got \(3,\)"
    ):
        smidgen.point_outputs(problem, [{"input_ids": torch.tensor([1, 2, 3])}])
    with pytest.raises(ArgumentError, match=r"overlap must be from 1 to 7"):
        make_document_batches(TEXT, tokenizer, window=8, overlap=8)
    with pytest.raises(DataError, match=r"two tokens or more, got 1"):
        make_document_batches("a", tokenizer)
    deeper = smidgen.select.named(problem.model, "*.down_proj.*")
    with pytest.raises(DataError, match=r"cannot be told apart by example"):
        smidgen.predict(smidgen.fit.isotropic(problem, deeper), problem, padded())


def test_many_backward_passes_are_told_before_they_are_made():
    model = tiny_llama()
    problem = make_causal_problem(model)
    ids = torch.arange(3, 63)[None]
    subset = smidgen.select.named(model, "*.1.mlp.down_proj.*")
    posterior = smidgen.fit.laplace(
        problem, [ids[:, :3]], subset, structure="isotropic", progress=False
    )
    told = r"^every batch takes 236 backward passes, 4 for each of 59 positions"
    with pytest.warns(SmidgenWarning, match=told):
        smidgen.predict(posterior, problem, ids, link=Link(top=5))
