"""`Subset`: algebra as of Python sets, one form for equal selections, clear refusals."""

from __future__ import annotations

import copy
import errno
import pickle
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smidgen.errors import StoreError, SubsetError
from smidgen.weights.origin import Origin
from smidgen.weights.subset import Block, Entries, Subset, Whole

UNIVERSE = {"weight": (4, 3), "bias": (4,), "kernel": (2, 2, 2), "scale": ()}


@st.composite
def selections(draw):
    """A non-empty choice of (name, flat index) pairs over the universe."""
    chosen = {
        name: draw(st.sets(st.integers(0, prod(shape) - 1)))
        for name, shape in UNIVERSE.items()
    }
    if not any(chosen.values()):
        chosen["bias"] = {1}
    return chosen


def subset_of(chosen) -> Subset:
    parts = {n: Entries(torch.tensor(list(i))) for n, i in chosen.items() if i}
    return Subset(UNIVERSE, parts)


def pairs(subset: Subset) -> set[tuple[str, int]]:
    return {(name, int(i)) for name in subset.universe for i in subset.indices(name)}


EVERYTHING = {(name, i) for name, shape in UNIVERSE.items() for i in range(prod(shape))}


@given(selections(), selections())
def test_algebra_is_that_of_sets(left, right):
    a, b = subset_of(left), subset_of(right)
    assert pairs(a | b) == pairs(a) | pairs(b)
    shared = pairs(a) & pairs(b)
    if shared:
        assert pairs(a & b) == shared
    else:
        with pytest.raises(SubsetError, match="subset is empty"):
            _ = a & b
    assert (a == b) == (pairs(a) == pairs(b))
    assert (a | b) == (b | a)


@given(selections())
def test_complement_size_and_fraction(chosen):
    subset = subset_of(chosen)
    assert subset.size == len(pairs(subset))
    assert subset.total == len(EVERYTHING)
    assert subset.fraction == subset.size / subset.total
    if subset.size == subset.total:
        with pytest.raises(SubsetError, match="subset is empty"):
            _ = ~subset
    else:
        assert pairs(~subset) == EVERYTHING - pairs(subset)
        assert ~~subset == subset


@given(selections())
def test_a_file_gives_back_the_same_subset(tmp_path_factory, chosen):
    path = tmp_path_factory.mktemp("subset") / "subset.safetensors"
    subset = subset_of(chosen)
    subset.to_file(path)
    assert Subset.from_file(path) == subset


def test_equal_selections_have_one_form():
    rows, columns = torch.tensor([3, 1]), torch.tensor([0, 2])
    block = Subset(UNIVERSE, {"weight": Block(rows, columns)})
    entries = Subset(UNIVERSE, {"weight": Entries(torch.tensor([3, 5, 9, 11]))})
    assert block == entries
    assert hash(block) == hash(entries)
    assert isinstance(entries.parts["weight"], Block)
    assert entries.parts["weight"].rows.tolist() == [1, 3]
    whole = Subset(UNIVERSE, {"bias": Entries(torch.arange(4))})
    assert isinstance(whole.parts["bias"], Whole)
    assert whole == Subset(UNIVERSE, {"bias": Whole()})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"weight": Entries(torch.tensor([1, 1]))}, "must be distinct, got 1 twice"),
        ({"weight": Entries(torch.tensor([12]))}, r"must be in \[0, 12\), got 12"),
        ({"weight": Entries(torch.tensor([-1]))}, r"must be in \[0, 12\), got -1"),
        (
            {"weight": Block(torch.tensor([4]), torch.tensor([0]))},
            r"rows of 'weight'.*got 4",
        ),
        ({"weight": Block(torch.tensor([0]), torch.tensor([3]))}, r"columns of.*got 3"),
        ({"bias": Block(torch.tensor([0]), torch.tensor([0]))}, "two axes or more"),
        ({"weights": Whole()}, "names the parameter 'weights'"),
        ({"weight": Entries(torch.tensor([], dtype=torch.int64))}, "are empty"),
        ({}, "subset is empty"),
    ],
)
def test_refusals_say_what_is_wrong(parts, message):
    with pytest.raises(SubsetError, match=message):
        Subset(UNIVERSE, parts)


def test_subsets_of_two_models_do_not_mix():
    other = Subset({"weight": (5, 5)}, {"weight": Whole()})
    with pytest.raises(SubsetError, match="disagree on the shape of 'weight'"):
        _ = other | Subset(UNIVERSE, {"weight": Whole()})


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "subset.safetensors"
    Subset(UNIVERSE, {"weight": Whole()}).to_file(path)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(StoreError, match="is not a subset file"):
        Subset.from_file(path)
    with pytest.raises(StoreError, match="is not a subset file"):
        Subset.from_file(tmp_path / "missing.safetensors")


def test_printing_tells_the_share():
    text = str(Subset(UNIVERSE, {"weight": Block(torch.tensor([0]), torch.tensor([1, 2]))}))
    assert "2 of 25 weights, 8.000%" in text
    assert "1 rows × 2 columns of 4 × 3" in text


def test_a_subset_knows_who_chose_it(tmp_path):
    origin = Origin("sparse-kfac", {"percent": 10})
    subset = Subset(UNIVERSE, {"weight": Whole()}, origin)
    plain = Subset(UNIVERSE, {"weight": Whole()})
    assert subset == plain
    assert hash(subset) == hash(plain)
    assert subset.digest() == plain.digest()
    assert "chosen by sparse-kfac(percent=10)" in repr(subset)
    assert "chosen" not in repr(plain)
    subset.to_file(tmp_path / "subset")
    plain.to_file(tmp_path / "plain")
    assert Subset.from_file(tmp_path / "subset").origin == origin
    assert Subset.from_file(tmp_path / "plain").origin is None
    assert pickle.loads(pickle.dumps(subset)).origin == origin
    assert copy.deepcopy(subset).origin == origin


def test_set_algebra_remembers_both_origins():
    first = Subset(UNIVERSE, {"weight": Whole()}, Origin("named", {"patterns": ["w*"]}))
    other = Subset(UNIVERSE, {"weight": Whole(), "bias": Whole()})
    both = first.origin.to_json()
    assert (first | other).origin == Origin("union", {"of": [both, None]})
    assert (first & other).origin == Origin("intersection", {"of": [both, None]})
    assert (~first).origin == Origin("complement", {"of": [both]})
    assert (~other).origin is None


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "subset"
    subset = Subset(UNIVERSE, {"weight": Whole()})
    subset.to_file(path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(StoreError, match="subset cannot be written: no space.*Free some"):
        Subset(UNIVERSE, {"bias": Whole()}).to_file(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_origin_is_refused():
    subset = Subset(UNIVERSE, {"weight": Whole()})
    tensors, header = subset.to_tensors()
    with pytest.raises(StoreError, match="Origin lacks 'selector'"):
        Subset.from_tensors(tensors, {**header, "origin": {"settings": 3}})
