"""What every registered selector must do, over every model of `tests/cases.py`."""

from __future__ import annotations

import json
from math import ceil

import pytest
import torch

import smidgen
from smidgen.errors import ArgumentError
from smidgen.select import SELECTORS, choose
from smidgen.weights.affine import coverage
from smidgen.weights.blocks import find_blocks
from tests.support.cases import CASES, Case, OneBlock, mlp, padded_tokens, vectors

BAD_SIZES = {
    "percent": [0, -1, 100.5, float("nan"), "ten"],
    "fraction": [0, -0.1, 1.5, float("nan"), "all"],
    "count": [0, -1, 10_000, 1.5, "one"],
}
SMALL = Case("one-block-2", OneBlock, 2, padded_tokens)
everywhere = pytest.mark.parametrize("name", SELECTORS)


def maps_of(name, model):
    """The layers a selector may choose from."""
    group = name.rpartition("-")[2]
    return [
        m
        for m in coverage(model).layers
        if group not in ("mlp", "attention") or m.group == group
    ]


def inputs(case, model, batch):
    """Everything a selector may need, the same each time."""
    universe = coverage(model).universe
    whole = smidgen.select.named(model, list(universe))
    posterior = smidgen.fit.laplace(case.problem(model), [batch], whole, structure="diag")
    return lambda: {
        "batches": [batch],
        "seed": 11,
        "scores": smidgen.select.scores.variance(posterior, model),
        "patterns": [coverage(model).layers[0].weight, coverage(model).layers[-1].weight],
    }


def sizes(name, model):
    """Three sizes, rising."""
    count = len(maps_of(name, model))
    return {
        "percent": [15, 40, 100],
        "fraction": [0.05, 0.4, 1],
        "count": sorted({1, -(-count // 2), count}),
        None: [None],
    }[SELECTORS[name].size]


@pytest.fixture(
    params=[(n, c) for n in SELECTORS for c in CASES], ids=lambda p: f"{p[0]}-{p[1].name}"
)
def chosen(request, unchanged):
    """A selector's choices of rising size, made twice under the guard."""
    name, case = request.param
    model, batch = case.make()
    if not maps_of(name, model):
        with pytest.raises(
            ArgumentError, match="group must be one the model has layers of"
        ):
            choose(name, model, size=1)
        pytest.skip("the model has no such map")
    given = inputs(case, model, batch)
    problem = case.problem(model)
    with unchanged(model):
        runs = [
            [choose(name, problem, size=size, **given()) for size in sizes(name, model)]
            for _ in range(2)
        ]
    return name, case, model, batch, runs


def test_a_selector_keeps_its_promises(chosen, tmp_path):
    name, case, model, batch, (subsets, again) = chosen
    universe = coverage(model).universe
    # Deterministic, and within the affine layers.
    assert subsets == again
    assert all(dict(subset.universe) == universe for subset in subsets)
    # Nested in size.
    for smaller, larger in zip(subsets, subsets[1:], strict=False):
        assert smaller | larger == larger
    for size, subset in zip(sizes(name, model), subsets, strict=True):
        assert_size(name, model, size, subset)
    # A file holds it.
    subsets[0].to_file(tmp_path / "subset.safetensors")
    assert smidgen.Subset.from_file(tmp_path / "subset.safetensors") == subsets[0]
    # A posterior can be fitted to it and predicts.
    posterior = smidgen.fit.laplace(
        case.problem(model), [batch], subsets[0], structure="diag"
    )
    assert posterior.subset == subsets[0]
    smidgen.predict(posterior, case.problem(model), batch)


def assert_size(name, model, size, subset):
    found = find_blocks(model, subset)
    kind = SELECTORS[name].size
    if kind == "count":
        assert len(found) == size
        assert subset.sizes() == {
            n: torch.Size(s).numel()
            for block in found
            for n, s in block.layer.shapes.items()
        }
    elif kind == "fraction":
        assert subset.size == max(1, ceil(size * subset.total - 1e-9))
    elif kind == "percent":
        assert len(found) == len(coverage(model).layers)
        for block in found:
            assert block.entries is None
            sides = (block.layer.outputs, block.layer.inputs)
            expected = tuple(max(1, ceil(size * side / 100 - 1e-9)) for side in sides)
            assert (block.row_count, block.columns.numel()) == expected
            assert block.bias == (block.layer.bias is not None)
    elif name == "last-layer":
        assert [block.layer for block in found] == [coverage(model).layers[-1]]


@everywhere
def test_its_declared_shape_is_what_it_gives(name):
    """Only scattered selectors may give what the default structure cannot hold."""
    model, batch = SMALL.make()
    given = inputs(SMALL, model, batch)
    subset = choose(name, model, size=sizes(name, model)[0], **given())
    scattered = any(block.entries is not None for block in find_blocks(model, subset))
    assert SELECTORS[name].scattered or not scattered
    structure = "diag" if SELECTORS[name].scattered else "kron"
    smidgen.fit.laplace(model, [batch], subset, structure=structure)


@everywhere
def test_its_subset_says_who_chose_it(name):
    model, batch = SMALL.make()
    size = sizes(name, model)[0]
    origin = choose(name, model, size=size, **inputs(SMALL, model, batch)()).origin
    selector = SELECTORS[name]
    assert origin.selector == name
    assert origin.settings.get(selector.size) == size
    assert ("seed" in origin.settings) == selector.random
    assert json.loads(json.dumps(origin.to_json())) == origin.to_json()


@everywhere
def test_a_bad_size_is_named(name):
    model, batch = SMALL.make()
    given = inputs(SMALL, model, batch)()
    kind = SELECTORS[name].size
    if kind is None:
        with pytest.raises(ArgumentError, match="size must be left out .* got 3"):
            choose(name, model, size=3, **given)
        return
    for size in BAD_SIZES[kind]:
        with pytest.raises(ArgumentError, match=f"{kind} must be .* got {size!r}"):
            choose(name, model, size=size, **given)
    with pytest.raises(ArgumentError, match=f"size must be given .*'{name}'.* got None"):
        choose(name, model, **given)


@pytest.mark.parametrize(
    ("name", "need"), [(n, need) for n, s in SELECTORS.items() for need in s.needs]
)
def test_what_is_missing_is_named(name, need):
    model, batch = SMALL.make()
    given = inputs(SMALL, model, batch)()
    del given[need]
    with pytest.raises(ArgumentError, match=f"^{need} must be given .*'{name}'"):
        choose(name, model, size=sizes(name, model)[0], **given)


@everywhere
def test_what_is_not_needed_is_not_looked_at(name):
    model, batch = SMALL.make()
    given = inputs(SMALL, model, batch)
    size = sizes(name, model)[0]
    needed = {n: v for n, v in given().items() if n in {*SELECTORS[name].needs, "seed"}}
    assert choose(name, model, size=size, **needed) == choose(
        name, model, size=size, **given()
    )


def test_a_bad_size_is_told_before_any_batch_is_read():
    model, batch = Case("mlp", mlp, 2, vectors).make()

    def never():
        raise AssertionError("a batch was read")
        yield batch

    for name, selector in SELECTORS.items():
        if "batches" in selector.needs:
            with pytest.raises(ArgumentError, match=f"{selector.size} must be in"):
                choose(name, model, size=0, batches=never())


def test_names_and_models_are_checked():
    model, _ = SMALL.make()
    with pytest.raises(ArgumentError, match="name must be one of sparse-kfac, .*'best'"):
        choose("best", model)
    with pytest.raises(ArgumentError, match="model must be .* got str"):
        choose("last-layer", "model")
    assert all(name == selector.name for name, selector in SELECTORS.items())
