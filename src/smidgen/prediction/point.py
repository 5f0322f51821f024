"""Point predictions and targets of a loader: the MAP, for comparison."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from smidgen.errors import DataError
from smidgen.outputs.problem import Problem, as_problem
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.progress import track
from smidgen.types import Batch


def point_outputs(
    model: nn.Module | Problem, batches: Iterable[Batch], *, progress: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Compute the model's plain outputs for all batches, and collect the targets.

    Args:
        model: The model, or its `Problem`. It is left as it was.
        batches: Any iterable of batches, read once.
        progress: Show a progress bar.

    Returns:
        Outputs (N, C) in fp64, one row for each example or token, and targets, or None
        if a batch has none; on the CPU. Rows are those of `predict_batches`, so padding
        is among them, labelled −100: `fit.temperature` and `evaluate` leave it out.

    Raises:
        DataError: If there is no batch.
    """
    problem = as_problem(model)
    outputs, targets = [], []
    shadowed = problem.on_shadow()
    with preserve_random_state(problem.model), torch.no_grad():
        for batch in track(batches, "predicting", show=progress):
            batch_outputs = shadowed.outputs(batch)
            outputs.append(batch_outputs.flatten(0, -2).double().cpu())
            batch_targets = problem.targets(batch)
            if batch_targets is not None:
                targets.append(batch_targets.flatten(0, batch_outputs.dim() - 2).cpu())
    if not outputs:
        raise DataError("the data loader yielded no batch. Check the dataset's length.")
    labelled = len(targets) == len(outputs)
    return torch.cat(outputs), torch.cat(targets) if labelled else None
