"""`Delta`: what sparse fine-tuning changed, to be put on a base model and taken off again.

One safetensors file: indices, what is added there, the whole of what was new (a head), and
a hash of all other weights of the base model. The tuned model *is* base + difference, so
applying a delta gives its weights bitwise, and removing one gives the base's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from smidgen.atomic import write_bytes
from smidgen.errors import ArgumentError, SmidgenError, StoreError
from smidgen.fingerprint import fingerprint
from smidgen.subset import Subset
from smidgen.trainable import Places, parameters_of

SCHEMA = 1
_KEY = "smidgen-delta"


@dataclass(frozen=True, eq=False)
class Delta:
    """A sparse change of a base model.

    Args:
        subset: The pretrained weights that changed.
        difference: What is added to them, (S,), in the order of the subset; fp32, or
            fp16 for half the size.
        replaced: Parameters given whole, by name: those the base model has no pretrained
            values for, such as a new head.
        fingerprint: Hash of the base model without `replaced`.

    Raises:
        ArgumentError: If the differences are not as many as the chosen weights.
    """

    subset: Subset
    difference: Tensor
    replaced: Mapping[str, Tensor]
    fingerprint: str

    def __post_init__(self) -> None:
        if tuple(self.difference.shape) != (self.subset.size,):
            raise ArgumentError(
                f"difference must have one number for each of {self.subset.size:,} "
                f"weights, got shape {tuple(self.difference.shape)}."
            )
        object.__setattr__(self, "replaced", MappingProxyType(dict(self.replaced)))

    def __repr__(self) -> str:
        whole = sum(each.numel() for each in self.replaced.values())
        return (
            f"Delta({self.subset.size:,} weights moved, {whole:,} replaced, base "
            f"{self.fingerprint[:12]}…)"
        )

    def half(self) -> Delta:
        """The same with differences in fp16: another tuned model, very near."""
        return Delta(
            self.subset,
            self.difference.to(torch.float16),
            self.replaced,
            self.fingerprint,
        )

    def apply(self, model: nn.Module) -> Applied:
        """Write the tuned weights into the base model itself.

        Args:
            model: The base model; only the weights of the delta are written.

        Returns:
            What can be asked to take them off again.

        Raises:
            StoreError: If this is not the model the delta belongs to.
        """
        found = fingerprint(model, without=self.replaced)
        if found != self.fingerprint:
            raise StoreError(
                f"the delta belongs to another base model, of hash {self.fingerprint[:12]}…"
                f"; this one has {found[:12]}…. Load that base, or remove the delta that "
                "is on it; to put two deltas on one base, merge them first."
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
        """Have the tuned weights in the base model for a while.

        Args:
            model: The base model.

        Yields:
            The model.
        """
        there = self.apply(model)
        try:
            yield model
        finally:
            there.remove()

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file, whole or not at all."""
        tensors, header = self.subset.to_tensors()
        tensors["difference"] = self.difference
        tensors.update({f"replaced/{n}": t for n, t in self.replaced.items()})
        about = {"schema": SCHEMA, "fingerprint": self.fingerprint, "subset": header}
        plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        return write_bytes(path, save(plain, metadata={_KEY: json.dumps(about)}))

    @classmethod
    def load(cls, path: str | Path) -> Delta:
        """Read a delta that `save` wrote.

        Args:
            path: The file.

        Returns:
            The delta; `apply` checks the base model.

        Raises:
            StoreError: If the file is missing, damaged or not a delta.
        """
        try:
            with safe_open(str(path), framework="pt") as file:
                about = json.loads((file.metadata() or {})[_KEY])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            if about["schema"] != SCHEMA:
                raise StoreError(
                    f"{path} has delta schema {about['schema']}, this smidgen reads "
                    f"{SCHEMA}. Use the version that wrote it."
                )
            subset = Subset.from_tensors(tensors, about["subset"])
            start = "replaced/"
            replaced = {
                n[len(start) :]: t for n, t in tensors.items() if n.startswith(start)
            }
            return cls(subset, tensors["difference"], replaced, about["fingerprint"])
        except StoreError:
            raise
        except (OSError, SafetensorError, KeyError, ValueError, SmidgenError) as error:
            raise StoreError(
                f"{path} is not a delta file ({error}). Write one with Delta.save."
            ) from error


