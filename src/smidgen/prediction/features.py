"""Features of a loader: what the output layer is given, one vector for each row of outputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from smidgen.curvature.output_layers import see_output_layers
from smidgen.curvature.taps import Trace, tapped
from smidgen.errors import StructureError
from smidgen.outputs.batches import Unread, as_batches
from smidgen.outputs.problem import Problem, as_problem
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.progress import track
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock, find_blocks


def point_features(
    model: nn.Module | Problem, batches: Iterable[Batch], *, progress: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Compute what the output layer of a model is given for all batches, and collect targets.

    A layer that sees several positions of an example and has one output for it, as a
    convolution or a classifier of tokens that are averaged after it, gives their mean without
    padding. Layers side by side give their inputs one after the other.

    Args:
        model: The model, or its `Problem`. It is left as it was.
        batches: Any iterable of batches, read once.
        progress: Show a progress bar.

    Returns:
        Features (N, d) in fp64, one row for each row of `point_outputs`, and targets, or None
        if a batch has none; on the CPU. `smidgen.decide.FeatureDistance` takes both.

    Raises:
        StructureError: If no layer is seen to make the outputs.
    """
    problem = as_problem(model)
    batches = as_batches(batches)
    with preserve_random_state(problem.model):
        settled, first, all_batches = problem.settle(batches)
        covered = see_output_layers(settled, first)
        last = covered.last()
        if last is None:
            raise StructureError(
                f"features cannot be found: {covered.without_output_layer}. Use a score that "
                "needs none, as 'logit_variance'."
            )
        blocks = find_blocks(problem.model, last)
        features, targets = [], []
        unlabelled = replace(settled, targets=Unread(settled.targets))
        with tapped(unlabelled, blocks) as taps, torch.no_grad():
            tracked = track(all_batches, "predicting", show=progress)
            for number, batch in enumerate(tracked, 1):
                with taps.problem.reading(batch, number):
                    trace = taps.run(batch)
                    features.append(_join_layers(trace, blocks).double().cpu())
                found = settled.targets(batch)
                if found is not None:
                    rows = found.flatten(0, 1) if trace.slots > 1 else found
                    targets.append(rows.cpu())
    known = len(targets) == len(features)
    return torch.cat(features), torch.cat(targets) if known else None


def _join_layers(trace: Trace, blocks: Iterable[LayerBlock]) -> Tensor:
    """Take the inputs of the layers that ran, (R, d), without the bias's column of ones."""
    rows = []
    for block in blocks:
        name = block.layer.name
        inputs = trace.inputs(name)[..., int(block.bias) :]  # (B, T, m)
        if trace.slots > 1 and inputs.shape[1] == trace.slots:
            rows.append(inputs.flatten(0, 1))
            continue
        counted = trace.unpadded(name)[..., None].to(inputs)
        mean = (inputs * counted).sum(1) / counted.sum(1).clamp_min(1)
        rows.append(mean.repeat_interleave(trace.slots, 0))
    return torch.cat(rows, -1)
