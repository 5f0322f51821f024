"""`Delta`: what sparse fine-tuning changed, to be put on a base model and taken off again.

One safetensors file: indices, what is added there, the whole of what was new (a head), and
a hash of all other weights of the base model. The tuned model *is* base + difference, so
applying a delta gives its weights bitwise, and removing one gives the base's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, StoreError, require_kind
from smidgen.runtime.artifact import (
    Taken,
    read_tensor_file,
    reading,
    require_finite,
    require_schema,
    write_tensor_file,
)
from smidgen.runtime.guard import fingerprint
from smidgen.runtime.keeping.structure import unwrap
from smidgen.runtime.reading import convert_json
from smidgen.runtime.showing.html import ShownInNotebook
from smidgen.runtime.storage.offload import require_loaded
from smidgen.weights.subset import Subset
from smidgen.weights.vector import SubsetIndex, find_parameters, write_entries

DELTA_SCHEMA = 1
_KEY = "smidgen-delta"


@dataclass(frozen=True, eq=False)
class Delta(ShownInNotebook):
    """A sparse change of a base model.

    Args:
        subset: The pretrained weights that changed.
        difference: What is added to them, (S,), in the order of the subset; fp32, or
            fp16 for half the size.
        replaced: Parameters given whole, by name: those the base model has no pretrained
            values for, such as a new head.
        fingerprint: Hash of the base model without `replaced` and `left_out`.
        left_out: Other parameters that the hash leaves out: a head that was taken off.

    Raises:
        ArgumentError: If the differences are not as many as the chosen weights.
    """

    subset: Subset
    difference: Tensor
    replaced: Mapping[str, Tensor]
    fingerprint: str
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if tuple(self.difference.shape) != (self.subset.size,):
            raise ArgumentError(
                f"difference must have one number for each of {self.subset.size:,} "
                f"weights, got shape {tuple(self.difference.shape)}."
            )
        object.__setattr__(self, "replaced", MappingProxyType(dict(self.replaced)))

    def __repr__(self) -> str:
        whole = sum(value.numel() for value in self.replaced.values())
        return (
            f"Delta({self.subset.size:,} weights moved, {whole:,} replaced, base "
            f"{self.fingerprint[:12]}…)"
        )

    def half(self) -> Delta:
        """The same with differences in fp16: another tuned model, very near."""
        return replace(self, difference=self.difference.to(torch.float16))

    def without_head(self) -> Delta:
        """The same without `replaced`: the model keeps a head of its own."""
        return replace(self, replaced={}, left_out=self._free())

    def _free(self) -> tuple[str, ...]:
        """Name the parameters that the base's hash leaves out."""
        return tuple(sorted({*self.replaced, *self.left_out}))

    def apply(self, model: nn.Module) -> Applied:
        """Write the tuned weights into the base model itself.

        Args:
            model: The base model; only the weights of the delta are written.

        Returns:
            A handle that takes them off again.

        Raises:
            StoreError: If this is not the base model, or already carries a delta.
        """
        model = unwrap(model)
        require_loaded(model, "a delta")
        _refuse_second(model)
        digest = fingerprint(model, without=self._free())
        if digest != self.fingerprint:
            raise StoreError(
                f"the delta belongs to another base model, of hash {self.fingerprint[:12]}…"
                f"; this one has {digest[:12]}…. Load that base."
            )
        known = dict(model.named_parameters())
        for name, value in self.replaced.items():
            if name not in known or known[name].shape != value.shape:
                there = tuple(known[name].shape) if name in known else "nothing"
                raise StoreError(
                    f"the delta replaces {name!r} by values of shape "
                    f"{tuple(value.shape)}, and the model has {there} there. Give it a "
                    "head of that size."
                )
        return Applied(self, model)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[nn.Module]:
        """Put the tuned weights into the base model while the context lasts."""
        handle = self.apply(model)
        try:
            yield model
        finally:
            handle.remove()

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file, whole or not at all."""
        self._require_finite()
        tensors, header = self.subset.to_tensors()
        tensors["difference"] = self.difference
        tensors.update({f"replaced/{n}": t for n, t in self.replaced.items()})
        about = {
            "schema": DELTA_SCHEMA,
            "fingerprint": self.fingerprint,
            "left_out": self.left_out,
            "replaced": list(self.replaced),
            "subset": header,
        }
        return write_tensor_file(path, tensors, about, key=_KEY)

    @classmethod
    def load(cls, path: str | Path) -> Delta:
        """Read a delta that `save` wrote; `apply` checks the base model."""
        advice = "Write it again with smidgen.save."
        stored, about = read_tensor_file(path, key=_KEY, what="delta file", advice=advice)
        require_schema(path, about.pop("schema", None), DELTA_SCHEMA, "delta")
        with reading(path, "delta file", advice):
            tensors = Taken(stored)
            names = tuple[str, ...]
            texts = {"fingerprint": str, "left_out": names, "replaced": names}
            found = {n: convert_json(about.pop(n, None), t, n) for n, t in texts.items()}
            subset = Subset.from_tensors(tensors, about.pop("subset"))
            found["replaced"] = {n: tensors[f"replaced/{n}"] for n in found["replaced"]}
            delta = cls(subset, tensors["difference"], **found)
            tensors.refuse_rest()
            delta._require_finite()
            if about or not delta.difference.is_floating_point():
                raise StoreError("it holds what no delta holds")
        return delta

    def _require_finite(self) -> None:
        for name, tensor in {"difference": self.difference, **self.replaced}.items():
            require_finite(name, tensor)


# Names, indices (None: all) and values of entries.
_Values = list[tuple[str, Tensor | None, Tensor]]
# What a delta wrote. It holds no model, so that one can be freed.
_ON: WeakKeyDictionary[nn.Module, _Values] = WeakKeyDictionary()


class Applied:
    """A delta that is on a model, with the values that were there before."""

    def __init__(self, delta: Delta, model: nn.Module) -> None:
        self.model = model
        known = dict(model.named_parameters())
        touched = find_parameters(model, delta.subset)
        index = SubsetIndex(delta.subset, touched)
        places = {**index.indices, **dict.fromkeys(delta.replaced)}
        # In each parameter's own type, so that what is put back is bitwise the same.
        self._before = _read_entries(known, places)
        base = index.gather(touched)
        with torch.no_grad():
            added = delta.difference.to(base.device, base.dtype)
            index.scatter(touched, base + added)
            for name, value in delta.replaced.items():
                known[name].copy_(value)
        self._written = _ON[model] = _read_entries(known, places)

    def remove(self) -> None:
        """Put the base model's weights back, bitwise; a second call does nothing."""
        if not self._before:
            return
        changed = _find_changed(self.model, self._written)
        if changed is not None:
            raise StoreError(
                f"the model must be as the delta left it, got other values of {changed!r}: "
                "the base cannot be put back. Load the base model again."
            )
        known = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, indices, value in self._before:
                tensor = known[name]
                if indices is None:
                    tensor.copy_(value)
                else:
                    write_entries(tensor, indices.to(tensor.device), value.to(tensor))
        self._before, self._written = [], []
        _ON.pop(self.model, None)


