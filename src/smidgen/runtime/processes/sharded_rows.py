"""Rows in several processes: who has which, and none of them twice.

A posterior of all rows is made of sums over all processes. `DistributedSampler`, and
accelerate with `even_batches`, repeat rows until every process has as many; here those are
left out again, so that each row counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from itertools import islice
from typing import Any

import torch.distributed
from torch.utils.data import DataLoader, Sampler
from torch.utils.data.distributed import DistributedSampler

from smidgen.errors import ArgumentError
from smidgen.types import Batch, Reduce


def count_processes() -> int:
    """Count the processes that work together, this one too."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 1
    return torch.distributed.get_world_size()


def read_each_once(batches: Iterable[Batch], reduce: Reduce | None) -> Iterable[Batch]:
    """Take this process's rows, each once; refuse several processes that do not add up."""
    count = count_processes()
    if reduce is None and count > 1:
        raise ArgumentError(
            f"reduce must be given where torch.distributed has {count} processes, got None: "
            "each would fit its own rows. Pass smidgen.fit.laplace(..., reduce=all_reduce) "
            "of smidgen.integrations.distributed, or its keep_own where every process reads "
            "all rows."
        )
    return _without_repeats(batches)


def refuse_shard(batches: Iterable[Batch]) -> None:
    """Refuse a loader of some of the rows where every process must read them all."""
    sampler = _find_sharding(batches)
    if sampler is not None:
        raise ArgumentError(
            "batches must be all rows in every process, got the part that "
            f"{type(sampler).__name__} gives to one: each process would come to its own "
            "result. Pass a loader without it."
        )


class _Unpadded(Sampler[int]):
    """The rows of one process without those that are repeated at the end."""

    def __init__(self, padded: DistributedSampler[Any]) -> None:
        self.padded = padded
        rows = len(padded.dataset)  # type: ignore[arg-type]
        self.count = len(range(padded.rank, rows, padded.num_replicas))

    def __iter__(self) -> Iterator[int]:
        return islice(iter(self.padded), self.count)

    def __len__(self) -> int:
        return self.count


def _find_sharding(batches: Iterable[Batch]) -> Any:
    """Find what gives a process its part of the rows, unless that is all of them."""
    loader: Any = getattr(batches, "base_dataloader", batches)
    if not isinstance(loader, DataLoader):
        return None
    outer: Any = loader.batch_sampler
    stream: Any = loader.dataset
    for part in (outer, stream):
        # By name, so that accelerate need not be there.
        if type(part).__name__ in ("BatchSamplerShard", "IterableDatasetShard"):
            return part if part.num_processes > 1 else None
    inner = getattr(outer, "sampler", loader.sampler)
    split = isinstance(inner, DistributedSampler) and inner.num_replicas > 1
    return inner if split else None


def _without_repeats(batches: Iterable[Batch]) -> Iterable[Batch]:
    """The same loader without repeated rows; one that repeats them unseen is refused."""
    if type(batches).__name__ == "DataLoaderDispatcher" and count_processes() > 1:
        raise ArgumentError(
            "batches must be read by each process itself, got accelerate's "
            "DataLoaderDispatcher, which repeats rows that would count twice. Pass "
            "DataLoaderConfiguration(dispatch_batches=False) to Accelerator, and a dataset "
            "with a length and __getitem__."
        )
    sampler, base = _find_sharding(batches), getattr(batches, "base_dataloader", None)
    _refuse_unknown_order(sampler)
    if sampler is None or sampler.drop_last:
        return batches
    if base is not None:
        return _rebuild(batches, base_dataloader=_without_repeats(base))
    loader: Any = batches
    outer = copy(loader.batch_sampler)
    if not isinstance(sampler, DistributedSampler):
        outer.even_batches = False
        return _rebuild(loader, batch_sampler=outer)
    sampler = _Unpadded(sampler)
    if outer is not None:
        outer.sampler = sampler
    return _rebuild(loader, batch_sampler=outer, sampler=sampler)


def _refuse_unknown_order(sampler: Any) -> None:
    """Refuse what may repeat rows at places that cannot be told."""
    name = type(sampler).__name__
    if name == "IterableDatasetShard" and not sampler.drop_last:
        raise ArgumentError(
            "batches must have each row once, got accelerate's IterableDatasetShard, which "
            "repeats rows that would count twice. Pass a dataset with a length and "
            "__getitem__, or a DataLoader with drop_last=True."
        )
    if (
        isinstance(sampler, DistributedSampler)
        and type(sampler).__iter__ is not DistributedSampler.__iter__
    ):
        raise ArgumentError(
            f"batches must have each row once, got the sampler {name} with an __iter__ of its "
            "own, which may repeat rows that would count twice. Pass a plain "
            "DistributedSampler."
        )


def _rebuild(loader: Any, **parts: Any) -> Any:
    """Copy a loader with other parts, which it forbids to set."""
    other = object.__new__(type(loader))
    # Workers that last belong to one iterator.
    vars(other).update({**vars(loader), "_iterator": None, **parts})
    return other
