"""Which layers make the outputs: seen in a forward pass, not guessed from the modules' order.

The output of every affine layer is cut and made a root of its own. The output layers are those
whose root the model's outputs depend on directly, with no other affine layer in between; there
may be several, side by side. Where a module is reached that holds a matrix and is no affine
layer, an output layer tied to the embeddings say, there is no output layer to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from inspect import signature
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from smidgen.curvature.dry_run import pretend, pretending, show_weights
from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.batches import as_batches, take_few
from smidgen.outputs.problem import Problem
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.sites.site import find_site
from smidgen.runtime.storage.offload import is_offloaded, read_offloaded
from smidgen.runtime.storage.quantised import is_quantised
from smidgen.types import Batch
from smidgen.weights.affine import Coverage, coverage, find_opaque
from smidgen.weights.head import Head, find_head
from smidgen.weights.subset import Subset, Whole

# As many examples as tell one from another: connections do not depend on how many there are.
_Tensors = dict[str, Tensor]
_Pass = Callable[[Problem, _Tensors], tuple[Tensor, _Tensors]]
"""Runs a problem with some matrices in which gradients are asked for; returns those."""
_NOTHING = "no affine layer is seen to reach the outputs"


def see_output_layers(problem: Problem, batch: Batch) -> Coverage:
    """Cover a model, with the output layers that a pass over a few examples shows."""
    few = take_few(batch)
    try:
        return _see(problem, _passing(few))
    except Exception:
        if few is batch:
            raise
        # What looked like the examples' axis was another.
        return _see(problem, _passing(batch))


def guess_output_layers(problem: Problem, batch: Batch = None) -> Coverage:
    """Cover a model, its output layers seen in a rehearsal if there can be one, else guessed."""
    # Rehearsed on tensors without numbers, on the batch or on a Hugging Face model's own
    # inputs: that costs nothing, and nothing can be out of bounds.
    for inputs in (batch, _make_dummy(problem.model)):
        if inputs is not None:
            try:
                return _see(problem, _rehearsal(inputs))
            except Exception:  # noqa: S112
                # A model for other inputs, or a pass that depends on the numbers.
                continue
    return coverage(problem.model)


def find_output_layers(problem: Problem, batches: Iterable[Batch] | None) -> Coverage:
    """Cover a model, its output layers seen on the first batch, or guessed without any."""
    if batches is None:
        return guess_output_layers(problem)
    with preserve_random_state(problem.model):
        # Around the loader too, which may draw from torch's own generator.
        first = first_batch(batches)
    return see_output_layers(problem, first)


def first_batch(batches: Iterable[Batch]) -> Batch:
    """Take the first batch, to be read again by whoever reads them all."""
    if isinstance(batches, (Tensor, Mapping, Iterator)):
        raise ArgumentError(
            f"batches must be a list or a data loader, got {type(batches).__name__}. Put a "
            "single batch into a list."
        )
    for batch in as_batches(batches):
        return batch
    raise DataError("batches must hold at least one batch, got none. Check the dataset.")


def peek(batches: Iterable[Batch]) -> tuple[Batch, Iterable[Batch]]:
    """Take the first batch; return it, and batches that still have it."""
    if not isinstance(batches, Iterator):
        return first_batch(batches), batches
    first = first_batch(list(islice(batches, 1)))
    return first, chain([first], batches)


def name_head(problem: Problem, batch: Batch, head: Head) -> Head:
    """Name the parameters of the "last" layers, as a pass shows them; return other heads."""
    if head != "last":
        return head
    return tuple(find_head(problem.model, head, see_output_layers(problem, batch)))


def check_last_layer(problem: Problem, batch: Batch, subset: Subset) -> None:
    """Refuse a subset that claims to be the last layer and lacks one that makes outputs."""
    covered = see_output_layers(problem, batch)
    whole = {name for name, part in subset.parts.items() if isinstance(part, Whole)}
    missing = [x.name for x in covered.output_layers if not x.shapes.keys() <= whole]
    if missing:
        raise ArgumentError(
            "subset must hold the layers that make the outputs if it is the last layer, got "
            f"one without {' and '.join(map(repr, missing))}. Choose it with "
            "smidgen.select.last_layer(model, batches), which runs a batch to see them."
        )
    # Where nothing is reached at all, the fit itself says what cuts the graph.
    if not covered.output_layers and covered.without_output_layer != _NOTHING:
        raise ArgumentError(
            "subset must hold the layers that make the outputs if it is the last layer, got "
            f"another: {covered.without_output_layer}. Choose it by name, with "
            "smidgen.select.named."
        )


def _see(problem: Problem, run: _Pass) -> Coverage:
    """Run a pass in which every layer's outputs are cut, and see what the outputs reach."""
    covered = coverage(problem.model)
    layers = {path: layer for layer in covered.layers for path in layer.modules}
    opaque = find_opaque(problem.model, covered)
    roots: list[tuple[str, Tensor]] = []
    shadow = problem.on_shadow()
    with preserve_random_state(problem.model), torch.enable_grad():
        for path in (*layers, *opaque):
            find_site(shadow.model, path).register_forward_hook(_cut(path, roots))
        matrices = _find_bare_matrices(shadow.model, {*layers, *opaque}, covered.universe)
        outputs, matrices = run(shadow, matrices)
        roots += matrices.items()
        gradients: tuple[Tensor | None, ...] = ()
        if outputs.requires_grad and roots:
            gradients = torch.autograd.grad(
                outputs.sum(), [root for _, root in roots], allow_unused=True
            )
    pairs = zip(roots, gradients, strict=False)
    reached = {path for (path, _), gradient in pairs if gradient is not None}
    opaque |= dict.fromkeys(matrices, "a matrix that no affine layer holds")
    for path in opaque:
        if path in reached:
            why = f"{path!r} makes the outputs and cannot be chosen ({opaque[path]})"
            return replace(covered, output_layers=(), without_output_layer=why, seen=True)
    found = {layers[path].name for path in reached}
    # A model may use fixed rows beside its head, which makes layers below reach the outputs too.
    found &= set(getattr(problem.model, "smidgen_output_layers", found))
    return replace(
        covered,
        output_layers=tuple(layer for layer in covered.layers if layer.name in found),
        without_output_layer="" if found else _NOTHING,
        seen=True,
    )


