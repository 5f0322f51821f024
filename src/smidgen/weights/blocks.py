"""What a subset chooses of each affine layer: rows × columns, or single entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, StructureError
from smidgen.weights.affine import AffineLayer, coverage, require_coverage
from smidgen.weights.origin import combine_origins
from smidgen.weights.subset import Block, Entries, Subset, Whole


@dataclass(frozen=True, eq=False)
class LayerBlock:
    """The chosen weights of one layer, within a grid of its rows and columns.

    With `bias` the grid's first column is the bias, so `columns` may be empty. `entries`
    are the chosen weights of a scattered block as indices into the grid; None means all.
    """

    layer: AffineLayer
    rows: Tensor
    columns: Tensor
    bias: bool
    entries: Tensor | None = None

    @property
    def row_count(self) -> int:
        """Side of the output-gradient factor."""
        return self.rows.numel()

    @property
    def column_count(self) -> int:
        """Side of the input factor; the bias counts as a column of ones."""
        return self.columns.numel() + self.bias

    @property
    def size(self) -> int:
        """How many weights are chosen."""
        if self.entries is not None:
            return self.entries.numel()
        return self.row_count * self.column_count

    def scatter(self, values: Tensor) -> dict[str, Tensor]:
        """Write values (D,), in the order of the grid, into zeros of the parameters' shapes."""
        grid = values
        if self.entries is not None:
            grid = values.new_zeros(self.row_count * self.column_count)
            grid[self.entries.to(values.device)] = values
        grid = grid.reshape(self.row_count, self.column_count)
        rows, columns = self.rows.to(values.device), self.columns.to(values.device)
        shapes, tensors = self.layer.shapes, {}
        if self.bias:
            assert self.layer.bias is not None
            tensors[self.layer.bias] = values.new_zeros(shapes[self.layer.bias])
            tensors[self.layer.bias].view(-1)[rows] = grid[:, 0]
            grid = grid[:, 1:]
        if columns.numel():
            matrix = values.new_zeros(self.layer.outputs, self.layer.inputs)
            matrix[rows[:, None], columns] = grid
            tensors[self.layer.weight] = self.layer.as_stored(matrix)
        return tensors


def find_blocks(model: nn.Module, subset: Subset) -> tuple[LayerBlock, ...]:
    """Read a subset as one block for each affine layer it touches, in the order of the modules."""
    covered = coverage(model)
    known = covered.universe
    for name, shape in subset.universe.items():
        if name in subset.parts and known.get(name, shape) != shape:
            raise StructureError(
                f"subset was chosen from another model: there {name!r} has shape {shape}, "
                f"here {known[name]}. Choose one from this model."
            )
        if name in subset.parts and name not in known:
            why = covered.left_out.get(name.rpartition(".")[0])
            raise StructureError(
                f"a posterior needs parameters of affine layers, got {name!r} of "
                f"shape {shape}{f' ({why})' if why else ''}. Print smidgen.coverage(model) to "
                "see the layers."
            )
    chosen = (_make_block(layer, subset) for layer in covered.layers)
    return tuple(block for block in chosen if block is not None)


def restrict_subset(subset: Subset, blocks: Sequence[LayerBlock]) -> Subset:
    """Restrict a subset to the layers of some blocks."""
    names = {name for block in blocks for name in block.layer.shapes}
    parts = {name: part for name, part in subset.parts.items() if name in names}
    if not parts:
        raise StructureError(
            f"{subset!r} has only layers that mix the examples of a batch. Choose others; "
            "smidgen.coverage(model) lists the layers."
        )
    return Subset(subset.universe, parts, subset.origin)


def _make_block(layer: AffineLayer, subset: Subset) -> LayerBlock | None:
    weight = subset.parts.get(layer.weight)
    bias_rows = None
    if layer.bias is not None and layer.bias in subset.parts:
        bias = subset.parts[layer.bias]
        if isinstance(bias, Whole):
            bias_rows = torch.arange(layer.outputs)
        elif isinstance(bias, Entries):
            bias_rows = bias.indices
        else:
            # Experts' biases have two axes, and may be a block themselves.
            bias_rows = subset.indices(layer.bias)
    if weight is None:
        if bias_rows is None:
            return None
        return LayerBlock(layer, bias_rows, torch.empty(0, dtype=torch.int64), True)
    crossing: tuple[Tensor, Tensor] | None
    if isinstance(weight, Whole):
        crossing = torch.arange(layer.outputs), torch.arange(layer.inputs)
    else:
        crossing = layer.crossing(weight) if isinstance(weight, Block) else None
    if crossing is None:
        indices = subset.indices(layer.weight)
        return _make_scattered(layer, *layer.locate(indices), bias_rows)
    rows, columns = crossing
    if bias_rows is None or torch.equal(bias_rows, rows):
        return LayerBlock(layer, rows, columns, bias_rows is not None)
    row, column = torch.cartesian_prod(rows, columns).unbind(1)
    return _make_scattered(layer, row.contiguous(), column.contiguous(), bias_rows)


def _make_scattered(
    layer: AffineLayer, row: Tensor, column: Tensor, bias_rows: Tensor | None
) -> LayerBlock:
    """Find the smallest grid that holds single entries, and where in it they are."""
    has_bias = bias_rows is not None
    rows = (row if bias_rows is None else torch.cat([row, bias_rows])).unique()
    columns = column.unique()
    width = columns.numel() + has_bias
    entries = torch.searchsorted(rows, row) * width
    entries += torch.searchsorted(columns, column) + has_bias
    if bias_rows is not None:
        entries = torch.cat([entries, torch.searchsorted(rows, bias_rows) * width])
    if entries.numel() == rows.numel() * width:
        return LayerBlock(layer, rows, columns, has_bias)
    return LayerBlock(layer, rows, columns, has_bias, entries.sort().values)


def find_body(model: nn.Module, subset: Subset) -> Subset:
    """Find every layer of which a subset has nothing; refuse a subset that leaves none."""
    covered = require_coverage(model)
    left = [x for x in covered.layers if not x.shapes.keys() & subset.parts.keys()]
    if not left:
        raise ArgumentError(
            "an isotropic body needs a layer of which nothing is chosen, got weights of all "
            f"{len(covered.layers)} layers. Choose fewer layers, say the last-layer selector."
        )
    parts = {name: Whole() for layer in left for name in layer.shapes}
    return Subset(covered.universe, parts, combine_origins("complement", subset.origin))
