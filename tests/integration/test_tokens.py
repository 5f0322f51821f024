"""Token classifiers: padded batches and −100 from the fit to the scores."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close
from transformers import BertForTokenClassification

import smidgen
from smidgen.errors import ArgumentError, DataError
from smidgen.workflows.method import (
    predict_point,
    predict_posterior,
    predict_shifted,
    read_examples,
)
from tests.support.tiny import WORDS, bert_config
from tests.support.tolerances import EXACT, SOLVER

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")

CLASSES = 3
SOLVER_REL = {"rel": SOLVER["rtol"]}
LENGTHS = ((7, 3, 5), (4, 6), (2, 9, 8))


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = BertForTokenClassification(bert_config(num_labels=CLASSES)).double().eval()
        for parameter in made.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return made


def padded(lengths, generator):
    """A batch padded to its longest sentence; padding and special tokens have no label."""
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(4, len(WORDS), mask.shape, generator=generator) * mask
    labels = torch.randint(CLASSES, mask.shape, generator=generator)
    labels[mask == 0] = -100
    labels[:, 0] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.fixture(scope="module")
def batches():
    generator = torch.Generator().manual_seed(1)
    return [padded(lengths, generator) for lengths in LENGTHS]


@pytest.fixture(scope="module")
def posterior(model, batches):
    subset = smidgen.select.sparse_kfac(model, percent=50)
    fitted = smidgen.fit.laplace(model, batches, subset)
    return smidgen.calibrate(fitted, model, batches)


@pytest.fixture(scope="module")
def masked(model, batches):
    """Logits and labels with every row without a label taken out by hand."""
    logits, labels = [], []
    with torch.no_grad():
        for batch in batches:
            inputs = {k: v for k, v in batch.items() if k != "labels"}
            found = model(**inputs).logits
            for sentence, wanted in zip(found, batch["labels"], strict=True):
                for row, label in zip(sentence, wanted.tolist(), strict=True):
                    if label != -100:
                        logits.append(row)
                        labels.append(label)
    return torch.stack(logits), torch.tensor(labels)


def test_scores_are_those_of_arrays_masked_by_hand(
    model, batches, posterior, masked, unchanged
):
    with unchanged(model):
        predictive = smidgen.predict_batches(posterior, model, batches)
        _, targets = smidgen.point_outputs(model, batches)
    assert len(predictive) == len(targets) == sum(b["labels"].numel() for b in batches)
    kept, labels = targets != -100, masked[1]
    assert torch.equal(targets[kept], labels)
    rows = torch.arange(len(labels))
    probs = predictive.probs[kept]
    by_hand = -predictive.log_probs[kept][rows, labels]
    assert_close(smidgen.evaluate.nll(predictive, targets), by_hand, **EXACT)
    right = (probs.argmax(-1) == labels).double()
    assert torch.equal(smidgen.evaluate.correct(predictive, targets), right)
    summary = smidgen.evaluate.summarise(predictive, targets, draws=10)
    assert summary["nll"].value == pytest.approx(float(by_hand.mean()), **SOLVER_REL)
    error = smidgen.evaluate.expected_calibration_error(probs.max(-1).values, right)
    assert smidgen.evaluate.expected_calibration_error(predictive, targets) == error
    assert summary["ece_equal_mass"].value == error
    alone = smidgen.evaluate.summarise(predictive.take(kept), labels, draws=10)
    assert alone == summary


def test_temperature_takes_what_point_outputs_gives(model, batches, posterior, masked):
    found = smidgen.fit.temperature(*smidgen.point_outputs(model, batches))
    assert found == pytest.approx(smidgen.fit.temperature(*masked), **SOLVER_REL)
    assert found == pytest.approx(posterior.calibration.map_scale, **SOLVER_REL)
    assert posterior.calibration.examples == posterior.num_data == len(masked[1])


def test_padding_changes_no_prediction(model, batches, posterior):
    """Every sentence alone, without padding, gives the rows that are kept."""
    predictive = smidgen.predict_batches(posterior, model, batches)
    real = torch.cat([batch["attention_mask"].flatten() for batch in batches]).bool()
    alone = [
        {k: v[i : i + 1, :length] for k, v in batch.items()}
        for batch, lengths in zip(batches, LENGTHS, strict=True)
        for i, length in enumerate(lengths)
    ]
    expected = smidgen.predict_batches(posterior, model, alone)
    found = predictive.take(real)
    assert_close(found.log_probs, expected.log_probs, **EXACT)
    assert_close(found.logit_covariance, expected.logit_covariance, **EXACT)


def test_a_comparison_is_of_labelled_tokens(model, batches, posterior, masked):
    problem = smidgen.Problem(model)
    elsewhere = {"other": batches[:1], "unlabelled": [_without_labels(batches[0])]}
    data = read_examples(problem, batches, progress=False)
    methods, targets = predict_point(None, data, 2.0)
    assert torch.equal(targets, masked[1])
    assert_close(methods[0].predictive.logits, masked[0], **EXACT)
    methods.append(predict_posterior("ours", posterior, problem, data))
    methods = predict_shifted(methods, {"ours": posterior}, problem, elsewhere)
    labelled = int((batches[0]["labels"] != -100).sum())
    for method in methods:
        assert len(method.predictive) == len(targets)
        assert len(method.shifted["other"]) == labelled
        assert len(method.shifted["unlabelled"]) == batches[0]["labels"].numel()
    assert_close(methods[2].predictive.logits, masked[0], **EXACT)

    record = smidgen.compare(model, posterior, batches, progress=False)
    scores = {m["name"]: m["scores"]["nll"]["value"] for m in record.results["methods"]}
    plain = torch.nn.functional.cross_entropy(*masked)
    assert scores["map"] == pytest.approx(float(plain), **SOLVER_REL)
    assert record.results["data"]["test"] == len(targets)


def test_a_test_set_without_any_label_is_refused(model, batches):
    nothing = [{**b, "labels": torch.full_like(b["labels"], -100)} for b in batches]
    problem = smidgen.Problem(model)
    for wrong in (nothing, [_without_labels(batches[0])]):
        with pytest.raises(DataError, match="test must be labelled, got a batch without"):
            predict_point(None, read_examples(problem, wrong, progress=False), None)
    logits, targets = smidgen.point_outputs(model, nothing)
    with pytest.raises(DataError, match=r"no example has a label \(all are -100\)"):
        smidgen.fit.temperature(logits, targets)


def test_rows_that_are_not_there_are_refused(model, batches, posterior):
    predictive = smidgen.predict(posterior, model, batches[1])
    assert len(predictive) == 12
    assert torch.equal(predictive.take([3, 1]).logits, predictive.logits[[3, 1]])
    for rows, message in [
        (torch.ones(5, dtype=torch.bool), "a boolean for each of 12 examples, got 5"),
        ([0, 12], r"rows must be in \[0, 12\), got 12"),
        (batches[1]["labels"] != -100, r"vector of booleans .* of shape \(2, 6\)"),
        ([0.5], r"or of whole numbers, got torch\.float32"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            predictive.take(rows)


def _without_labels(batch):
    return {name: value for name, value in batch.items() if name != "labels"}
