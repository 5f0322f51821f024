"""`Sides`: read what a layer's block needs of one run, chosen columns of x and chosen rows of δ.

A run may be of some of the rows only: one part of them, or another part at each position, as
where attention or experts have several matrices in one parameter. δ is zero in all others. In
groups every place has inputs of each, side by side.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from smidgen.weights.affine.kinds import LAYER_KINDS
from smidgen.weights.blocks import LayerBlock


class Sides:
    """Both sides of a block's runs; `rows` are the chosen ones, or None for all."""

    def __init__(self, block: LayerBlock, device: torch.device) -> None:
        self.layer = block.layer
        self.patches = LAYER_KINDS[block.layer.kind].patches
        self.rows = _index(block.rows, block.layer.outputs, device)
        self._all_rows = block.rows.to(device)
        self.columns = _index(block.columns, block.layer.inputs, device)
        self.channels = None
        if self.patches is not None and self.columns is not None:
            # Only the channels that a chosen column is of are cut into patches.
            area, columns = prod(block.layer.window[1:]), self.columns
            # One channel at least, for its places: the bias alone has no column.
            self.channels = torch.cat([columns // area, columns.new_zeros(1)]).unique()
            places = torch.searchsorted(self.channels, columns // area)
            self.columns = places * area + columns % area

    def features(self, module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        """The chosen columns of what W is multiplied with, (..., m) or (B, T, groups · m)."""
        if self.patches is None:
            return take_columns(x, self.columns)
        x, out = self._with_batch(x), self._with_batch(out)
        patches = self.patches(module, x, self.channels, tuple(out.shape[2:]))
        return take_columns(patches, self.columns).flatten(2)

    def positions_first(self, gradient: Tensor) -> Tensor:
        """Write a gradient with its features last: (B, n, ...) of a convolution as (B, T, n)."""
        if self.patches is None:
            return gradient
        return self._with_batch(gradient).flatten(2).mT

    def deltas(self, gradient: Tensor, part: int | Tensor | None) -> Tensor:
        """The chosen rows of a gradient that is of one part of the rows, or of all."""
        if part is None:
            return take_columns(gradient, self.rows)
        width = gradient.shape[-1]
        chosen = take_columns(gradient, self._all_rows % width)
        owner = self._all_rows // width
        return chosen * (
            owner == (part.reshape(-1, 1) if isinstance(part, Tensor) else part)
        )

    def _with_batch(self, image: Tensor) -> Tensor:
        """Write (C, ...) of a convolution as a batch of one: it takes both."""
        return image[None] if image.dim() == len(self.layer.window) else image


def take_columns(tensor: Tensor, indices: Tensor | None) -> Tensor:
    """Take the chosen last-axis entries, in at least fp32."""
    if indices is not None:
        # On two axes torch selects two to three times as fast as on three.
        flat = tensor.reshape(-1, tensor.shape[-1]).index_select(1, indices)
        tensor = flat.reshape(*tensor.shape[:-1], len(indices))
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _index(indices: Tensor, bound: int, device: torch.device) -> Tensor | None:
    return None if indices.numel() == bound else indices.to(device)
