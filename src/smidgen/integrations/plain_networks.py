"""Two plain models to train from nothing: an MLP, and a small residual network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from smidgen.errors import ArgumentError
from smidgen.types import Shape


def mlp(shape: Shape, classes: int, *, hidden: Sequence[int] = (512, 512)) -> nn.Sequential:
    """Make an MLP with ReLUs.

    Args:
        shape: Of one example; images are flattened.
        classes: How many outputs.
        hidden: Units of each hidden layer.

    Returns:
        The model, as torch initialises it.
    """
    size = 1
    for axis in shape:
        size *= axis
    layers: list[nn.Module] = [nn.Flatten()]
    for units in hidden:
        layers += [nn.Linear(size, units), nn.ReLU()]
        size = units
    return nn.Sequential(*layers, nn.Linear(size, classes))


def small_resnet(shape: Shape, classes: int, *, width: int = 16) -> nn.Sequential:
    """Make a residual network of three stages with a block each (He et al., 2016).

    Args:
        shape: Of one image, (channels, height, width).
        classes: How many outputs.
        width: Channels of the first stage; each further one has twice as many.

    Returns:
        The model, as torch initialises it.

    Raises:
        ArgumentError: If an example is no image.
    """
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
    """Two 3 × 3 convolutions beside a straight way."""

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
        found = functional.relu(self.first_norm(self.first(inputs)))
        found = self.second_norm(self.second(found))
        return functional.relu(found + self.straight(inputs))
