"""The size of a weight times that of its input, |W_ij| · RMS(x_j).

After Wanda (Sun et al., 2024, arXiv:2306.11695): what a weight adds to its layer's output.
The root mean square is over all unpadded positions of all examples, labelled or not. A bias
has the input 1, so its score is |b_i|.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from smidgen.curvature.accumulate import require_finite_sums
from smidgen.curvature.taps import Tapped
from smidgen.outputs.problem import Problem, SettledProblem
from smidgen.runtime.processes.whole_weights import gather_tensor
from smidgen.select.scores.passes import score_layers
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
        batches: Any iterable of batches, read once; labels are ignored.
        progress: Show a progress bar.

    Returns:
        Scores by parameter name.
    """
    return score_layers(model, batches, _visit, progress=progress)


def _visit(
    problem: SettledProblem, taps: Tapped, batches: Iterable[Batch]
) -> dict[str, Tensor]:
    blocks = taps.blocks.values()
    zero = torch.zeros((), dtype=torch.float64, device=problem.device)
    # Of each layer the sum of squared inputs, (m,), and how many positions it is over.
    squares = {b.layer.name: zero.new_zeros(b.column_count) for b in blocks}
    counts = dict.fromkeys(squares, 0)
    with torch.no_grad():
        for number, batch in enumerate(batches, 1):
            with problem.reading(batch, number):
                trace = taps.run(batch)
                for name in filter(trace.runs, squares):
                    unpadded = trace.unpadded(name)
                    x = trace.inputs(name) * unpadded[..., None]
                    squares[name] += x.square().sum((0, 1)).double()
                    counts[name] += int(unpadded.sum())
                # The next pass must not find these activations alive.
                del trace
                require_finite_sums(squares.values())
    scores = {}
    for block in blocks:
        name = block.layer.name
        root_mean = (squares[name] / max(counts[name], 1)).sqrt()
        scores[name] = (_grid(problem.model, block) * root_mean).abs().flatten()
    return scores


def _grid(model: nn.Module, block: LayerBlock) -> Tensor:
    """W with the bias before its first column, (n, 1 + m), in fp64."""
    matrix = block.layer.matrix(model)
    if block.layer.bias is not None:
        bias = gather_tensor(model.get_parameter(block.layer.bias)).detach()
        matrix = torch.cat([bias[:, None], matrix], 1)
    return matrix.double()
