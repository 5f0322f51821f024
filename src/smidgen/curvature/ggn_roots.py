"""What a curvature pass sends back from the outputs: columns s_k (K, R, C).

The exact GGN sends the square-root columns of the likelihood's Hessian. With many classes
they are many, and drawn labels take their place: E[s sᵀ] over y ~ p(y | f) of the gradient
s = −∂log p(y | f)/∂f is that Hessian (the Monte-Carlo Fisher). Draws of two outputs are
independent, so their products vanish on average and all outputs of an example may go back
at once. With the true labels the same gradient gives the squared gradients of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from smidgen.curvature.taps import Trace
from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.likelihood import Likelihood


@dataclass(frozen=True)
class BackwardVectors:
    """How to make columns of a trace; `together` if outputs may go back at once."""

    make: Callable[[Trace], Tensor]
    together: bool

    def of(self, trace: Trace) -> tuple[int, Iterator[Tensor]]:
        """Columns of a batch in so many parts, zero in rows without a target."""
        columns = self.make(trace) * trace.kept[:, None]
        return (1, iter([columns])) if self.together else trace.by_slot(columns)


def exact_ggn(likelihood: Likelihood) -> BackwardVectors:
    """Square-root columns of the Hessian."""
    return BackwardVectors(
        lambda trace: likelihood.root_columns(trace.outputs.detach()), False
    )


def sampled_fisher(
    likelihood: Likelihood, draws: int, generator: torch.Generator | None = None
) -> BackwardVectors:
    """Gradients at drawn labels, so scaled that their squares average over draws.

    Args:
        likelihood: What the outputs mean.
        draws: How many labels to draw for each output.
        generator: Source of the draws; a fixed seed if left out.

    Returns:
        The columns.

    Raises:
        ArgumentError: If draws is below 1.
    """
    if draws < 1:
        raise ArgumentError(f"fisher_draws must be 1 or more, got {draws}.")
    source = generator or torch.Generator().manual_seed(0)

    def make(trace: Trace) -> Tensor:
        outputs = trace.outputs.detach()
        labels = [likelihood.draw_targets(outputs, source) for _ in range(draws)]
        roots = torch.stack([likelihood.gradient(outputs, each) for each in labels])
        return roots / draws**0.5

    return BackwardVectors(make, True)


def gradients(likelihood: Likelihood) -> BackwardVectors:
    """Gradient of the loss at the true labels, one column."""

    def make(trace: Trace) -> Tensor:
        if trace.targets is None:
            raise DataError(
                "squared gradients need labels, and a batch has none. Pass labelled data."
            )
        return likelihood.gradient(trace.outputs.detach(), trace.targets)[None]

    return BackwardVectors(make, True)
