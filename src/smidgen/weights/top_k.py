"""The largest of very many scores, over all tensors together."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from smidgen.errors import ArgumentError


def top_k(scores: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Find the flat indices of the `count` largest scores of all tensors, ascending, by name."""
    # Ties go to the lower index; names without any are left out. NaN must not occur.
    total = sum(score.numel() for score in scores.values())
    if not 1 <= count <= total:
        raise ArgumentError(f"count must be from 1 to {total}, got {count}.")
    dtypes = {score.dtype for score in scores.values()}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        raise ArgumentError(
            f"scores must all be fp32 or all fp64, got {sorted(map(str, dtypes))}."
        )
    flat = {name: score.detach().flatten() for name, score in scores.items()}
    # A score among the largest of all is among the largest of its tensor.
    largest = [s.topk(min(count, len(s)), sorted=False).values.cpu() for s in flat.values()]
    threshold = torch.cat(largest).topk(count, sorted=False).values.min().item()
    ties = count - sum(int((score > threshold).sum()) for score in flat.values())
    indices = {}
    for name, score in flat.items():
        chosen = (score > threshold).nonzero().flatten()
        if ties:
            equal = (score == threshold).nonzero().flatten()[:ties]
            ties -= equal.numel()
            chosen = torch.cat([chosen, equal]).sort().values
        if chosen.numel():
            indices[name] = chosen.cpu()
    return indices


def top_k_overlap(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], count: int
) -> float:
    """Measure which fraction of the `count` largest scores two sets of scores share."""
    left, right = top_k(first, count), top_k(second, count)
    both = sum(
        int(torch.isin(left[name], right[name]).sum()) for name in left if name in right
    )
    return both / count
