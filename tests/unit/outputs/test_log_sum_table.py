"""Sums over many classes from a table, against the sums themselves."""

from __future__ import annotations

from math import inf

import pytest
import torch

from smidgen.outputs.log_sum_table import LogSumTable
from tests.support.tolerances import PEER, SOLVER

TEMPERATURES = torch.logspace(-2, 2, 37, dtype=torch.float64)


@pytest.mark.parametrize("spread", [0.0, 1.0, 10.0])
def test_values_and_derivatives_are_those_of_the_sums(spread):
    source = torch.Generator().manual_seed(0)
    distances = spread * torch.randn(8, 300, generator=source, dtype=torch.float64) - 2
    distances[:, 3] = -inf
    table = LogSumTable(distances)
    inverse = (1 / TEMPERATURES)[:, None, None].requires_grad_()
    finite = distances[:, torch.arange(300) != 3]
    sums = (finite * inverse).logsumexp(-1, keepdim=True)
    found = table.at(inverse.detach())
    torch.testing.assert_close(found[0], sums.detach(), **PEER)
    for row in range(len(distances)):
        (first,) = torch.autograd.grad(sums[:, row].sum(), inverse, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), inverse, retain_graph=True)
        torch.testing.assert_close(found[1][:, row], first.detach()[:, 0], **SOLVER)
        torch.testing.assert_close(
            found[2][:, row], second[:, 0], rtol=1e-3, atol=1e-9 + 1e-4 * spread**2
        )


def test_scanned_temperatures_take_an_evaluation_each():
    table = LogSumTable(torch.randn(2, 5).double())
    scanned = torch.logspace(-2, 2, 9, dtype=torch.float64)
    for _ in range(3):
        table.at((1 / scanned)[:, None, None])
    assert len(table.known) == 9
    table.at(torch.tensor([[[1 / 1.01]]]).double())
    assert len(table.known) == 10
