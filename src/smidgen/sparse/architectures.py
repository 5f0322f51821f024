"""Three plain models to train from scratch: an MLP, a small CNN, a small residual network.

`PlainNetwork` describes one, so that it can be built again when a network is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from smidgen.errors import ArgumentError, DataError
from smidgen.runtime.reading import is_count
from smidgen.types import Shape


@dataclass(frozen=True)
class PlainNetwork:
    """How to build a plain model that standardises its inputs first.

    `shape` is that of one example, (features,) or (channels, height, width); an MLP has
    `hidden` units in each layer, a network of convolutions `width` channels in its first
    stage. `classes` are its outputs: one for a regression.
    """

    kind: Literal["mlp", "cnn", "resnet"]
    shape: Shape
    classes: int
    hidden: tuple[int, ...] = (512, 512)
    width: int = 16

    def __post_init__(self) -> None:
        if self.kind not in ("mlp", "cnn", "resnet"):
            raise ArgumentError(
                f"kind must be 'mlp', 'cnn' or 'resnet', got {self.kind!r}."
            )
        # JSON has lists only.
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "hidden", tuple(self.hidden))
        sizes = {"shape": self.shape, "classes": (self.classes,), "hidden": self.hidden}
        for name, values in {**sizes, "width": (self.width,)}.items():
            if not all(is_count(value) and value > 0 for value in values):
                raise ArgumentError(f"{name} must be 1 or more, got {values}.")

    def build(self, seed: int = 0) -> nn.Sequential:
        """Build the model, with a `Standardise` in front that changes nothing yet."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            if self.kind == "resnet":
                layers = small_resnet(self.shape, self.classes, width=self.width)
            elif self.kind == "cnn":
                layers = small_cnn(self.shape, self.classes, width=self.width)
            else:
                layers = mlp(self.shape, self.classes, hidden=self.hidden)
        return nn.Sequential(Standardise(self.shape), *layers)


class Standardise(nn.Module):
    """Shifts and scales raw inputs by a mean and a spread for each feature or channel."""

    mean: Tensor
    spread: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.size = prod(shape)
        frame = (shape[0], *(1 for _ in shape[1:]))
        self.register_buffer("mean", torch.zeros(frame))
        self.register_buffer("spread", torch.ones(frame))

    def measure(self, mean: Tensor, spread: Tensor) -> None:
        """Set mean and standard deviation of the training data, one for each feature."""
        self.mean.copy_(mean.reshape(self.mean.shape))
        self.spread.copy_(spread.reshape(self.spread.shape))

    def forward(self, inputs: Tensor) -> Tensor:
        """Standardise a batch of raw numbers as in the training data; pixels are in [0, 1]."""
        if not inputs.is_floating_point():
            raise DataError(
                f"inputs must be floating-point numbers, got {inputs.dtype}. Divide "
                "bytes of images by 255."
            )
        if inputs[:1].numel() != self.size * len(inputs[:1]):
            raise DataError(
                f"inputs must have {self.size} numbers for each example, got shape "
                f"{tuple(inputs.shape)}."
            )
        return (inputs.to(self.mean) - self.mean) / self.spread


def mlp(shape: Shape, classes: int, *, hidden: Sequence[int] = (512, 512)) -> nn.Sequential:
    """Make an MLP with ReLUs; images are flattened."""
    size = prod(shape)
    layers: list[nn.Module] = [nn.Flatten()]
    for units in hidden:
        layers += [nn.Linear(size, units), nn.ReLU()]
        size = units
    return nn.Sequential(*layers, nn.Linear(size, classes))


def small_cnn(shape: Shape, classes: int, *, width: int = 16) -> nn.Sequential:
    """Make a network of up to three convolutions, each halving the image, and a linear head."""
    if len(shape) != 3:
        raise ArgumentError(
            f"a CNN takes images (channels, height, width), got {shape}. Use an MLP."
        )
    channels, *sides = shape
    layers: list[nn.Module] = []
    # Not so many that nothing of a small image is left.
    for stage in range(min(3, min(sides).bit_length() - 2)):
        layers += [
            nn.Conv2d(channels, width << stage, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels, sides = width << stage, [side // 2 for side in sides]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * prod(sides), classes))


def small_resnet(shape: Shape, classes: int, *, width: int = 16) -> nn.Sequential:
    """Make a residual network of three stages with a block each (He et al., 2016)."""
    if len(shape) != 3:
        raise ArgumentError(
            f"a residual network takes images (channels, height, width), got {shape}. Use "
            "an MLP."
        )
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        _Residual(width, width, 1),
        _Residual(width, 2 * width, 2),
        _Residual(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )


class _Residual(nn.Module):
    """Two 3 × 3 convolutions and a shortcut (`straight`, as saved networks name it)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.straight: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.straight = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = functional.relu(self.first_norm(self.first(inputs)))
        residual = self.second_norm(self.second(hidden))
        return functional.relu(residual + self.straight(inputs))
