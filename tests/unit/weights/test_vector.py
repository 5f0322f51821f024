"""The parts that every method shares which moves chosen weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from smidgen import Subset
from smidgen.errors import DataError, StoreError, SubsetError
from smidgen.runtime.checkpoint import read_checkpoint, write_checkpoint
from smidgen.runtime.loader import ResumableLoader
from smidgen.weights.subset import Block, Entries, Whole
from smidgen.weights.vector import SubsetIndex, SubsetVector


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def subset_of(model):
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    parts = {
        "0.weight": Entries(torch.tensor([0, 5, 10])),
        "1.weight": Whole(),
        "2.weight": Block(torch.tensor([1]), torch.tensor([0, 3])),
    }
    return Subset(shapes, parts)


def test_assigning_changes_the_chosen_entries_and_nothing_else():
    model = net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    chosen = SubsetVector(model, subset_of(model))
    assert chosen.values.shape == (3 + 4 + 2,)
    wanted = torch.arange(9.0) + 10
    chosen.assign(wanted)
    assert torch.equal(chosen.values, wanted)
    flat = chosen.tensors["0.weight"].flatten()
    left = torch.ones(12, dtype=torch.bool)
    left[[0, 5, 10]] = False
    assert torch.equal(flat[left], before["0.weight"].flatten()[left])
    assert torch.equal(chosen.tensors["2.weight"][1, [0, 3]], wanted[7:])
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_the_gradient_is_that_of_the_chosen_entries():
    model = net().double()
    chosen = SubsetVector(model, subset_of(model))
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.func.functional_call(model, chosen.tensors, (x,)).square().sum().backward()
    found = chosen.gradient()
    assert all(tensor.grad is None for tensor in chosen.tensors.values())
    model(x).square().sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    wanted = [
        grads["0.weight"].flatten()[[0, 5, 10]],
        grads["1.weight"],
        grads["2.weight"][1, [0, 3]],
    ]
    assert torch.equal(found, torch.cat(wanted))


def test_a_parameter_that_took_no_part_has_gradient_zero():
    model = net()
    chosen = SubsetVector(model, subset_of(model))
    chosen.tensors["1.weight"].sum().backward()
    assert torch.equal(chosen.gradient(), torch.tensor([0.0] * 3 + [1.0] * 4 + [0.0] * 2))


def test_replaced_leaves_the_tensors_alone():
    model = net()
    places = SubsetIndex(subset_of(model), dict(model.named_parameters()))
    found = places.replaced(dict(model.named_parameters()), torch.zeros(9))
    assert torch.equal(found["1.weight"], torch.zeros(4))
    assert torch.equal(model[1].weight, torch.ones(4))


def test_a_subset_of_another_model_is_refused():
    with pytest.raises(SubsetError, match="another model"):
        SubsetVector(nn.Sequential(nn.Linear(2, 4)), subset_of(net()))


def loader(kind):
    data = TensorDataset(torch.arange(10))
    if kind == "global":
        return DataLoader(data, batch_size=3, shuffle=True)
    if kind == "plain":
        return DataLoader(data, batch_size=3)
    generator = torch.Generator().manual_seed(3)
    return DataLoader(data, batch_size=3, shuffle=True, generator=generator)


@pytest.mark.parametrize("kind", ["global", "generator", "plain"])
@pytest.mark.parametrize("left_at", [0, 2, 4, 5])
def test_a_loader_is_taken_up_at_the_batch_that_came_next(kind, left_at):
    def drawn(batches, count):
        # Noise between batches stands for dropout: it moves the global state.
        return [(next(batches)[0].tolist(), torch.rand(()).item()) for _ in range(count)]

    torch.manual_seed(7)
    whole = drawn(ResumableLoader(loader(kind)), 9)
    torch.manual_seed(7)
    first = ResumableLoader(loader(kind))
    drawn(first, left_at)
    state, rng = first.state(), torch.get_rng_state()
    torch.manual_seed(99)
    second = ResumableLoader(loader(kind))
    second.resume(state)
    torch.set_rng_state(rng)
    assert drawn(second, 9 - left_at) == whole[left_at:]
    assert second.epoch == 2


def test_an_iterator_that_ends_is_refused_by_name():
    batches = ResumableLoader(iter([torch.zeros(1)]))
    next(batches)
    with pytest.raises(DataError, match="not an iterator"):
        next(batches)
    with pytest.raises(DataError, match="no batch"):
        next(ResumableLoader([]))


def test_a_checkpoint_is_read_back_and_one_of_another_run_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    assert read_checkpoint(path, {"steps": 3}) is None
    write_checkpoint(path, {"values": torch.arange(3.0)}, {"steps": 3})
    found = read_checkpoint(path, {"steps": 3})
    assert found is not None
    assert torch.equal(found["values"], torch.arange(3.0))
    with pytest.raises(StoreError, match="steps is 3, here 4"):
        read_checkpoint(path, {"steps": 4})
    path.write_bytes(b"damaged")
    with pytest.raises(StoreError, match="is not a checkpoint file"):
        read_checkpoint(path, {"steps": 3})
