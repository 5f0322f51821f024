"""How large the training data are: batches of an epoch, and examples or labels."""

from __future__ import annotations

from collections.abc import Iterable, Sized

from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.likelihood.base import has_target
from smidgen.outputs.problem import SettledProblem
from smidgen.runtime.progress import count_batches
from smidgen.types import Batch


def count_training_batches(batches: Iterable[Batch]) -> int:
    """Count the batches of an epoch."""
    count = count_batches(batches)
    if not count:
        raise DataError(
            "the training loader must have a length of 1 or more batches, got "
            f"{'none' if count is None else count}. Pass a loader over a data set that has "
            "a length, or a list of batches."
        )
    return count


def count_training_data(
    problem: SettledProblem, batches: Iterable[Batch], num_data: int | None
) -> int:
    """Count the terms of the likelihood, N: examples, or labelled tokens or rows."""
    # The loader is read once more where labels are of tokens, or of some rows only.
    dataset = getattr(batches, "dataset", None)
    if num_data is None and isinstance(dataset, Sized):
        num_data = len(dataset)
        if _is_partly_labelled(problem, batches):
            labels = (problem.targets(batch) for batch in batches)
            num_data = sum(
                int(has_target(t.flatten()).sum()) for t in labels if t is not None
            )
    if num_data is None:
        raise ArgumentError(
            "num_data must be given for a loader whose data set has no length: the prior "
            "counts against so many examples."
        )
    if num_data < 1:
        raise ArgumentError(f"num_data must be 1 or more, got {num_data}.")
    return num_data


def _is_partly_labelled(problem: SettledProblem, batches: Iterable[Batch]) -> bool:
    """Whether the labels are of tokens, or missing in some rows."""
    targets = problem.targets(next(iter(batches)))
    if targets is None or not isinstance(problem.likelihood, Categorical):
        return False
    return targets.dim() > 1 or not bool(has_target(targets).all())
