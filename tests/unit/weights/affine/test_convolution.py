"""Patches times the matrix of a convolution are what it makes, whatever its settings."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from smidgen.weights.affine import coverage
from smidgen.weights.affine.kinds import LAYER_KINDS

MODULES = {
    "circular": nn.Conv1d(4, 8, 3, padding="same", padding_mode="circular", groups=4),
    "reflected": nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=1, padding_mode="reflect"),
    "depthwise": nn.Conv2d(4, 4, 3, dilation=2, padding=2, groups=4, bias=False),
    "three axes": nn.Conv3d(
        4, 2, (1, 2, 3), stride=(2, 1, 1), dilation=(1, 2, 1), groups=2
    ),
    "transposed, one axis": nn.ConvTranspose1d(4, 3, 2, stride=3, padding=1),
    "transposed": nn.ConvTranspose2d(
        4, 3, (3, 2), stride=(2, 3), dilation=(1, 2), padding=(1, 0), output_padding=(1, 0)
    ),
    "padded more than it reaches": nn.ConvTranspose2d(4, 3, 2, stride=2, padding=2),
    "transposed, three axes": nn.ConvTranspose3d(4, 2, 2, stride=(1, 2, 1), bias=False),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("channels", [None, [0]])
def test_patches_times_the_matrix_are_the_outputs(name, channels):
    module = MODULES[name].double()
    (layer,) = coverage(nn.Sequential(module)).layers
    x = torch.randn(2, 4, *(5, 6, 7)[: module.weight.dim() - 2], dtype=torch.float64)
    kept = x
    if channels is not None:
        # Other channels are nothing to what is cut of these.
        kept = torch.zeros_like(x).unflatten(1, (layer.groups, -1))
        kept[:, :, channels] = x.unflatten(1, (layer.groups, -1))[:, :, channels]
        kept = kept.flatten(1, 2)
    with torch.no_grad():
        out = module(kept)
    chosen = None if channels is None else torch.tensor(channels)
    cut = LAYER_KINDS[layer.kind].patches(module, x, chosen, tuple(out.shape[2:]))
    matrix = layer.as_matrix(module.weight.detach()).unflatten(-1, (layer.window[0], -1))
    if channels is not None:
        matrix = matrix[:, channels]
    rows = matrix.flatten(1).unflatten(0, (layer.groups, -1))  # (groups, rows, m)
    made = torch.einsum("btgm,grm->bgrt", cut, rows).flatten(1, 2)
    if module.bias is not None:
        made = made + module.bias.detach()[:, None]
    torch.testing.assert_close(made, out.flatten(2))


def test_a_size_of_the_outputs_that_the_caller_chose():
    module = nn.ConvTranspose1d(2, 3, 3, stride=3).double()
    x = torch.randn(2, 2, 4, dtype=torch.float64)
    with torch.no_grad():
        out = module(x, output_size=[14])
    cut = LAYER_KINDS["transposed convolution"].patches(module, x, None, (14,))
    made = cut[:, :, 0] @ module.weight.detach().transpose(0, 1).flatten(1).T
    torch.testing.assert_close((made + module.bias.detach()).mT, out)


def test_a_transposed_convolution_in_groups_is_left_out():
    found = coverage(nn.Sequential(nn.ConvTranspose1d(4, 4, 2, groups=2)))
    assert not found.layers
    assert "in 2 groups" in found.left_out["0"]
