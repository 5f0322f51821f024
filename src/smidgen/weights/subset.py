"""`Subset`: which weights are stochastic, or updated. The one object every method takes.

A subset holds, for each parameter it touches, all of it (`Whole`), a block of rows and
columns (`Block`) or single entries (`Entries`). Equal selections are stored in one form
only, the tightest that fits, so equality is a comparison of values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, StoreError, SubsetError
from smidgen.runtime import artifact
from smidgen.runtime.reading import convert_json
from smidgen.runtime.showing.html import ShownInNotebook
from smidgen.types import Shape
from smidgen.weights.origin import LAST_LAYER_ORIGIN, Origin, combine_origins

_SCHEMA = 1
_KEY = "smidgen-subset"
_PRINTED_ROWS = 8


@dataclass(frozen=True)
class Whole:
    """Every entry of a parameter."""


@dataclass(frozen=True, eq=False)
class Block:
    """The crossing of rows (first axis) and columns (all other axes, flattened)."""

    rows: Tensor
    columns: Tensor


@dataclass(frozen=True, eq=False)
class Entries:
    """Single entries, as indices into the flattened parameter."""

    indices: Tensor


Part = Whole | Block | Entries


@dataclass(frozen=True, eq=False)
class Subset(ShownInNotebook):
    """A set of weights of a model, by parameter name.

    Args:
        universe: Names and shapes of the parameters it was chosen from; the
            denominator of `fraction` and the frame of `complement`.
        parts: What is chosen of each parameter. Names left out are not chosen.
        origin: Who chose it, if known. Equality and digest ignore it.

    Raises:
        SubsetError: If a name is unknown, an index is out of range or given twice,
            or nothing at all is chosen.
    """

    universe: Mapping[str, Shape]
    parts: Mapping[str, Part]
    origin: Origin | None = None
    may_be_empty: ClassVar[bool] = False

    def __post_init__(self) -> None:
        universe = {name: tuple(shape) for name, shape in self.universe.items()}
        _check_universe(universe)
        parts = {
            name: _canonical(name, self.parts[name], shape)
            for name, shape in universe.items()
            if name in self.parts
        }
        unknown = [name for name in self.parts if name not in universe]
        if unknown:
            raise SubsetError(
                f"subset names the parameter {unknown[0]!r}, which is not among the "
                f"{len(universe)} it may choose from. Names look like "
                f"{next(iter(universe), 'none')!r}."
            )
        if not parts and not self.may_be_empty:
            raise SubsetError(
                "subset is empty: no weight is chosen. Raise percent, fraction or "
                "count, or name at least one parameter."
            )
        object.__setattr__(self, "universe", MappingProxyType(universe))
        object.__setattr__(self, "parts", MappingProxyType(parts))

    @property
    def size(self) -> int:
        """How many weights are chosen."""
        return sum(self.sizes().values())

    @property
    def total(self) -> int:
        """How many weights there were to choose from."""
        return sum(prod(shape) for shape in self.universe.values())

    @property
    def fraction(self) -> float:
        """The chosen fraction of the universe, in (0, 1]."""
        return self.size / self.total

    @property
    def claims_last(self) -> bool:
        """Whether it, or a subset it was joined with, was chosen as the last layer."""
        origin = self.origin
        parts = origin.parts() if origin and origin.selector == "union" else [origin]
        return any(o and LAST_LAYER_ORIGIN in (o.selector, *o.settings) for o in parts)

    def sizes(self) -> dict[str, int]:
        """Count the chosen weights of each parameter."""
        return {n: _size(part, self.universe[n]) for n, part in self.parts.items()}

    def indices(self, name: str) -> Tensor:
        """List the chosen entries of one parameter, flattened and ascending."""
        if name not in self.parts:
            return torch.empty(0, dtype=torch.int64)
        return _flat(self.parts[name], self.universe[name])

    def union(self, other: Subset) -> Subset:
        """Choose what either chooses; the universes are joined."""
        return self._combine(other, "union", _union)

    def intersection(self, other: Subset) -> Subset:
        """Choose what both choose; the universes are joined."""
        return self._combine(other, "intersection", _intersection)

    def complement(self) -> Subset:
        """Choose what this one leaves, within its universe."""
        parts = {}
        for name, shape in self.universe.items():
            chosen = torch.zeros(prod(shape), dtype=torch.bool)
            chosen[self.indices(name)] = True
            left = (~chosen).nonzero().flatten()
            if left.numel():
                parts[name] = Entries(left)
        return Subset(self.universe, parts, combine_origins("complement", self.origin))

    def __or__(self, other: Subset) -> Subset:
        return self.union(other)

    def __and__(self, other: Subset) -> Subset:
        return self.intersection(other)

    def __invert__(self) -> Subset:
        return self.complement()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Subset):
            return NotImplemented
        return (
            dict(self.universe) == dict(other.universe)
            and self.parts.keys() == other.parts.keys()
            and all(_same(part, other.parts[n]) for n, part in self.parts.items())
        )

    def __hash__(self) -> int:
        return hash((frozenset(self.universe.items()), frozenset(self.sizes().items())))

    def __reduce__(self) -> tuple[object, ...]:
        return Subset, (dict(self.universe), dict(self.parts), self.origin)

    def __repr__(self) -> str:
        chosen = f", chosen by {self.origin}" if self.origin else ""
        return (
            f"Subset({self.size:,} of {self.total:,} weights, {self.fraction:.3%}, "
            f"in {len(self.parts)} parameters{chosen})"
        )

    def __str__(self) -> str:
        shown = list(self.parts.items())[:_PRINTED_ROWS]
        rows = [f"  {name}: {_describe(part, self.universe[name])}" for name, part in shown]
        hidden = len(self.parts) - len(rows)
        if hidden:
            rows.append(f"  … and {hidden} more")
        return "\n".join([repr(self), *rows])

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        """Split into index tensors (int32 where they fit) and a JSON-able header."""
        tensors: dict[str, Tensor] = {}
        kinds: dict[str, str] = {}
        for name, part in self.parts.items():
            kinds[name] = type(part).__name__.lower()
            for field, value in vars(part).items():
                tensors[f"{field}/{name}"] = _narrow(value)
        header: dict[str, object] = {
            "universe": {name: list(shape) for name, shape in self.universe.items()},
            "parts": kinds,
        }
        if self.origin is not None:
            header["origin"] = self.origin.to_json()
        return tensors, header

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], header: Mapping[str, object]
    ) -> Subset:
        """Rebuild what `to_tensors` took apart, checking every name, type and index."""
        if header.keys() - {"universe", "parts", "origin"}:
            raise StoreError("the stored subset has a field that is unknown")
        shapes = convert_json(header.get("universe"), dict[str, Shape], "universe")
        kinds = convert_json(header.get("parts"), dict[str, str], "parts")
        parts = {name: _unpack_part(name, kind, tensors) for name, kind in kinds.items()}
        return cls(shapes, parts, Origin.from_json(header.get("origin")))

    def digest(self) -> str:
        """Hash which weights are chosen, and of what."""
        tensors, header = self.to_tensors()
        header.pop("origin", None)
        digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
        for name in sorted(tensors):
            digest.update(name.encode() + tensors[name].numpy().tobytes())
        return digest.hexdigest()

    def to_file(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all: indices, and a JSON header."""
        tensors, header = self.to_tensors()
        # safetensors refuses a file of no tensors at all: a subset of whole parameters.
        tensors["schema"] = torch.tensor([_SCHEMA], dtype=torch.int32)
        artifact.write_tensor_file(path, tensors, {"schema": _SCHEMA, **header}, key=_KEY)

    @classmethod
    def from_file(cls, path: str | Path) -> Subset:
        """Read a subset that `to_file` wrote."""
        advice = "Write it again with smidgen.save."
        what = "subset file"
        stored, header = artifact.read_tensor_file(path, key=_KEY, what=what, advice=advice)
        artifact.require_schema(path, header.pop("schema", None), _SCHEMA, "subset")
        with artifact.reading(path, what, advice):
            tensors = artifact.Taken({n: t for n, t in stored.items() if n != "schema"})
            subset = cls.from_tensors(tensors, header)
            tensors.refuse_rest()
        return subset

    def _combine(
        self,
        other: Subset,
        operation: str,
        combine: Callable[[Part | None, Part | None, Shape], Part | None],
    ) -> Subset:
        for name, shape in other.universe.items():
            if self.universe.get(name, shape) != shape:
                raise SubsetError(
                    f"subsets disagree on the shape of {name!r}: "
                    f"{self.universe[name]} and {shape}. They belong to two models."
                )
        universe = {**self.universe, **other.universe}
        parts = {
            name: combine(self.parts.get(name), other.parts.get(name), shape)
            for name, shape in universe.items()
        }
        return Subset(
            universe,
            {name: part for name, part in parts.items() if part is not None},
            combine_origins(operation, self.origin, other.origin),
        )


