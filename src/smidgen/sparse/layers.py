"""Sparse Gaussian layers: a Linear or Conv2d of k means, k log-scales and k indices.

θ_i ~ N(μ_i, σ_i²) where active, exactly zero elsewhere. Under the local
reparametrisation (Kingma, Salimans and Welling, 2015) an output is drawn, not a weight:

    a = μ x + b + √(σ² x²) ε,   ε ~ N(0, 1), one for each output of each example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from math import ceil, prod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from smidgen.errors import ArgumentError, StructureError
from smidgen.runtime.memory import lay_out
from smidgen.sparse.matmul import Path, can_multiply_sparsely, multiply
from smidgen.sparse.pattern import Pattern
from smidgen.types import Shape

NoiseKind = Literal["local", "weights", "none"]
"""What is drawn in a forward pass: outputs, one set of weights, or nothing."""


class GaussianLayer(nn.Module, ABC):
    """An affine layer with Gaussian weights on an active set.

    `shape` is that of the dense weight, and `pattern` the active set in that weight
    flattened to n × m. Means and log-scales are (k,); a layer without noise has no
    log-scales. The bias (n,) is deterministic. All layers of a network share a generator.
    """

    channel: ClassVar[int]
    """The axis of the outputs that belongs to the rows of the weight, from the end."""
    sparse_pays: ClassVar[tuple[int, float]]
    """The fewest weights, and the largest density, at which the sparse path is the faster."""

    def __init__(
        self,
        shape: Shape,
        pattern: Pattern,
        means: Tensor,
        log_scales: Tensor | None,
        bias: nn.Parameter | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.pattern = pattern
        self.means = nn.Parameter(lay_out(means))
        self.log_scales = None if log_scales is None else nn.Parameter(lay_out(log_scales))
        self.bias = bias
        self.generator = generator
        self.noise: NoiseKind = "none" if log_scales is None else "local"
        self.path: Path | Literal["auto"] = "auto"

    @property
    def scales(self) -> Tensor:
        """σ, (k,); zero for a layer without noise."""
        if self.log_scales is None:
            return torch.zeros_like(self.means)
        return self.log_scales.exp()

    def draw(self, generator: torch.Generator) -> Tensor:
        """Draw the k active weights."""
        return self.means + self.scales * _draw_normals(self.means, generator, 0)

    def to_dense(self, values: Tensor | None = None) -> Tensor:
        """Write the means, or k other values, as the dense weight; detached."""
        values = self.means if values is None else values
        return self.pattern.to_dense(values.detach()).reshape(self.shape)

    def set_weights(
        self, pattern: Pattern, means: Tensor, log_scales: Tensor | None
    ) -> None:
        """Take another active set; parameters stay the same objects unless k changes."""
        if (log_scales is None) != (self.log_scales is None):
            allowed, got = (
                ("None", "some") if self.log_scales is None else ("given", "none")
            )
            raise StructureError(f"log_scales must be {allowed} for this layer, got {got}.")
        self.means = _set_values(self.means, means)
        if self.log_scales is not None and log_scales is not None:
            self.log_scales = _set_values(self.log_scales, log_scales)
        self.pattern = pattern

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the outputs: with noise in training, those of the means in evaluation."""
        # Evaluation leaves a network as it is, even how it computes.
        if self.path == "auto" and self.training:
            self.path = choose_path(self, inputs)
        noise = self.noise if self.training else "none"
        if noise != "none" and is_recomputing():
            # `torch.utils.checkpoint` restores torch's global random state only, so the
            # gradient would be that of another sample than the loss.
            raise StructureError(
                "a layer with noise cannot be recomputed in the backward pass: its noise "
                "would be different. Switch activation checkpointing off (Hugging Face: "
                "model.gradient_checkpointing_disable()), or leave these layers out of "
                "layers."
            )
        if noise == "weights":
            return self._add_bias(self.apply_values(inputs, self.draw(self.generator)))
        mean = self._add_bias(self.apply_values(inputs, self.means))
        if noise == "none":
            return mean
        variance = self.apply_values(inputs.square(), self.scales.square())
        # An output without active weights has no variance, and √ no gradient there.
        deviation = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        return mean + deviation * _draw_normals(mean, self.generator, self.channel)

    @property
    def taken_path(self) -> Path:
        """How to compute; dense until a forward pass of training has chosen."""
        return "dense" if self.path == "auto" else self.path

    @abstractmethod
    def apply_values(self, inputs: Tensor, values: Tensor) -> Tensor:
        """Apply the linear part, with k values for the active weights."""

    @abstractmethod
    def compute_row_gradient(
        self, inputs: Tensor, deltas: Tensor, start: int, stop: int
    ) -> Tensor:
        """Compute Σ δ xᵀ of some rows, (stop − start, m), for weights active or not."""

    def _add_bias(self, outputs: Tensor) -> Tensor:
        if self.bias is None:
            return outputs
        return outputs + self.bias.view(-1, *(1 for _ in range(-1 - self.channel)))

    def get_extra_state(self) -> Tensor:
        """The active indices; a whole pattern has none to store."""
        indices = self.pattern.indices
        return torch.empty(0, dtype=torch.int32) if indices is None else indices

    def set_extra_state(self, state: Tensor) -> None:
        """Take active indices back, as many as there are means."""
        self.pattern = replace(self.pattern, indices=state if state.numel() else None)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> GaussianLayer:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        indices = self.pattern.indices
        if indices is not None and indices.device != self.means.device:
            self.pattern = replace(self.pattern, indices=indices.to(self.means.device))
        return self

    def extra_repr(self) -> str:
        """Show the shape and the number of active weights."""
        shape = " × ".join(str(n) for n in self.shape)
        return f"{shape}, {self.pattern.count:,} of {self.pattern.total:,} active"