def _read_entries(
    known: Mapping[str, Tensor], places: Mapping[str, Tensor | None]
) -> _Values:
    return [(name, at, _copy_entries(known[name], at)) for name, at in places.items()]


def _copy_entries(tensor: Tensor, indices: Tensor | None) -> Tensor:
    """Copy some entries, or all."""
    if indices is None:
        return tensor.detach().clone()
    return tensor.detach().flatten()[indices.to(tensor.device)]


def _find_changed(model: nn.Module, written: _Values) -> str | None:
    """Find the first parameter that is not as a delta wrote it."""
    known = dict(model.named_parameters())
    for name, indices, value in written:
        now = _copy_entries(known[name], indices) if name in known else None
        if now is None or not torch.equal(now, value.to(now)):
            return name
    return None


def _refuse_second(model: nn.Module) -> None:
    """Refuse a model that has a delta on it, unless other weights were loaded since."""
    if model in _ON and _find_changed(model, _ON[model]) is None:
        raise StoreError(
            "a delta is on this model already. Call remove() on what apply returned; to "
            "put two deltas on one base, merge them first."
        )


def make_delta(
    base: nn.Module, subset: Subset, difference: Tensor, replaced: Mapping[str, Tensor]
) -> Delta:
    """Make a delta of a base model.

    Parameters that are replaced are taken out of the subset.

    Args:
        base: The base model; it is only read.
        subset: All weights that changed.
        difference: What was added to them, (S,), in the order of the subset.
        replaced: Parameters to be given whole, with their new values.

    Returns:
        The delta.

    Raises:
        ArgumentError: If the numbers are not as many as the weights, a replaced parameter
            is not the model's, or nothing but those changed.
    """
    if tuple(difference.shape) != (subset.size,):
        raise ArgumentError(
            f"difference must have one number for each of {subset.size:,} weights of the "
            f"subset, got shape {tuple(difference.shape)}. Give them in its order."
        )
    known = dict(unwrap(base).named_parameters())
    for name, value in replaced.items():
        if name not in known or known[name].shape != value.shape:
            there = f"of shape {tuple(known[name].shape)}" if name in known else "missing"
            raise ArgumentError(
                f"replaced must hold parameters of the base in their shapes, got {name!r} "
                f"of shape {tuple(value.shape)}, there {there}. Take them by the names "
                "of base.named_parameters()."
            )
    pieces = difference.split(list(subset.sizes().values()))
    moved = {
        name: piece
        for name, piece in zip(subset.parts, pieces, strict=True)
        if name not in replaced
    }
    if not moved:
        raise ArgumentError(
            "subset must hold pretrained weights besides those that are replaced. Pass "
            "replaced={} to keep differences of all."
        )
    parts = {name: subset.parts[name] for name in moved}
    universe = {n: s for n, s in subset.universe.items() if n not in replaced}
    return Delta(
        Subset(universe, parts),
        torch.cat(list(moved.values())).detach().cpu().clone(),
        {name: value.detach().cpu().clone() for name, value in replaced.items()},
        fingerprint(base, without=replaced),
    )


