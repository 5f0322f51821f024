"""`Pattern`: which entries of an n × m matrix are active, and its sparse orders.

The indices into the flattened matrix are the one thing stored; compressed rows and
columns are derived when a sparse product first needs them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from smidgen.errors import StructureError, SubsetError


@dataclass(frozen=True, eq=False)
class Pattern:
    """k active entries of a matrix: ascending int32 indices, or None for all of them."""

    rows: int
    columns: int
    indices: Tensor | None = None

    def __post_init__(self) -> None:
        if self.total >= 2**31:
            raise StructureError(
                f"a sparse layer holds int32 indices, so its weight must have fewer than "
                f"2^31 entries, got {self.rows} × {self.columns}. Leave it out of layers."
            )
        if self.indices is None:
            return
        # The compressed rows need them ascending.
        ordered = self.indices.detach().flatten().to(torch.int32).sort().values
        if not ordered.numel():
            raise SubsetError("a layer must have at least 1 active weight, got none.")
        if bool((ordered[1:] == ordered[:-1]).any()):
            raise SubsetError("the active indices of a layer must be distinct.")
        if int(ordered[0]) < 0 or int(ordered[-1]) >= self.total:
            raise SubsetError(
                f"active indices must be in [0, {self.total}), got "
                f"{int(ordered[0])} to {int(ordered[-1])}."
            )
        stored = ordered if ordered.numel() < self.total else None
        object.__setattr__(self, "indices", stored)

    @property
    def total(self) -> int:
        """Entries of the matrix, n·m."""
        return self.rows * self.columns

    @property
    def count(self) -> int:
        """How many entries are active, k."""
        return self.total if self.indices is None else self.indices.numel()

    def list_indices(self, device: torch.device | None = None) -> Tensor:
        """List the active indices, ascending, int32, even if all are active."""
        if self.indices is None:
            return torch.arange(self.total, dtype=torch.int32, device=device)
        return self.indices

    def to_dense(self, values: Tensor) -> Tensor:
        """Write k values as the n × m matrix, zero elsewhere; differentiable."""
        if self.indices is None:
            return values.view(self.rows, self.columns)
        flat = values.new_zeros(self.total)
        return flat.index_put((self.indices,), values).view(self.rows, self.columns)

    def to_csr(self, values: Tensor) -> Tensor:
        """Write k values as the n × m matrix in compressed rows, without a copy."""
        starts, columns = self._by_rows
        return _make_csr(starts, columns, values, (self.rows, self.columns))

    def to_transposed_csr(self, values: Tensor) -> Tensor:
        """Write k values as the transposed matrix, m × n, in compressed rows."""
        starts, rows, order = self._by_columns
        shape = (self.columns, self.rows)
        return _make_csr(starts, rows, values.index_select(0, order), shape)

    @cached_property
    def _by_rows(self) -> tuple[Tensor, Tensor]:
        indices = self.list_indices()
        firsts = torch.arange(self.rows + 1, device=indices.device) * self.columns
        starts = torch.searchsorted(indices, firsts.to(torch.int32), out_int32=True)
        return starts, indices % self.columns

    @cached_property
    def _by_columns(self) -> tuple[Tensor, Tensor, Tensor]:
        indices = self.list_indices()
        columns, order = (indices % self.columns).sort(stable=True)
        edges = torch.arange(self.columns + 1, dtype=torch.int32, device=indices.device)
        starts = torch.searchsorted(columns, edges, out_int32=True)
        rows = indices.index_select(0, order) // self.columns
        return starts, rows, order.to(torch.int32)

    @property
    def derived_bytes(self) -> int:
        """Bytes of the sparse orders, if a sparse product has made them."""
        # Cached properties are in `vars` once they have been computed.
        orders = [*vars(self).get("_by_rows", ()), *vars(self).get("_by_columns", ())]
        return sum(order.nbytes for order in orders)


@cache
def _silence_beta_warning() -> None:
    """Trigger torch's one warning that compressed rows are in beta, and swallow it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = torch.ones(1, dtype=torch.int32)
        torch.sparse_csr_tensor(torch.tensor([0, 1]).int(), one * 0, one.float(), (1, 1))


def _make_csr(
    starts: Tensor, inner: Tensor, values: Tensor, shape: tuple[int, int]
) -> Tensor:
    _silence_beta_warning()
    return torch.sparse_csr_tensor(starts, inner, values, shape, check_invariants=False)
