"""`AffineLayer`: one affine layer a = W x + b, and how its matrix is stored."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil, prod
from typing import Literal

import torch
from torch import Tensor, nn

from smidgen.runtime.keeping.structure import unwrap
from smidgen.runtime.storage.offload import read_parameter
from smidgen.types import Shape
from smidgen.weights.subset import Block, Entries, Part

Group = Literal["attention", "mlp"]

# As in the paper: attention = the query, key, value and output layers, MLP = all others.
_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)


@dataclass(frozen=True)
class AffineLayer:
    """One affine layer: W is n × m, n outputs and m inputs.

    `modules` are all the paths at which it runs (more than one when weights are tied).
    `shape` is that of the stored weight, whose `row_axes` are the rows of W, one after
    another, and whose other axes are the columns. A convolution, of a `kind` that has patches,
    is the layer from patches to channels. In `groups` as many rows each have inputs of their own,
    of the same m columns.
    """

    name: str
    modules: tuple[str, ...]
    weight: str
    bias: str | None
    shape: Shape
    row_axes: tuple[int, ...] = (0,)
    kind: str = "linear"
    groups: int = 1

    @property
    def outputs(self) -> int:
        """How many rows W has: n."""
        return prod(self._row_shape)

    @property
    def inputs(self) -> int:
        """How many columns W has: m."""
        return prod(self.window)

    @property
    def window(self) -> Shape:
        """The sizes of the stored weight's axes that are columns: channels and kernel, say."""
        return tuple(self.shape[axis] for axis in self._column_axes)

    @property
    def _row_shape(self) -> Shape:
        return tuple(self.shape[axis] for axis in self.row_axes)

    @property
    def _column_axes(self) -> tuple[int, ...]:
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.row_axes)

    @property
    def group(self) -> Group:
        """Whether the paper counts this layer to attention or to the MLPs."""
        attends = self.kind == "attention" or _ATTENTION.search(self.name)
        return "attention" if attends else "mlp"

    @property
    def shapes(self) -> dict[str, Shape]:
        """Names and shapes of its parameters."""
        shapes = {self.weight: self.shape}
        if self.bias is not None:
            shapes[self.bias] = self._row_shape
        return shapes

    def matrix(self, model: nn.Module) -> Tensor:
        """Return W as n × m, detached."""
        return self.as_matrix(read_parameter(unwrap(model), self.weight))

    def as_matrix(self, stored: Tensor) -> Tensor:
        """Write a tensor of the weight's stored shape as n × m."""
        order = (*self.row_axes, *self._column_axes)
        return stored.permute(order).reshape(self.outputs, self.inputs)

    def as_stored(self, matrix: Tensor) -> Tensor:
        """Write a matrix n × m in the weight's stored shape."""
        order = (*self.row_axes, *self._column_axes)
        back = [order.index(axis) for axis in range(len(order))]
        return matrix.reshape(self._row_shape + self.window).permute(back)

    def parts(self, rows: Tensor, columns: Tensor) -> dict[str, Part]:
        """Choose the crossing of rows and columns of W, and the bias of those rows."""
        part: Part
        if self.row_axes == (0,):
            part = Block(rows, columns)
        elif self._is_transposed:
            part = Block(columns, rows)
        else:
            numbers = torch.arange(prod(self.shape)).reshape(self.shape)
            chosen = self.as_matrix(numbers)[rows][:, columns]
            part = Entries(chosen.flatten().sort().values)
        parts: dict[str, Part] = {self.weight: part}
        if self.bias is not None:
            parts[self.bias] = Entries(rows)
        return parts

    def crossing(self, block: Block) -> tuple[Tensor, Tensor] | None:
        """Rows and columns of W that a block of the stored weight is; None if it is no crossing."""
        if self.row_axes == (0,):
            return block.rows, block.columns
        return (block.columns, block.rows) if self._is_transposed else None

    def locate(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Row and column in W of entries of the stored weight."""
        if self.row_axes == (0,):
            return indices // self.inputs, indices % self.inputs
        places = torch.unravel_index(indices, self.shape)
        return self._number(places, self.row_axes), self._number(places, self._column_axes)

    def _number(self, places: tuple[Tensor, ...], axes: tuple[int, ...]) -> Tensor:
        number = torch.zeros_like(places[0])
        for axis in axes:
            number = number * self.shape[axis] + places[axis]
        return number

    @property
    def _is_transposed(self) -> bool:
        return len(self.shape) == 2 and self.row_axes == (1,)


def ceil_fraction(total: int, fraction: float) -> int:
    """Compute a fraction in (0, 1] of `total`, rounded up."""
    # 1e-9: a tenth of 30 is 3, whatever floating point makes of it.
    return max(1, ceil(fraction * total - 1e-9))