_STORED: dict[str, type[Part]] = {"whole": Whole, "block": Block, "entries": Entries}


def _unpack_part(name: str, kind: str, tensors: Mapping[str, Tensor]) -> Part:
    if kind not in _STORED:
        raise StoreError(f"{name!r} must be whole, a block or entries, got {kind[:40]!r}")
    stored = [tensors[f"{entry.name}/{name}"] for entry in fields(_STORED[kind])]
    if any(i.dtype not in (torch.int32, torch.int64) or i.dim() != 1 for i in stored):
        raise StoreError(f"the indices of {name!r} are not a list of whole numbers")
    return _STORED[kind](*(indices.long() for indices in stored))


def _union(left: Part | None, right: Part | None, shape: Shape) -> Part | None:
    if left is None or right is None:
        return left or right
    if isinstance(left, Whole) or isinstance(right, Whole):
        return Whole()
    both = torch.cat([_flat(left, shape), _flat(right, shape)])
    return Entries(both.unique())


def _intersection(left: Part | None, right: Part | None, shape: Shape) -> Part | None:
    if left is None or right is None:
        return None
    if isinstance(left, Whole):
        return right
    if isinstance(right, Whole):
        return left
    indices = _flat(left, shape)
    shared = indices[torch.isin(indices, _flat(right, shape))]
    return Entries(shared) if shared.numel() else None


