"""One rule says which layer makes the outputs, wherever a last layer or a head is meant."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smidgen
from smidgen.curvature.output_layers import see_output_layers
from smidgen.errors import ArgumentError, StructureError
from smidgen.fit.calibration.groups import group_labels
from smidgen.weights.affine import coverage
from smidgen.weights.head import find_certain_head, find_head


class Tied(nn.Module):
    """A language model's shape: the output layer is the embeddings, a hidden layer precedes."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.first, self.hidden = nn.Linear(4, 4), nn.Linear(4, 4)
        self.out = nn.Linear(4, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids):
        return self.out(torch.tanh(self.hidden(torch.tanh(self.first(self.embed(ids))))))


class Paired(nn.Module):
    """The outputs come of nn.Bilinear, which is no affine layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.out = nn.Bilinear(3, 3, 2)

    def forward(self, x):
        return self.out(self.body(x), x)


def grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 1),
        nn.ConvTranspose2d(4, 2, 1, groups=2),
        nn.AvgPool2d(2),
        nn.Flatten(),
    )


UNKNOWN = {
    "bilinear": (Paired, torch.randn(3, 3), "'out' comes after the .* 'body' .*Bilinear"),
    "grouped": (grouped, torch.randn(3, 2, 2, 2), "'1' comes after the .* '0' .*2 groups"),
    "tied": (Tied, torch.tensor([1, 2, 4]), "'out' comes after the .* 'hidden' .*tied to"),
}


@pytest.fixture(params=UNKNOWN)
def unknown(request):
    make, inputs, why = UNKNOWN[request.param]
    return make(), inputs, why


def test_nobody_takes_the_map_before_what_makes_the_outputs(unknown):
    model, inputs, why = unknown
    with pytest.raises(StructureError, match=f"last layer cannot be chosen: {why}"):
        smidgen.select.last_layer(model)
    with pytest.raises(StructureError, match="'(out|1)' makes the outputs and cannot be"):
        smidgen.select.last_layer(model, [inputs])
    with pytest.raises(ArgumentError, match=f"got 'last': {why}"):
        find_head(model, "last")
    last = coverage(model).layers[-1]
    assert not find_certain_head(coverage(model), last.outputs)


@pytest.mark.parametrize("method", ["laplace", "swag"])
def test_no_last_layer_is_planned_where_there_is_none(unknown, method):
    model, inputs, _ = unknown
    inner = smidgen.select.named(model, f"{coverage(model).layers[-1].name}.*")
    for choice in ({}, {"subset": inner}):
        planned = smidgen.plan(model, batch=inputs, method=method, **choice)
        assert "last layer" not in {row.subset for row in planned.rows}
    assert planned.chosen.subset == "given subset"


def test_an_inner_map_is_not_labelled_a_last_layer():
    model = Tied()
    batch = (torch.arange(5), torch.tensor([1, 0, 2, 4, 3]))
    subset = smidgen.select.named(model, "hidden.*")
    posterior = smidgen.fit.laplace(model, [batch], subset, precision=1)
    record = smidgen.compare(model, posterior, [batch], progress=False)
    assert record.results["methods"][-1]["label"] == "Chosen by name"
    seen = see_output_layers(smidgen.Problem(model), batch)
    assert group_labels("group", posterior, lambda: coverage(model)) == {"hidden": "mlp"}
    assert group_labels("group", posterior, lambda: seen) == {"hidden": "mlp"}


def test_without_any_map_a_head_is_asked_for():
    with pytest.raises(ArgumentError, match="got 'last': it has no affine layer"):
        find_head(nn.LayerNorm(3), "last")


def test_a_map_that_runs_again_at_the_end_is_the_last():
    first, middle, again = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    again.weight, again.bias = first.weight, first.bias
    model = nn.Sequential(first, nn.Tanh(), middle, nn.Tanh(), again)
    for batches in (None, [torch.randn(2, 2)]):
        last = smidgen.select.last_layer(model, batches)
        assert list(last.parts) == ["0.weight", "0.bias"]
    assert list(find_head(model, "last")) == ["0.weight", "0.bias"]


class Prompted(nn.Module):
    """As PEFT has it: embeddings of a prompt, registered behind the model they go into."""

    def __init__(self):
        super().__init__()
        self.body, self.classifier = nn.Linear(4, 4), nn.Linear(4, 2)
        self.prompt = nn.Embedding(3, 4)
        self.norm = nn.LayerNorm((3, 4))

    def forward(self, x):
        seen = self.norm(x[:, None] + self.prompt.weight).mean(1)
        return self.classifier(torch.tanh(self.body(seen)))


def test_embeddings_and_norms_behind_the_head_are_no_output_maps():
    model = Prompted()
    assert [layer.name for layer in coverage(model).output_layers] == ["classifier"]
    for batches in (None, [torch.randn(2, 4)]):
        last = smidgen.select.last_layer(model, batches)
        assert set(last.parts) == {"classifier.weight", "classifier.bias"}


def test_attention_is_one_layer_for_its_inputs_and_one_for_its_output():
    layers = coverage(nn.TransformerEncoderLayer(8, 2, 12)).layers
    sizes = {layer.name: (layer.outputs, layer.inputs, layer.group) for layer in layers}
    assert sizes["self_attn.in_proj"] == (24, 8, "attention")
    assert sizes["self_attn.out_proj"] == (8, 8, "attention")
    assert set(sizes) == {"self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2"}


def test_what_attention_has_beside_its_layers_is_named():
    attention = nn.MultiheadAttention(4, 2, kdim=3, add_bias_kv=True)
    found = coverage(attention)
    names = [layer.name for layer in found.layers]
    assert names == ["q_proj", "k_proj", "v_proj", "out_proj"]
    assert "in_proj_bias, bias_k, bias_v" in found.left_out[""]


def test_tied_attention_is_one_layer_that_runs_twice():
    first, second = nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2)
    second.in_proj_weight, second.in_proj_bias = first.in_proj_weight, first.in_proj_bias
    layers = {
        layer.name: layer for layer in coverage(nn.ModuleList([first, second])).layers
    }
    assert layers["0.in_proj"].modules == ("0.in_proj", "1.in_proj")
    assert "1.in_proj" not in layers
    second.in_proj_bias = nn.Parameter(torch.zeros(12))
    why = coverage(nn.ModuleList([first, second])).left_out
    assert "not its bias, with 1" in why["0"]
