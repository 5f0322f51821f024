"""Monte Carlo dropout, a baseline: outputs of a network with its dropout left on.

Gal and Ghahramani (2016), arXiv:1506.02142. Each pass draws new masks; the likelihood's
`mixture` averages the probabilities of the passes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.batches import as_batches, require_examples
from smidgen.outputs.likelihood.base import require_finite_outputs
from smidgen.outputs.problem import Problem, as_problem
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.progress import track
from smidgen.types import Batch

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def dropout_outputs(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    *,
    samples: int = 20,
    seed: int = 0,
    progress: bool = True,
) -> Tensor:
    """Compute the outputs of all batches under several draws of dropout.

    Args:
        model: The model, or its `Problem`. It is left as it was, its RNG too.
        batches: Any iterable of batches, read once.
        samples: Passes over each batch.
        seed: Seed of the masks.
        progress: Show a progress bar.

    Returns:
        The outputs, (samples, N, C), in fp64 on the CPU.

    Raises:
        ArgumentError: If samples is below two, or the model has no dropout.
        DataError: If there is no batch.
    """
    problem = as_problem(model)
    batches = as_batches(batches)
    if samples < 2:
        raise ArgumentError(f"samples must be 2 or more, got {samples}.")
    if not any(
        isinstance(layer, _DROPOUTS) and layer.p > 0 for layer in problem.model.modules()
    ):
        raise ArgumentError(
            "model must have dropout layers with p > 0 for Monte Carlo dropout, got none. "
            "Use another method, or train it with dropout."
        )
    outputs = []
    shadowed = problem.on_shadow(dropout=True)
    with preserve_random_state(problem.model, seeding=True), torch.no_grad():
        torch.manual_seed(seed)
        tracked = track(batches, "predicting", show=progress)
        for number, batch in enumerate(tracked, 1):
            with problem.reading(batch, number):
                passes = [shadowed.outputs(batch).flatten(0, -2) for _ in range(samples)]
                outputs.append(torch.stack(passes).double().cpu())
                require_examples(outputs[-1])
                require_finite_outputs(outputs[-1])
    if not outputs:
        raise DataError("the data loader yielded no batch. Check the dataset's length.")
    return torch.cat(outputs, 1)
