"""Checks of what a score is given; each error names the argument and the next step."""

from __future__ import annotations

from torch import Tensor

from smidgen.errors import ArgumentError, DataError

# Probabilities computed in fp32 may exceed 1 by a few ulps.
_SLACK = 1e-6


def as_vector(name: str, values: Tensor, *, finite: bool = False) -> Tensor:
    """Return a vector as fp64 on the CPU; refuse other shapes, no numbers, and NaN."""
    values = values.detach().cpu().double()
    if values.dim() != 1 or not len(values):
        raise DataError(
            f"{name} must be a vector of one or more numbers, got shape "
            f"{tuple(values.shape)}. Pass one number for each example."
        )
    require_numbers(name, values, finite=finite)
    return values


def require_numbers(name: str, values: Tensor, *, finite: bool = False) -> None:
    """Refuse NaN and, if `finite`, infinity."""
    wrong = ~values.isfinite() if finite else values.isnan()
    if wrong.any():
        where = tuple(wrong.nonzero()[0].tolist())
        raise DataError(
            f"{name} must be {'finite numbers' if finite else 'free of NaN'}, got "
            f"{float(values[where])} for example {where[0]}. Check the model's outputs "
            "and inputs there."
        )


def require_same_length(name: str, values: Tensor, other: str, others: Tensor) -> None:
    """Refuse two vectors of different lengths."""
    if len(values) != len(others):
        raise DataError(
            f"{name} must be as long as {other} ({len(others)}), got {len(values)}. "
            "Pass both for the same examples."
        )


def as_confidences(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Return both as fp64, (B,) or (B, C): confidence in [0, 1], correct 0 or 1."""
    shape = confidence.shape
    if len(shape) == 2 and correct.shape == shape:
        # Labels: one number for each.
        confidence, correct = confidence.flatten(), correct.flatten()
    confidence = as_vector("confidence", confidence)
    correct = as_zero_or_one("correct", correct)
    require_same_length("correct", correct, "confidence", confidence)
    wrong = confidence[(confidence < -_SLACK) | (confidence > 1 + _SLACK)]
    if len(wrong):
        raise DataError(
            f"confidence must be in [0, 1], got {float(wrong[0])}. Pass the "
            "probability of the predicted class."
        )
    return confidence.reshape(shape), correct.reshape(shape)


def as_zero_or_one(name: str, values: Tensor) -> Tensor:
    """Return a vector of 0 and 1 as fp64 on the CPU."""
    values = as_vector(name, values)
    wrong = values[(values != 0) & (values != 1)]
    if len(wrong):
        raise DataError(
            f"{name} must be 0 or 1, got {float(wrong[0])}. Pass predicted == targets."
        )
    return values


def as_class_numbers(targets: Tensor, examples: int, classes: int) -> Tensor:
    """Return targets as int64 on the CPU if they are class numbers, (B,)."""
    targets = targets.detach().cpu()
    if targets.is_floating_point() or targets.dim() != 1:
        raise DataError(
            f"targets must be a vector of class numbers, got {targets.dtype} of shape "
            f"{tuple(targets.shape)}. Pass one whole number for each example."
        )
    _require_examples(targets, examples)
    wrong = targets[(targets < 0) | (targets >= classes)]
    if len(wrong):
        raise DataError(
            f"targets must be in [0, {classes}), got {int(wrong[0])}. Map the labels "
            "to the model's classes; -100 marks an example without one."
        )
    return targets.long()


def as_outputs_shape(targets: Tensor, outputs: Tensor) -> Tensor:
    """Return targets as fp64 in the shape of the outputs, (B, C)."""
    targets = targets.detach().cpu().double()
    if targets.dim() == 1 and outputs.shape[1:] == (1,):
        targets = targets[:, None]
    if targets.dim() != 2 or targets.shape[1:] != outputs.shape[1:]:
        raise DataError(
            f"targets must be of shape {tuple(outputs.shape)}, got "
            f"{tuple(targets.shape)}. Pass one number for each output."
        )
    _require_examples(targets, len(outputs))
    require_numbers("targets", targets, finite=True)
    return targets


def require_at_least_one(name: str, value: int) -> None:
    """Refuse a count below one."""
    if value < 1:
        raise ArgumentError(f"{name} must be 1 or more, got {value}. Raise {name}.")


def require_fraction(name: str, value: float) -> None:
    """Refuse a number outside (0, 1)."""
    if not 0 < value < 1:
        raise ArgumentError(
            f"{name} must be between 0 and 1, got {value}. Pass 0.95 for 95 percent."
        )


def _require_examples(targets: Tensor, examples: int) -> None:
    if not examples:
        raise DataError(
            "predictive must hold at least one example, got 0. Check that the loader "
            "yields batches."
        )
    if len(targets) != examples:
        raise DataError(
            f"targets must be as many as the predictions ({examples}), got "
            f"{len(targets)}. Pass both for the same examples, in the same order."
        )
