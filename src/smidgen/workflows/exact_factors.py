"""The slow side of a verification of Kronecker factors: G and A by their definition.

Every output of every example is back-propagated separately, down to a zero that is added to
each layer's outputs, and sums run over one output row at a time (DESIGN 4.2). Nothing is shared
with taps and accumulators, so a mistake in them shows. The model runs in its own type: whether a
position is reached at all may depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from smidgen.outputs.problem import SettledProblem
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.sites.site import Site, find_site
from smidgen.types import Batch
from smidgen.weights.affine import AffineLayer
from smidgen.weights.affine.kinds import LAYER_KINDS
from smidgen.weights.blocks import LayerBlock


@dataclass(eq=False)
class _Runs:
    """All runs of a layer in one forward pass: chosen inputs and the zeros that were added.

    `parts` says of each run which of the rows it was of, None for all; or of each token, (P, k),
    which each of its k positions was of.
    """

    layer: AffineLayer
    inputs: list[Tensor] = field(default_factory=list)
    zeros: list[Tensor] = field(default_factory=list)
    parts: list[int | Tensor | None] = field(default_factory=list)

    def widen(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Write gradients of the zeros with all n rows, last."""
        if LAYER_KINDS[self.layer.kind].patches is not None:
            return [_channels_last(gradient) for gradient in gradients]
        pairs = zip(gradients, self.parts, strict=True)
        return [_fill_rows(each, part, self.layer.outputs) for each, part in pairs]


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
        watched: dict[str, _Runs] = {}
        for block in blocks:
            for path in block.layer.modules:
                site = find_site(problem.model, path)
                site.register_forward_hook(_watch(block, watched), with_kwargs=True)
        for batch in batches:
            watched.clear()
            outputs = problem.outputs(batch)
            # What a backward pass runs again is no further run.
            runs = dict(watched)
            watched.clear()
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
                    counted = counted.repeat_interleave(block.layer.groups)
                    if len(rows) == examples:
                        groups = block.layer.groups
                        counted = _find_unpadded(runs[name], examples, padding, groups)
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
    runs: _Runs, examples: int, padding: Tensor | None, groups: int
) -> Tensor:
    """Find the positions (T · groups,) of an example that are not padding, over all runs."""
    pieces = []
    for each, part in zip(runs.inputs, runs.parts, strict=True):
        counted = torch.ones(
            each.shape[:-1].numel() // (examples * groups), dtype=torch.bool
        )
        # A token's experts are positions side by side.
        beside = part.shape[-1] if isinstance(part, Tensor) else 1
        if padding is not None and len(padding) * beside == len(counted):
            counted = padding[:, None].expand(-1, beside).flatten()
        pieces.append(counted)
    return torch.cat(pieces).repeat_interleave(groups)


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
            pieces[name].append(_of_example(each.widen(own), example, examples))
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
        each = runs.setdefault(block.layer.name, _Runs(block.layer))
        columns = block.columns.to(x.device)
        each.inputs.append(_chosen_inputs(module, x.detach(), columns, out))
        each.parts.append(kwargs.get("part") if isinstance(module, Site) else None)
        zero = torch.zeros_like(out).detach().requires_grad_()
        each.zeros.append(zero)
        return out + zero

    return watch


def _fill_rows(gradient: Tensor, part: int | Tensor | None, rows: int) -> Tensor:
    """Write the gradient (..., w) of a part of the rows among zeros, (..., n)."""
    if part is None:
        return gradient
    parts = rows // gradient.shape[-1]
    where = nn.functional.one_hot(torch.as_tensor(part).flatten(), parts).to(gradient)
    return (where[..., None] * gradient[..., None, :]).flatten(-2)


def _chosen_inputs(module: nn.Module, x: Tensor, columns: Tensor, out: Tensor) -> Tensor:
    """Take the chosen columns of what a layer's matrix is multiplied with, features last."""
    if not isinstance(module, _ConvNd):
        return x[..., columns]
    # An output channel is linear in its kernel: with kernels of a single one it is that entry of
    # the patches. One group after the other, as a place has patches of each.
    single = copy(module)
    single.groups, size = 1, tuple(out.shape[2:])
    vars(single)["_forward_hooks"] = {}
    window = (x.shape[1] // module.groups, *module.kernel_size)
    kernels = torch.eye(prod(window), dtype=x.dtype, device=x.device)[columns]
    kernels = kernels.reshape(len(columns), *window)
    more = {"output_size": size} if module.transposed else {}
    if module.transposed:
        kernels = kernels.transpose(0, 1)
    single._parameters = {"weight": nn.Parameter(kernels), "bias": None}
    groups = x.unflatten(1, (module.groups, -1)).unbind(1)
    patches = [_channels_last(single(group, **more)) for group in groups]
    return torch.stack(patches, 2).flatten(1, 2)  # (B, T · groups, m)


def _channels_last(tensor: Tensor) -> Tensor:
    """Write what a convolution makes, (B, n, ...), as (B, T, n)."""
    return tensor.flatten(2).mT
