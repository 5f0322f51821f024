"""The four parts of a Jacobian, as sides or themselves, against the dense computation."""

from __future__ import annotations

import pytest
import torch

from smidgen.curvature.factors import split_jacobian as splitting
from smidgen.curvature.jacobian import Jacobian
from tests.support.tolerances import EXACT

DIRECTIONS, EXAMPLES, POSITIONS, ROWS, FEATURES = 2, 3, 4, 5, 6


def make_jacobian(bias):
    generator = torch.Generator().manual_seed(0)
    deltas = torch.randn(
        DIRECTIONS, EXAMPLES, POSITIONS, ROWS, dtype=torch.float64, generator=generator
    )
    features = torch.randn(
        EXAMPLES, POSITIONS, FEATURES, dtype=torch.float64, generator=generator
    )
    return Jacobian(deltas, features, bias)


def make_basis(side, rank):
    generator = torch.Generator().manual_seed(side)
    square = torch.randn(side, side, dtype=torch.float64, generator=generator)
    return torch.linalg.qr(square)[0][:, :rank]


@pytest.mark.parametrize("split", [splitting._split_sides, splitting._split_whole])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ranks", [(2, 3), (0, 3), (2, 0), (0, 0), (5, 3), (2, None)])
def test_parts_are_weighed_as_the_dense_matrix_says(split, bias, ranks):
    jacobian, side = make_jacobian(bias), FEATURES + bias
    rank, other = ranks[0], side if ranks[1] is None else ranks[1]
    rows, columns = make_basis(ROWS, rank), make_basis(side, other)
    by_row, by_column, neither = torch.rand(rank), torch.rand(other), torch.tensor(0.7)
    by_row, by_column, neither = (w.double() for w in (by_row, by_column, neither))
    found = split(jacobian, rows, columns)
    grid = jacobian.deltas.mT @ jacobian.inputs  # (K, B, n, m)
    inside = rows.T @ grid @ columns
    torch.testing.assert_close(found.inside, inside.flatten(-2), **EXACT)
    outside = [torch.eye(len(u)).double() - u @ u.T for u in (rows, columns)]
    parts = [
        rows.T @ grid @ outside[1] * by_row.sqrt()[:, None],
        outside[0] @ grid @ columns * by_column.sqrt(),
        outside[0] @ grid @ outside[1] * neither.sqrt(),
    ]
    expected = sum(torch.einsum("kbij,lbij->bkl", part, part) for part in parts)
    products = found.pair_outside(by_row, by_column, neither)
    torch.testing.assert_close(products, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("positions", [1, 400])
def test_the_smaller_of_both_forms_is_taken(positions):
    generator = torch.Generator().manual_seed(0)
    deltas = torch.randn(1, 2, positions, ROWS, generator=generator)
    jacobian = Jacobian(deltas, torch.randn(2, positions, FEATURES, generator=generator))
    rows, columns = make_basis(ROWS, 2).float(), make_basis(FEATURES, 2).float()
    (part,) = splitting.split_jacobian(jacobian, rows, columns)
    kind = splitting.SplitSides if positions == 1 else splitting.SplitWhole
    assert isinstance(part, kind)
