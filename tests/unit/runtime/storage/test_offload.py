"""Where offloaded weights are read from, and what a shadow's hook leaves alone."""

from __future__ import annotations

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from accelerate.hooks import AlignDevicesHook, SequentialHook, add_hook_to_module
from torch import nn

from smidgen.errors import StructureError
from smidgen.runtime.keeping.swap import swap_tensors
from smidgen.runtime.shadow import shadow_model
from smidgen.runtime.storage.offload import (
    find_working_device,
    is_offloaded,
    list_in_memory,
    read_parameter,
    read_weights,
    refuse_empty_weights,
    require_loaded,
)

CPU = torch.device("cpu")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()


def in_memory(model, _):
    return cpu_offload(model, execution_device=CPU)


def in_files(model, folder):
    return disk_offload(model, str(folder), execution_device=CPU)


@pytest.fixture(params=[in_memory, in_files])
def offloaded(request, tmp_path):
    return request.param(network(), tmp_path)


def test_offloaded_weights_are_read_without_a_run(offloaded):
    plain = network()
    assert is_offloaded(offloaded)
    assert not is_offloaded(plain)
    assert find_working_device(offloaded) == CPU
    for name, parameter in plain.named_parameters():
        assert offloaded.get_parameter(name).is_meta
        assert torch.equal(read_parameter(offloaded, name), parameter)
    expected = sorted(plain.state_dict().items())
    for (name, value), (known, weight) in zip(
        read_weights(offloaded), expected, strict=True
    ):
        assert name == known
        assert torch.equal(value, weight)


def test_only_what_is_in_memory_is_listed(tmp_path):
    kept = {tensor.data_ptr() for tensor in list_in_memory(in_memory(network(), tmp_path))}
    model = network()
    assert len(kept) == len([*model.parameters(), *model.buffers()])
    listed = list_in_memory(in_files(model, tmp_path))
    assert len(listed) == len([*model.buffers()])


def test_a_shadow_loads_what_is_empty_and_leaves_what_was_put_there(offloaded):
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    plain = network()
    shadow = shadow_model(offloaded)
    weight = torch.randn(2, 4, requires_grad=True)
    with swap_tensors(shadow, {"2.weight": weight}):
        found = shadow(x)
    plain[2].weight.data = weight.detach()
    assert torch.equal(found, plain(x))
    assert torch.autograd.grad(found.sum(), weight)[0].abs().sum() > 0
    assert all(p.is_meta for p in (*shadow.parameters(), *offloaded.parameters()))
    assert torch.equal(shadow_model(shadow)(x), network()(x))


def test_hooks_that_stand_in_a_row_are_followed():
    model = network()
    loader = AlignDevicesHook(execution_device=CPU, offload=True)
    add_hook_to_module(model[0], SequentialHook(AlignDevicesHook(CPU), loader))
    assert torch.equal(read_parameter(model, "0.weight"), network()[0].weight)
    x = torch.ones(2, 3)
    assert torch.equal(shadow_model(model)(x), network()(x))


def test_what_cannot_be_done_is_refused(offloaded):
    with pytest.raises(StructureError, match="tuning needs a model that holds its weights"):
        require_loaded(offloaded, "tuning")
    require_loaded(network(), "tuning")
    refuse_empty_weights(offloaded)
    with pytest.raises(StructureError, match="must be loaded, got '0.weight' on the meta"):
        refuse_empty_weights(network().to("meta"))


def test_quantised_and_offloaded_at_once_is_refused():
    class Packed(nn.Parameter):
        pass

    model = network()
    model[0].weight = Packed(model[0].weight.data, requires_grad=False)
    cpu_offload(model, execution_device=CPU)
    with pytest.raises(
        StructureError, match="quantised or offloaded, not both, got 'weight'"
    ):
        read_parameter(model, "0.weight")
