"""Per-example scores, fp64 vectors; taking the mean is up to the caller.

B examples, C classes, labels or outputs. For all but `correct`, lower is better. Examples
labelled −100 have no target and no score: they are left out of what is returned.
"""

from __future__ import annotations

from math import pi
from statistics import NormalDist
from typing import TypeVar

from torch import Tensor

from smidgen.errors import ArgumentError, DataError, require_kind
from smidgen.evaluate import checks
from smidgen.outputs.likelihood.base import has_target
from smidgen.outputs.predictive import (
    BernoulliPredictive,
    ClassPredictive,
    GaussianPredictive,
    Predictive,
)

AnyPredictive = TypeVar("AnyPredictive", bound=Predictive)


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
    predictive, targets = drop_unlabelled(predictive, targets)
    if isinstance(predictive, ClassPredictive):
        return -predictive.log_prob_of(_class_numbers(predictive, targets))
    if isinstance(predictive, BernoulliPredictive):
        labels = _yes_or_no(predictive, targets)
        both = predictive.log_probs.double()
        return -both.gather(-1, labels.long()[..., None]).squeeze(-1).sum(-1)
    if isinstance(predictive, GaussianPredictive):
        squares = _residuals(predictive, targets).square()
        variance = predictive.total_variance.double()
        checks.require_numbers("predictive", variance, finite=True)
        if (variance <= 0).any():
            raise DataError(
                "predictive must have a positive total variance, got "
                f"{float(variance.min())}. Fit the noise first."
            )
        return 0.5 * ((2 * pi * variance).log() + squares / variance).sum(-1)
    allowed = "categorical, bernoulli or gaussian"
    raise ArgumentError(_wrong_kind("nll", predictive, allowed, "Pass one of these"))


def brier(predictive: Predictive, targets: Tensor) -> Tensor:
    """Brier score of each example: the *sum* of squared errors over classes or labels.

    So two classes score twice as much as one Bernoulli label of the same probability.

    Args:
        predictive: Categorical or Bernoulli.
        targets: Class numbers (B,), or labels 0 or 1 (B, C).

    Returns:
        The values, (B,), in [0, 2] for classes and [0, C] for labels.

    Raises:
        ArgumentError: If the predictive is of another kind.
    """
    predictive, targets = drop_unlabelled(predictive, targets)
    if isinstance(predictive, ClassPredictive):
        return predictive.squared_error_of(_class_numbers(predictive, targets))
    if isinstance(predictive, BernoulliPredictive):
        truth = _yes_or_no(predictive, targets)
        return (predictive.probs.double() - truth).square().sum(-1)
    allowed = "categorical or bernoulli"
    raise ArgumentError(_wrong_kind("brier", predictive, allowed, "Use squared_error"))


def correct(predictive: Predictive, targets: Tensor) -> Tensor:
    """Whether the likeliest class is the target; the fraction of labels that are right.

    Args:
        predictive: Categorical, where the first of equally likely classes counts; or
            Bernoulli, where a label is predicted from a probability of one half on.
        targets: Class numbers (B,), or labels 0 or 1 (B, C).

    Returns:
        The values, (B,), in [0, 1].
    """
    _, right = confidence_and_correct("correct", predictive, targets)
    return right if right.dim() == 1 else right.mean(-1)


