"""The largest of very many scores, found by histograms: nothing is sorted or copied whole.

The bits of a floating-point number, read as a whole number, rise with it. So counting the
first sixteen bits of all scores tells within which of them the wanted rank falls, counting
the next sixteen of those alone narrows it down, and the last count leaves one value.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from smidgen.errors import ArgumentError

_DIGIT = 16
_TYPES = {torch.float32: torch.int32, torch.float64: torch.int64}


def top_k(scores: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Find where the largest scores are, over all tensors; ties go to the lower index.

    Args:
        scores: Scores by name, fp32 or fp64, without NaN.
        count: How many to find, at least one and at most all.

    Returns:
        Flat indices, ascending, by name; names with none of them are left out.

    Raises:
        ArgumentError: If the count is out of range.
    """
    total = sum(each.numel() for each in scores.values())
    if not 1 <= count <= total:
        raise ArgumentError(f"count must be from 1 to {total}, got {count}.")
    threshold, ties = _threshold(scores, count)
    found = {}
    for name, each in scores.items():
        keys = _keys(each)
        chosen = (keys > threshold).nonzero().flatten()
        if ties:
            equal = (keys == threshold).nonzero().flatten()[:ties]
            ties -= equal.numel()
            chosen = torch.cat([chosen, equal]).sort().values
        if chosen.numel():
            found[name] = chosen.cpu()
    return found


def top_k_overlap(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], count: int
) -> float:
    """How much two sets of scores agree: the share of the largest that both choose.

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


def _threshold(scores: Mapping[str, Tensor], count: int) -> tuple[int, int]:
    """The key of rank `count`, and how many of those equal to it are within the count."""
    kinds = {each.dtype for each in scores.values()}
    if len(kinds) != 1 or not kinds <= _TYPES.keys():
        raise ArgumentError(
            f"scores must all be fp32 or all fp64, got {sorted(map(str, kinds))}."
        )
    bits = torch.finfo(kinds.pop()).bits
    prefix, wanted = 0, count
    for shift in range(bits - _DIGIT, -1, -_DIGIT):
        counts = sum(_counts(each, prefix, shift, bits) for each in scores.values())
        assert isinstance(counts, Tensor)
        # How many have this digit or a larger one.
        above = counts.flip(0).cumsum(0).flip(0)
        digit = int((above >= wanted).nonzero()[-1])
        wanted -= int(above[digit]) - int(counts[digit])
        prefix = (prefix << _DIGIT) | digit
    # The first digit was counted from zero and is signed in the key.
    return prefix - (1 << (bits - 1)), wanted


def _counts(scores: Tensor, prefix: int, shift: int, bits: int) -> Tensor:
    """Count the digit at `shift` of the scores whose higher digits are the prefix."""
    keys = _keys(scores)
    if shift + _DIGIT < bits:
        signed = prefix - (1 << (bits - 1 - shift - _DIGIT))
        keys = keys[(keys >> (shift + _DIGIT)) == signed]
        digits = (keys >> shift) & ((1 << _DIGIT) - 1)
    else:
        digits = (keys >> shift) + (1 << (_DIGIT - 1))
    return torch.bincount(digits.long(), minlength=1 << _DIGIT).cpu()


def _keys(scores: Tensor) -> Tensor:
    """Whole numbers in the order of the scores; −0 counts as 0."""
    flat = scores.detach().flatten() + 0.0
    raw = flat.view(_TYPES[flat.dtype])
    # Negative numbers fall as their bits rise.
    return torch.where(raw < 0, raw ^ torch.iinfo(raw.dtype).max, raw)
