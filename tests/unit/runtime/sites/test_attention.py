"""Attention through its sites is torch's own, whatever its settings and masks."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn

from smidgen.runtime.guard import set_modes
from smidgen.runtime.shadow import shadow_model
from smidgen.runtime.sites.site import find_site
from tests.support.tolerances import EXACT

MASKS = {
    "none": lambda heads, queries, keys: None,
    "causal": lambda heads, queries, keys: torch.ones(queries, keys).triu(1).bool(),
    "scores": lambda heads, queries, keys: torch.randn(queries, keys).double(),
    "by head": lambda heads, queries, keys: torch.randn(heads, queries, keys).double(),
}


def seen(model):
    """A shadow that runs through its sites, and what they saw."""
    shadow, runs = shadow_model(model), []
    set_modes(shadow)
    site = find_site(shadow, "out_proj")
    site.register_forward_hook(lambda _, args, out: runs.append(args[0].shape))
    return shadow, runs


@pytest.mark.parametrize("axes", ["first", "second", "none"])
@pytest.mark.parametrize("inputs", ["one", "two", "three", "other widths"])
@pytest.mark.parametrize("mask", MASKS)
def test_it_is_torchs_own(axes, inputs, mask):
    torch.manual_seed(0)
    wide, tall = (5, 3) if inputs == "other widths" else (8, 8)
    for bias, more, nothing in product([True, False], repeat=3):
        model = nn.MultiheadAttention(
            8,
            2,
            bias=bias,
            add_bias_kv=more,
            add_zero_attn=nothing,
            kdim=wide,
            vdim=tall,
            batch_first=axes == "first",
            dropout=0.5,
        )
        model = model.double().eval()
        for parameter in model.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))
        shadow, runs = seen(model)

        def draw(length, width):
            x = torch.randn(3, length, width, dtype=torch.float64)
            return {"first": x, "second": x.transpose(0, 1), "none": x[0]}[axes]

        query = draw(4, 8)
        key = query if inputs == "one" else draw(5, wide)
        value = key if inputs in ("one", "two") else draw(5, tall)
        keys = 4 if inputs == "one" else 5
        padding = torch.zeros(3, keys, dtype=torch.bool)
        padding[:, -1] = padding[1, -2] = True
        padding = padding[0] if axes == "none" else padding
        scores = padding.double() * -3
        for hidden in (None, padding if mask in ("none", "causal") else scores):
            settings = {
                "key_padding_mask": hidden,
                "attn_mask": MASKS[mask](2 if axes == "none" else 6, 4, keys),
            }
            if mask == "causal" and hidden is not None:
                settings["attn_mask"][-1, 0] = False
            for weights, mean in ((False, True), (True, True), (True, False)):
                settings |= {"need_weights": weights, "average_attn_weights": mean}
                with torch.no_grad():
                    plain = model(query, key, value, **settings)
                    ours = shadow(query, key, value, **settings)
                torch.testing.assert_close(ours, plain, **EXACT)
        assert set(runs) == {(1 if axes == "none" else 3, 4, 8)}  # the examples come first


def test_attention_that_nobody_hooks_runs_as_torch_has_it():
    model = nn.MultiheadAttention(8, 2)
    shadow = shadow_model(model)
    set_modes(shadow)
    x = torch.randn(4, 3, 8)
    with torch.no_grad():
        assert torch.equal(shadow(x, x, x)[0], model.eval()(x, x, x)[0])
    assert not shadow.out_proj._forward_hooks


def test_a_shadow_of_a_shadow_has_sites_of_its_own():
    first, _ = seen(nn.MultiheadAttention(8, 2).eval())
    second, runs = seen(first)
    assert find_site(second, "in_proj") is not find_site(first, "in_proj")
    assert find_site(second, "in_proj").owner() is second
    x = torch.randn(4, 3, 8)
    torch.testing.assert_close(second(x, x, x), first(x, x, x))
    assert runs == [(3, 4, 8)]
