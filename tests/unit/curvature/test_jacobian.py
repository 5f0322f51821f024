"""A Jacobian in parts is the Jacobian, whatever the size of a part."""

from __future__ import annotations

import pytest
import torch

from smidgen.curvature.jacobian import Jacobian


@pytest.mark.parametrize("entries", [None, torch.tensor([0, 5, 7, 23])])
@pytest.mark.parametrize("numbers", [1, 50, 10_000])
def test_parts_are_the_whole(entries, numbers):
    generator = torch.Generator().manual_seed(0)
    deltas = torch.randn(7, 3, 4, generator=generator)
    inputs = torch.randn(7, 3, 6, generator=generator)
    whole = Jacobian(deltas, inputs, entries=entries)
    parts = list(whole.parts(numbers))
    assert len(parts) == {1: 7, 50: 4 if entries is None else 2, 10_000: 1}[numbers]
    joined = torch.cat([each.flat() for each in parts])
    torch.testing.assert_close(joined, whole.flat())


def test_layers_with_the_same_features_share_their_gram_matrix():
    torch.manual_seed(0)
    features = torch.randn(2, 3, 16).double()
    grams = {}
    first, second = (
        Jacobian(torch.randn(1, 2, 3, 16).double(), features, True, None, grams)
        for _ in range(2)
    )
    for jacobian in (first, second):
        flat = jacobian.flat()
        expected = torch.einsum("kbd,lbd->bkl", flat, flat)
        torch.testing.assert_close(jacobian.products(), expected)
    assert len(grams) == 1
    # Other features, and no bias, are others.
    Jacobian(first.deltas, features, False, None, grams).products()
    Jacobian(first.deltas, features.clone(), True, None, grams).products()
    assert len(grams) == 3
