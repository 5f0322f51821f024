"""Layers are described and built again; what is not listed is neither stored nor made."""

import json

import pytest
import torch
from torch import nn

from smidgen.errors import ArgumentError, StoreError
from smidgen.integrations.plain_model import load_plain_model, save_plain_model
from smidgen.integrations.sharing.layer_stack import LayerStack, describe_stack
from smidgen.runtime.artifact import seal


def make_model():
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 3, bias=False), nn.LayerNorm(3), nn.GELU("tanh"))
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding="same", padding_mode="reflect"),
        nn.BatchNorm2d(4, eps=1e-3),
        nn.LeakyReLU(0.3),
        nn.MaxPool2d((2, 1), ceil_mode=True),
        nn.GroupNorm(2, 4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        inner,
        nn.Dropout(0.2),
        nn.Unflatten(1, (3, 1)),
        nn.Flatten(),
    )


def test_a_stack_is_built_again_bitwise(tmp_path):
    model, inputs = make_model(), torch.randn(5, 1, 7, 6)
    model(inputs)  # statistics of the norm
    model.eval()
    stack = describe_stack(model)
    assert LayerStack.from_json(json.loads(json.dumps(stack.to_json()))) == stack
    save_plain_model(model, stack, tmp_path / "model")
    loaded = load_plain_model(tmp_path / "model")
    assert torch.equal(loaded(inputs), model(inputs))
    assert str(loaded) == str(model)
    assert all(p.requires_grad and not p.is_meta for p in loaded.parameters())


class Twice(nn.Linear):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


def with_hook(layer):
    layer.register_forward_hook(lambda *_: None)
    return layer


def with_forward(layer):
    layer.forward = lambda inputs: inputs
    return layer


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (Twice(2, 2), "Twice as model.1"),
        (with_hook(nn.Linear(2, 2)), "Linear as model.1"),
        (with_forward(nn.Linear(2, 2)), "Linear as model.1"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), "ParametrizedLinear as"),
        (nn.Sequential(nn.Bilinear(2, 2, 2)), "Bilinear as model.1.0"),
        (with_hook(nn.Sequential(nn.Tanh())), "Sequential as model.1"),
        (with_forward(nn.Sequential(nn.Tanh())), "Sequential as model.1"),
    ],
)
def test_other_layers_are_refused(layer, named):
    with pytest.raises(ArgumentError, match=f"forward of their own, got {named}"):
        describe_stack(nn.Sequential(nn.Linear(2, 2), layer))


def test_one_activation_in_several_places_is_built_in_each(tmp_path):
    act = nn.Tanh()
    inner = nn.Sequential(act, nn.Linear(3, 3), act)
    model = nn.Sequential(nn.Linear(2, 3), act, inner, act, nn.Linear(3, 2)).eval()
    save_plain_model(model, describe_stack(model), tmp_path / "model")
    loaded, inputs = load_plain_model(tmp_path / "model"), torch.randn(4, 2)
    assert torch.equal(loaded(inputs), model(inputs))


def make_tied():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    return model


@pytest.mark.parametrize("make", ["layer", "stack", "weight", "statistics"])
def test_weights_in_several_places_are_refused(make):
    layer, norm = nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False)
    models = {
        "layer": lambda: nn.Sequential(layer, nn.Tanh(), layer),
        "stack": lambda: nn.Sequential(nn.Sequential(layer), layer),
        "weight": make_tied,
        "statistics": lambda: nn.Sequential(norm, nn.Linear(2, 2), norm),
    }
    with pytest.raises(
        ArgumentError, match=r"weights of its own in every layer, got those"
    ):
        describe_stack(models[make]())


def test_a_model_that_is_no_stack_is_refused():
    with pytest.raises(
        ArgumentError, match="got Linear as model. Build it of these, or sh"
    ):
        describe_stack(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "Bilinear"}, "the layer 'Bilinear' is unknown"),
        ({"kind": "os.system"}, "the layer 'os.system' is unknown"),
        ({"device": "cuda"}, "the layer 'Linear' is unknown"),
        # Such a layer would take 4 GB; it is never made.
        ({"in_features": 2**30}, "must be torch.float32 of shape"),
        ({"in_features": "two"}, "it does not hold what it should"),
    ],
)
def test_a_file_makes_no_other_layers(change, message, tmp_path):
    model = nn.Sequential(nn.Linear(2, 2))
    save_plain_model(model, describe_stack(model), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    config["layers"][0] |= change
    # Whoever writes such a file can seal it too.
    tensors = model.state_dict()
    del config["digest"]
    path.write_text(json.dumps(seal(config, tensors)))
    with pytest.raises(StoreError, match=message):
        load_plain_model(tmp_path / "model")
