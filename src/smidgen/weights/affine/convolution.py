"""Convolutions as layers from patches to channels: along one axis, two or three, in groups too.

A patch is what one output channel at one place is made of. In groups the channels are split:
an output channel sees the patches of its own group only, so that group after group is a layer
with inputs of its own, and all of them have columns of the same meaning. A transposed
convolution is the convolution, by turned kernels, of its inputs spread out among zeros.
"""

from __future__ import annotations

from math import prod

from torch import Tensor, nn
from torch.nn.functional import pad, unfold
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from smidgen.types import Shape
from smidgen.weights.affine.kind import Kind, Matrix

_PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _find(module: nn.Module) -> tuple[Matrix, ...] | str | None:
    plain = next((kind for kind in _PLAIN if isinstance(module, kind)), None)
    if plain is None or not isinstance(module, _ConvNd):
        return None
    if type(module).forward is not plain.forward:
        return f"{type(module).__name__} is not an affine layer"
    return (Matrix(axes=2 + len(module.kernel_size), groups=module.groups),)


def _cut(module: nn.Module, x: Tensor, channels: Tensor | None, places: Shape) -> Tensor:
    assert isinstance(module, _ConvNd)
    x = _take_channels(x, module.groups, channels)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    padded = pad(x, module._reversed_padding_repeated_twice, mode=mode)
    return _unfold(padded, module, module.stride)


def _find_transposed(module: nn.Module) -> tuple[Matrix, ...] | str | None:
    plain = next((kind for kind in _TRANSPOSED if isinstance(module, kind)), None)
    if plain is None or not isinstance(module, _ConvNd):
        return None
    if type(module).forward is not plain.forward:
        return f"{type(module).__name__} is not an affine layer"
    if module.groups > 1:
        # Its first axis would be groups and columns at once.
        return f"a transposed convolution in {module.groups} groups is not one affine layer"
    return (Matrix(axes=2 + len(module.kernel_size), row_axes=(1,)),)


def _cut_transposed(
    module: nn.Module, x: Tensor, channels: Tensor | None, places: Shape
) -> Tensor:
    assert isinstance(module, _ConvTransposeNd)
    x = _take_channels(x, 1, channels)
    sides: list[int] = []
    for axis, step in enumerate(module.stride, 2):
        # Zeros between any two inputs, not behind the last.
        spread = pad(x.unsqueeze(axis + 1), (0, 0) * (x.dim() - axis - 1) + (0, step - 1))
        x = spread.flatten(axis, axis + 1).narrow(axis, 0, step * (x.shape[axis] - 1) + 1)
        reach = module.dilation[axis - 2] * (module.kernel_size[axis - 2] - 1)
        before = reach - module.padding[axis - 2]  # type: ignore[operator]
        sides = [before, places[axis - 2] + reach - before - x.shape[axis], *sides]
    patches = _unfold(pad(x, sides), module, (1,) * len(module.stride))
    kernel = patches.unflatten(-1, (-1, *module.kernel_size))
    turned = kernel.flip(tuple(range(-len(module.kernel_size), 0)))
    return turned.flatten(3)


def _take_channels(x: Tensor, groups: int, channels: Tensor | None) -> Tensor:
    """Take the chosen channels of every group."""
    if channels is None:
        return x
    return x.unflatten(1, (groups, -1)).index_select(2, channels).flatten(1, 2)


def _unfold(x: Tensor, module: _ConvNd, stride: tuple[int, ...]) -> Tensor:
    """Cut inputs (B, C, ...) into patches (B, T, groups, C / groups · kernel)."""
    count = len(module.kernel_size)
    if count == 2 and module.groups == 1:
        cut: Tensor = unfold(x, module.kernel_size, module.dilation, stride=stride)
        return cut.mT[:, :, None]
    for axis in range(count):
        spread = module.dilation[axis]
        reach = spread * (module.kernel_size[axis] - 1) + 1
        x = x.unfold(axis + 2, reach, stride[axis])[..., ::spread]
    # (B, C, places, kernel), each of `count` axes
    places, kernel = range(2, 2 + count), range(2 + count, 2 + 2 * count)
    patches = x.permute(0, *places, 1, *kernel)
    width = x.shape[1] // module.groups * prod(module.kernel_size)
    return patches.reshape(len(x), -1, module.groups, width)


CONVOLUTION = Kind("convolution", _find, _cut)
"""From patches to channels."""
TRANSPOSED_CONVOLUTION = Kind("transposed convolution", _find_transposed, _cut_transposed)
"""From patches of inputs among zeros to channels."""
