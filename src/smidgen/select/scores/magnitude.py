"""The size of a weight, |W_ij|: free, and the paper's choice for rows and columns."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.runtime.processes.whole_weights import gather_tensor
from smidgen.weights.affine import require_coverage


def magnitude(model: nn.Module) -> dict[str, Tensor]:
    """Score every weight and bias by its absolute value.

    Args:
        model: The trained model.

    Returns:
        Scores by parameter name.
    """
    return dict(iterate_magnitudes(model))


def iterate_magnitudes(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Score one parameter after another, so that no copy of the model is kept."""
    for name in require_coverage(model).universe:
        scores = gather_tensor(model.get_parameter(name)).detach().abs().double().cpu()
        if scores.isnan().any():
            raise ArgumentError(
                f"model must have finite weights, got NaN in {name!r}. Train or load it "
                "again."
            )
        yield name, scores
