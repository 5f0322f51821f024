"""What a curvature pass sends back from the outputs: columns s_k (K, R, C).

The exact GGN sends the square-root columns of the likelihood's Hessian. With many classes
they are many, and drawn labels take their place: E[s sᵀ] over y ~ p(y | f) of the gradient
s = −∂log p(y | f)/∂f is that Hessian (the Monte-Carlo Fisher). Draws of two outputs are
independent, so their products vanish on average and all outputs of an example may go back
at once. With the true labels the same gradient gives the squared gradients of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smidgen.curvature.taps import Trace, tapped
from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.likelihood import Likelihood
from smidgen.outputs.problem import SettledProblem
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock


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


def sampled_fisher(likelihood: Likelihood, draws: int, seed: int) -> BackwardVectors:
    """Gradients at drawn labels, scaled so that their squares average over the draws."""
    if draws < 1:
        raise ArgumentError(f"fisher_draws must be 1 or more, got {draws}.")
    generator = torch.Generator().manual_seed(seed)

    def make(trace: Trace) -> Tensor:
        outputs = trace.outputs.detach()
        labels = [likelihood.draw_targets(outputs, generator) for _ in range(draws)]
        roots = torch.stack([likelihood.gradient(outputs, label) for label in labels])
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


def find_mixing_layers(
    problem: SettledProblem, batch: Batch, blocks: Sequence[LayerBlock]
) -> dict[str, str]:
    """Find the layers that do not keep the examples of a batch apart, with the reason."""
    # A Jacobian per example is a sum over that example's positions of a layer, so the layer
    # must see its examples one after another. Back-propagating the outputs of the first
    # example alone must leave δ = 0 in the rows of all others; where it does not, rows are
    # in another order or shared. A batch of one example is checked by shape alone.
    reasons: dict[str, str] = {}
    with tapped(problem, blocks) as taps:
        trace = taps.run(batch)
        for block in blocks:
            try:
                if trace.runs(block.layer.name):
                    trace.inputs(block.layer.name)
            except DataError as error:
                reasons[block.layer.name] = str(error)
        trace = trace.without(reasons)
        first = torch.zeros_like(trace.outputs)
        # A random direction: the plain sum of centred logits is constant.
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(trace.slots, first.shape[1], generator=generator)
        first[: trace.slots] = drawn.to(first)
        for name, delta in trace.deltas(first).items():
            elsewhere = delta[1:].abs().amax() if delta[1:].numel() else delta.new_zeros(())
            # Rounding of a batched product may leave a trace, a mistake is of δ's size.
            if elsewhere > 1e-3 * delta.abs().amax():
                reasons[name] = f"the layer {name!r} mixes the examples of a batch"
    return reasons
