"""One large fit over several processes: each has a shard, and their sums are added.

    accelerate launch --num_processes 2 fit.py

    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=False))
    loader = accelerator.prepare(loader)
    posterior = smidgen.fit.laplace(model, loader, subset, reduce=all_reduce)

Shards may differ in size. `even_batches=False` matters: without it accelerate repeats
examples to make shards equal, and those would count twice.
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
