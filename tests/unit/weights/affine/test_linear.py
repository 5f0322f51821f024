"""Subclasses of nn.Linear are layers if they compute the same, whatever they write."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.falcon.modeling_falcon import FalconLinear

from smidgen.weights.affine import coverage


class Scaled(nn.Linear):
    """Computes the same as long as its scale is one, which its class does not tell."""

    def __init__(self, *args):
        super().__init__(*args)
        self.scale = 1.0

    def forward(self, x):
        return self.scale * nn.functional.linear(x, self.weight, self.bias)


class Clamped(nn.Linear):
    """Computes the same where outputs are small."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias).clamp(-100, 100)


class Rounded(nn.Linear):
    """Computes the same up to fp32."""

    def forward(self, x):
        return nn.functional.linear(x.float(), self.weight.float()).to(x) + self.bias


class Written(nn.Linear):
    """Computes the same in other words."""

    def forward(self, x):
        made = torch.einsum("...m,nm->...n", x, self.weight)
        return made if self.bias is None else made + self.bias


@pytest.mark.parametrize("kind", [FalconLinear, Written])
@pytest.mark.parametrize("bias", [True, False])
def test_a_class_that_computes_the_same_is_a_layer(kind, bias):
    (layer,) = coverage(nn.Sequential(kind(3, 4, bias))).layers
    assert (layer.outputs, layer.inputs, layer.bias is not None) == (4, 3, bias)


@pytest.mark.parametrize("kind", [Scaled, Clamped, Rounded])
def test_one_that_does_not_or_may_not_is_left_out(kind):
    found = coverage(nn.Sequential(kind(3, 4)))
    assert not found.layers
    assert found.left_out == {"0": f"{kind.__name__} is not an affine layer"}
