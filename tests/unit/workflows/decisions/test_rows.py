"""Rows for a person to look at: the right ones, in order, with what a reader needs."""

from __future__ import annotations

from statistics import NormalDist

import pytest
import torch

from smidgen import decide
from smidgen.outputs.predictive import (
    BernoulliPredictive,
    CategoricalPredictive,
    GaussianPredictive,
)
from smidgen.workflows.decisions.rows import (
    LONGEST_KEPT,
    MOST_DRAWN,
    MOST_OUTPUTS,
    MOST_ROWS,
    ScoredRows,
    list_least_certain,
    list_strangest,
    sample_truth,
)

ROWS = 60


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def categorical(variances=True):
    logits = draw(ROWS, 3)
    spread = draw(ROWS, 3, seed=1).abs()
    covariance = torch.diag_embed(spread) if variances else None
    return CategoricalPredictive(logits.log_softmax(-1), logits, covariance)


def gaussian(rows=ROWS, outputs=1):
    return GaussianPredictive(
        draw(rows, outputs),
        draw(rows, outputs, seed=1).square(),
        torch.full((rows, outputs), 0.5),
    )


def test_the_least_certain_rows_come_first_with_their_place_in_the_data():
    predictive, targets = categorical(), torch.arange(ROWS) % 3
    # Every second row of the data has a label.
    places = torch.arange(ROWS) * 2
    texts = [f"text {i}" for i in range(2 * ROWS)]
    rows = ScoredRows(targets, places, texts, names=("a", "b", "c"))
    entries = list_least_certain(predictive, rows)
    order = predictive.confidence.argsort(stable=True)[:MOST_ROWS].tolist()
    assert [entry["row"] for entry in entries] == [2 * i for i in order]
    first = order[0]
    assert entries[0] == {
        "row": 2 * first,
        "label": "abc"[int(targets[first])],
        "answer": "abc"[int(predictive.predicted[first])],
        "confidence": float(predictive.confidence[first]),
        "text": f"text {2 * first}",
    }


def test_texts_are_kept_only_if_given_and_shortened():
    predictive, targets = categorical(), torch.arange(ROWS) % 3
    plain = ScoredRows(targets, torch.arange(ROWS))
    assert all("text" not in entry for entry in list_least_certain(predictive, plain))
    long = ScoredRows(targets, torch.arange(ROWS), ["词 \n" * 10_000] * ROWS)
    for entry in list_least_certain(predictive, long):
        assert len(entry["text"]) == LONGEST_KEPT + 1
        assert "\n" not in entry["text"]


def test_the_strangest_rows_are_those_of_the_largest_variance():
    predictive = categorical()
    rows = ScoredRows(torch.arange(ROWS) % 3, torch.arange(ROWS))
    score, entries = list_strangest(predictive, rows, None)
    values = decide.uncertainty(predictive, "logit_variance")
    order = values.argsort(descending=True, stable=True)[:MOST_ROWS].tolist()
    assert score == "logit_variance"
    assert [entry["row"] for entry in entries] == order
    assert [entry["score"] for entry in entries] == values[order].tolist()


def test_strangeness_is_that_of_the_rule_or_of_what_there_is():
    rows = ScoredRows(torch.arange(ROWS) % 3, torch.arange(ROWS))
    rules = decide.Rules(strange=decide.strange(categorical(), score="entropy"))
    assert list_strangest(categorical(), rows, rules)[0] == "entropy"
    # A point prediction has the score that its rule would have.
    assert list_strangest(categorical(variances=False), rows, None)[0] == "energy"


def test_a_row_of_labels_is_as_sure_as_all_of_them_together():
    logits = draw(ROWS, 3)
    predictive = BernoulliPredictive.from_logits(logits)
    targets = (draw(ROWS, 3, seed=4) > 0).double()
    rows = ScoredRows(targets, torch.arange(ROWS), names=("a", "b", "c"))
    sure = torch.maximum(predictive.probs, 1 - predictive.probs).prod(-1)
    entries = list_least_certain(predictive, rows)
    order = sure.argsort(stable=True)[:MOST_ROWS].tolist()
    assert [entry["row"] for entry in entries] == order
    assert [entry["confidence"] for entry in entries] == pytest.approx(sure[order].tolist())
    first = order[0]
    yes = [name for name, logit in zip("abc", logits[first], strict=True) if logit >= 0]
    true = [name for name, label in zip("abc", targets[first], strict=True) if label]
    assert (entries[0]["answer"], entries[0]["label"]) == (yes, true)


def test_numbers_have_a_deviation():
    predictive = gaussian()
    targets = draw(ROWS, seed=3)
    entries = list_least_certain(predictive, ScoredRows(targets, torch.arange(ROWS)))
    widest = int(predictive.total_variance[:, 0].argmax())
    assert entries[0] == {
        "row": widest,
        "label": float(targets[widest]),
        "answer": float(predictive.mean[widest, 0]),
        "deviation": pytest.approx(float(predictive.total_variance[widest, 0].sqrt())),
    }


def test_the_picture_has_rows_from_the_smallest_to_the_largest_truth():
    rows = 1000
    predictive, targets = gaussian(rows, 6), draw(rows, 6, seed=3)
    picture = sample_truth(predictive, ScoredRows(targets, torch.arange(rows)), None)
    assert (picture["coverage"], picture["by_rule"]) == (0.95, False)
    assert len(picture["outputs"]) == MOST_OUTPUTS
    reach = NormalDist().inv_cdf(0.975)
    for place, output in enumerate(picture["outputs"]):
        truth = output["truth"]
        assert len(truth) == MOST_DRAWN
        assert truth == sorted(truth)
        assert truth[0] == float(targets[:, place].min())
        assert truth[-1] == float(targets[:, place].max())
        row = int((targets[:, place] == truth[7]).nonzero())
        deviation = float(predictive.total_variance[row, place].sqrt())
        assert output["mean"][7] == float(predictive.mean[row, place])
        assert output["high"][7] - output["mean"][7] == pytest.approx(reach * deviation)


def test_the_picture_of_a_rule_has_its_intervals():
    predictive, targets = gaussian(), draw(ROWS, 1, seed=3)
    rule = decide.intervals(predictive, targets, coverage=0.8)
    rows = ScoredRows(targets, torch.arange(ROWS))
    picture = sample_truth(predictive, rows, decide.Rules(intervals=rule))
    (output,) = picture["outputs"]
    order = targets[:, 0].argsort()
    assert (picture["coverage"], picture["by_rule"]) == (0.8, True)
    assert output["low"] == rule.apply(predictive)[0][order, 0].tolist()


def test_where_all_rows_are_alike_none_is_listed():
    alike = GaussianPredictive(draw(ROWS, 1), torch.zeros(ROWS, 1), torch.ones(ROWS, 1))
    rows = ScoredRows(draw(ROWS), torch.arange(ROWS))
    assert list_least_certain(alike, rows) == []
    assert list_strangest(alike, rows, None) == (None, [])
