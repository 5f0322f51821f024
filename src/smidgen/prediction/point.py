"""Point predictions and targets of a loader: the MAP, for comparison."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from smidgen.errors import DataError
from smidgen.outputs.batches import as_batches, require_examples
from smidgen.outputs.likelihood.base import require_finite_outputs
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.progress import track
from smidgen.types import Batch


def point_outputs(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    *,
    labelled: bool = False,
    progress: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Compute the model's plain outputs for all batches, and collect the targets.

    Args:
        model: The model, or its `Problem`. It is left as it was.
        batches: Any iterable of batches, read once.
        labelled: Refuse batches without targets, or with targets that do not suit the
            likelihood of the `Problem`, as soon as they come.
        progress: Show a progress bar.

    Returns:
        Outputs (N, C) in fp64, one row for each example or token, and targets, or None
        if a batch has none; on the CPU. Rows are those of `predict_batches`, so padding
        is among them, labelled −100: `fit.temperature` and `evaluate` leave it out.

    Raises:
        DataError: If there is no batch, or one is not finite.
    """
    problem = as_problem(model)
    batches = as_batches(batches)
    outputs, targets = [], []
    shadowed = problem.on_shadow()
    with preserve_random_state(problem.model), torch.no_grad():
        tracked = track(batches, "predicting", show=progress)
        for number, batch in enumerate(tracked, 1):
            with problem.reading(batch, number):
                batch_outputs = shadowed.outputs(batch)
                rows = batch_outputs.flatten(0, -2)
                require_examples(rows)
                require_finite_outputs(rows)
                if labelled and isinstance(problem, SettledProblem):
                    problem.require_labels(batch, "a score")
                    problem.read(batch, rows)
            outputs.append(rows.double().cpu())
            batch_targets = problem.targets(batch)
            if batch_targets is not None:
                targets.append(batch_targets.flatten(0, batch_outputs.dim() - 2).cpu())
    if not outputs:
        raise DataError("the data loader yielded no batch. Check the dataset's length.")
    known = len(targets) == len(outputs)
    return torch.cat(outputs), torch.cat(targets) if known else None
