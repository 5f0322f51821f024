"""A factor is the same sum in whatever form it is held; a sketch says how far it is off."""

from __future__ import annotations

import pytest
import torch

from smidgen.curvature.factors.factor_sum import FactorSum, count_rows

SIDE = 300


def rows_of(count, side=SIDE, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, side, dtype=torch.float64, generator=generator)
    return rows * torch.logspace(0, -2, side, dtype=torch.float64)


def matrix_of(spectrum):
    known = spectrum.vectors * (spectrum.values - spectrum.level) @ spectrum.vectors.T
    return known + spectrum.level * torch.eye(len(known), dtype=known.dtype)


@pytest.mark.parametrize("count", [1, 40, 299, 300, 700])
def test_thin_rows_and_squares_are_the_same_factor(count):
    rows = rows_of(count)
    total = FactorSum(SIDE, SIDE, rows)
    for part in rows.split(64):
        total.add(part)
    assert (total.square is None) == (count < SIDE)
    spectrum = total.decompose(2.0, torch.tensor(4.0))
    torch.testing.assert_close(matrix_of(spectrum), rows.T @ rows / 2, rtol=0, atol=1e-9)
    kept = spectrum.vectors.T @ spectrum.vectors
    torch.testing.assert_close(kept, torch.eye(len(kept)).double(), rtol=0, atol=1e-12)
    assert spectrum.rest == 0
    assert len(spectrum.values) == min(count, SIDE)


@pytest.mark.parametrize("rank", [1, 16, 120])
@pytest.mark.parametrize("count", [10, 200, 2_000])
def test_a_sketch_is_off_by_no_more_than_it_says(rank, count):
    rows = rows_of(count)
    total = FactorSum(SIDE, rank, rows)
    for part in rows.split(32):
        total.add(part)
    assert total.square is None
    assert sum(map(len, total.rows)) <= 2 * (rank + 64) + 32
    spectrum = total.decompose()
    assert len(spectrum.values) <= rank
    missing = torch.linalg.eigvalsh(rows.T @ rows - matrix_of(spectrum))
    most = float(rows.square().sum()) * 1e-12
    assert missing.abs().max() <= float(spectrum.rest) + most
    if count <= rank:
        assert spectrum.rest <= most


@pytest.mark.parametrize("count", [50, 500])
def test_a_part_of_the_vectors_is_a_principal_block(count):
    rows = rows_of(count)
    total = FactorSum(SIDE, SIDE, rows)
    total.add(rows)
    chosen = torch.arange(0, SIDE, 7)
    block = matrix_of(total.restrict(chosen).decompose())
    expected = (rows.T @ rows)[chosen][:, chosen]
    torch.testing.assert_close(block, expected, rtol=0, atol=1e-9)


def test_nothing_added_is_a_factor_of_nothing():
    spectrum = FactorSum(SIDE, SIDE, torch.zeros(())).decompose()
    assert len(spectrum.values) == 0
    assert spectrum.vectors.shape == (SIDE, 0)


@pytest.mark.parametrize("rank", [SIDE, 16])
def test_what_was_added_is_a_copy(rank):
    rows = rows_of(40)
    total, buffer = FactorSum(SIDE, rank, rows), torch.empty_like(rows[:20])
    for part in rows.split(20):
        total.add(buffer.copy_(part))
    missing = rows.T @ rows - matrix_of(total.decompose())
    assert torch.linalg.eigvalsh(missing).abs().max() <= total.decompose().rest + 1e-9


def test_a_sketch_never_holds_more_rows_than_it_says():
    rows, held = rows_of(2_000), []
    total = FactorSum(SIDE, 8, rows)
    shrink = total._shrink
    total._shrink = lambda: (held.append(sum(map(len, total.rows))), shrink())
    total.add(rows)
    assert len(held) > 100
    assert max(held) <= count_rows(SIDE, 8)
    missing = torch.linalg.eigvalsh(rows.T @ rows - matrix_of(total.decompose()))
    assert missing.abs().max() <= total.decompose().rest + 1e-9
