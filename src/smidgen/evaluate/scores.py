"""Per-example scores, fp64 vectors; the mean is the caller's.

B examples, C classes, labels or outputs. For all but `correct`, lower is better. Examples
labelled −100 have no target and no score: what is returned is of the others.
"""

from __future__ import annotations

from math import pi
from typing import TypeVar

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError
from smidgen.evaluate import checks
from smidgen.outputs.predictive import (
    BernoulliPredictive,
    CategoricalPredictive,
    GaussianPredictive,
    Predictive,
)
from smidgen.outputs.targets import has_target

Kind = TypeVar("Kind", bound=Predictive)


def nll(predictive: Predictive, targets: Tensor) -> Tensor:
    """Negative log-likelihood of each target, in nats.

    Args:
        predictive: Of any kind; a Gaussian is scored with its noise added.
        targets: Class numbers (B,), labels 0 or 1 (B, C), or numbers (B, C).

    Returns:
        The values, (B,), summed over labels or outputs.

    Raises:
        ArgumentError: If the predictive is of an unknown kind.
        DataError: If a variance is not positive.
    """
    predictive, targets = with_targets(predictive, targets)
    if isinstance(predictive, CategoricalPredictive):
        log_probs = predictive.log_probs
        labels = _class_numbers(predictive, targets)
        return -log_probs.double().gather(-1, labels[:, None]).squeeze(-1)
    if isinstance(predictive, BernoulliPredictive):
        labels = _yes_or_no(predictive, targets)
        probs = predictive.probs
        # A stored p of 1 says no more than 1 − p < eps/2, so the loss stays finite.
        least = torch.finfo(probs.dtype).eps / 2
        chance = torch.where(labels == 1, probs, (1 - probs).clamp_min(least))
        return -chance.double().log().sum(-1)
    if isinstance(predictive, GaussianPredictive):
        squares = _residuals(predictive, targets).square()
        variance = predictive.total_variance.double()
        checks.numbers("predictive", variance, finite=True)
        if (variance <= 0).any():
            raise DataError(
                "predictive must be of positive total variance, got "
                f"{float(variance.min())}. Fit the noise first."
            )
        return 0.5 * ((2 * pi * variance).log() + squares / variance).sum(-1)
    raise ArgumentError(
        _wrong_kind(
            "nll", predictive, "categorical, bernoulli or gaussian", "Pass one of these"
        )
    )


def brier(predictive: Predictive, targets: Tensor) -> Tensor:
    """Brier score of each example: the *sum* of squared errors over classes or labels.

    Two classes so score twice what one Bernoulli label of the same probability does.

    Args:
        predictive: Categorical or Bernoulli.
        targets: Class numbers (B,), or labels 0 or 1 (B, C).

    Returns:
        The values, (B,), in [0, 2] for classes and [0, C] for labels.

    Raises:
        ArgumentError: If the predictive is of another kind.
    """
    predictive, targets = with_targets(predictive, targets)
    if isinstance(predictive, CategoricalPredictive):
        labels = _class_numbers(predictive, targets)
        truth = torch.nn.functional.one_hot(labels, predictive.log_probs.shape[1])
    elif isinstance(predictive, BernoulliPredictive):
        truth = _yes_or_no(predictive, targets)
    else:
        raise ArgumentError(
            _wrong_kind(
                "brier", predictive, "categorical or bernoulli", "Use squared_error"
            )
        )
    return (predictive.probs.double() - truth).square().sum(-1)


def correct(predictive: Predictive, targets: Tensor) -> Tensor:
    """Whether the likeliest class is the target: 1 or 0; the first of equals counts.

    Args:
        predictive: Categorical.
        targets: Class numbers, (B,).

    Returns:
        The values, (B,).
    """
    found, targets = with_targets(categorical("correct", predictive), targets)
    return (found.predicted == _class_numbers(found, targets)).double()


def squared_error(predictive: Predictive, targets: Tensor) -> Tensor:
    """Squared error of the mean prediction, averaged over outputs.

    Args:
        predictive: Gaussian.
        targets: Numbers, (B, C), or (B,) for one output.

    Returns:
        The values, (B,).

    Raises:
        ArgumentError: If the predictive is of another kind.
    """
    if not isinstance(predictive, GaussianPredictive):
        raise ArgumentError(
            _wrong_kind("squared_error", predictive, "gaussian", "Use brier")
        )
    return _residuals(predictive, targets).square().mean(-1)


def with_targets(predictive: Kind, targets: Tensor) -> tuple[Kind, Tensor]:
    """Leave out the examples labelled −100: padding, and tokens that nobody labelled.

    Args:
        predictive: Of any kind.
        targets: The targets of all its examples, (B, ...).

    Returns:
        The predictive of the examples that have a target, and their targets.

    Raises:
        DataError: If none has one.
    """
    if targets.dim() == 0 or len(targets) != len(predictive):
        return predictive, targets  # for the checks of each score to refuse
    # A regression's whole numbers may be −100 and mean it.
    if isinstance(predictive, GaussianPredictive):
        return predictive, targets
    kept = has_target(targets)
    if kept.all():
        return predictive, targets
    if not kept.any():
        raise DataError("no example has a label (all are -100). Pass labelled data.")
    return predictive.take(kept), targets[kept]


def categorical(verb: str, predictive: Predictive) -> CategoricalPredictive:
    """Return the predictive if it is categorical, else say what to do."""
    if not isinstance(predictive, CategoricalPredictive):
        raise ArgumentError(_wrong_kind(verb, predictive, "categorical", "Use nll"))
    return predictive


def _wrong_kind(verb: str, predictive: Predictive, allowed: str, instead: str) -> str:
    return (
        f"predictive must be {allowed} for {verb}, got {predictive.kind}. "
        f"{instead} instead."
    )


def _class_numbers(predictive: CategoricalPredictive, targets: Tensor) -> Tensor:
    labels = checks.class_numbers(targets, *predictive.log_probs.shape)
    checks.numbers("predictive", predictive.log_probs)
    return labels


def _yes_or_no(predictive: BernoulliPredictive, targets: Tensor) -> Tensor:
    labels = checks.like_outputs(targets, predictive.probs)
    wrong = labels[(labels != 0) & (labels != 1)]
    if len(wrong):
        raise DataError(
            f"targets must be 0 or 1, got {float(wrong[0])}. Pass one for each label."
        )
    checks.numbers("predictive", predictive.probs)
    return labels


def _residuals(predictive: GaussianPredictive, targets: Tensor) -> Tensor:
    targets = checks.like_outputs(targets, predictive.mean)
    checks.numbers("predictive", predictive.mean, finite=True)
    return targets - predictive.mean.double()
