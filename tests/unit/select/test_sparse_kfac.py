"""Sparse-KFAC's rule by hand, its counts, ties and nesting."""

from __future__ import annotations

from math import ceil

import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import ArgumentError, SubsetError
from smidgen.weights.affine import coverage
from smidgen.weights.blocks import find_blocks
from tests.support.cases import bert, gpt2


def test_rows_and_columns_are_ranked_independently_by_their_largest_weight():
    model = nn.Linear(4, 3)
    model.weight.data = torch.tensor(
        [[0.1, -9.0, 0.0, 0.3], [0.2, 0.1, 0.5, 0.4], [8.0, 0.1, 0.2, 7.0]]
    )
    subset = smidgen.select.sparse_kfac(model, percent=50)  # 2 of 3 rows, 2 of 4 columns
    (block,) = find_blocks(model, subset)
    assert block.rows.tolist() == [0, 2]
    assert block.columns.tolist() == [0, 1]
    assert block.bias
    assert subset.indices("bias").tolist() == [0, 2]
    assert subset.size == 2 * 2 + 2


@pytest.mark.parametrize(
    ("percent", "rows", "columns"),
    [(0.01, 1, 1), (10, 3, 4), (10.0001, 4, 4), (33, 10, 13), (100, 30, 37)],
)
def test_counts_are_rounded_up_and_never_zero(percent, rows, columns):
    model = nn.Linear(37, 30)
    (block,) = find_blocks(model, smidgen.select.sparse_kfac(model, percent=percent))
    assert (block.rows.numel(), block.columns.numel()) == (rows, columns)


def test_ties_go_to_the_lower_index():
    model = nn.Linear(4, 4)
    nn.init.ones_(model.weight)
    (block,) = find_blocks(model, smidgen.select.sparse_kfac(model, percent=50))
    assert block.rows.tolist() == block.columns.tolist() == [0, 1]


def test_selections_are_nested():
    model = bert(2)
    previous = None
    for percent in (1, 5, 12, 40, 100):
        subset = smidgen.select.sparse_kfac(model, percent=percent)
        if previous is not None:
            assert previous | subset == subset
        previous = subset


def test_conv1d_rows_are_its_outputs():
    model = gpt2(2)
    each = next(m for m in coverage(model).layers if m.name.endswith("c_attn"))
    assert (each.outputs, each.inputs, each.row_axes) == (24, 8, (1,))
    weight = model.get_parameter(each.weight)
    with torch.no_grad():
        weight.zero_()
        weight[3, 17] = 5.0  # input 3, output 17
    subset = smidgen.select.sparse_kfac(model, percent=1)
    block = next(b for b in find_blocks(model, subset) if b.layer == each)
    assert (block.rows.tolist(), block.columns.tolist()) == ([17], [3])


def test_groups_are_those_of_the_paper():
    groups = {m.name: m.group for m in coverage(bert(2)).layers}
    attention = [name for name, group in groups.items() if group == "attention"]
    assert len(attention) == 4
    assert groups["classifier"] == groups["bert.pooler.dense"] == "mlp"


def test_the_last_layer_is_the_classifier_whole():
    subset = smidgen.select.last_layer(bert(3))
    assert dict(subset.sizes()) == {"classifier.weight": 24, "classifier.bias": 3}


def test_the_denominator_counts_affine_maps_only():
    model = bert(2)
    total = smidgen.select.sparse_kfac(model, percent=10).total
    affine = sum(
        p.numel()
        for m in model.modules()
        if isinstance(m, nn.Linear)
        for p in m.parameters()
    )
    assert total == affine < sum(p.numel() for p in model.parameters())


def norms(model, group):
    return {
        each.name: float(torch.linalg.svdvals(each.matrix(model))[0])
        for each in coverage(model).layers
        if group in ("all", each.group)
    }


@pytest.mark.parametrize("order", ["max", "min"])
@pytest.mark.parametrize("group", ["attention", "mlp", "all"])
def test_modules_are_ranked_by_their_largest_singular_value(order, group):
    model = bert(2)
    subset = smidgen.select.modules(model, count=2, order=order, group=group)
    found = norms(model, group)
    expected = sorted(found, key=found.get, reverse=order == "max")[:2]
    assert {b.layer.name for b in find_blocks(model, subset)} == set(expected)