def _check_universe(universe: Mapping[str, Shape]) -> None:
    for name, shape in universe.items():
        if not all(type(n) is int and 0 <= n < 2**63 for n in (*shape, prod(shape))):
            raise SubsetError(
                f"universe must have shapes of whole numbers, got {shape} for {name!r}."
            )


def _axes(shape: Shape) -> tuple[int, int]:
    """Rows and flattened columns of a parameter."""
    return (shape[0], prod(shape[1:])) if shape else (1, 1)


def _size(part: Part, shape: Shape) -> int:
    if isinstance(part, Whole):
        return prod(shape)
    if isinstance(part, Block):
        return part.rows.numel() * part.columns.numel()
    return part.indices.numel()


def _flat(part: Part, shape: Shape) -> Tensor:
    if isinstance(part, Whole):
        return torch.arange(prod(shape))
    if isinstance(part, Block):
        return (part.rows[:, None] * _axes(shape)[1] + part.columns).flatten()
    return part.indices


def _canonical(name: str, part: Part, shape: Shape) -> Part:
    """Check a part and store it in the tightest form that fits."""
    rows, columns = _axes(shape)
    if isinstance(part, Whole):
        return part
    if isinstance(part, Block):
        if len(shape) < 2:
            raise SubsetError(
                f"a block needs a parameter of two axes or more, {name!r} has shape "
                f"{shape}. Use Entries."
            )
        block = Block(
            _check_indices(part.rows, rows, f"rows of {name!r}"),
            _check_indices(part.columns, columns, f"columns of {name!r}"),
        )
    else:
        indices = _check_indices(part.indices, prod(shape), f"indices of {name!r}")
        entries = Entries(indices)
        if len(shape) < 2:
            return Whole() if indices.numel() == prod(shape) else entries
        block = Block((indices // columns).unique(), (indices % columns).unique())
        if _size(block, shape) != indices.numel():
            return entries
    return Whole() if _size(block, shape) == prod(shape) else block


def _check_indices(indices: Tensor | Iterable[int], bound: int, what: str) -> Tensor:
    flat = torch.as_tensor(indices, dtype=torch.int64).detach().cpu().flatten()
    ordered, counts = flat.unique(return_counts=True)
    if not ordered.numel():
        raise SubsetError(f"{what} are empty. Leave the parameter out instead.")
    if ordered.numel() < flat.numel():
        twice = int(ordered[counts > 1][0])
        raise SubsetError(f"{what} must be distinct, got {twice} twice.")
    if ordered[0] < 0 or ordered[-1] >= bound:
        wrong = int(ordered[0] if ordered[0] < 0 else ordered[-1])
        raise SubsetError(f"{what} must be in [0, {bound}), got {wrong}. Count from 0.")
    return ordered


def _same(left: Part, right: Part) -> bool:
    return type(left) is type(right) and all(
        torch.equal(value, getattr(right, field)) for field, value in vars(left).items()
    )


def _narrow(indices: Tensor) -> Tensor:
    fits = int(indices[-1]) < 2**31
    return indices.to(torch.int32) if fits else indices


def _describe(part: Part, shape: Shape) -> str:
    frame = " × ".join(f"{n:,}" for n in shape)
    if isinstance(part, Whole):
        return f"all of {frame}"
    if isinstance(part, Block):
        return f"{part.rows.numel():,} rows × {part.columns.numel():,} columns of {frame}"
    return f"{part.indices.numel():,} entries of {frame}"


def check_subset(subset: object) -> None:
    """Refuse anything else in the place of a subset, data in the wrong order above all."""
    if not isinstance(subset, Subset):
        raise ArgumentError(
            f"subset must be a smidgen.Subset, got {type(subset).__name__}. The order is "
            "(model, batches, subset); held-out data are validation=."
        )
