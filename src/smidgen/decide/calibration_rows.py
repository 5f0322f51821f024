"""The rows that make a rule: checked, in fp64 on the CPU, without those that have no label."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import NoReturn

import torch
from torch import Tensor

from smidgen.errors import (
    ArgumentError,
    DataError,
    TooFewRowsError,
    is_number,
    require_kind,
)
from smidgen.outputs.likelihood.base import has_target
from smidgen.outputs.predictive import ClassPredictive, GaussianPredictive, Predictive

# Which function suits a kind of outputs, for errors.
_SUITED = {
    "categorical": "abstain or sets",
    "bernoulli": "strange",
    "gaussian": "intervals",
}


def require_open_fraction(name: str, value: float, example: float) -> None:
    """Refuse what is no number in (0, 1)."""
    if not is_number(value) or not 0 < value < 1:
        raise ArgumentError(
            f"{name} must be between 0 and 1, got {value!r}. Pass {example} for "
            f"{100 * example:g} percent."
        )


def refuse_kind(verb: str, predictive: Predictive, allowed: str) -> NoReturn:
    """Refuse a predictive of another kind, and name the function that suits it."""
    suited = _SUITED.get(predictive.kind, "another")
    raise ArgumentError(
        f"predictive must be {allowed} for {verb}, got {predictive.kind}. Use "
        f"smidgen.decide.{suited.replace(' or ', ' or smidgen.decide.')} for it."
    )


def read_classes(
    verb: str, predictive: Predictive, targets: Tensor
) -> tuple[ClassPredictive, Tensor, int]:
    """Check a categorical predictive and its classes (B,); leave out rows labelled −100."""
    require_kind("predictive", predictive, Predictive, "Use smidgen.predict_batches")
    if not isinstance(predictive, ClassPredictive):
        refuse_kind(verb, predictive, "categorical")
    require_kind("targets", targets, Tensor, "Use torch.tensor(targets)")
    targets = targets.detach().cpu()
    if targets.dim() != 1 or targets.is_floating_point() or targets.dtype == torch.bool:
        raise DataError(
            f"targets must be a vector of class numbers, got {targets.dtype} of shape "
            f"{tuple(targets.shape)}. Pass one whole number for each row."
        )
    _require_as_many(targets, predictive)
    labelled = has_target(targets)
    left_out = int((~labelled).sum())
    if left_out == len(targets):
        raise DataError(
            f"targets must have labels, and all of {left_out:,} rows are -100. Pass labelled "
            "rows that chose nothing else."
        )
    if left_out:
        predictive, targets = predictive.take(labelled), targets[labelled]
    wrong = targets[(targets < 0) | (targets >= predictive.class_count)]
    if len(wrong):
        raise DataError(
            f"targets must be in [0, {predictive.class_count}), got {int(wrong[0])}. Map the "
            "labels to the model's classes; -100 marks a row without one."
        )
    require_known("predictive", predictive.known_log_probs)
    return predictive, targets.long(), left_out


def read_numbers(
    verb: str, predictive: Predictive, targets: Tensor
) -> tuple[GaussianPredictive, Tensor]:
    """Check a Gaussian predictive and its targets, which are shaped like the means (B, C)."""
    gaussian = require_gaussian(verb, predictive)
    require_kind("targets", targets, Tensor, "Use torch.tensor(targets)")
    targets = targets.detach().cpu().double()
    if targets.dim() == 1 and gaussian.mean.shape[1:] == (1,):
        targets = targets[:, None]
    if targets.shape[1:] != gaussian.mean.shape[1:]:
        raise DataError(
            f"targets must be of shape {tuple(gaussian.mean.shape)}, got "
            f"{tuple(targets.shape)}. Pass one number for each output."
        )
    _require_as_many(targets, gaussian)
    if not targets.isfinite().all():
        row = int((~targets.isfinite()).any(-1).nonzero()[0])
        raise DataError(
            f"targets must be finite numbers, got {targets[row].tolist()} for row {row}. "
            "Leave out rows whose target is missing."
        )
    return gaussian, targets


def require_gaussian(verb: str, predictive: Predictive) -> GaussianPredictive:
    """Refuse a predictive of another kind, and one whose numbers are not finite."""
    require_kind("predictive", predictive, Predictive, "Use smidgen.predict_batches")
    if not isinstance(predictive, GaussianPredictive):
        refuse_kind(verb, predictive, "gaussian")
    require_known("predictive", predictive.mean, finite=True)
    return predictive


def require_known(name: str, values: Tensor, *, finite: bool = False) -> None:
    """Refuse NaN and, if `finite`, infinity; name the first row that has it."""
    unknown = ~values.isfinite() if finite else values.isnan()
    if unknown.any():
        row = int(unknown.reshape(len(values), -1).any(-1).nonzero()[0])
        raise DataError(
            f"{name} must be finite numbers, got NaN or infinity for row {row}. Check the "
            "model's outputs and inputs there."
        )


def as_written(value: float) -> Fraction:
    """Take a number as the decimal it was written as: 0.9 in binary times 10 is not 9."""
    return Fraction(repr(float(value)))


def conformal_quantile(scores: Tensor, coverage: Fraction, what: str, asked: str) -> Tensor:
    """Find the score that a new one is at most, with a probability of at least `coverage`.

    The k-th smallest of n scores with k = ceil((n + 1) · coverage): a new score, exchangeable
    with them, is equally likely to have each of n + 1 ranks, if there are no ties, and with
    ties it is smaller rather. So it is at most the k-th with a probability of at least
    k / (n + 1), and of less than coverage + 1 / (n + 1) without ties.

    Args:
        scores: One of each row, (n,), or (n, C) for C quantiles.
        coverage: The probability, in (0, 1).
        what: What there are too few of, for the error.
        asked: What asks for more, for the error.

    Returns:
        The quantile, of shape () or (C,).

    Raises:
        TooFewRowsError: If k is above n: no finite score would do.
    """
    rows, rank = len(scores), ceil((len(scores) + 1) * coverage)
    if rank > rows:
        needed = ceil(coverage / (1 - coverage))
        raise TooFewRowsError(
            f"{what} must be {needed:,} or more for {asked}, got {rows:,}. Pass more rows, "
            "or ask for less."
        )
    return scores.sort(0).values[rank - 1]


def _require_as_many(targets: Tensor, predictive: Predictive) -> None:
    if not len(predictive):
        raise DataError("predictive must hold at least one row, got 0. Check the loader.")
    if len(targets) != len(predictive):
        raise DataError(
            f"targets must be as many as the predictions ({len(predictive)}), got "
            f"{len(targets)}. Pass both for the same rows, in the same order."
        )