def merge_deltas(deltas: Sequence[Delta], weights: Sequence[float] | None = None) -> Delta:
    """Add up several deltas of one base, which may overlap.

    Args:
        deltas: Two or more, of one base model. Runs have a head each, and a model can
            have one: take it off all others with `Delta.without_head`.
        weights: A factor for each; 1 by default.

    Returns:
        One delta with the weights of all.

    Raises:
        ArgumentError: If they are of several bases, or replace a parameter differently.
    """
    deltas = list(deltas)
    for delta in deltas:
        require_kind("deltas", delta, Delta, "Load them with smidgen.load")
    if not deltas:
        raise ArgumentError(
            "deltas must be one Delta or more, got none. Load them with smidgen.load."
        )
    factors = [1.0] * len(deltas) if weights is None else list(weights)
    if len(factors) != len(deltas):
        raise ArgumentError(
            f"weights must be as many as the deltas, {len(deltas)}, got {len(factors)}."
        )
    first = deltas[0]
    replaced = _join_replaced(deltas)
    subset = first.subset
    for other in deltas[1:]:
        subset = subset | other.subset
    dtype = torch.float32
    for delta in deltas:
        dtype = torch.promote_types(dtype, delta.difference.dtype)
    total = torch.zeros(subset.size, dtype=dtype)
    starts, place = {}, 0
    for name, size in subset.sizes().items():
        starts[name], place = place, place + size
    for delta, factor in zip(deltas, factors, strict=True):
        pieces = delta.difference.to(dtype).split(list(delta.subset.sizes().values()))
        for name, piece in zip(delta.subset.parts, pieces, strict=True):
            where = torch.searchsorted(subset.indices(name), delta.subset.indices(name))
            total[starts[name] + where] += factor * piece
    left_out = tuple(name for name in first._free() if name not in replaced)
    return Delta(subset, total, replaced, first.fingerprint, left_out)


def _join_replaced(deltas: Sequence[Delta]) -> dict[str, Tensor]:
    """Join what the deltas replace, refusing several bases and conflicting values."""
    replaced: dict[str, Tensor] = {}
    first = deltas[0]
    for delta in deltas:
        if delta.fingerprint != first.fingerprint:
            raise ArgumentError("deltas must be of one base model, got two.")
        for name in {*delta._free()} ^ {*first._free()}:
            raise ArgumentError(
                "deltas must leave the same parameters out of their base's hash, got one "
                f"with and one without {name!r}. Make them of runs with the same head."
            )
        for name, value in delta.replaced.items():
            if name in replaced and not torch.equal(replaced[name], value):
                raise ArgumentError(
                    f"deltas must replace the same parameters by the same values, got two "
                    f"of {name!r}. Take the head off all but one: delta.without_head()."
                )
            replaced[name] = value
    return replaced