class Applied:
    """A delta that is on a model, with the values that were there before.

    Args:
        delta: The delta.
        model: Its base model; it is written to.
    """

    def __init__(self, delta: Delta, model: nn.Module) -> None:
        self.model = model
        known = dict(model.named_parameters())
        touched = parameters_of(model, delta.subset)
        self._tensors = {**touched, **{name: known[name] for name in delta.replaced}}
        self._places = Places(delta.subset, touched)
        # In each parameter's own type, so that what is put back is bitwise the same.
        self._before = [
            (
                tensor.detach().clone()
                if indices is None
                else tensor.detach().view(-1)[indices]
            )
            for tensor, indices in self._entries()
        ]
        self._whole = {name: known[name].detach().clone() for name in delta.replaced}
        base = self._places.gathered(touched)
        with torch.no_grad():
            added = delta.difference.to(base.device, base.dtype)
            self._places.scatter(touched, base + added)
            for name, value in delta.replaced.items():
                known[name].copy_(value)

    def remove(self) -> None:
        """Put the base model's weights back, bitwise; a second call does nothing."""
        with torch.no_grad():
            for (tensor, indices), value in zip(
                self._entries(), self._before, strict=False
            ):
                if indices is None:
                    tensor.copy_(value)
                else:
                    tensor.view(-1)[indices] = value
            for name, value in self._whole.items():
                self._tensors[name].copy_(value)
        self._before, self._whole = [], {}

    def _entries(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        for name, indices in self._places.indices.items():
            yield self._tensors[name], indices


def delta_of(
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
        ArgumentError: If nothing but replaced parameters changed.
    """
    pieces = difference.split(list(subset.sizes().values()))
    kept = {
        name: piece
        for name, piece in zip(subset.parts, pieces, strict=True)
        if name not in replaced
    }
    if not kept:
        raise ArgumentError(
            "subset must hold pretrained weights besides those that are replaced. Pass "
            "replaced={} to keep differences of all."
        )
    parts = {name: subset.parts[name] for name in kept}
    universe = {n: s for n, s in subset.universe.items() if n not in replaced}
    return Delta(
        Subset(universe, parts),
        torch.cat(list(kept.values())).detach().cpu().clone(),
        {name: value.detach().cpu().clone() for name, value in replaced.items()},
        fingerprint(base, without=replaced),
    )


def merge(deltas: Sequence[Delta], weights: Sequence[float] | None = None) -> Delta:
    """Add several deltas of one base up, where they overlap too.

    Args:
        deltas: Two or more, of one base model and without heads or with the same one.
        weights: A factor for each; all 1 if left out.

    Returns:
        One delta with the weights of all.

    Raises:
        ArgumentError: If they are of several bases, or replace a parameter differently.
    """
    factors = [1.0] * len(deltas) if weights is None else list(weights)
    if not deltas or len(factors) != len(deltas):
        raise ArgumentError(
            f"weights must be as many as the deltas, {len(deltas)}, got {len(factors)}."
        )
    first = deltas[0]
    for other in deltas[1:]:
        if other.fingerprint != first.fingerprint:
            raise ArgumentError("deltas must be of one base model, got two.")
        for name in {*first.replaced, *other.replaced}:
            mine, theirs = first.replaced.get(name), other.replaced.get(name)
            if mine is None or theirs is None or not torch.equal(mine, theirs):
                raise ArgumentError(
                    f"deltas must replace the same parameters by the same values, got two "
                    f"of {name!r}. Merge deltas without heads."
                )
    subset = first.subset
    for other in deltas[1:]:
        subset = subset | other.subset
    total = torch.zeros(subset.size)
    starts, place = {}, 0
    for name, size in subset.sizes().items():
        starts[name], place = place, place + size
    for delta, factor in zip(deltas, factors, strict=True):
        pieces = delta.difference.float().split(list(delta.subset.sizes().values()))
        for name, piece in zip(delta.subset.parts, pieces, strict=True):
            where = torch.searchsorted(subset.indices(name), delta.subset.indices(name))
            total[starts[name] + where] += factor * piece
    return Delta(subset, total, first.replaced, first.fingerprint)
