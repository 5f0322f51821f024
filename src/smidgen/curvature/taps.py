"""Taps: see the chosen inputs and output gradients of affine layers (DESIGN 4.1).

For a = W x + b a tap keeps the chosen columns of x in the forward pass and the chosen
rows of δ = ∂s/∂a in the backward pass of a scalar s, and drops the rest at once, so all
that follows costs as much as the subset. Only activations carry gradients.

Padding is masked where positions are averaged, in the factor of the inputs. δ needs no
mask: where padding is honoured δ is zero there, and where it is not, a mask would make the
Jacobian wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from smidgen.curvature.graph_start import (
    GraphStart,
    explain_reentrant,
    refuse_reentrant,
)
from smidgen.curvature.grouped_jacobian import GroupedJacobian
from smidgen.curvature.jacobian import Jacobian, hook_gradient
from smidgen.curvature.sides import Sides, take_columns
from smidgen.errors import DataError
from smidgen.outputs.batches import require_examples
from smidgen.outputs.likelihood import Likelihood
from smidgen.outputs.problem import Problem, SettledProblem
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.sites.site import Site, find_site
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock


@dataclass(eq=False)
class _Use:
    """One run of a layer: its inputs, and its output gradient once that has arrived.

    `reached` says at which positions the whole gradient, chosen rows or not, was not zero in
    any of the backward passes that count together. A token has `repeats` positions, one after
    the other: one for each of its experts.
    """

    inputs: Tensor
    repeats: int = 1
    delta: Tensor | None = None
    reached: Tensor | None = None
    # Of a layer whose output starts the graph: that output, weakly, lest it and its hook hold one
    # another; how often it was written to; and its chosen rows.
    root: tuple[ref[Tensor], int, Tensor | None] | None = None


@dataclass(eq=False)
class Trace:
    """One forward pass with its taps, ready for backward passes.

    `outputs` are (R, C), `targets` as the batch has them or None, `kept` the rows (R,)
    that have a target. An example has `slots` rows: one, or one for each token.
    """

    outputs: Tensor
    targets: Tensor | None
    kept: Tensor
    slots: int
    _mask: Tensor | None
    _uses: Mapping[str, Sequence[_Use]]
    _roots: Sequence[Tensor]
    _blocks: Mapping[str, LayerBlock]
    _grams: dict[Hashable, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def examples(self) -> int:
        """How many examples the batch has: B."""
        return len(self.outputs) // self.slots

    def inputs(self, name: str) -> Tensor:
        """Collect the chosen columns of all inputs of a layer: (B, T, m)."""
        # With a bias, a column of ones comes first. In groups every place has inputs of each.
        x, groups = self._features(name), self._blocks[name].layer.groups
        if groups > 1:
            x = x.unflatten(-1, (groups, x.shape[-1] // groups)).flatten(1, 2)
        if not self._blocks[name].bias:
            return x
        return torch.cat([x.new_ones(*x.shape[:2], 1), x], -1)

    def _features(self, name: str) -> Tensor:
        """The same without a column of ones; further uses of a layer are further positions."""
        pieces = [self._by_position(use.inputs, name) for use in self._uses[name]]
        return _join_uses(pieces)

    def used(self, name: str) -> Tensor | None:
        """Which positions (B, T) of a layer's inputs count, or None if all do."""
        # With one output for each example, those that are not padding of examples with a target.
        # With several, those that the outputs of the last backward passes depend on, joined, so
        # that a position without a label counts nowhere.
        if self.slots > 1:
            reached = _join_uses([self._reached(use, name) for use in self._uses[name]])
            return reached.repeat_interleave(self._blocks[name].layer.groups, 1)
        if self._mask is None and self.kept.all():
            return None
        return self.unpadded(name) & self.kept[:, None]

    def _reached(self, use: _Use, name: str) -> Tensor:
        if use.reached is not None:
            return self._by_position(use.reached[..., None], name)[..., 0]
        x = self._by_position(use.inputs, name)
        return torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)

    def unpadded(self, name: str) -> Tensor:
        """Which positions (B, T) of a layer's inputs are not padding, labelled or not."""
        masks = []
        for use in self._uses[name]:
            everywhere = self.kept.new_ones(self._by_position(use.inputs, name).shape[:2])
            mask = everywhere
            if self._mask is not None:
                mask = self._mask.repeat_interleave(use.repeats, 1)
            masks.append(mask if mask.shape == everywhere.shape else everywhere)
        return _join_uses(masks).repeat_interleave(self._blocks[name].layer.groups, 1)

    def by_slot(self, columns: Tensor) -> tuple[int, Iterator[Tensor]]:
        """Split columns (K, R, C) into parts with one output an example; also count them."""
        # Parts that are all zero are left out. Each is made when asked for: it is as large as
        # the columns.
        if self.slots == 1:
            return 1, iter([columns])
        rows = columns.any(-1).any(0)  # (R,)
        used = rows.reshape(-1, self.slots).any(0).nonzero().flatten().tolist()
        slot_of_row = torch.arange(len(rows), device=columns.device) % self.slots
        return len(used), (columns * (slot_of_row == slot)[:, None] for slot in used)

    def jacobian(self, name: str, deltas: Tensor) -> Jacobian:
        """Join a layer's δ (..., B, T, n) with its inputs."""
        block = self._blocks[name]
        moved = None if block.entries is None else block.entries.to(deltas.device)
        # Features that are joined of several uses are new ones in every call.
        grams = self._grams if len(self._uses[name]) == 1 else {}
        features, layer = self._features(name), block.layer
        if layer.groups == 1:
            return Jacobian(deltas, features, block.bias, moved, grams)
        features = features.unflatten(-1, (layer.groups, len(block.columns)))
        groups = (block.rows // (layer.outputs // layer.groups)).to(deltas.device)
        return GroupedJacobian(deltas, features, block.bias, moved, groups=groups)

    def without_runs(self, name: str, shape: tuple[int, ...]) -> Jacobian:
        """Make the zero Jacobian of a layer that did not run, with leading axes `shape`."""
        block = self._blocks[name]
        deltas = self.outputs.new_zeros(*shape, 1, block.row_count)
        features = self.outputs.new_zeros(shape[-1], 1, len(block.columns))
        return Jacobian(deltas, features, block.bias, block.entries)

    def runs(self, name: str) -> bool:
        """Whether the layer ran at all in this pass."""
        return bool(self._uses[name])

    def without(self, names: Collection[str]) -> Trace:
        """Leave some layers out."""
        remaining = {name: uses for name, uses in self._uses.items() if name not in names}
        return replace(self, _uses=remaining)

    def deltas(
        self, direction: Tensor, *, more: bool = False, joined: bool = False
    ) -> dict[str, Tensor]:
        """Back-propagate s = Σ direction · outputs to chosen rows of δ, (B, T, n), by layer."""
        # direction: (R, C). δ is zero where the outputs do not depend on the layer, as at padded
        # positions. `more` keeps the graph for a further backward pass; `joined` counts the
        # positions that the passes before reached as `used` too.
        for uses in self._uses.values():
            for use in uses:
                use.delta = None
                use.reached = use.reached if joined else None
        if self.outputs.requires_grad:
            scalar = (direction * self.outputs).sum()
            with explain_reentrant():
                torch.autograd.grad(
                    scalar, self._roots, retain_graph=more, allow_unused=True
                )
        return {
            name: _join_uses([self._delta(use, name) for use in uses])
            for name, uses in self._uses.items()
            if uses
        }

    def all_deltas(self, directions: Tensor, *, more: bool = False) -> dict[str, Tensor]:
        """Back-propagate several directions (K, R, C): chosen rows of δ, (K, B, T, n), by layer."""
        if (outermost := self._find_output_layer()) is not None:
            name, rows = outermost
            return {name: take_columns(directions, rows)[:, :, None]}
        last = len(directions) - 1
        pieces = [self.deltas(d, more=more or k < last) for k, d in enumerate(directions)]
        if not last:
            # No copy of them all.
            return {name: delta[None] for name, delta in pieces[0].items()}
        return {name: torch.stack([piece[name] for piece in pieces]) for name in pieces[0]}

    def _find_output_layer(self) -> tuple[str, Tensor | None] | None:
        """Find the one layer that ran, and its rows, if δ is the direction itself."""
        uses = [(name, use) for name, used in self._uses.items() for use in used]
        if len(uses) != 1 or self.slots > 1:
            return None
        name, use = uses[0]
        if use.root is None or self.outputs is not use.root[0]():
            return None
        _, version, rows = use.root
        # Nothing was done to it since, and no hook but ours sees its gradient.
        hooks = self.outputs._backward_hooks or ()
        return (
            (name, rows) if self.outputs._version == version and len(hooks) == 1 else None
        )

    def _delta(self, use: _Use, name: str) -> Tensor:
        if use.delta is not None:
            return self._by_position(use.delta, name)
        x = self._by_position(use.inputs, name)
        return x.new_zeros(*x.shape[:2], self._blocks[name].row_count)

    def _by_position(self, tensor: Tensor, name: str) -> Tensor:
        """Write (B, ..., d) or (B·T, d) as (B, T, d)."""
        batch, rows = self.examples, tensor.shape[:-1].numel()
        if rows % batch or (tensor.dim() > 2 and tensor.shape[0] != batch):
            raise DataError(
                f"the layer {name!r} saw inputs of shape {tuple(tensor.shape)} in a batch of "
                f"{batch}: they cannot be told apart by example. Put the batch axis first, "
                "or choose other modules."
            )
        # Spelled out, not -1: a block of the bias alone has no column at all.
        return tensor.reshape(batch, rows // batch, tensor.shape[-1])


def _join_uses(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)


@dataclass(eq=False)
class Tapped:
    """A problem whose chosen layers are tapped; `run` it batch by batch."""

    problem: Problem
    blocks: Mapping[str, LayerBlock]
    _uses: dict[str, list[_Use]] = field(default_factory=dict)
    _start: GraphStart = field(default_factory=GraphStart)
    _slots: int = 1
    _checked: bool = False
    _handles: dict[str, list[RemovableHandle]] = field(default_factory=dict)
    _ahead: tuple[Batch, Trace] | None = None

    @property
    def likelihood(self) -> Likelihood:
        """What the outputs mean: inferred from the first batch that was run, unless known."""
        assert self.problem.likelihood is not None
        return self.problem.likelihood

    def run_ahead(self, batch: Batch) -> Trace:
        """Run a batch before its turn: `run` returns the same trace when it is asked for it."""
        trace = self.run(batch)
        self._ahead = batch, trace
        return trace

    def run(self, batch: Batch) -> Trace:
        """Run the forward pass of one batch."""
        if self._ahead is not None and self._ahead[0] is batch:
            (_, trace), self._ahead = self._ahead, None
            return trace
        self._clear()
        outputs = self.problem.outputs(batch)
        self._start.close()
        require_examples(outputs)
        if not isinstance(self.problem, SettledProblem):
            self.problem = self.problem.settle_by(batch, outputs)
        self._require_runs(batch)
        self._require_graph(outputs)
        rows = outputs.flatten(0, -2)
        targets, kept = self.problem.read(batch, rows.detach())
        mask = self.problem.mask(batch)
        mask = None if mask is None or mask.all() else mask.to(outputs.device)
        self._slots = slots = len(rows) // len(outputs)
        roots = self._start.roots
        return Trace(rows, targets, kept, slots, mask, self._uses, roots, self.blocks)

    def _clear(self) -> None:
        self._uses = {name: [] for name in self.blocks}
        self._start = GraphStart()
        self._ahead = None

    def _require_runs(self, batch: Batch) -> None:
        """Refuse a forward that uses chosen weights and does not call their layer."""
        idle = [name for name, uses in self._uses.items() if not uses]
        if self._checked or not idle:
            return
        self._checked = True
        kept = dict(self._uses), self._start
        self._clear()
        names = {name for layer in idle for name in self.blocks[layer].layer.shapes}
        depends = self.problem.depends_on(batch, names)
        self._uses, self._start = kept
        if depends:
            raise DataError(
                "forward must call the layers whose weights were chosen, got one that uses "
                f"weights of {', '.join(map(repr, idle[:3]))} without a call: their curvature "
                "would be zero. Call the layers, or choose others."
            )

    def _require_graph(self, outputs: Tensor) -> None:
        """Refuse a forward that cuts all its graph."""
        ran = [name for name, uses in self._uses.items() if uses]
        # A pass that wants inputs only is run without gradients.
        if torch.is_grad_enabled() and ran and not outputs.requires_grad:
            raise DataError(
                "the outputs must be differentiable in the chosen layers, got outputs "
                f"without a gradient though {', '.join(map(repr, ran[:3]))} ran: all "
                "curvature would be zero. Take .detach() and torch.no_grad() out of the "
                "forward, or pass smidgen.Problem(model, forward=...) without them."
            )

    def drop(self, names: Collection[str]) -> None:
        """Tap some layers no more, and leave them out of the run ahead."""
        self.blocks = {name: b for name, b in self.blocks.items() if name not in names}
        for name in names:
            for handle in self._handles.pop(name):
                handle.remove()
        if self._ahead is not None:
            batch, trace = self._ahead
            self._ahead = batch, trace.without(names)

    def _tap(self, name: str, module: nn.Module) -> None:
        sides = Sides(self.blocks[name], self.problem.device)

        def see(
            _: nn.Module,
            args: tuple[Tensor, ...],
            kwargs: dict[str, Tensor],
            out: Tensor,
        ) -> Tensor:
            if self._start.is_closed:
                # Activations are computed again in a backward pass: no further use.
                return self._start.join(out)[0]
            x = args[0] if args else next(iter(kwargs.values()))
            part = kwargs.get("part") if isinstance(module, Site) else None
            repeats = part.shape[-1] if isinstance(part, Tensor) else 1
            use = _Use(sides.features(module, x.detach(), out), repeats)
            self._uses[name].append(use)
            if not torch.is_grad_enabled():
                # The model cuts the graph here: no derivative reaches this layer.
                refuse_reentrant(name)
                return out
            out, starts = self._start.join(out)
            if starts and part is None:
                use.root = ref(out), out._version, sides.rows

            def receive(gradient: Tensor) -> None:
                gradient = sides.positions_first(gradient.detach())
                if self._slots > 1:
                    reached = (gradient != 0).any(-1)
                    use.reached = reached if use.reached is None else use.reached | reached
                use.delta = sides.deltas(gradient, part)

            hook_gradient(out, receive, lambda: use.delta is None)
            return out

        handle = module.register_forward_hook(see, with_kwargs=True)
        self._handles.setdefault(name, []).append(handle)


@contextmanager
def tapped(problem: Problem, blocks: Sequence[LayerBlock]) -> Iterator[Tapped]:
    """Tap the layers of some blocks on a shadow of the model, for passes in this context."""
    with (
        problem.on_lent_shadow() as shadowed,
        preserve_random_state(problem.model),
        torch.enable_grad(),
    ):
        taps = Tapped(shadowed, {block.layer.name: block for block in blocks})
        for block in blocks:
            for path in block.layer.modules:
                taps._tap(block.layer.name, find_site(shadowed.model, path))
        try:
            yield taps
        finally:
            # Else shadow and hooks would hold one another, and whoever holds the taps what
            # the last run left.
            taps.drop(list(taps.blocks))
            taps._clear()
