"""Which layers keep examples apart? One forward and one backward pass over a first batch.

A Jacobian per example is a sum over that example's positions of a layer, so the layer must see
its examples one after another. Back-propagating the outputs of the first example alone
must leave δ = 0 in the rows of all others; where it does not, rows are in another order or
are shared, and the layer cannot be treated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smidgen.curvature.taps import tapped
from smidgen.errors import DataError
from smidgen.outputs.problem import SettledProblem
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock


def find_mixing_layers(
    problem: SettledProblem, batch: Batch, blocks: Sequence[LayerBlock]
) -> dict[str, str]:
    """Find the layers whose rows cannot be told apart by example, with the reason.

    Args:
        problem: The problem, with its likelihood settled.
        batch: A batch; of one example it can only tell by shape.
        blocks: The chosen rows and columns of each layer.

    Returns:
        A reason for each layer that cannot be treated, by name.
    """
    found: dict[str, str] = {}
    with tapped(problem, blocks) as taps:
        trace = taps.run(batch)
        for block in blocks:
            try:
                if trace.runs(block.layer.name):
                    trace.inputs(block.layer.name)
            except DataError as error:
                found[block.layer.name] = str(error)
        trace = trace.without(found)
        first = torch.zeros_like(trace.outputs)
        # A random direction: the plain sum of centred logits is constant.
        source = torch.Generator().manual_seed(0)
        drawn = torch.randn(trace.slots, first.shape[1], generator=source)
        first[: trace.slots] = drawn.to(first)
        for name, delta in trace.deltas(first).items():
            elsewhere = delta[1:].abs().amax() if delta[1:].numel() else delta.new_zeros(())
            # Rounding of a batched product may leave a trace, a mistake is of δ's size.
            if elsewhere > 1e-3 * delta.abs().amax():
                found[name] = f"the layer {name!r} mixes the examples of a batch"
    return found
