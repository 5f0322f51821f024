"""The size of a weight times that of its input, |W_ij| · RMS(x_j).

After Wanda (Sun et al., 2024, arXiv:2306.11695): what a weight adds to its layer's output.
The root mean square is over all unpadded positions of all examples, labelled or not. A bias
has the input 1, so its score is |b_i|.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from smidgen.curvature.taps import Trace, tapped
from smidgen.outputs.problem import Problem, SettledProblem
from smidgen.select.scores.passes import scored
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock


def activation(
    model: nn.Module | Problem, batches: Iterable[Batch], *, progress: bool = True
) -> dict[str, Tensor]:
    """Score every weight and bias by its magnitude times the size of its input.

    One forward pass; only the first batch is sent backward, to see which layers mix
    examples.

    Args:
        model: The trained model, or a `Problem` that says how to read its batches.
        batches: Any iterable of batches, read once; labels are not looked at.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        Scores by parameter name.
    """
    return scored(model, batches, _visit, progress=progress)


class _InputSquares:
    """Running sums of squared inputs (m,) of each layer, in fp64."""

    def __init__(self, problem: SettledProblem, chosen: Sequence[LayerBlock]) -> None:
        zero = torch.zeros((), dtype=torch.float64, device=problem.device)
        self.squares = {b.layer.name: zero.new_zeros(b.column_count) for b in chosen}
        self.counts = dict.fromkeys(self.squares, 0)

    def add(self, trace: Trace) -> None:
        for name in self.squares:
            if trace.runs(name):
                unpadded = trace.unpadded(name)
                x = trace.inputs(name) * unpadded[..., None]
                self.squares[name] += x.square().sum((0, 1)).double()
                self.counts[name] += int(unpadded.sum())

    def root_mean(self, name: str) -> Tensor:
        return (self.squares[name] / max(self.counts[name], 1)).sqrt()


def _visit(
    problem: SettledProblem, chosen: Sequence[LayerBlock], batches: Iterable[Batch]
) -> dict[str, Tensor]:
    inputs = _InputSquares(problem, chosen)
    with tapped(problem, chosen) as taps, torch.no_grad():
        for batch in batches:
            inputs.add(taps.run(batch))
    return {
        block.layer.name: (_grid(problem.model, block) * inputs.root_mean(block.layer.name))
        .abs()
        .flatten()
        for block in chosen
    }


def _grid(model: nn.Module, block: LayerBlock) -> Tensor:
    """W with the bias before its first column, (n, 1 + m), in fp64."""
    matrix = block.layer.matrix(model)
    if block.layer.bias is not None:
        bias = model.get_parameter(block.layer.bias).detach()
        matrix = torch.cat([bias[:, None], matrix], 1)
    return matrix.double()
