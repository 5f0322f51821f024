"""Rows of several processes: each once, whatever a loader repeats."""

from __future__ import annotations

import pytest
import torch
from accelerate.data_loader import DataLoaderDispatcher, prepare_data_loader
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from smidgen.errors import ArgumentError
from smidgen.integrations.distributed import keep_own
from smidgen.runtime.processes import sharded_rows
from smidgen.runtime.processes.sharded_rows import read_each_once, refuse_shard


def rows_of(loader):
    return [row for (batch,) in loader for row in batch.reshape(-1).tolist()]


def sampled(rows, rank, count, **settings):
    data = TensorDataset(torch.arange(rows))
    sampler = DistributedSampler(data, count, rank, shuffle=settings.pop("shuffle", False))
    return DataLoader(data, settings.pop("size", 3), sampler=sampler, **settings)


def prepared(rows, rank, count, **settings):
    data = TensorDataset(torch.arange(rows))
    loader = DataLoader(data, batch_size=4)
    return prepare_data_loader(
        loader, num_processes=count, process_index=rank, put_on_device=False, **settings
    )


LOADERS = {
    "sampler": sampled,
    "shuffled": lambda *where: sampled(*where, shuffle=True),
    "unbatched": lambda *where: sampled(*where, size=None),
    "lasting": lambda *where: sampled(*where, num_workers=1, persistent_workers=True),
    "accelerate": prepared,
    "split": lambda *where: prepared(*where, split_batches=True),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize(("rows", "count"), [(11, 2), (9, 4), (12, 2)])
def test_every_row_is_read_once(kind, rows, count):
    loaders = [LOADERS[kind](rows, rank, count) for rank in range(count)]
    if kind == "lasting":
        loaders = loaders[:2]
    padded = [rows_of(loader) for loader in loaders]
    once = [rows_of(read_each_once(loader, keep_own)) for loader in loaders]
    found = [row for part in once for row in part]
    assert len(set(found)) == len(found)
    if kind != "lasting":
        assert sorted(found) == list(range(rows))
    for part, more in zip(once, padded, strict=True):
        assert more[: len(part)] == part
    # The caller's own loader still repeats them.
    assert [rows_of(loader) for loader in loaders] == padded


def test_other_batches_are_left_alone():
    plain = DataLoader(TensorDataset(torch.arange(5)), batch_size=2)
    dropping = DistributedSampler(plain.dataset, 2, 0, drop_last=True)
    for batches in ([1, 2], plain, DataLoader(plain.dataset, sampler=dropping)):
        assert read_each_once(batches, None) is batches
    refuse_shard(plain)


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_sampler_with_an_order_of_its_own_is_refused(drop_last):
    class Own(DistributedSampler):
        def __iter__(self):
            return iter([4, 4])

    data = TensorDataset(torch.arange(5))
    loader = DataLoader(data, sampler=Own(data, 2, 0, drop_last=drop_last))
    with pytest.raises(ArgumentError, match=r"the sampler Own .* plain DistributedSampler"):
        read_each_once(loader, keep_own)
    alone = DataLoader(data, sampler=Own(data, 1, 0))
    assert read_each_once(alone, keep_own) is alone


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.tensor(row),) for row in range(11)])


def streamed(rank, count, **settings):
    return prepare_data_loader(
        DataLoader(Stream(), batch_size=2, **settings),
        num_processes=count,
        process_index=rank,
        put_on_device=False,
        dispatch_batches=False,
    )


def test_a_stream_that_repeats_rows_is_refused():
    # It does repeat them: without this the refusal would be for nothing.
    assert sorted(rows_of(streamed(0, 2)) + rows_of(streamed(1, 2))) != list(range(11))
    with pytest.raises(ArgumentError, match=r"IterableDatasetShard, .* drop_last=True"):
        read_each_once(streamed(0, 2), keep_own)
    with pytest.raises(ArgumentError, match="the part that IterableDatasetShard gives"):
        refuse_shard(streamed(0, 2))


def test_a_stream_that_repeats_nothing_is_left_alone():
    dropping = [streamed(rank, 2, drop_last=True) for rank in range(2)]
    assert [read_each_once(loader, keep_own) for loader in dropping] == dropping
    assert sorted(row for loader in dropping for row in rows_of(loader)) == list(range(8))
    alone = streamed(0, 1)
    assert read_each_once(alone, keep_own) is alone


@pytest.mark.parametrize("make", [sampled, prepared])
def test_a_shard_is_refused_where_all_rows_are_needed(make):
    with pytest.raises(
        ArgumentError, match="must be all rows in every process, got the part"
    ):
        refuse_shard(make(11, 0, 2))
    refuse_shard(make(11, 0, 1))


def test_a_loader_that_repeats_rows_unseen_is_refused(monkeypatch):
    loader = DataLoaderDispatcher(TensorDataset(torch.arange(5)))
    assert read_each_once(loader, keep_own) is loader
    monkeypatch.setattr(sharded_rows, "count_processes", lambda: 2)
    with pytest.raises(ArgumentError, match="dispatch_batches=False"):
        read_each_once(loader, keep_own)
