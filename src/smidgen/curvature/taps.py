"""Taps: see the chosen inputs and output gradients of affine maps (DESIGN 4.1).

For a = W x + b a tap keeps the chosen columns of x in the forward pass and the chosen
rows of δ = ∂s/∂a in the backward pass of a scalar s, and drops the rest at once, so all
that follows costs as much as the subset. Only activations carry gradients.

Padding is masked where positions are averaged, in the factor of the inputs. δ needs no
mask: where padding is honoured δ is zero there, and where it is not, a mask would make the
Jacobian wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from smidgen.affine import MapBlock
from smidgen.errors import DataError
from smidgen.guard import untouched
from smidgen.problem import Problem
from smidgen.types import Batch


@dataclass(eq=False)
class _Use:
    """One run of a map: its inputs, and its output gradient once that has arrived."""

    inputs: Tensor
    delta: Tensor | None = None


@dataclass(eq=False)
class Trace:
    """One forward pass with its taps, ready for backward passes.

    `outputs` are (B, C), `targets` as the batch has them or None, `kept` the rows (B,)
    that have a target. Use `inputs` and `deltas`.
    """

    outputs: Tensor
    targets: Tensor | None
    kept: Tensor
    _mask: Tensor | None
    _uses: Mapping[str, Sequence[_Use]]
    _roots: Sequence[Tensor]
    _blocks: Mapping[str, MapBlock]

    def inputs(self, name: str, *, masked: bool = False) -> Tensor:
        """Collect the chosen columns of all inputs of a map.

        Args:
            name: The map.
            masked: Set padded positions to zero.

        Returns:
            Inputs (B, T, m). With a bias, a column of ones comes first. Several uses of
            one map are further positions.
        """
        block = self._blocks[name]
        pieces = []
        for use in self._uses[name]:
            x = self._by_position(use.inputs, name)
            if block.bias:
                x = torch.cat([x.new_ones(*x.shape[:2], 1), x], -1)
            pieces.append(self._masked(x) if masked else x)
        return _joined(pieces)

    def lengths(self, name: str) -> Tensor:
        """How many positions of each row of a map are not padding, (B,)."""
        total = torch.zeros(len(self.outputs), device=self.outputs.device)
        for use in self._uses[name]:
            positions = self._by_position(use.inputs, name).shape[1]
            if self._mask is not None and self._mask.shape[1] == positions:
                total += self._mask.sum(1)
            else:
                total += positions
        return total

    def runs(self, name: str) -> bool:
        """Whether the map ran at all in this pass."""
        return bool(self._uses[name])

    def without(self, names: Collection[str]) -> Trace:
        """Forget some maps."""
        kept = {name: uses for name, uses in self._uses.items() if name not in names}
        return replace(self, _uses=kept)

    def deltas(self, direction: Tensor, *, more: bool = False) -> dict[str, Tensor]:
        """Back-propagate s = Σ direction · outputs.

        Args:
            direction: Weights of the outputs, (B, C).
            more: Keep the graph for a further backward pass.

        Returns:
            Chosen rows of δ for each map that ran: (B, T, n). They are zero where the
            outputs do not depend on the map, as at padded positions.
        """
        for uses in self._uses.values():
            for use in uses:
                use.delta = None
        if self.outputs.requires_grad:
            scalar = (direction * self.outputs).sum()
            torch.autograd.grad(scalar, self._roots, retain_graph=more, allow_unused=True)
        return {
            name: _joined([self._delta(use, name) for use in uses])
            for name, uses in self._uses.items()
            if uses
        }

    def _delta(self, use: _Use, name: str) -> Tensor:
        if use.delta is not None:
            return self._by_position(use.delta, name)
        x = self._by_position(use.inputs, name)
        return x.new_zeros(*x.shape[:2], self._blocks[name].row_count)

    def _by_position(self, tensor: Tensor, name: str) -> Tensor:
        """Write (B, ..., d) or (B·T, d) as (B, T, d)."""
        batch, first = len(self.outputs), tensor.shape[0]
        if first != batch and (tensor.dim() > 2 or first % batch):
            raise DataError(
                f"the map {name!r} saw inputs of shape {tuple(tensor.shape)} in a batch of "
                f"{batch}: they cannot be told apart by example. Put the batch axis first, "
                "or choose other modules."
            )
        # Spelled out, not -1: a block of the bias alone has no column at all.
        positions = tensor.shape[:-1].numel() // batch
        return tensor.reshape(batch, positions, tensor.shape[-1])

    def _masked(self, tensor: Tensor) -> Tensor:
        mask = self._mask
        if mask is None or mask.shape[1] != tensor.shape[1]:
            return tensor
        return tensor * mask[:, :, None].to(tensor.dtype)


def _joined(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)


@dataclass(eq=False)
class Tapped:
    """A problem whose chosen maps are tapped; `run` it batch by batch."""

    problem: Problem
    blocks: Mapping[str, MapBlock]
    _uses: dict[str, list[_Use]] = field(default_factory=dict)
    _roots: list[Tensor] = field(default_factory=list)

    def run(self, batch: Batch) -> Trace:
        """Run the forward pass of one batch.

        Args:
            batch: The batch.

        Returns:
            What the taps saw.

        Raises:
            DataError: If the batch is empty, or its targets do not fit.
        """
        self._uses = {name: [] for name in self.blocks}
        self._roots = []
        outputs = self.problem.outputs(batch)
        if not len(outputs):
            raise DataError("a batch holds no example. Leave empty batches out.")
        targets, kept = self.problem.read(batch, outputs.detach())
        mask = self.problem.mask(batch)
        if mask is not None:
            mask = None if mask.all() else mask.to(outputs.device)
        return Trace(outputs, targets, kept, mask, self._uses, self._roots, self.blocks)

    def _tap(self, name: str, module: nn.Module) -> RemovableHandle:
        block = self.blocks[name]
        columns = _index(block.columns, block.map.inputs, self.problem.device)
        rows = _index(block.rows, block.map.outputs, self.problem.device)

        def see(
            _: nn.Module,
            args: tuple[Tensor, ...],
            kwargs: dict[str, Tensor],
            out: Tensor,
        ) -> Tensor:
            x = args[0] if args else next(iter(kwargs.values()))
            use = _Use(_chosen(x.detach(), columns))
            self._uses[name].append(use)
            if not torch.is_grad_enabled():
                # The model cuts the graph here itself: its outputs do not depend on
                # this map as far as a derivative goes.
                return out
            if not out.requires_grad:
                # Lowest tap of its path: the graph starts here. The clone lets the
                # model change its activation in place, which a leaf forbids.
                root = out.detach().requires_grad_()
                self._roots.append(root)
                out = root.clone()

            def receive(gradient: Tensor) -> None:
                use.delta = _chosen(gradient.detach(), rows)

            out.register_hook(receive)
            return out

        return module.register_forward_hook(see, with_kwargs=True)


@contextmanager
def tapped(problem: Problem, blocks: Sequence[MapBlock]) -> Iterator[Tapped]:
    """Tap the maps of some blocks for as long as the context lasts.

    Args:
        problem: The problem, with its likelihood settled.
        blocks: The chosen rows and columns of each map.

    Yields:
        The tapped problem. The model is as before when the context ends.
    """
    taps = Tapped(problem, {block.map.name: block for block in blocks})
    handles: list[RemovableHandle] = []
    with untouched(problem.model), torch.enable_grad():
        try:
            for block in blocks:
                for path in block.map.modules:
                    module = problem.model.get_submodule(path)
                    handles.append(taps._tap(block.map.name, module))
            yield taps
        finally:
            for handle in handles:
                handle.remove()


def _index(indices: Tensor, bound: int, device: torch.device) -> Tensor | None:
    return None if indices.numel() == bound else indices.to(device)


def _chosen(tensor: Tensor, indices: Tensor | None) -> Tensor:
    """Take the chosen last-axis entries, in at least fp32."""
    if indices is not None:
        # On two axes torch selects two to three times as fast as on three.
        flat = tensor.reshape(-1, tensor.shape[-1]).index_select(1, indices)
        tensor = flat.reshape(*tensor.shape[:-1], len(indices))
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
