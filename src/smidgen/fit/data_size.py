"""How large the training data are: batches of an epoch, and examples a prior counts against."""

from __future__ import annotations

from collections.abc import Iterable, Sized

from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.problem import SettledProblem
from smidgen.outputs.targets import has_target
from smidgen.runtime.progress import count_batches
from smidgen.types import Batch


def count_training_batches(batches: Iterable[Batch]) -> int:
    """Count the batches of an epoch.

    Args:
        batches: The loader.

    Returns:
        How many there are.

    Raises:
        DataError: If it has no length, or none.
    """
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
    """N, what a prior counts against: as many terms as the likelihood has.

    Args:
        problem: The problem.
        batches: The loader; it is read once where its first batch has labels of tokens, or
            rows without one.
        num_data: N if the caller knows it.

    Returns:
        Examples; labelled tokens or rows where not every one has a label.

    Raises:
        ArgumentError: If it is not given and cannot be told.
    """
    dataset = getattr(batches, "dataset", None)
    if num_data is None and isinstance(dataset, Sized):
        partly = _is_partly_labelled(problem, batches)
        num_data = _count_labels(problem, batches) if partly else len(dataset)
    if num_data is None:
        raise ArgumentError(
            "num_data must be given for a loader whose data set has no length: the prior "
            "counts against so many examples."
        )
    if num_data < 1:
        raise ArgumentError(f"num_data must be 1 or more, got {num_data}.")
    return num_data


def _is_partly_labelled(problem: SettledProblem, batches: Iterable[Batch]) -> bool:
    """Whether classes are of tokens, or of some rows only."""
    targets = problem.targets(next(iter(batches)))
    if targets is None or not isinstance(problem.likelihood, Categorical):
        return False
    return targets.dim() > 1 or not bool(has_target(targets).all())


def _count_labels(problem: SettledProblem, batches: Iterable[Batch]) -> int:
    labels = (problem.targets(batch) for batch in batches)
    return sum(int(has_target(each.flatten()).sum()) for each in labels if each is not None)
