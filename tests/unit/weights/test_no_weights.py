"""No weights at all are a subset too, but only where somebody means it."""

from __future__ import annotations

import pickle
from copy import deepcopy

import pytest

from smidgen.errors import SubsetError
from smidgen.weights.no_weights import NoWeights
from smidgen.weights.subset import Subset, Whole

UNIVERSE = {"weight": (3, 4), "bias": (3,)}


def test_nothing_is_chosen_of_what_there_is():
    nothing = NoWeights(UNIVERSE)
    assert (nothing.size, nothing.total, nothing.fraction) == (0, 15, 0.0)
    assert nothing.indices("weight").numel() == 0
    assert NoWeights({}).fraction == 0.0


def test_it_takes_part_in_the_algebra():
    nothing, bias = NoWeights(UNIVERSE), Subset(UNIVERSE, {"bias": Whole()})
    assert nothing | bias == bias
    assert (~nothing).fraction == 1
    assert nothing == NoWeights(UNIVERSE) != bias


def test_copies_are_equal():
    nothing = NoWeights(UNIVERSE)
    for copy in (deepcopy(nothing), pickle.loads(pickle.dumps(nothing))):
        assert copy == nothing
        assert type(copy) is NoWeights


def test_a_plain_subset_is_never_empty():
    with pytest.raises(SubsetError, match="subset is empty"):
        Subset(UNIVERSE, {})
