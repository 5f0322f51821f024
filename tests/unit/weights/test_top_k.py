"""The largest scores by counting, against a sort."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smidgen.errors import ArgumentError
from smidgen.weights.top_k import top_k, top_k_overlap


def sorted_largest(scores, count):
    flat = torch.cat([each.flatten() for each in scores.values()])
    order = flat.double().sort(descending=True, stable=True).indices[:count]
    chosen = torch.zeros(len(flat), dtype=torch.bool)
    chosen[order] = True
    found, start = {}, 0
    for name, each in scores.items():
        own = chosen[start : start + each.numel()].nonzero().flatten()
        start += each.numel()
        if own.numel():
            found[name] = own
    return found


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10_000),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(["normal", "ties", "tiny", "signed zeros"]),
    st.floats(0.001, 1.0),
)
def test_it_is_what_a_stable_sort_gives(seed, kind, values, share):
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        found = torch.randn(*shape, generator=generator, dtype=torch.float64)
        if values == "ties":
            found = found.round()
        if values == "tiny":
            found = found * 1e-40
        if values == "signed zeros":
            found = found * (found > 0)
        return found.to(kind)

    scores = {"a": drawn(7, 11), "b": drawn(3), "c": drawn(40)}
    count = max(1, int(share * 120))
    found, wanted = top_k(scores, count), sorted_largest(scores, count)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in found)


def test_overlap_counts_what_both_choose():
    first = {"a": torch.tensor([4.0, 3.0, 2.0, 1.0])}
    second = {"a": torch.tensor([4.0, 1.0, 2.0, 3.0])}
    assert top_k_overlap(first, first, 2) == 1.0
    assert top_k_overlap(first, second, 2) == 0.5


def test_a_count_out_of_range_and_mixed_types_are_named():
    scores = {"a": torch.ones(3)}
    for count in (0, 4):
        with pytest.raises(ArgumentError, match=f"count must be from 1 to 3, got {count}"):
            top_k(scores, count)
    with pytest.raises(ArgumentError, match="all be fp32 or all fp64"):
        top_k({**scores, "b": torch.ones(3, dtype=torch.float64)}, 2)
