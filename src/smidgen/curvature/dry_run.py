"""A rehearsal: one forward pass on tensors that have a shape and no numbers.

It tells what a pass over a batch keeps for its backward pass, and how many positions each
layer sees, before anything is computed and without any weight: on a model's skeleton (meta
tensors) as well as on a loaded one. torch's fake tensors pretend to be on the device of the
real work, so that attention takes the same path. A pass that depends on its numbers cannot be
rehearsed: where there are weights, it is computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map_only

from smidgen.errors import DataError, reason
from smidgen.outputs.problem import Problem
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.sites.site import find_site
from smidgen.runtime.storage.quantised import is_quantised
from smidgen.types import Batch
from smidgen.weights.affine import AffineLayer, coverage
from smidgen.weights.affine.kinds import LAYER_KINDS


@dataclass(frozen=True)
class Kept:
    """Memory that the graph keeps, seen after `turn` runs of layers."""

    turn: int
    memory: int
    bytes: int


@dataclass(frozen=True)
class Run:
    """One run of a layer: its turn, positions for each example, and where its input lies.

    `weights` is n·m, the multiplications at each position.
    """

    turn: int
    layer: str
    weights: int
    positions: int
    memory: int
    bytes: int


@dataclass(frozen=True)
class ActivationTrace:
    """What a pass over one batch of B examples with C outputs would keep.

    `runs` are those of all affine layers in order, `kept` is what autograd keeps from the
    first layer on, `output_numbers` is B·C, or B·T·C with one output for each token.
    """

    examples: int
    outputs: int
    runs: tuple[Run, ...] = ()
    kept: tuple[Kept, ...] = ()
    output_numbers: int = 0

    def graph(self, layers: Collection[str]) -> dict[int, int]:
        """Bytes by memory that the graph keeps above the lowest of some layers."""
        lowest = self._lowest(layers)
        return {kept.memory: kept.bytes for kept in self.kept if kept.turn >= lowest}

    def work(self, layers: Collection[str], backward: int) -> int:
        """Multiplications of a forward pass and of backward passes down to some layers."""
        lowest = self._lowest(layers)
        return sum(
            self.examples
            * run.positions
            * run.weights
            * (1 + backward * (run.turn > lowest))
            for run in self.runs
        )

    def _lowest(self, layers: Collection[str]) -> int:
        turns = (run.turn for run in self.runs if run.layer in layers)
        return min(turns, default=len(self.runs))

    def positions(self, name: str) -> int:
        """Positions of a layer for each example, over all its runs; T."""
        return sum(run.positions for run in self.runs if run.layer == name)

    def inputs(self, name: str) -> dict[int, int]:
        """Bytes by memory of a layer's inputs at full width."""
        return {run.memory: run.bytes for run in self.runs if run.layer == name}


@dataclass(eq=False)
class _Notes:
    """Notes taken while the pass runs; storages are held so that their ids stay unique."""

    weights: set[int]
    runs: list[Run] = field(default_factory=list)
    kept: dict[int, Kept] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)

    def memory(self, tensor: Tensor) -> tuple[int, int]:
        storage = tensor.untyped_storage()
        self.held.append(storage)
        return storage._cdata, storage.nbytes()

    def keep(self, tensor: Tensor) -> Tensor:
        memory, size = self.memory(tensor)
        if memory not in self.weights:
            self.kept.setdefault(memory, Kept(len(self.runs) - 1, memory, size))
        return tensor


def dry_run(problem: Problem, batch: Batch) -> ActivationTrace:
    """Follow one forward pass, if it can be without computing it; weights may be meta tensors."""
    shadowed = problem.on_shadow()
    try:
        with pretending():
            return _follow(shadowed, batch, pretend)
    except Exception as error:
        if any(p.is_meta for p in problem.model.parameters()):
            raise DataError(
                f"a pass of {type(problem.model).__name__} cannot be rehearsed without its "
                f"numbers ({type(error).__name__}: {reason(error)})."
            ) from error
    try:
        # On a shadow of its own: what failed may have left tensors without numbers.
        return _follow(problem.on_shadow(), batch, lambda tensor: tensor.detach())
    except Exception as error:
        raise DataError(
            f"a pass of {type(problem.model).__name__} over this batch fails "
            f"({type(error).__name__}: {reason(error)})."
        ) from error


@contextmanager
def pretending() -> Iterator[None]:
    """Compute shapes alone, and keep torch's log of what needs numbers to ourselves."""

    def hide(_: logging.LogRecord) -> bool:
        return False

    log = logging.getLogger(FakeTensorMode.__module__)
    log.addFilter(hide)
    try:
        # Weights that stay as they are, such as packed ones, count by their shapes.
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        log.removeFilter(hide)


def _follow(
    problem: Problem, batch: Batch, show: Callable[[Tensor], Tensor]
) -> ActivationTrace:
    """Run the pass of a shadow on what is shown of each tensor, and note what happens."""
    model = problem.model
    with preserve_random_state(model), torch.enable_grad():
        tensors = show_weights(model, show)
        weights = (tensors[n] for n, _ in model.named_parameters() if n in tensors)
        notes = _Notes({t.untyped_storage()._cdata for t in weights})
        packing = saved_tensors_hooks(notes.keep, lambda kept: kept)
        with _note_runs(model, notes), packing:
            outputs = problem.outputs(tree_map_only(Tensor, show, batch), tensors)
    examples = len(outputs)
    runs = tuple(replace(run, positions=run.positions // examples) for run in notes.runs)
    kept = tuple(notes.kept.values())
    return ActivationTrace(examples, outputs.shape[-1], runs, kept, outputs.numel())


@contextmanager
def _note_runs(model: nn.Module, notes: _Notes) -> Iterator[None]:
    """Write down the runs of all affine layers, and start the graph at the lowest."""
    handles = []
    try:
        for layer in coverage(model).layers:
            for path in layer.modules:
                see, site = partial(_see, notes, layer), find_site(model, path)
                handles.append(site.register_forward_hook(see, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _see(
    notes: _Notes,
    layer: AffineLayer,
    _: nn.Module,
    args: tuple[Tensor, ...],
    kwargs: dict[str, Tensor],
    out: Tensor,
) -> Tensor:
    x = args[0] if args else next(iter(kwargs.values()))
    memory, size = notes.memory(x)
    rows = layer.outputs
    if LAYER_KINDS[layer.kind].patches is None:
        # A site may run a part of its rows.
        rows = out.shape[-1]
    positions = out.numel() // rows
    if LAYER_KINDS[layer.kind].patches is not None:
        # Patches are copied out of the image.
        copied = positions * layer.groups * layer.inputs * x.itemsize
        memory, size = -len(notes.runs) - 1, copied
    turn = len(notes.runs)
    notes.runs.append(Run(turn, layer.name, rows * layer.inputs, positions, memory, size))
    if torch.is_grad_enabled() and not out.requires_grad:
        return out.detach().requires_grad_().clone()
    return out


def show_weights(
    model: nn.Module, show: Callable[[Tensor], Tensor] | None = None
) -> dict[str, Tensor]:
    """Show all weights and buffers but packed ones, by default without their numbers."""
    show = show or pretend
    weights = {n: show(p) for n, p in model.named_parameters() if not is_quantised(p)}
    return weights | {n: show(b) for n, b in model.named_buffers()}


def pretend(tensor: Tensor) -> Tensor:
    """Make a tensor of the same shape, type and device; meta tensors go to the CPU."""
    device = "cpu" if tensor.is_meta else tensor.device
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
