"""Sparse Gaussian layers: a Linear or Conv2d of k means, k log-scales and k indices.

θ_i ~ N(μ_i, σ_i²) where active, exactly zero elsewhere. Under the local
reparametrisation (Kingma, Salimans and Welling, 2015) an output is drawn, not a weight:

    a = μ x + b + √(σ² x²) ε,   ε ~ N(0, 1), one for each output of each example.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from smidgen.errors import ArgumentError, StructureError
from smidgen.sparse.matmul import Path, multiply
from smidgen.sparse.pattern import Pattern
from smidgen.sparse.recomputing import refuse_recomputed_noise
from smidgen.types import Shape

NoiseKind = Literal["local", "weights", "none"]
"""What is drawn in a forward pass: outputs, one set of weights, or nothing."""

# The first round also derives the sparse orders; the best of all counts.
_ROUNDS = 3


class GaussianLayer(nn.Module, ABC):
    """An affine layer with Gaussian weights on an active set.

    Args:
        shape: The shape of the dense weight this layer stands for.
        pattern: The active set, in the weight flattened to rows and columns.
        means: μ, (k,).
        log_scales: log σ, (k,); None for a layer without noise.
        bias: The deterministic bias, (n,).
        generator: Source of the noise, shared by the layers of a network.
    """

    channel: ClassVar[int]
    """The axis of outputs that rows of the weight make."""

    def __init__(
        self,
        shape: Shape,
        pattern: Pattern,
        means: Tensor,
        log_scales: Tensor | None,
        bias: Tensor | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.pattern = pattern
        self.means = nn.Parameter(means)
        self.log_scales = None if log_scales is None else nn.Parameter(log_scales)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.generator = generator
        self.noise: NoiseKind = "none" if log_scales is None else "local"
        self.path: Path | Literal["auto"] = "auto"
        self.drawn: Tensor | None = None

    @property
    def scales(self) -> Tensor:
        """σ, (k,); zero for a layer without noise."""
        if self.log_scales is None:
            return torch.zeros_like(self.means)
        return self.log_scales.exp()

    def draw(self, generator: torch.Generator) -> Tensor:
        """Draw the k active weights."""
        noise = _normals(self.means, generator, 0)
        return self.means + self.scales * noise

    def weight(self, values: Tensor | None = None) -> Tensor:
        """Write the means, or k other values, as the dense weight; detached."""
        values = self.means if values is None else values
        return self.pattern.dense(values.detach()).reshape(self.shape)

    def move(self, pattern: Pattern, means: Tensor, log_scales: Tensor | None) -> None:
        """Take another active set and its values, in the pattern's order.

        Args:
            pattern: The active set.
            means: μ, (k,).
            log_scales: log σ, (k,), if this layer has scales. Parameters stay the same
                objects unless k changes.

        Raises:
            StructureError: If there are scales for a layer without, or none for one with.
        """
        if (log_scales is None) != (self.log_scales is None):
            had, given = ("has no", "some") if self.log_scales is None else ("has", "none")
            raise StructureError(
                f"log_scales must be as in the layer: it {had} scales, {given} were given."
            )
        self.means = _refilled(self.means, means)
        if self.log_scales is not None and log_scales is not None:
            self.log_scales = _refilled(self.log_scales, log_scales)
        self.pattern = pattern

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs, with the noise this layer is set to.

        Args:
            inputs: What the dense layer would take.

        Returns:
            What it would give. In evaluation mode that of the means, or of `drawn`
            weights where there are some.
        """
        # Evaluation changes nothing of a network, not even how it computes.
        if self.path == "auto" and self.training:
            self.path = faster_path(self, inputs)
        if self.drawn is not None:
            return self._biased(self.apply_values(inputs, self.drawn))
        noise = self.noise if self.training else "none"
        if noise != "none":
            refuse_recomputed_noise()
        if noise == "weights":
            return self._biased(self.apply_values(inputs, self.draw(self.generator)))
        mean = self._biased(self.apply_values(inputs, self.means))
        if noise == "none":
            return mean
        variance = self.apply_values(inputs.square(), self.scales.square())
        # An output without active weights has no variance, and √ no gradient there.
        spread = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        return mean + spread * _normals(mean, self.generator, self.channel)

    @property
    def taken_path(self) -> Path:
        """How to compute; dense until a forward pass of training has timed both."""
        return "dense" if self.path == "auto" else self.path

    @abstractmethod
    def apply_values(self, inputs: Tensor, values: Tensor) -> Tensor:
        """Apply the linear part, with k values for the active weights."""

    @abstractmethod
    def positions(self, outputs: Tensor) -> int:
        """Count how often every active weight is used to make these outputs."""

    @abstractmethod
    def row_gradient(self, inputs: Tensor, outer: Tensor, start: int, stop: int) -> Tensor:
        """Gradient of all weights in some rows, (stop − start, m), active or not."""

    @abstractmethod
    def _biased(self, outputs: Tensor) -> Tensor: ...

    def get_extra_state(self) -> Tensor:
        """The active indices; a whole pattern has none to store."""
        held = self.pattern.indices
        return torch.empty(0, dtype=torch.int32) if held is None else held

    def set_extra_state(self, state: Tensor) -> None:
        """Take active indices back, with as many weights as there are means."""
        rows, columns = self.pattern.rows, self.pattern.columns
        self.pattern = Pattern(rows, columns, state if state.numel() else None)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> GaussianLayer:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        held = self.pattern.indices
        if held is not None and held.device != self.means.device:
            rows, columns = self.pattern.rows, self.pattern.columns
            self.pattern = Pattern(rows, columns, held.to(self.means.device))
        return self

    def extra_repr(self) -> str:
        """Say shape and active weights."""
        frame = " × ".join(str(n) for n in self.shape)
        return f"{frame}, {self.pattern.count:,} of {self.pattern.total:,} active"


