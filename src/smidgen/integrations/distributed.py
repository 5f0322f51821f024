"""One large fit over several processes: each has a shard, and their sums are added.

    accelerate launch --num_processes 2 fit.py

    loader = accelerator.prepare(loader)
    posterior = smidgen.fit.laplace(model, loader, subset, reduce=all_reduce)

Shards may differ in size. A loader with `DistributedSampler`, or made by accelerate, repeats
rows to make shards equal; those are left out. Batches of your own must hold each row once.

A model of `torch.distributed.fsdp.fully_shard` is gathered: each process holds all its
weights during a call, and all processes must make the same calls.
"""

from __future__ import annotations

import torch.distributed
from torch import Tensor


def all_reduce(tensor: Tensor) -> Tensor:
    """Add up a tensor over all processes; a single process gets its own back.

    Args:
        tensor: This process's part; it is not changed.

    Returns:
        The sum, the same in every process.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return tensor
    total = tensor.clone()
    torch.distributed.all_reduce(total)
    return total


def keep_own(tensor: Tensor) -> Tensor:
    """Add up nothing: `reduce` where every process reads all rows, and comes to the same.

    Args:
        tensor: This process's sum.

    Returns:
        The tensor itself.
    """
    return tensor
