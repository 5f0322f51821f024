"""Which tensors count as quantised, and how they are shared."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from smidgen.runtime.storage.quantised import (
    is_quantised,
    is_wrapped,
    list_parts,
    list_stored,
    share_quantised,
)
from tests.support.quantised import (
    bnb,
    llama,
    quantise_4bit,
    quantise_8bit,
    quantise_torchao,
)


def first_weight(model):
    return model.model.layers[0].self_attn.q_proj.weight


MAKES = {"4 bits": quantise_4bit, "8 bits": quantise_8bit, "torchao": quantise_torchao}


@pytest.mark.parametrize("name", MAKES)
def test_weights_of_the_packages_are_quantised_and_wrapped(name):
    weight = first_weight(MAKES[name](llama()))
    assert is_quantised(weight)
    assert is_wrapped(weight)
    assert all(type(part) is torch.Tensor for part in list_parts(weight))


@pytest.mark.parametrize(
    ("dtype", "quantised"),
    [
        (torch.float64, False),
        (torch.bfloat16, False),
        (torch.float8_e4m3fn, True),
        (torch.int8, True),
        (torch.bool, True),
    ],
)
def test_plain_tensors_are_told_by_their_type(dtype, quantised):
    weight = nn.Parameter(torch.zeros(2, 2).to(dtype), requires_grad=False)
    assert is_quantised(weight) is quantised
    assert not is_wrapped(weight)
    assert list_parts(weight) == [weight]


def test_4_bits_stored_as_bf16_are_quantised():
    weight = bnb.nn.Params4bit(torch.ones(64, 64), quant_storage=torch.bfloat16).to("cpu")
    assert weight.is_floating_point()
    assert is_quantised(weight)


@pytest.mark.parametrize("double", [False, True])
def test_a_shared_4_bit_weight_has_scales_of_its_own_and_the_first_layout(double):
    weight = quantise_4bit(llama(), double=double).model.layers[0].mlp.down_proj.weight
    expected = bnb.functional.dequantize_4bit(weight.data, weight.quant_state)
    (codes,) = (part.clone() for part in list_stored(weight))
    shared = share_quantised(weight)
    assert shared.data_ptr() == weight.data_ptr()
    assert shared.quant_state is not weight.quant_state
    convert = bnb.functional._convert_weight_packed_for_cpu
    weight.data, weight.quant_state = convert(weight.data, weight.quant_state)
    laid_out = vars(weight.quant_state).copy()
    back = share_quantised(weight)
    found = bnb.functional.dequantize_4bit(back.data, back.quant_state)
    # The layout keeps scales in bf16.
    torch.testing.assert_close(found, expected, rtol=2**-8, atol=0)
    assert torch.equal(*list_stored(weight), codes)
    assert all(vars(weight.quant_state)[name] is value for name, value in laid_out.items())
