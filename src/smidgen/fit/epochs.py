"""Parts of training: backward pass, validation scores, early stopping, learning rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, Literal

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError, DivergedError
from smidgen.outputs.batches import as_batches
from smidgen.outputs.likelihood import Categorical, Likelihood
from smidgen.outputs.problem import SettledProblem
from smidgen.runtime.guard import preserve_random_state
from smidgen.types import Batch

Criterion = Literal["accuracy", "nll"]


@dataclass(frozen=True)
class Epoch:
    """Scores of an epoch: NaN and None without validation data, None without classes."""

    number: int
    train_nll: float
    nll: float
    accuracy: float | None

    def to_row(self) -> tuple[float, ...]:
        """Write the epoch for a checkpoint."""
        accuracy = nan if self.accuracy is None else self.accuracy
        return self.number, self.train_nll, self.nll, accuracy

    @classmethod
    def from_row(cls, row: Sequence[float]) -> Epoch:
        """Read the epoch from a checkpoint."""
        number, train_nll, nll, accuracy = row
        return cls(int(number), train_nll, nll, None if isnan(accuracy) else accuracy)

    def gains(self, best: Epoch, stop_on: Criterion) -> bool:
        """Whether it beats the best epoch before it; the NLL decides between equals."""
        ours, theirs = self.accuracy, best.accuracy
        if stop_on == "nll" or ours is None or theirs is None or ours == theirs:
            return self.nll < best.nll
        return ours > theirs


def backward(
    problem: SettledProblem, batch: Batch, outputs: Tensor, share: int = 1
) -> tuple[float, int]:
    """Back-propagate a batch's mean NLL, divided by `share`; return it and its rows."""
    loss_and_rows = problem.mean_nll(batch, outputs)
    if loss_and_rows is None:
        return 0.0, 0
    loss, rows = loss_and_rows
    if not loss.requires_grad:
        raise DataError(
            "the outputs must be differentiable in the weights that are trained, got outputs "
            "without a gradient. Take .detach() and torch.no_grad() out of the forward; "
            "layers whose activations are quantised let no gradient through."
        )
    (loss / share).backward()
    return float(loss.detach()), rows


def require_finite_gradients(tensors: Iterable[Tensor]) -> None:
    """Refuse a batch whose gradients are NaN or infinite, before a step takes them in."""
    gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
    if not gradients:
        return
    norms = torch.stack([norm.float() for norm in torch._foreach_norm(gradients)])
    # A norm may overflow where no gradient did.
    if not torch.isfinite(norms).all() and not all(g.isfinite().all() for g in gradients):
        raise DivergedError(
            "the training gradients are not finite. Lower learning_rate, or check the data "
            "of this batch."
        )


def require_labelled(rows: int) -> None:
    """Refuse training data of which no row has had a label."""
    if not rows:
        raise DataError(
            "training needs labels, and no row of any batch has one (all are -100). Pass "
            "labelled data."
        )


def validation_scores(
    problem: SettledProblem,
    batches: Iterable[Batch],
    replaced: Mapping[str, Tensor] | None = None,
) -> tuple[float, float | None]:
    """Score the point prediction: its mean NLL, and its accuracy for classes."""
    classes = isinstance(problem.likelihood, Categorical)
    nll, hits, seen = 0.0, 0.0, 0
    shadowed = problem.on_shadow()
    with preserve_random_state(problem.model), torch.no_grad():
        for number, batch in enumerate(as_batches(batches), 1):
            with problem.reading(batch, number):
                problem.require_labels(batch, "validation")
                outputs = shadowed.outputs(batch, replaced).flatten(0, -2)
                targets, kept = problem.read(batch, outputs)
            assert targets is not None
            outputs, targets = outputs[kept], targets[kept]
            nll -= float(problem.likelihood.log_prob(outputs, targets).double().sum())
            if classes:
                hits += float((outputs.argmax(-1) == targets).sum())
            seen += len(targets)
    if not seen:
        raise DataError(
            "the validation loader yielded no labelled example. Check its length and labels."
        )
    return nll / seen, hits / seen if classes else None


def resolve_criterion(stop_on: Criterion | None, likelihood: Likelihood) -> Criterion:
    """Check what counts as a gain: accuracy for classes, NLL otherwise."""
    classes = isinstance(likelihood, Categorical)
    if stop_on is None:
        return "accuracy" if classes else "nll"
    if stop_on not in (("accuracy", "nll") if classes else ("nll",)):
        raise ArgumentError(
            f"stop_on must be {'accuracy or ' if classes else ''}nll for this likelihood, "
            f"got {stop_on!r}. Leave it out for the usual one."
        )
    return stop_on


def group_by_decay(parameters: Iterable[Tensor], decay: float) -> list[dict[str, Any]]:
    """Group parameters for an optimiser: those with two or more axes decay."""
    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": decay},
        {"params": [], "weight_decay": 0.0},
    ]
    for parameter in parameters:
        groups[0 if parameter.dim() > 1 else 1]["params"].append(parameter)
    return groups


def warm_up_then_fall(steps: int) -> Callable[[int], float]:
    """Make the rate's factor: up over a tenth of the steps, then linearly to zero."""
    warm = max(1, steps // 10)

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return max(0.0, (steps - step) / max(1, steps - warm))

    return factor
