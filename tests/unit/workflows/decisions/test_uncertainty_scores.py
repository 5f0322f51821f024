"""AUROCs by each score, and what each is compared with."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import roc_auc_score

from smidgen import decide, evaluate
from smidgen.outputs.predictive import (
    BernoulliPredictive,
    CategoricalPredictive,
    GaussianPredictive,
)
from smidgen.report.wording import name_side
from smidgen.workflows.decisions.answers import GivenAnswers
from smidgen.workflows.decisions.uncertainty_scores import (
    compare_scores,
    score_errors,
    score_shifts,
)
from smidgen.workflows.method import Method

ROWS = 200


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


LOGITS = 2 * draw(ROWS, 3)
TARGETS = torch.multinomial(
    (LOGITS / 2).softmax(-1), 1, generator=torch.Generator().manual_seed(1)
).squeeze(-1)


def point(name="map", logits=LOGITS, temperature=1.0):
    predictive = CategoricalPredictive.from_logits(logits, temperature)
    other = CategoricalPredictive.from_logits(draw(80, 3, seed=5), temperature)
    return Method(name, predictive, shifted={"far": other})


def posterior(variance, other=3.0, logits=LOGITS):
    """A method whose logits vary by `variance` (B,), and by `other` on shifted rows."""

    def make(logits, variance):
        spread = torch.diag_embed(variance[:, None].expand(-1, 3).clone())
        return CategoricalPredictive(logits.log_softmax(-1), logits, spread)

    shifted = make(draw(80, 3, seed=5), torch.full((80,), other, dtype=torch.float64))
    return Method("last-layer", make(logits, variance), shifted={"far": shifted})


def answers(method):
    return GivenAnswers.of(method.predictive, TARGETS)


def test_each_score_is_judged_by_how_it_ranks_wrong_rows():
    ours = posterior(draw(ROWS, seed=2).abs())
    wrong = answers(ours).is_wrong
    found = score_errors(ours, answers(ours))
    assert set(found) == {"confidence", "entropy", "mutual_information", "logit_variance"}
    for score, area in found.items():
        values = decide.uncertainty(ours.predictive, score)
        assert area["value"] == pytest.approx(roc_auc_score(wrong, values))
        assert area["low"] < area["value"] < area["high"]


def test_scores_of_the_model_alone_stand_with_the_model():
    plain, scaled = point(), point("temperature", temperature=2.0)
    assert set(score_errors(plain, answers(plain))) == {"confidence", "entropy", "energy"}
    assert set(score_errors(scaled, answers(scaled))) == {"confidence", "entropy"}
    numbers = GaussianPredictive(draw(9, 1), torch.zeros(9, 1), torch.ones(9, 1))
    shifted = {"far": numbers}
    assert set(score_shifts(Method("map", numbers, shifted=shifted))["far"]) == {"entropy"}


def test_without_errors_nothing_can_be_told():
    sure = Method("map", CategoricalPredictive.from_logits(LOGITS))
    right = GivenAnswers.of(sure.predictive, sure.predictive.predicted)
    assert score_errors(sure, right) == {}
    gaps = compare_scores(posterior(draw(ROWS).abs()), sure, right, right)
    assert gaps == []


def test_shifted_data_are_told_apart_by_each_score():
    ours = posterior(torch.ones(ROWS, dtype=torch.float64), other=3.0)
    found = score_shifts(ours)["far"]
    # Every shifted row has the larger variance.
    assert found["logit_variance"]["value"] == 1
    values = [
        decide.uncertainty(p, "entropy") for p in (ours.predictive, ours.shifted["far"])
    ]
    assert found["entropy"]["value"] == pytest.approx(evaluate.auroc(*values))


@pytest.mark.parametrize(("sign", "words"), [(1, "clearly higher"), (-1, "clearly lower")])
def test_a_score_can_be_clearly_better_and_clearly_worse_than_the_models_own(sign, words):
    wrong = answers(point()).is_wrong
    # A variance that knows the errors, or has them upside down.
    variance = (2 + sign * (2 * wrong.double() - 1) + 0.1 * draw(ROWS, seed=3)).abs()
    ours = posterior(variance, other=3.0 + sign * 2.9)
    gaps = {
        gap["score"]: gap
        for gap in compare_scores(ours, point(), answers(ours), answers(point()))
    }
    assert {gap["baseline"] for gap in gaps.values()} == {"map"}
    error = gaps["error_detection.logit_variance"]
    assert name_side(error["low"], error["high"]) == words
    confidence = decide.uncertainty(point().predictive, "confidence")
    own = roc_auc_score(wrong, decide.uncertainty(ours.predictive, "logit_variance"))
    assert error["value"] == pytest.approx(own - roc_auc_score(wrong, confidence))
    shift = gaps["detection.far.logit_variance"]
    assert name_side(shift["low"], shift["high"]) == words
    # The same confidence is neither.
    same = gaps["error_detection.confidence"]
    assert same["value"] == same["low"] == same["high"] == 0


def test_methods_that_err_on_different_rows_are_compared_row_by_row():
    other = LOGITS + draw(ROWS, 3, seed=7)
    ours, plain = posterior(draw(ROWS, seed=2).abs(), logits=other), point()
    assert not torch.equal(answers(ours).is_wrong, answers(plain).is_wrong)
    gaps = {
        gap["score"]: gap
        for gap in compare_scores(ours, plain, answers(ours), answers(plain))
    }
    gap = gaps["error_detection.entropy"]
    areas = [
        roc_auc_score(answers(m).is_wrong, decide.uncertainty(m.predictive, score))
        for m, score in ((ours, "entropy"), (plain, "confidence"))
    ]
    assert gap["value"] == pytest.approx(areas[0] - areas[1])
    assert gap["low"] < gap["value"] < gap["high"]


def test_a_row_of_labels_is_wrong_as_a_whole():
    logits = draw(ROWS, 4)
    targets = (logits + draw(ROWS, 4, seed=6) > 0).double()
    method = Method("map", BernoulliPredictive.from_logits(logits))
    found = score_errors(method, GivenAnswers.of(method.predictive, targets))
    wrong = ((logits > 0) != (targets == 1)).any(-1)
    assert set(found) == {"entropy", "energy"}
    area = roc_auc_score(wrong, method.predictive.entropy)
    assert found["entropy"]["value"] == pytest.approx(area)
