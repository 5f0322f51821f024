"""The largest of very many scores, over all tensors together."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from smidgen.errors import ArgumentError


def top_k(scores: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Find where the largest scores are, over all tensors; ties go to the lower index.

    Args:
        scores: Scores by name, fp32 or fp64, without NaN.
        count: How many to find, at least one and at most all.

    Returns:
        Flat indices, ascending, by name; names with none of them are left out.

    Raises:
        ArgumentError: If the count is out of range, or types are mixed.
    """
    total = sum(score.numel() for score in scores.values())
    if not 1 <= count <= total:
        raise ArgumentError(f"count must be from 1 to {total}, got {count}.")
    kinds = {score.dtype for score in scores.values()}
    if len(kinds) != 1 or not kinds <= {torch.float32, torch.float64}:
        raise ArgumentError(
            f"scores must all be fp32 or all fp64, got {sorted(map(str, kinds))}."
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
    """Measure how much two sets of scores agree: the fraction of the largest in both.

    Args:
        first: Scores by name.
        second: Other scores of the same weights.
        count: How many of the largest are compared.

    Returns:
        In [0, 1]; scores that have nothing in common give about count over all.
    """
    left, right = top_k(first, count), top_k(second, count)
    both = sum(
        int(torch.isin(left[name], right[name]).sum()) for name in left if name in right
    )
    return both / count