class GaussianLinear(GaussianLayer):
    """A sparse Gaussian `nn.Linear`."""

    channel = -1

    def apply_values(self, inputs: Tensor, values: Tensor) -> Tensor:
        """Compute x Wᵀ."""
        return multiply(inputs, values, self.pattern, self.taken_path)

    def positions(self, outputs: Tensor) -> int:
        """Rows of the batch."""
        return outputs.numel() // self.pattern.rows

    def row_gradient(self, inputs: Tensor, outer: Tensor, start: int, stop: int) -> Tensor:
        """∂yᵀ x of some rows."""
        rows = outer.reshape(-1, self.pattern.rows)[:, start:stop]
        return rows.T @ inputs.reshape(-1, self.pattern.columns)

    def _biased(self, outputs: Tensor) -> Tensor:
        return outputs if self.bias is None else outputs + self.bias


class GaussianConv2d(GaussianLayer):
    """A sparse Gaussian `nn.Conv2d` without groups, of any stride, padding and dilation."""

    channel = -3
    stride: tuple[int, int]
    dilation: tuple[int, int]
    around: tuple[int, int, int, int]
    padding_mode: str

    @classmethod
    def like(cls, module: nn.Conv2d, *given: object) -> GaussianConv2d:
        """Make one with the geometry of a convolution; `given` as in `GaussianLayer`.

        Args:
            module: The convolution.
            given: What `GaussianLayer` takes.

        Returns:
            The layer.

        Raises:
            ArgumentError: If the convolution has groups.
        """
        if module.groups != 1:
            raise ArgumentError(
                f"a sparse convolution must have 1 group, got {module.groups}. Leave it "
                "out of layers."
            )
        made = cls(*given)  # type: ignore[arg-type]
        made.stride = _pair(module.stride)
        made.dilation = _pair(module.dilation)
        made.around = _around(module)
        made.padding_mode = module.padding_mode
        return made

    def apply_values(self, inputs: Tensor, values: Tensor) -> Tensor:
        """Convolve: directly with a dense weight, or as a product of patches."""
        inputs, padding = self._padded(inputs)
        if self.taken_path == "dense":
            weight = self.pattern.dense(values).view(self.shape)
            return functional.conv2d(
                inputs, weight, None, self.stride, padding, self.dilation
            )
        batched = inputs if inputs.dim() == 4 else inputs[None]
        patches = functional.unfold(
            batched, self.shape[2:], self.dilation, padding, self.stride
        )
        # (B, m, L) to rows (B·L, m), stored by columns as the sparse product reads them.
        rows = patches.permute(1, 0, 2).reshape(self.pattern.columns, -1).T
        found = multiply(rows, values, self.pattern, "sparse").T
        height, width = self._size(batched, padding)
        outputs = found.reshape(-1, len(batched), height, width).transpose(0, 1)
        return outputs if inputs.dim() == 4 else outputs[0]

    def positions(self, outputs: Tensor) -> int:
        """Pixels of all images of the batch."""
        return outputs.numel() // self.pattern.rows

    def row_gradient(self, inputs: Tensor, outer: Tensor, start: int, stop: int) -> Tensor:
        """Correlate inputs and gradients for some output channels."""
        inputs, padding = self._padded(inputs)
        if inputs.dim() == 3:
            inputs, outer = inputs[None], outer[None]
        shape = (stop - start, *self.shape[1:])
        found = conv2d_weight(
            inputs,
            shape,
            outer[:, start:stop].contiguous(),
            stride=self.stride,
            padding=padding,
            dilation=self.dilation,
        )
        return found.reshape(stop - start, -1)

    def _biased(self, outputs: Tensor) -> Tensor:
        return outputs if self.bias is None else outputs + self.bias[:, None, None]

    def _padded(self, inputs: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Pad what a convolution itself cannot, and tell what is left for it."""
        left, right, top, bottom = self.around
        if self.padding_mode == "zeros" and left == right and top == bottom:
            return inputs, (top, left)
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return functional.pad(inputs, self.around, mode=mode), (0, 0)

    def _size(self, inputs: Tensor, padding: tuple[int, int]) -> tuple[int, int]:
        found = [
            (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, pad, dilation, kernel, stride in zip(
                inputs.shape[2:],
                padding,
                self.dilation,
                self.shape[2:],
                self.stride,
                strict=True,
            )
        ]
        return found[0], found[1]


def faster_path(part: GaussianLayer, inputs: Tensor) -> Path:
    """Time both paths forward and backward on these inputs, and tell the faster.

    Args:
        part: A layer; its values are not changed.
        inputs: A batch as it will be in training.

    Returns:
        The faster path; dense where a sparse one cannot be.
    """
    if part.pattern.indices is None:
        return "dense"
    seconds: dict[Path, float] = {}
    paths: tuple[Path, ...] = ("dense", "sparse")
    try:
        for _ in range(_ROUNDS):
            for path in paths:
                part.path = path
                found = _seconds(part, inputs)
                seconds[path] = min(found, seconds.get(path, found))
    except RuntimeError:
        # No sparse product of this type on this device, or no memory for the patches.
        return "dense"
    finally:
        part.path = "auto"
    return min(paths, key=lambda path: seconds[path])


def _seconds(part: GaussianLayer, inputs: Tensor) -> float:
    inputs = inputs.detach().requires_grad_()
    values = part.means.detach().requires_grad_()
    with torch.enable_grad():
        _wait(inputs)
        started = time.perf_counter()
        outputs = part.apply_values(inputs, values)
        torch.autograd.grad(outputs, (inputs, values), torch.ones_like(outputs))
        _wait(inputs)
        return time.perf_counter() - started


def _wait(inputs: Tensor) -> None:
    """Let a GPU finish what it was told, so that its work is timed and not the telling."""
    if inputs.is_cuda:
        torch.cuda.synchronize(inputs.device)


def _refilled(held: nn.Parameter, values: Tensor) -> nn.Parameter:
    values = values.detach().to(held)
    if values.shape != held.shape:
        # A graph that is still alive remembers the old size of the old parameter.
        return nn.Parameter(values)
    held.grad = None
    held.data = values
    return held


def matrix_shape(shape: Shape) -> tuple[int, int]:
    """Rows and flattened columns of a weight."""
    return shape[0], prod(shape[1:])


def _normals(like: Tensor, generator: torch.Generator, channel: int) -> Tensor:
    """Standard normals like a tensor, the same whatever its strides are."""
    # Channel by channel, as the sparse path stores its outputs.
    shape = like.movedim(channel, 0).shape
    drawn = torch.empty(shape, dtype=like.dtype, device=generator.device)
    return drawn.normal_(generator=generator).movedim(0, channel).to(like.device)


def _pair(value: tuple[int, ...] | str) -> tuple[int, int]:
    assert not isinstance(value, str)
    return value[0], value[-1]


def _around(module: nn.Conv2d) -> tuple[int, int, int, int]:
    """Padding left, right, above and below; "same" may be uneven."""
    if module.padding == "valid":
        return 0, 0, 0, 0
    if module.padding == "same":
        spans = [
            dilation * (kernel - 1)
            for dilation, kernel in zip(module.dilation, module.kernel_size, strict=True)
        ]
        (top, bottom), (left, right) = ((s // 2, s - s // 2) for s in spans)
        return left, right, top, bottom
    top, left = _pair(module.padding)
    return left, left, top, top
