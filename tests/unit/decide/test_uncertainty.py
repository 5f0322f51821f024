"""Scores of uncertainty against their definitions."""

from __future__ import annotations

import pytest
import torch

from smidgen import decide
from smidgen.decide.uncertainty import list_scores
from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.predictive import BernoulliPredictive, CategoricalPredictive
from tests.support.decisions import make_classes, make_generator, make_numbers


def test_the_variance_is_that_of_all_differences():
    """Σ of the centred variances = Σ over pairs of Var(f_a − f_b), over C."""
    predictive, _ = make_classes(5, 4, with_variance=True)
    covariance = predictive.logit_covariance
    pairs = sum(
        covariance[:, a, a] + covariance[:, b, b] - 2 * covariance[:, a, b]
        for a in range(4)
        for b in range(a)
    )
    torch.testing.assert_close(decide.uncertainty(predictive, "logit_variance"), pairs / 4)


def test_energy_is_that_of_the_scaled_logits():
    logits = torch.randn(6, 3, generator=make_generator()).double()
    predictive = CategoricalPredictive.from_logits(logits, 2.0)
    expected = -2 * (logits / 2).exp().sum(-1).log()
    torch.testing.assert_close(decide.uncertainty(predictive, "energy"), expected)
    labels = BernoulliPredictive.from_logits(logits, 2.0)
    expected = -2 * (1 + (logits / 2).exp()).log().sum(-1)
    torch.testing.assert_close(decide.uncertainty(labels, "energy"), expected)


def test_energy_of_a_few_kept_classes_is_that_of_all():
    generator = make_generator()
    logits = torch.randn(4, 30, generator=generator).double()
    root = torch.randn(4, 5, 5, generator=generator).double()
    few = Categorical(30).predictive(
        logits,
        root[:, :4] @ root[:, :4].mT,
        link="sampling",
        temperature=1.5,
        normals=torch.randn(50, 4, generator=generator).double(),
        top=5,
        keep="followed",
    )
    expected = decide.uncertainty(CategoricalPredictive.from_logits(logits, 1.5), "energy")
    torch.testing.assert_close(decide.uncertainty(few, "energy"), expected)


def test_a_regression_is_as_uncertain_as_its_function():
    predictive, _ = make_numbers(20, outputs=2)
    expected = (predictive.variance / predictive.noise).sum(-1)
    torch.testing.assert_close(decide.uncertainty(predictive, "logit_variance"), expected)
    assert list_scores(predictive) == ("entropy", "mutual_information", "logit_variance")


def test_confidence_and_entropy_grow_with_doubt():
    logits = torch.tensor([[9.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    predictive = CategoricalPredictive.from_logits(logits)
    for score in ("confidence", "entropy"):
        assert (decide.uncertainty(predictive, score).diff() > 0).all()


def test_scores_that_need_weights_are_listed_only_where_they_are():
    point, _ = make_classes(5)
    assert list_scores(point) == ("confidence", "entropy", "energy")
    assert list_scores(make_classes(5, with_variance=True)[0]) == decide.UNCERTAINTY_SCORES
    labels = BernoulliPredictive.from_logits(torch.zeros(2, 3))
    assert list_scores(labels) == ("entropy", "energy")


def test_what_a_predictive_has_not_is_refused():
    point, _ = make_classes(5)
    numbers, _ = make_numbers(5)
    with pytest.raises(ArgumentError, match="'mutual_information' needs uncertain weights"):
        decide.uncertainty(point, "mutual_information")
    with pytest.raises(ArgumentError, match="for the score 'energy', got gaussian"):
        decide.uncertainty(numbers, "energy")
    with pytest.raises(ArgumentError, match="for the score 'confidence', got gaussian"):
        decide.uncertainty(numbers, "confidence")
    broken = CategoricalPredictive(point.log_probs, point.logits * torch.inf)
    with pytest.raises(
        DataError, match="energy must be finite numbers, got NaN or infinity"
    ):
        decide.uncertainty(broken, "energy")
