"""Deltas: applied, removed, merged, saved; each exactly."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from smidgen import Subset
from smidgen.errors import ArgumentError, StoreError
from smidgen.runtime.artifact import read_tensor_file, write_tensor_file
from smidgen.weights.delta import Delta, make_delta, merge_deltas
from smidgen.weights.subset import Block, Entries, Whole


def net(kind=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)).to(kind)


def subset_of(model, parts=None):
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    return Subset(
        shapes,
        parts
        or {
            "0.weight": Entries(torch.tensor([0, 5, 10])),
            "1.weight": Whole(),
            "2.weight": Block(torch.tensor([1]), torch.tensor([0, 3])),
            "2.bias": Whole(),
        },
    )


def made(model, **changes):
    subset = subset_of(model, **changes)
    generator = torch.Generator().manual_seed(subset.size)
    difference = torch.randn(subset.size, generator=generator)
    head = {"2.bias": torch.tensor([7.0, -7.0])} if "2.bias" in subset.parts else {}
    return make_delta(model, subset, difference, head)


def same(left, right):
    return all(torch.equal(v, right.state_dict()[n]) for n, v in left.state_dict().items())


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("half", [False, True])
def test_applied_and_removed_the_base_is_bitwise_back(kind, half):
    model, base = net(kind), net(kind)
    delta = made(model).half() if half else made(model)
    applied = delta.apply(model)
    assert not same(model, base)
    assert torch.equal(model[2].bias, torch.tensor([7.0, -7.0], dtype=kind))
    flat, known = model[0].weight.flatten(), base[0].weight.flatten()
    left = torch.ones(12, dtype=torch.bool)
    left[[0, 5, 10]] = False
    assert torch.equal(flat[left], known[left])
    applied.remove()
    assert same(model, base)
    applied.remove()
    assert same(model, base)


def test_it_is_taken_off_after_an_exception():
    model, base = net(), net()
    with pytest.raises(RuntimeError), made(model).applied(model):
        raise RuntimeError
    assert same(model, base)


@pytest.mark.parametrize("half", [False, True])
def test_a_file_holds_it(tmp_path, half):
    model = net()
    delta = made(model).half() if half else made(model)
    path = delta.save(tmp_path / "some" / "delta.safetensors")
    found = Delta.load(path)
    assert found.subset == delta.subset
    assert torch.equal(found.difference, delta.difference)
    assert found.replaced.keys() == delta.replaced.keys()
    other = deepcopy(model)
    found.apply(other)
    delta.apply(model)
    assert same(model, other)


def test_a_new_head_may_differ_in_the_base_but_nothing_else():
    model = net()
    delta = made(model)
    other = net()
    with torch.no_grad():
        other[2].bias.add_(1.0)
    delta.apply(other).remove()
    with torch.no_grad():
        other[0].bias.add_(1.0)
    with pytest.raises(StoreError, match="another base model"):
        delta.apply(other)


def test_a_head_of_another_size_is_refused_before_anything_is_written():
    model, other = net(), net()
    other[2].bias = nn.Parameter(torch.zeros(3))
    before = deepcopy(other)
    with pytest.raises(StoreError, match=r"replaces '2.bias' .* has \(3,\) there"):
        made(model).apply(other)
    assert same(other, before)


def test_a_second_delta_needs_the_base_and_a_swap_works():
    model = net()
    parts = {"0.bias": Entries(torch.tensor([1]))}
    first, second = made(model), made(model, parts=parts)
    there = first.apply(model)
    with pytest.raises(StoreError, match="merge them first"):
        second.apply(model)
    with pytest.raises(StoreError, match="another base"):
        second.apply(deepcopy(model))
    there.remove()
    second.apply(model).remove()
    assert same(model, net())


def test_deltas_never_stack_and_a_changed_model_is_not_called_the_base():
    """A hash leaves heads out, so it alone would let a tuned head pass for a base."""
    model, base = net(), net()
    tuned = made(model)
    other = make_delta(model, subset_of(model), torch.ones(11), {"2.bias": torch.ones(2)})
    headed = Delta(
        subset_of(model, {"2.bias": Whole()}),
        torch.ones(2),
        {},
        tuned.fingerprint,
        left_out=("2.bias",),
    )
    there = headed.apply(model)
    for each in (tuned, other, headed):
        with pytest.raises(StoreError, match="already"):
            each.apply(model)
    there.remove()
    assert same(model, base)
    there = tuned.apply(model)
    with torch.no_grad():
        model[0].weight[0, 0] += 1
    with pytest.raises(StoreError, match=r"other values of '0.weight'"):
        there.remove()
    # Loaded anew it is free again, and the old delta has nothing to take off.
    model.load_state_dict(base.state_dict())
    tuned.apply(model).remove()
    assert same(model, base)


def test_a_model_with_a_delta_on_it_can_be_forgotten():
    model = net()
    watch = weakref.ref(model)
    made(model).apply(model)
    del model
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize("part", [Entries(torch.tensor([1, 7, 20])), Whole()])
def test_channels_last_weights_are_written_by_their_axes(part):
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3)
    subset = subset_of(model, {"weight": part})
    delta = make_delta(model, subset, torch.arange(1.0, subset.size + 1), {})
    strided = deepcopy(model).to(memory_format=torch.channels_last)
    before = deepcopy(strided)
    assert not strided.weight.is_contiguous()
    there = delta.apply(strided)
    delta.apply(model)
    assert torch.equal(strided.weight, model.weight)
    there.remove()
    assert same(strided, before)


def test_tied_weights_are_written_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    base = deepcopy(model)
    delta = make_delta(model, subset_of(model, {"0.weight": Whole()}), torch.ones(9), {})
    there = delta.apply(model)
    assert torch.equal(model[1].weight, base[0].weight + 1)
    there.remove()
    assert same(model, base)


def test_merging_adds_up_where_they_overlap():
    model = net()
    parts = {"0.weight": Entries(torch.tensor([5, 6])), "0.bias": Whole()}
    first = made(model, parts={"0.weight": Entries(torch.tensor([0, 5, 10]))})
    second = made(model, parts=parts)
    found = merge_deltas([first, second], [1.0, 0.5])
    wanted = torch.zeros(12)
    wanted[[0, 5, 10]] += first.difference
    wanted[[5, 6]] += 0.5 * second.difference[:2]
    assert found.subset.indices("0.weight").tolist() == [0, 5, 6, 10]
    assert torch.equal(found.difference[:4], wanted[[0, 5, 6, 10]])
    assert torch.equal(found.difference[4:], 0.5 * second.difference[2:])
    found.apply(model).remove()
    assert same(model, net())


def test_heads_come_off_so_that_runs_can_be_merged(tmp_path):
    model, base = net(), net()
    first, second = made(model), made(model, parts={"0.bias": Whole(), "2.bias": Whole()})
    second = replace(second, replaced={"2.bias": torch.tensor([1.0, 2.0])})
    with pytest.raises(ArgumentError, match=r"two of '2.bias'.*without_head"):
        merge_deltas([first, second])
    bare = second.without_head()
    assert Delta.load(bare.save(tmp_path / "bare")).left_out == ("2.bias",)
    there = merge_deltas([first, bare]).apply(model)
    assert torch.equal(model[2].bias, torch.tensor([7.0, -7.0]))
    assert torch.equal(model[0].bias, base[0].bias + second.difference)
    there.remove()
    there = merge_deltas([first.without_head(), bare]).apply(model)
    assert torch.equal(model[2].bias, base[2].bias)
    there.remove()
    assert same(model, base)


def test_double_precision_survives_merging():
    model = net(torch.float64)
    subset = subset_of(model, {"0.bias": Whole()})
    third = torch.full((4,), 1 / 3, dtype=torch.float64)
    one = make_delta(model, subset, third, {})
    assert torch.equal(merge_deltas([one, one]).difference, 2 * third)


def test_what_cannot_be_merged_is_named():
    model = net()
    other = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with pytest.raises(ArgumentError, match="one base model"):
        merge_deltas([made(model), made(other)])
    plain = made(model, parts={"2.weight": Whole()})
    headless = Delta(plain.subset, plain.difference, {}, made(model).fingerprint)
    with pytest.raises(ArgumentError, match="same parameters out of .* '2.bias'"):
        merge_deltas([made(model), headless])
    with pytest.raises(ArgumentError, match="weights must be as many as the deltas, 2"):
        merge_deltas([made(model), made(model)], [1.0])


def test_half_a_percent_of_minilm_is_under_a_megabyte(tmp_path):
    """22.7 million weights, all embeddings included."""
    side = 4765
    generator = torch.Generator().manual_seed(0)
    count = side * side // 200
    picked = torch.randperm(side * side, generator=generator)[:count]
    subset = Subset({"weight": (side, side)}, {"weight": Entries(picked)})
    delta = Delta(subset, torch.randn(count, generator=generator), {}, "0" * 64)
    sizes = [
        each.save(tmp_path / name).stat().st_size
        for name, each in (("full", delta), ("half", delta.half()))
    ]
    assert sizes[0] < 1e6
    assert sizes[1] < 0.8 * sizes[0]


def test_a_delta_of_what_does_not_fit_is_refused_by_name():
    model = net()
    subset = subset_of(model)
    with pytest.raises(ArgumentError, match=r"difference must .* each of 11 .* \(3,\)"):
        make_delta(model, subset, torch.ones(3), {})
    ones = torch.ones(subset.size)
    with pytest.raises(ArgumentError, match=r"replaced must .* got 'head' .* missing"):
        make_delta(model, subset, ones, {"head": torch.ones(2)})
    with pytest.raises(ArgumentError, match=r"got '2.bias' of shape \(3,\), there of"):
        make_delta(model, subset, ones, {"2.bias": torch.ones(3)})


def read_tensor_file_of(path):
    return read_tensor_file(path, key="smidgen-delta", what="delta", advice="")


def test_damaged_and_foreign_files_are_refused(tmp_path):
    model = net()
    path = made(model).save(tmp_path / "delta.safetensors")
    content = path.read_bytes()
    for broken in (b"", content[:40], content[:-5]):
        path.write_bytes(broken)
        with pytest.raises(StoreError, match="is not a delta file"):
            Delta.load(path)
    subset_of(model).to_file(path)
    with pytest.raises(StoreError, match="is not a delta file"):
        Delta.load(path)
    path.write_bytes(content.replace(b'\\"schema\\": 1', b'\\"schema\\": 9'))
    with pytest.raises(StoreError, match="damaged or edited"):
        Delta.load(path)
    tensors, header = read_tensor_file_of(made(model).save(path))
    for change, message in (
        ({"schema": 9}, "delta schema 9"),
        ({"left_out": "abc"}, "left_out must not be"),
        ({"more": 1}, "holds what no delta holds"),
        ({"replaced": ["odd"]}, "the tensor 'replaced/odd' is missing"),
    ):
        write_tensor_file(path, tensors, {**header, **change}, key="smidgen-delta")
        with pytest.raises(StoreError, match=message):
            Delta.load(path)
    for change, message in (
        ({"difference": tensors["difference"] * torch.nan}, "difference holds NaN"),
        ({"difference": tensors["difference"][:1]}, "one number for each"),
        ({"more": torch.ones(1)}, "'more' belongs to nothing"),
    ):
        write_tensor_file(path, {**tensors, **change}, header, key="smidgen-delta")
        with pytest.raises(StoreError, match=message):
            Delta.load(path)
    with pytest.raises(ArgumentError, match="one number for each of 3 weights"):
        Delta(
            subset_of(model, {"0.weight": Entries(torch.tensor([0, 1, 2]))}),
            torch.zeros(2),
            {},
            "",
        )
