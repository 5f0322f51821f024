"""`Operator`: what every structure of the curvature can do.

An operator has an orthogonal basis of D weights and a curvature h_d for each of its
coordinates. A prior precision τ makes that h_d + τ, so a new τ costs a division (DESIGN 4.3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import ClassVar, Self

import torch
from torch import Tensor

from smidgen.curvature.jacobian import NUMBERS_AT_ONCE, Jacobian
from smidgen.runtime.memory import lay_out
from smidgen.types import Shape
from smidgen.weights.blocks import LayerBlock


@dataclass(frozen=True, eq=False)
class Operator(ABC):
    """Curvature of D chosen weights, in E coordinates; in all others it is flat, or none.

    `joint` says that one operator spans all layers, `scattered` that it can hold single
    entries and not only crossings of rows and columns.
    """

    structure: ClassVar[str]
    joint: ClassVar[bool] = False
    scattered: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                object.__setattr__(self, field.name, lay_out(value))

    @property
    @abstractmethod
    def values(self) -> Tensor:
        """Curvature of each coordinate, (E,)."""

    @property
    def size(self) -> int:
        """How many weights it is of: D."""
        return len(self.values)

    @property
    @abstractmethod
    def floats(self) -> int:
        """How many floats the structure keeps."""

    @abstractmethod
    def coordinates(self, *jacobians: Jacobian) -> Tensor:
        """Write the Jacobian of this operator's layers in its basis, (..., E)."""

    @abstractmethod
    def weights(self, coordinates: Tensor) -> Tensor:
        """Turn coordinates (..., E) into the weights' own basis, (..., D)."""

    @abstractmethod
    def marginals(self, values: Tensor) -> Tensor:
        """Diagonal, in the weights, of the matrix with these values (E,) in the basis."""

    @staticmethod
    def shapes(rows: int, columns: int, size: int) -> tuple[Shape, ...]:
        """Shapes of the stored fields, in their order, for D weights of an n × m grid."""
        # Nothing, or as many as there are eigenvectors.
        return ()

    @classmethod
    def count_stored(cls, blocks: Sequence[LayerBlock], rank: int | None = None) -> int:
        """Count the numbers in all fields of the operators of some blocks."""
        sides = [(b.row_count, b.column_count, b.size) for b in blocks]
        if cls.joint:
            sides = [(0, 0, sum(block.size for block in blocks))]
        return sum(prod(shape) for side in sides for shape in cls.shapes(*side))

    @property
    def dtype(self) -> torch.dtype:
        """The type everything is computed in."""
        return self.values.dtype

    def bound_error(self, precision: float) -> float:
        """Bound the relative error of its variances at a prior precision."""
        return 0.0

    def compress(self, precision: float, tolerance: float) -> Operator:
        """Keep what variances at a precision need, up to a relative error; itself if all."""
        return self

    def shortcut(self, precision: float, tolerance: float) -> Operator:
        """Compress it where a prediction gains much by that."""
        return self

    def inverse_weights(self, precisions: Tensor) -> Tensor:
        """Variance of each coordinate under each prior precision, (E, P)."""
        curvature = self.values
        return (curvature[:, None] + precisions.to(curvature)).reciprocal_()

    def covariance(
        self, jacobians: Sequence[Jacobian], precisions: Tensor, weights: Tensor
    ) -> Tensor:
        """Covariance (P, B, K, K) of directions with δ (K, B, T, n); `inverse_weights` given."""
        return weigh_products(self.coordinates(*jacobians).to(self.dtype), weights)

    def draw(self, normals: Tensor, precision: Tensor, scale: float) -> Tensor:
        """Turn normals (D,) into a draw of covariance scale·(H + τ)⁻¹, for τ of shape (1,)."""
        deviation = (self.inverse_weights(precision)[:, 0] * scale).sqrt()
        return self.weights(normals.to(deviation) * deviation)

    def variances(self, precision: float, scale: float) -> Tensor:
        """Diagonal of scale·(H + τ)⁻¹ in the weights, (D,)."""
        return self.marginals(scale / (self.values + precision))

    def dense(self) -> Tensor:
        """The curvature as a (D, D) matrix; for checks on small layers only."""
        eye = torch.eye(len(self.values), dtype=self.dtype, device=self.values.device)
        basis = self.weights(eye)  # (E, D), a basis vector in each row
        return basis.T * self.values @ basis

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or other.size != self.size:
            return NotImplemented
        pairs = zip(self.tensors(), other.tensors(), strict=True)
        return all(torch.equal(left, right) for left, right in pairs)

    __hash__ = None  # type: ignore[assignment]

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Self:
        """Return a copy in another type or on another device."""
        values = (getattr(self, field.name) for field in fields(self))
        return type(self)(
            *(v.to(device, dtype) if isinstance(v, Tensor) else v for v in values)
        )

    def tensors(self) -> tuple[Tensor, ...]:
        """List the fields that are tensors, in their order."""
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(value for value in values if isinstance(value, Tensor))


def weigh_products(coordinates: Tensor, weights: Tensor) -> Tensor:
    """Σ_d c_kd c_k'd w_dp for coordinates (K, B, E), used up, and weights (E, P): (P, B, K, K)."""
    count, batch, size = coordinates.shape
    precisions = weights.shape[1]
    if count == 1:
        # In place: at full size a second copy is what costs.
        return (coordinates[0].square_() @ weights).T[..., None, None]
    if count > 2 * precisions:
        by_example = coordinates.transpose(0, 1)  # (B, K, E)
        weighed = [(by_example * each) @ by_example.mT for each in weights.T]
        return torch.stack(weighed)
    left, right = torch.tril_indices(count, count)
    covariance = coordinates.new_empty(precisions, batch, count, count)
    at_once = max(1, NUMBERS_AT_ONCE // max(1, batch * size))
    for i, j in zip(left.split(at_once), right.split(at_once), strict=True):
        products = ((coordinates[i] * coordinates[j]) @ weights).permute(2, 1, 0)
        covariance[:, :, i, j] = covariance[:, :, j, i] = products
    return covariance