class GaussianLinear(GaussianLayer):
    """A sparse Gaussian `nn.Linear`."""

    channel = -1
    # Both measured by `python -m bench paths`.
    sparse_pays = (2**17, 0.1)

    def apply_values(self, inputs: Tensor, values: Tensor) -> Tensor:
        """Compute x Wᵀ."""
        return multiply(inputs, values, self.pattern, self.taken_path)

    def compute_row_gradient(
        self, inputs: Tensor, deltas: Tensor, start: int, stop: int
    ) -> Tensor:
        """Multiply the output gradients of some rows by the inputs."""
        rows = deltas.reshape(-1, self.pattern.rows)[:, start:stop]
        return rows.T @ inputs.reshape(-1, self.pattern.columns)


class GaussianConv2d(GaussianLayer):
    """A sparse Gaussian `nn.Conv2d` without groups, of any stride, padding and dilation."""

    channel = -3
    sparse_pays = (2**21, 0.03)
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding_sides: tuple[int, int, int, int]
    padding_mode: str

    @classmethod
    def like(cls, module: nn.Conv2d, *values: object) -> GaussianConv2d:
        """Make one with the geometry of a convolution, from the values of a `GaussianLayer`."""
        if module.groups != 1:
            raise ArgumentError(
                f"a sparse convolution must have 1 group, got {module.groups}. Leave it "
                "out of layers."
            )
        layer = cls(*values)  # type: ignore[arg-type]
        layer.stride, layer.dilation = _as_pair(module.stride), _as_pair(module.dilation)
        layer.padding_sides = _find_padding(module)
        layer.padding_mode = module.padding_mode
        return layer

    def apply_values(self, inputs: Tensor, values: Tensor) -> Tensor:
        """Convolve: directly with a dense weight, or as a product of patches."""
        inputs, padding = self._pad(inputs)
        if self.taken_path == "dense":
            weight = self.pattern.to_dense(values).view(self.shape)
            return functional.conv2d(
                inputs, weight, None, self.stride, padding, self.dilation
            )
        images = inputs if inputs.dim() == 4 else inputs[None]
        kernel = self.shape[2:]
        patches = functional.unfold(images, kernel, self.dilation, padding, self.stride)
        # (B, m, L) to rows (B·L, m), stored by columns as the sparse product reads them.
        rows = patches.permute(1, 0, 2).reshape(self.pattern.columns, -1).T
        products = multiply(rows, values, self.pattern, "sparse").T
        height, width = (
            (images.shape[2 + i] + 2 * padding[i] - self.dilation[i] * (kernel[i] - 1) - 1)
            // self.stride[i]
            + 1
            for i in (0, 1)
        )
        outputs = products.reshape(-1, len(images), height, width).transpose(0, 1)
        return outputs if inputs.dim() == 4 else outputs[0]

    def compute_row_gradient(
        self, inputs: Tensor, deltas: Tensor, start: int, stop: int
    ) -> Tensor:
        """Correlate inputs and output gradients for some output channels."""
        inputs, padding = self._pad(inputs)
        if inputs.dim() == 3:
            inputs, deltas = inputs[None], deltas[None]
        shape = (stop - start, *self.shape[1:])
        channels = deltas[:, start:stop].contiguous()
        gradient = conv2d_weight(
            inputs, shape, channels, self.stride, padding, self.dilation
        )
        return gradient.reshape(stop - start, -1)

    def _pad(self, inputs: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Pad what a convolution itself cannot; return the padding left for it as well."""
        left, right, top, bottom = self.padding_sides
        if self.padding_mode == "zeros" and left == right and top == bottom:
            return inputs, (top, left)
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return functional.pad(inputs, self.padding_sides, mode=mode), (0, 0)


def choose_path(layer: GaussianLayer, inputs: Tensor) -> Path:
    """Choose how to compute by the layer's size and density; no stopwatch decides."""
    least, densest = layer.sparse_pays
    total, count = layer.pattern.total, layer.pattern.count
    pays = total >= least and count <= ceil(densest * total)
    alike = inputs.dtype == layer.means.dtype
    if pays and alike and can_multiply_sparsely(inputs.device.type, inputs.dtype):
        return "sparse"
    return "dense"


def is_recomputing() -> bool:
    """Tell whether this forward pass runs within a backward pass (checkpointing)."""
    return torch._C._current_graph_task_id() != -1


def matrix_shape(shape: Shape) -> tuple[int, int]:
    """Count the rows and flattened columns of a weight."""
    return shape[0], prod(shape[1:])


def _set_values(parameter: nn.Parameter, values: Tensor) -> nn.Parameter:
    values = values.detach().to(parameter)
    if values.shape != parameter.shape:
        # A graph that is still alive remembers the old size of the old parameter.
        return nn.Parameter(values)
    parameter.grad = None
    parameter.data = values
    return parameter


def _draw_normals(like: Tensor, generator: torch.Generator, channel: int) -> Tensor:
    """Standard normals like a tensor, the same whatever its strides are."""
    # Channel by channel, as the sparse path stores its outputs.
    shape = like.movedim(channel, 0).shape
    normals = torch.empty(shape, dtype=like.dtype, device=generator.device)
    return normals.normal_(generator=generator).movedim(0, channel).to(like.device)


def _as_pair(value: tuple[int, ...]) -> tuple[int, int]:
    return value[0], value[-1]


def _find_padding(module: nn.Conv2d) -> tuple[int, int, int, int]:
    """Padding left, right, above and below; "same" may be uneven."""
    if module.padding == "valid":
        return 0, 0, 0, 0
    if not isinstance(module.padding, str):
        vertical, horizontal = _as_pair(module.padding)
        return horizontal, horizontal, vertical, vertical
    sizes = zip(module.dilation, module.kernel_size, strict=True)
    height, width = (dilation * (kernel - 1) for dilation, kernel in sizes)
    return width // 2, width - width // 2, height // 2, height - height // 2
