"""Scores of uncertainty: one number for each row of a predictive, higher is less certain.

- "confidence": 1 − the probability of the likeliest class.
- "entropy": of the predicted probabilities, in nats.
- "mutual_information": the part of the entropy that comes from the weights.
- "logit_variance": the summed variance of the centred logits, which is the mean variance of
  the differences of two logits times (C − 1)/2. It asks about all pairs of classes alike; the
  largest variance would hang on one class. Of labels it is the sum of their logits' variances,
  of a regression the sum of variance / noise over outputs.
- "energy": −T · logsumexp(logits / T) (Liu et al., 2020, arXiv:2010.03759), of labels
  −T · Σ log(1 + exp(logit / T)) (Wang et al., 2021, arXiv:2109.14162).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from smidgen.decide.calibration_rows import refuse_kind, require_known
from smidgen.errors import ArgumentError, did_you_mean, require_kind
from smidgen.outputs.followed_predictive import FollowedPredictive
from smidgen.outputs.predictive import (
    BernoulliPredictive,
    CategoricalPredictive,
    ClassPredictive,
    GaussianPredictive,
    Predictive,
)

UNCERTAINTY_SCORES = (
    "confidence",
    "entropy",
    "mutual_information",
    "logit_variance",
    "energy",
)
"""The scores that a predictive alone can give."""
SCORE_WORDS = {
    "confidence": "1 − confidence",
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "logit_variance": "variance of the outputs",
    "energy": "energy",
    "distance": "distance to the training data",
}
"""How a score is named in a sentence."""
_NEEDS_WEIGHTS = ("mutual_information", "logit_variance")


def uncertainty(predictive: Predictive, score: str) -> Tensor:
    """Score how uncertain each row of a predictive is.

    Args:
        predictive: Of any kind.
        score: One of `UNCERTAINTY_SCORES`.

    Returns:
        The scores, (B,), in fp64; higher is less certain.

    Raises:
        ArgumentError: If there is no such score, or the predictive cannot have it.
    """
    require_kind("predictive", predictive, Predictive, "Use smidgen.predict_batches")
    require_score(score, UNCERTAINTY_SCORES)
    values: Tensor | None
    if score == "confidence":
        if not isinstance(predictive, ClassPredictive):
            refuse_kind("the score 'confidence'", predictive, "categorical")
        values = 1 - predictive.confidence
    elif score == "entropy":
        values = predictive.entropy
    elif score == "mutual_information":
        values = predictive.mutual_information
    elif score == "logit_variance":
        values = _sum_variances(predictive)
    else:
        values = _find_energy(predictive)
    if values is None:
        raise ArgumentError(
            f"score {score!r} needs uncertain weights, and this is a point prediction. Use a "
            "posterior's prediction, or score='entropy'."
        )
    values = values.detach().cpu().double()
    require_known(SCORE_WORDS[score], values, finite=True)
    return values


def require_score(score: str, known: Sequence[str]) -> None:
    """Refuse a score that is not known."""
    if score not in known:
        raise ArgumentError(
            f"score must be one of {', '.join(known)}, got {score!r}."
            f"{did_you_mean(str(score), known) or ' Choose one.'}"
        )


def list_scores(predictive: Predictive) -> tuple[str, ...]:
    """List the scores that a predictive can have."""
    if isinstance(predictive, GaussianPredictive):
        return ("entropy", "mutual_information", "logit_variance")
    known = (
        UNCERTAINTY_SCORES
        if isinstance(predictive, ClassPredictive)
        else UNCERTAINTY_SCORES[1:]
    )
    if predictive.mutual_information is not None and _sum_variances(predictive) is not None:
        return known
    return tuple(
        name
        for name in known
        if name not in _NEEDS_WEIGHTS
        or (name == "mutual_information" and predictive.mutual_information is not None)
        or (name == "logit_variance" and _sum_variances(predictive) is not None)
    )


def _sum_variances(predictive: Predictive) -> Tensor | None:
    """Sum the variances of a row's outputs, (B,); None for a point prediction."""
    if isinstance(predictive, GaussianPredictive):
        # In units of the noise: outputs may have different ones.
        return (predictive.variance / predictive.noise).sum(-1)
    if isinstance(
        predictive, CategoricalPredictive | FollowedPredictive | BernoulliPredictive
    ):
        variance = predictive.logit_variance
        return None if variance is None else variance.sum(-1)
    return None


def _find_energy(predictive: Predictive) -> Tensor:
    if isinstance(predictive, FollowedPredictive):
        scaled = predictive.class_logits / predictive.temperature
        # log p_c = f_c/T + scale for every class that was not followed.
        others = predictive.remaining_log_prob - predictive.remaining_scale
        total = torch.logaddexp(scaled.logsumexp(-1), others)
    elif isinstance(predictive, CategoricalPredictive):
        total = (predictive.logits / predictive.temperature).logsumexp(-1)
    elif isinstance(predictive, BernoulliPredictive):
        scaled = predictive.logits / predictive.temperature
        total = torch.nn.functional.softplus(scaled).sum(-1)
    else:
        refuse_kind("the score 'energy'", predictive, "categorical or bernoulli")
    return -predictive.temperature * total
