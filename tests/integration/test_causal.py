"""Causal language models: next-token targets from the fit to the scores."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from transformers import GPT2LMHeadModel

import smidgen
from smidgen.errors import DataError, StructureError
from smidgen.integrations.causal import make_causal_problem
from tests.support.oracles import centred, output_hessian, subset_jacobian
from tests.support.tiny import gpt2_config
from tests.support.tolerances import EXACT, SINGLE, SOLVER

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")

PAGE = Path(__file__).parents[2] / "docs" / "nouns" / "problem.md"
WORDS = 11
CLOSE = {"rel": SOLVER["rtol"]}


def gpt2(*, tied=True):
    config = gpt2_config(
        vocab_size=WORDS,
        bos_token_id=1,
        eos_token_id=1,
        tie_word_embeddings=tied,
        # Written-out attention: the oracle differentiates it in one sweep.
        attn_implementation="eager",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config).double().eval()
        for parameter in model.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model


def texts(lengths, seed, *, side="right"):
    """Padded texts whose labels are their tokens, with −100 for padding and a prompt."""
    generator = torch.Generator().manual_seed(seed)
    width, sizes = max(lengths), torch.tensor(lengths)[:, None]
    places = torch.arange(width)
    mask = (places < sizes if side == "right" else places >= width - sizes).long()
    ids = torch.randint(1, WORDS, mask.shape, generator=generator) * mask
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, 2:3] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.fixture
def batches():
    return [texts((7, 3, 5), 1), texts((4, 6), 2), texts((2, 2), 3)]


def by_hand(model, batches):
    """Logits and next tokens, text by text and token by token, without padding."""
    logits, targets = [], []
    for batch in batches:
        for ids, mask, labels in zip(*batch.values(), strict=True):
            own = ids[mask.bool()]
            wanted = labels[mask.bool()]
            with torch.no_grad():
                found = model(own[None]).logits[0]
            for place in range(len(own) - 1):
                if wanted[place + 1] != -100:
                    logits.append(found[place])
                    targets.append(wanted[place + 1])
    return torch.stack(logits), torch.stack(targets)


@pytest.mark.parametrize("tied", [True, False])
def test_fit_tune_predict_and_score(batches, tied, unchanged):
    model = gpt2(tied=tied)
    problem = make_causal_problem(model)
    subset = smidgen.select.sparse_kfac(model, percent=40)
    with unchanged(model):
        posterior = smidgen.fit.laplace(problem, batches, subset)
        posterior = smidgen.calibrate(posterior, problem, batches)
        predictive = smidgen.predict_batches(posterior, problem, batches)
        outputs, targets = smidgen.point_outputs(problem, batches)
    logits, wanted = by_hand(model, batches)
    kept = targets != -100
    assert torch.equal(targets[kept], wanted)
    assert_close(outputs[kept], logits, **EXACT)
    assert posterior.num_data == posterior.calibration.examples == len(wanted)
    fitted = -float(cross_entropy(logits, wanted, reduction="sum"))
    assert posterior.log_likelihood == pytest.approx(fitted, **CLOSE)
    scale = smidgen.fit.temperature(outputs, targets)
    assert scale == pytest.approx(smidgen.fit.temperature(logits, wanted), **CLOSE)
    own = predictive.log_probs[kept].gather(1, wanted[:, None])
    summary = smidgen.evaluate.summarise(predictive, targets, draws=10)
    assert summary["nll"].value == pytest.approx(float(-own.mean()), **CLOSE)
    right = (predictive.predicted[kept] == wanted).double()
    error = smidgen.evaluate.expected_calibration_error(predictive.confidence[kept], right)
    assert summary["ece_equal_mass"].value == error
    record = smidgen.compare(problem, posterior, batches, progress=False)
    scores = {m["name"]: m["scores"]["nll"]["value"] for m in record.results["methods"]}
    assert scores["map"] == pytest.approx(-fitted / len(wanted), **CLOSE)


@pytest.mark.parametrize(
    ("tied", "pattern"),
    [(False, "lm_head.*"), (True, "*.mlp.c_proj.*"), (True, "*.attn.c_attn.*")],
)
def test_variances_are_those_of_the_dense_jacobian(batches, tied, pattern):
    model, batch = gpt2(tied=tied), batches[0]
    problem = make_causal_problem(model)
    subset = smidgen.select.named(model, pattern)
    posterior = smidgen.fit.laplace(problem, [batch], subset, structure="full")
    predictive = smidgen.predict(posterior, problem, batch, link="diagonal-probit")

    def forward(net, own):
        found = net(own["input_ids"], attention_mask=own["attention_mask"]).logits
        return found[:, :-1].flatten(0, 1)

    jacobian = subset_jacobian(model, forward, batch, subset)
    outputs = forward(model, batch).detach()
    kept = batch["labels"][:, 1:].flatten() != -100
    hessians = torch.stack([output_hessian("categorical", each) for each in outputs])
    some = jacobian[kept]
    dense = torch.einsum("bcp,bcd,bdq->pq", some, hessians[kept], some)
    covariance = torch.linalg.inv(dense + torch.eye(len(dense)).double())
    expected = jacobian @ covariance @ jacobian.mT
    assert_close(predictive.logit_covariance, centred(expected), **EXACT)


def test_the_loss_is_that_of_transformers(batches):
    model = gpt2()
    batch = batches[0]
    outputs, targets = smidgen.point_outputs(make_causal_problem(model), [batch])
    # Theirs is in fp32, whatever the model's type.
    theirs = model(**batch).loss.detach().double()
    assert_close(cross_entropy(outputs, targets), theirs, **SINGLE)


def test_padding_on_the_left_predicts_nothing():
    model = gpt2()
    batch = texts((7, 3), 4, side="left")
    ids = {"position_ids": (batch["attention_mask"].cumsum(-1) - 1).clamp_min(0)}
    found = smidgen.point_outputs(make_causal_problem(model), [{**batch, **ids}])
    kept = found[1] != -100
    logits, wanted = by_hand(model, [batch])
    assert torch.equal(found[1][kept], wanted)
    assert_close(found[0][kept], logits, **EXACT)


def test_ids_are_their_own_labels(batches):
    problem, ids = make_causal_problem(gpt2()), batches[0]["input_ids"]
    alone = smidgen.point_outputs(problem, [ids])
    assert torch.equal(alone[1], ids[:, 1:].flatten())
    mapped = {name: batches[0][name] for name in ("input_ids", "attention_mask")}
    targets = smidgen.point_outputs(problem, [mapped])[1]
    real = batches[0]["attention_mask"][:, 1:].flatten().bool()
    assert torch.equal(targets != -100, real)
    assert torch.equal(targets[real], alone[1][real])


def test_training_lowers_the_loss_of_next_tokens(batches):
    tuned = smidgen.fit.finetune(
        make_causal_problem(gpt2()),
        batches,
        validation=batches,
        settings=smidgen.fit.FinetuneSettings(epochs=5, learning_rate=0.02),
    )
    assert tuned.history[-1].train_nll < tuned.history[0].train_nll


def test_what_cannot_be_done_is_refused(batches):
    tied = gpt2()
    with pytest.raises(
        StructureError,
        match=r"'lm_head' makes the outputs and cannot be chosen .*its weight is tied to tran",
    ):
        smidgen.select.last_layer(tied)
    subset = smidgen.select.last_layer(gpt2(tied=False))
    assert list(subset.parts) == ["lm_head.weight"]
    inner = smidgen.select.named(tied, "*.mlp.c_proj.*")
    with pytest.raises(
        DataError, match=r"integrations\.causal\.make_causal_problem\(model\)"
    ):
        smidgen.fit.laplace(tied, batches, inner)
    with pytest.raises(DataError, match=r"two tokens or more, got \(2, 1, 11\)"):
        smidgen.fit.laplace(make_causal_problem(tied), [torch.tensor([[1], [2]])], inner)


def test_the_code_of_its_page_runs(batches):
    text = PAGE.read_text(encoding="utf-8")
    (code,) = [
        c for c in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "causal" in c
    ]
    model = gpt2()
    names = {"smidgen": smidgen, "model": model, "train_loader": batches}
    names |= {"val_loader": batches, "test_loader": batches}
    exec(code, names)
    assert set(names["scores"]) > {"nll", "ece_equal_mass"}