def test_random_modules_are_drawn_without_replacement():
    model = bert(2)
    everything = len(coverage(model).layers)
    seen = set()
    for seed in range(20):
        subset = smidgen.select.modules(model, count=3, by="random", seed=seed)
        names = tuple(b.layer.name for b in find_blocks(model, subset))
        assert len(names) == 3
        seen.update(names)
    assert len(seen) == everything
    whole = smidgen.select.modules(model, count=everything, by="random")
    assert whole.fraction == 1


def test_single_weights_are_the_largest_over_all_or_in_each_parameter():
    model = bert(2)
    names = list(coverage(model).universe)
    sizes = {n: model.get_parameter(n).detach().abs().flatten() for n in names}
    subset = smidgen.select.weights(model, fraction=0.05)
    everything = torch.cat(list(sizes.values()))
    count = -(-len(everything) * 5 // 100)
    assert subset.size == count
    least = everything.sort(descending=True).values[count - 1]
    for name in subset.parts:
        assert (sizes[name][subset.indices(name)] >= least).all()
    local = smidgen.select.weights(model, fraction=0.05, per_layer=True)
    assert local.sizes() == {n: max(1, -(-len(v) * 5 // 100)) for n, v in sizes.items()}


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("per_layer", [False, True])
def test_single_weights_are_those_of_a_stable_sort(fraction, per_layer):
    """With many ties, zeros of both signs and infinities, in any type."""
    model = bert(2)
    generator = torch.Generator().manual_seed(0)
    scores = {
        name: torch.randint(-3, 3, shape, generator=generator) / -2.0
        for name, shape in coverage(model).universe.items()
    }
    first, last = next(iter(scores)), list(scores)[-1]
    scores[first].flatten()[::7] = float("inf")
    scores[last] = scores[last].bfloat16()
    found = smidgen.select.weights(model, fraction=fraction, by=scores, per_layer=per_layer)

    def sorted_first(values):
        order = values.sort(descending=True, stable=True).indices
        chosen = torch.zeros(len(values), dtype=torch.bool)
        chosen[order[: max(1, ceil(fraction * len(values) - 1e-9))]] = True
        return chosen

    flat = [each.flatten().double() for each in scores.values()]
    if per_layer:
        masks = [sorted_first(each) for each in flat]
    else:
        masks = sorted_first(torch.cat(flat)).split([len(each) for each in flat])
    for name, mask in zip(scores, masks, strict=True):
        indices = found.indices(name).tolist() if name in found.parts else []
        assert indices == mask.nonzero().flatten().tolist()


def test_single_weights_by_given_scores_and_at_random():
    model = bert(2)
    scores = {
        "classifier.bias": torch.zeros(2),
        "classifier.weight": torch.arange(16.0).reshape(2, 8),
    }
    subset = smidgen.select.weights(model, fraction=0.2, by=scores)
    assert subset.indices("classifier.weight").tolist() == [12, 13, 14, 15]
    draws = [
        smidgen.select.weights(model, fraction=0.1, by="random", seed=seed)
        for seed in (0, 0, 1)
    ]
    assert draws[0] == draws[1] != draws[2]


def test_parameters_by_name():
    model = bert(2)
    subset = smidgen.select.named(model, ["*LayerNorm.weight", "classifier.*"])
    assert "classifier.bias" in subset.parts
    assert any("LayerNorm" in name for name in subset.parts)
    assert all("LayerNorm.weight" in n or n.startswith("classifier") for n in subset.parts)


@pytest.mark.parametrize(
    ("refused", "error", "message"),
    [
        (lambda m: smidgen.select.modules(m, count=0), ArgumentError, "from 1 to 8.*got 0"),
        (
            lambda m: smidgen.select.modules(m, count=5, group="attention"),
            ArgumentError,
            "from 1 to 4",
        ),
        (lambda m: smidgen.select.modules(m, count=1, by="size"), ArgumentError, "'size'"),
        (lambda m: smidgen.select.weights(m, fraction=0), ArgumentError, "got 0"),
        (
            lambda m: smidgen.select.weights(m, fraction=0.1, by="size"),
            ArgumentError,
            "'size'",
        ),
        (
            lambda m: smidgen.select.weights(
                m, fraction=0.1, by={"classifier.bias": torch.zeros(7)}
            ),
            ArgumentError,
            r"'classifier.bias' of shape \(7,\)",
        ),
        (lambda m: smidgen.select.named(m, "nothing.*"), SubsetError, "'nothing.*'"),
    ],
)
def test_selectors_name_what_is_wrong(refused, error, message):
    with pytest.raises(error, match=message):
        refused(bert(2))
