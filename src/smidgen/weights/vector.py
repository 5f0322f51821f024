"""The weights a subset chooses, as one flat vector that may move while all others stay.

Every method that moves chosen weights (SWAG, Langevin, sparse fine-tuning) shares this
order: parameters as in the subset's universe, the entries of each ascending.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from smidgen.errors import SubsetError
from smidgen.runtime.keeping.structure import unwrap
from smidgen.runtime.storage.offload import read_offloaded
from smidgen.weights.subset import Subset, Whole


class SubsetVector:
    """Copies of the parameters a subset touches; only the chosen entries ever change.

    A forward pass takes `tensors` in the place of the model's own parameters, so the
    model is never written to, and all other weights stay bitwise the same.
    """

    def __init__(self, model: nn.Module, subset: Subset) -> None:
        self.subset = subset
        self.tensors = {
            name: _copy(parameter).requires_grad_()
            for name, parameter in find_parameters(model, subset).items()
        }
        self._places = SubsetIndex(subset, self.tensors)

    @property
    def values(self) -> Tensor:
        """The chosen weights, (S,), in at least fp32."""
        return self._places.gather(self.tensors)

    def assign(self, values: Tensor) -> None:
        """Set the chosen weights; they are rounded to each parameter's type."""
        with torch.no_grad():
            self._places.scatter(self.tensors, values)

    def gradient(self) -> Tensor:
        """Take the chosen weights' gradient, (S,), and clear the tensors' gradients."""
        # A parameter that took no part in this pass has no gradient, so it is zero.
        gradients = {
            name: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            for name, tensor in self.tensors.items()
        }
        for tensor in self.tensors.values():
            tensor.grad = None
        return self._places.gather(gradients)


class SubsetIndex:
    """Where in each parameter the chosen entries are, on that parameter's device."""

    def __init__(self, subset: Subset, like: Mapping[str, Tensor]) -> None:
        self.sizes = subset.sizes()
        # None stands for every entry: no index is kept for it.
        self.indices = {
            name: None
            if isinstance(part, Whole)
            else subset.indices(name).to(like[name].device)
            for name, part in subset.parts.items()
        }

    def gather(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Line up the chosen entries of the tensors, (S,), in at least fp32."""
        pieces = []
        for name, indices in self.indices.items():
            flat = tensors[name].detach().flatten()
            piece = flat if indices is None else flat[indices]
            pieces.append(piece.to(torch.promote_types(piece.dtype, torch.float32)))
        return torch.cat(pieces)

    def scatter(self, tensors: Mapping[str, Tensor], values: Tensor) -> None:
        """Write the chosen entries into the tensors, in place."""
        for name, indices, entries in self._split(tensors, values):
            if indices is None:
                tensors[name].copy_(entries.view(tensors[name].shape))
            else:
                write_entries(tensors[name], indices, entries)

    def replaced(self, tensors: Mapping[str, Tensor], values: Tensor) -> dict[str, Tensor]:
        """The tensors with other values of the chosen entries; views where all are chosen."""
        replaced = {}
        for name, indices, entries in self._split(tensors, values):
            if indices is None:
                replaced[name] = entries.view(tensors[name].shape)
            else:
                replaced[name] = _copy(tensors[name])
                replaced[name].view(-1)[indices] = entries
        return replaced

    def _split(
        self, tensors: Mapping[str, Tensor], values: Tensor
    ) -> Iterator[tuple[str, Tensor | None, Tensor]]:
        """Split values (S,) by parameter, in the type and on the device of each."""
        pieces = values.split(list(self.sizes.values()))
        for (name, indices), piece in zip(self.indices.items(), pieces, strict=True):
            yield name, indices, piece.to(tensors[name])


def write_entries(tensor: Tensor, indices: Tensor, values: Tensor) -> None:
    """Write entries of a tensor in place, by flat indices in the order of its axes."""
    if tensor.is_contiguous():
        tensor.view(-1)[indices] = values
    else:
        # Channels-last weights have no flat view in the order of their axes.
        tensor[torch.unravel_index(indices, tensor.shape)] = values


def _copy(tensor: Tensor) -> Tensor:
    """Copy a tensor so that it is contiguous, whatever its strides were."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def find_parameters(model: nn.Module, subset: Subset) -> dict[str, Tensor]:
    """Find the model's parameters that a subset touches, in its order."""
    known = dict(unwrap(model).named_parameters())
    for name in subset.parts:
        shape = tuple(known[name].shape) if name in known else None
        if shape != subset.universe[name]:
            here = "it is not there" if shape is None else f"here it has {shape}"
            raise SubsetError(
                f"subset was chosen from another model: {name!r} of shape "
                f"{subset.universe[name]}, and {here}. Choose one from this model."
            )
    return {name: read_offloaded(model, name, known[name]) for name in subset.parts}
