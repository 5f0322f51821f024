"""The slow side of a verification of Kronecker factors: G and A by their definition.

Every output of every example is back-propagated separately, down to a zero that is added to
each layer's outputs, and sums run over one output row at a time (DESIGN 4.2). Nothing is shared
with taps and accumulators, so a mistake in them shows. The model runs in its own type: whether a
position is reached at all may depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from smidgen.outputs.problem import SettledProblem
from smidgen.runtime.guard import preserve_random_state
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock


@dataclass(eq=False)
class _Runs:
    """All runs of a layer in one forward pass: chosen inputs and the zeros that were added."""

    convolved: bool
    inputs: list[Tensor] = field(default_factory=list)
    zeros: list[Tensor] = field(default_factory=list)


@dataclass(eq=False)
class _Sums:
    rows: Tensor
    columns: Tensor
    count: int = 0


def exact_factors(
    problem: SettledProblem,
    batches: Iterable[Batch],
    blocks: Sequence[LayerBlock],
    approximation: str,
    hessians: Callable[[Tensor], Tensor],
) -> dict[str, Tensor]:
    """Compute G ⊗ A of each block, (D, D) in fp64 on the CPU; `hessians` of outputs (R, C)."""
    sums = {
        block.layer.name: _Sums(
            torch.zeros(block.row_count, block.row_count, dtype=torch.float64),
            torch.zeros(block.column_count, block.column_count, dtype=torch.float64),
        )
        for block in blocks
    }
    problem = problem.on_shadow()
    with preserve_random_state(problem.model), torch.enable_grad():
        runs: dict[str, _Runs] = {}
        for block in blocks:
            for path in block.layer.modules:
                module = problem.model.get_submodule(path)
                module.register_forward_hook(_watch(block, runs), with_kwargs=True)
        for batch in batches:
            runs.clear()
            outputs = problem.outputs(batch)
            examples, rows = len(outputs), outputs.flatten(0, -2)
            _, kept = problem.read(batch, rows.detach())
            mask = problem.mask(batch)
            all_hessians = hessians(rows.detach())
            for row in kept.nonzero().flatten().tolist():
                example = row * examples // len(rows)
                deltas = _differentiate(rows[row], runs, example, examples)
                padding = None if mask is None else mask[example].cpu()
                for block in (block for block in blocks if block.layer.name in deltas):
                    name = block.layer.name
                    x = _of_example(runs[name].inputs, example, examples)
                    whole, hessian = deltas[name], all_hessians[row]
                    counted = _find_reached(whole, hessian)
                    if len(rows) == examples:
                        counted = _find_unpadded(runs[name].inputs, examples, padding)
                    delta = whole[..., block.rows]
                    if block.bias:
                        x = torch.cat([torch.ones(len(x), 1, dtype=x.dtype), x], 1)
                    _add(sums[name], x[counted], delta, hessian, approximation)
    return {
        name: torch.kron(total.rows, total.columns / max(1, total.count))
        for name, total in sums.items()
    }


def _add(
    sums: _Sums, x: Tensor, delta: Tensor, hessian: Tensor, approximation: str
) -> None:
    """Add one output row: x (T', m) of the positions that count, δ (C, T, n) of all."""
    if approximation == "reduce":
        x = x.mean(0, keepdim=True) if len(x) else x
        delta = delta.sum(1, keepdim=True)
    sums.count += len(x)
    sums.columns += x.T @ x
    sums.rows += torch.einsum("ctn,cd,dtm->nm", delta, hessian, delta)


def _find_reached(delta: Tensor, hessian: Tensor) -> Tensor:
    """Find the positions (T,) that an output depends on: of tokens, only their inputs count."""
    # No difference is taken, so that nothing cancels: |Λ| |δ|, over the whole width.
    return torch.einsum("cd,dtn->t", hessian.abs(), delta.abs()) > 0


def _find_unpadded(
    inputs: Sequence[Tensor], examples: int, padding: Tensor | None
) -> Tensor:
    """Find the positions (T,) of an example that are not padding, over a layer's runs."""
    pieces = []
    for each in inputs:
        counted = torch.ones(each.shape[:-1].numel() // examples, dtype=torch.bool)
        if padding is not None and padding.shape == counted.shape:
            counted = padding
        pieces.append(counted)
    return torch.cat(pieces)


def _differentiate(
    outputs: Tensor, runs: Mapping[str, _Runs], example: int, examples: int
) -> dict[str, Tensor]:
    """δ (C, T, n) of one row of outputs (C,), at the positions of its own example."""
    zeros = [zero for each in runs.values() for zero in each.zeros]
    pieces: dict[str, list[Tensor]] = {name: [] for name in runs}
    for output in outputs:
        found: Sequence[Tensor] = [torch.zeros_like(zero) for zero in zeros]
        if output.requires_grad:
            found = torch.autograd.grad(
                output, zeros, retain_graph=True, materialize_grads=True
            )
        remaining = iter(found)
        for name, each in runs.items():
            own = [next(remaining) for _ in each.zeros]
            if each.convolved:
                own = [_channels_last(gradient) for gradient in own]
            pieces[name].append(_of_example(own, example, examples))
    return {name: torch.stack(each) for name, each in pieces.items()}


def _of_example(pieces: Sequence[Tensor], example: int, examples: int) -> Tensor:
    """Join the positions of one example over a layer's runs, (T, ·) in fp64 on the CPU."""
    joined = [piece.reshape(examples, -1, piece.shape[-1])[example] for piece in pieces]
    return torch.cat(joined).detach().double().cpu()


def _watch(block: LayerBlock, runs: dict[str, _Runs]) -> Callable[..., Tensor]:
    """Make a hook that keeps a run's inputs and adds a zero to its outputs."""

    def watch(
        module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], out: Tensor
    ) -> Tensor:
        x = args[0] if args else next(iter(kwargs.values()))
        each = runs.setdefault(block.layer.name, _Runs(bool(block.layer.window)))
        each.inputs.append(_chosen_inputs(module, x.detach(), block.columns.to(x.device)))
        zero = torch.zeros_like(out).detach().requires_grad_()
        each.zeros.append(zero)
        return out + zero

    return watch


def _chosen_inputs(module: nn.Module, x: Tensor, columns: Tensor) -> Tensor:
    """Take the chosen columns of what a layer's matrix is multiplied with, features last."""
    if not isinstance(module, nn.Conv2d):
        return x[..., columns]
    # Convolving with kernels of a single one reads out the patches.
    kernels = torch.eye(module.weight[0].numel(), dtype=x.dtype, device=x.device)[columns]
    shaped = kernels.reshape(len(columns), *module.weight.shape[1:])
    return _channels_last(module._conv_forward(x, shaped, None))


def _channels_last(tensor: Tensor) -> Tensor:
    """Write what a convolution makes, (B, n, H, W), as (B, T, n)."""
    return tensor.flatten(2).mT