def _find_bare_matrices(
    shadow: nn.Module, seen: Collection[str], known: Collection[str]
) -> dict[str, Tensor]:
    """Find the matrices that a forward may use by itself: no hook sees `h @ self.weight.T`."""
    matrices, kept = {}, is_offloaded(shadow)
    for path, module in shadow.named_modules():
        if isinstance(module, nn.Embedding):
            # What it looks up is no product, and comes by its module.
            module.register_forward_hook(_cut(path, []))
        if path not in seen:
            for name, value in module._parameters.items():
                full = f"{path}.{name}".lstrip(".")
                bare = value is not None and full not in known
                if bare and value.dim() > 1 and not is_quantised(value):
                    # Of a skeleton nothing is kept anywhere.
                    matrices[full] = read_offloaded(shadow, full, value) if kept else value
    return matrices


def _cut(path: str, roots: list[tuple[str, Tensor]]) -> Callable[..., Any]:
    def cut(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or not torch.is_grad_enabled():
            return tensor
        root = tensor.detach().requires_grad_()
        roots.append((path, root))
        # The clone may be changed in place, which a leaf forbids.
        return root.clone()

    return lambda _, args, out: tree_map_only(Tensor, cut, out)


def _passing(batch: Batch) -> _Pass:
    def run(shadow: Problem, matrices: _Tensors) -> tuple[Tensor, _Tensors]:
        matrices = {n: value.detach().requires_grad_() for n, value in matrices.items()}
        return shadow.outputs(batch, matrices), matrices

    return run


def _rehearsal(batch: Batch) -> _Pass:
    def run(shadow: Problem, matrices: _Tensors) -> tuple[Tensor, _Tensors]:
        with pretending():
            tensors = show_weights(shadow.model)
            bare = {n: pretend(value).requires_grad_() for n, value in matrices.items()}
            shown = tree_map_only(Tensor, pretend, batch)
            return shadow.outputs(shown, tensors | bare), bare

    return run


def _make_dummy(model: nn.Module) -> Batch:
    """Take one row of a Hugging Face model's own inputs, if it has any."""
    try:
        own = {name: value[:1] for name, value in model.dummy_inputs.items()}  # type: ignore[operator,union-attr]
        if "attention_mask" in signature(model.forward).parameters:
            own.setdefault("attention_mask", torch.ones_like(own["input_ids"]))
    except (AttributeError, KeyError, NotImplementedError, TypeError, ValueError):
        return None
    return own
