"""Everybody's choice of one network's weights, under one budget."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from smidgen.errors import ArgumentError
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.problem import Problem
from smidgen_studies.data.uci import Tables, make_network
from smidgen_studies.engine.study import read_study
from smidgen_studies.methods.uci_choices import UciSelector, choose_subsets

FEATURES = 4
TOTAL = FEATURES * 50 + 50 + 50 * 50 + 50 + 50 + 1


def world():
    """A new network and rows of a wave along one of four inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(70, FEATURES, generator=generator, dtype=torch.float64)
    y = torch.sin(2 * x[:, :1])
    tables = Tables((x[:40], y[:40]), (x[40:50], y[40:50]), (x[50:], y[50:]))
    return Problem(make_network(FEATURES, 1), Gaussian(1)), tables


def chosen(by, percents=(2, 5), seed=0):
    problem, tables = world()
    return list(choose_subsets(problem, tables, by, percents, noise=0.01, seed=seed))


@pytest.mark.parametrize("by", get_args(UciSelector))
def test_every_choice_keeps_the_budget_and_comes_again(by):
    found = chosen(by)
    if by == "last-layer":
        assert [subset.size for _, subset in found] == [51]
        return
    assert [percent for percent, _ in found] == [2, 5]
    for percent, subset in found:
        assert subset.size <= percent / 100 * TOTAL + 1
        # Rows and columns come whole, and SSVI counts weights without biases.
        assert subset.size >= percent / 100 * TOTAL * (0.7 if by == "sparse-kfac" else 0.95)
    again = [subset.digest() for _, subset in chosen(by)]
    assert [subset.digest() for _, subset in found] == again


def test_choices_differ():
    digests = {by: chosen(by, (5,))[0][1].digest() for by in get_args(UciSelector)}
    assert len(set(digests.values())) == len(digests)
    assert chosen("random", (5,), seed=1)[0][1].digest() != digests["random"]


def test_a_choice_that_nobody_makes_is_refused():
    with pytest.raises(ArgumentError, match=r"^by must be one of [^()]+, got 'luck'.$"):
        chosen("luck")
    with pytest.raises(ArgumentError, match=r"^percents must be in \(0, 100\]"):
        chosen("random", (0,))


def test_the_study_has_every_choice_with_both_posteriors():
    cells = {cell.name for cell in read_study("bridges").cells}
    wanted = {
        f"{family}-{by}" for family in ("laplace", "swag") for by in get_args(UciSelector)
    }
    assert cells == wanted | {"map"}
