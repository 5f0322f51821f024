"""`Pattern`: which entries of an n × m matrix are active, and its sparse orders.

The indices into the flattened matrix are the one thing stored; compressed rows and
columns are derived when a sparse product first asks for them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from smidgen.errors import StructureError, SubsetError

_LARGEST = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Pattern:
    """k active entries of a matrix: ascending int32 indices, or None for all of them.

    Args:
        rows: n.
        columns: m.
        indices: Distinct indices in [0, n·m), in any order.

    Raises:
        StructureError: If the matrix is too large for int32.
        SubsetError: If an index is out of range or given twice, or there is none.
    """

    rows: int
    columns: int
    indices: Tensor | None = None

    def __post_init__(self) -> None:
        if self.total > _LARGEST:
            raise StructureError(
                f"a sparse layer holds int32 indices, so its weight must have fewer than "
                f"2^31 entries, got {self.rows} × {self.columns}. Leave it out of layers."
            )
        if self.indices is None:
            return
        # Ascending is what the compressed rows are read from.
        ordered = self.indices.detach().flatten().to(torch.int32).sort().values
        if not ordered.numel():
            raise SubsetError("a layer must keep 1 active weight or more, got none.")
        if bool((ordered[1:] == ordered[:-1]).any()):
            raise SubsetError("the active indices of a layer must be distinct.")
        if int(ordered[0]) < 0 or int(ordered[-1]) >= self.total:
            raise SubsetError(
                f"active indices must be in [0, {self.total}), got "
                f"{int(ordered[0])} to {int(ordered[-1])}."
            )
        whole = ordered.numel() == self.total
        object.__setattr__(self, "indices", None if whole else ordered)

    @property
    def total(self) -> int:
        """Entries of the matrix, n·m."""
        return self.rows * self.columns

    @property
    def count(self) -> int:
        """How many entries are active, k."""
        return self.total if self.indices is None else self.indices.numel()

    def list_indices(self, device: torch.device | None = None) -> Tensor:
        """List the active indices, ascending, int32, also when all are."""
        if self.indices is None:
            return torch.arange(self.total, dtype=torch.int32, device=device)
        return self.indices

    def dense(self, values: Tensor) -> Tensor:
        """Write k values as the n × m matrix, zero elsewhere; autograd goes through."""
        if self.indices is None:
            return values.view(self.rows, self.columns)
        flat = values.new_zeros(self.total)
        return flat.index_put((self.indices,), values).view(self.rows, self.columns)

    def by_rows(self, values: Tensor) -> Tensor:
        """Make the matrix in compressed rows; `values` are taken as they are."""
        starts, columns = self._by_rows
        return _compressed(starts, columns, values, (self.rows, self.columns))

    def by_columns(self, values: Tensor) -> Tensor:
        """Make the transposed matrix in compressed rows."""
        starts, rows, order = self._by_columns
        shape = (self.columns, self.rows)
        return _compressed(starts, rows, values.index_select(0, order), shape)

    @cached_property
    def _by_rows(self) -> tuple[Tensor, Tensor]:
        indices = self.list_indices()
        return self._starts(indices, self.rows, self.columns), indices % self.columns

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
        """Bytes of the sparse orders, if a sparse product has asked for them."""
        found = [*vars(self).get("_by_rows", ()), *vars(self).get("_by_columns", ())]
        return sum(each.nbytes for each in found)

    @staticmethod
    def _starts(indices: Tensor, rows: int, columns: int) -> Tensor:
        edges = torch.arange(rows + 1, dtype=torch.int64, device=indices.device) * columns
        return torch.searchsorted(indices, edges.to(torch.int32), out_int32=True)


@cache
def _quiet() -> None:
    """Let torch say once, unheard, that compressed rows are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = torch.ones(1, dtype=torch.int32)
        torch.sparse_csr_tensor(torch.tensor([0, 1]).int(), one * 0, one.float(), (1, 1))


def _compressed(
    starts: Tensor, inner: Tensor, values: Tensor, shape: tuple[int, int]
) -> Tensor:
    _quiet()
    return torch.sparse_csr_tensor(starts, inner, values, shape, check_invariants=False)