def confidence_and_correct(
    verb: str, predictive: Predictive, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute each answer's probability and whether it is right: (B,), of labels (B, C)."""
    predictive, targets = drop_unlabelled(predictive, targets)
    confidence = confidence_of_answers(verb, predictive)
    if isinstance(predictive, ClassPredictive):
        right = predictive.predicted == _class_numbers(predictive, targets)
    else:
        assert isinstance(predictive, BernoulliPredictive)
        labels = _yes_or_no(predictive, targets)
        both = predictive.log_probs
        right = (both[..., 1] >= both[..., 0]) == (labels == 1)
    return confidence, right.double()


def confidence_of_answers(verb: str, predictive: Predictive) -> Tensor:
    """Compute the probability of each answer: (B,), of labels (B, C)."""
    if isinstance(predictive, ClassPredictive):
        return predictive.confidence
    if isinstance(predictive, BernoulliPredictive):
        return predictive.log_probs.double().max(-1).values.exp()
    allowed = "categorical or bernoulli"
    raise ArgumentError(_wrong_kind(verb, predictive, allowed, "Use nll"))


def covered(predictive: Predictive, targets: Tensor, *, level: float = 0.95) -> Tensor:
    """Whether targets lie in their central intervals: the fraction of outputs that do.

    Args:
        predictive: Gaussian; its noise counts.
        targets: Numbers, (B, C), or (B,) for one output.
        level: The probability of each interval.

    Returns:
        The values, (B,), in [0, 1]. Their mean is `level` if the variances are right.
    """
    checks.require_fraction("level", level)
    gaussian = _require_gaussian("covered", predictive)
    scale = gaussian.total_variance.double().sqrt()
    deviations = _residuals(gaussian, targets).abs() / scale
    return (deviations <= NormalDist().inv_cdf((1 + level) / 2)).double().mean(-1)


def squared_error(predictive: Predictive, targets: Tensor) -> Tensor:
    """Squared error of the mean prediction, averaged over outputs.

    Args:
        predictive: Gaussian.
        targets: Numbers, (B, C), or (B,) for one output.

    Returns:
        The values, (B,).
    """
    gaussian = _require_gaussian("squared_error", predictive)
    return _residuals(gaussian, targets).square().mean(-1)


def drop_unlabelled(
    predictive: AnyPredictive, targets: Tensor
) -> tuple[AnyPredictive, Tensor]:
    """Leave out the examples labelled −100: padding, and tokens without a label."""
    require_kind("predictive", predictive, Predictive, "Use smidgen.predict")
    require_kind("targets", targets, Tensor, "Use torch.tensor(targets)")
    if targets.dim() == 0 or len(targets) != len(predictive):
        return predictive, targets  # the checks of each score refuse these
    # A regression's whole numbers may be −100 and mean it.
    if isinstance(predictive, GaussianPredictive):
        return predictive, targets
    labelled = has_target(targets)
    if labelled.all():
        return predictive, targets
    if not labelled.any():
        raise DataError("no example has a label (all are -100). Pass labelled data.")
    return predictive.take(labelled), targets[labelled]


def _require_gaussian(verb: str, predictive: Predictive) -> GaussianPredictive:
    if not isinstance(predictive, GaussianPredictive):
        raise ArgumentError(_wrong_kind(verb, predictive, "gaussian", "Use brier"))
    return predictive


def _wrong_kind(verb: str, predictive: Predictive, allowed: str, instead: str) -> str:
    return (
        f"predictive must be {allowed} for {verb}, got {predictive.kind}. "
        f"{instead} instead."
    )


def _class_numbers(predictive: ClassPredictive, targets: Tensor) -> Tensor:
    labels = checks.as_class_numbers(targets, len(predictive), predictive.class_count)
    checks.require_numbers("predictive", predictive.known_log_probs)
    return labels


def _yes_or_no(predictive: BernoulliPredictive, targets: Tensor) -> Tensor:
    labels = checks.as_outputs_shape(targets, predictive.probs)
    wrong = labels[(labels != 0) & (labels != 1)]
    if len(wrong):
        raise DataError(
            f"targets must be 0 or 1, got {float(wrong[0])}. Pass one for each label."
        )
    checks.require_numbers("predictive", predictive.probs)
    return labels


def _residuals(predictive: GaussianPredictive, targets: Tensor) -> Tensor:
    targets = checks.as_outputs_shape(targets, predictive.mean)
    checks.require_numbers("predictive", predictive.mean, finite=True)
    return targets - predictive.mean.double()
