"""Sparse Gaussian layers: both paths against a dense oracle, forward and backward."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import smidgen
from smidgen.errors import ArgumentError, StructureError, SubsetError
from smidgen.sparse import SparseSettings, layers, make_sparse, matmul
from smidgen.sparse.pattern import Pattern
from tests.support.oracles import dense_gaussian_map
from tests.support.tolerances import EXACT, Z

LINEAR = [
    ("linear", lambda: nn.Linear(7, 9), (5, 7)),
    ("tokens", lambda: nn.Linear(7, 4, bias=False), (3, 2, 7)),
]
CONV = [
    ("plain", {"kernel_size": 3}, (2, 3, 6, 7)),
    ("stride", {"kernel_size": 3, "stride": (2, 1), "padding": (1, 2)}, (2, 3, 6, 7)),
    ("dilation", {"kernel_size": (2, 3), "dilation": 2, "bias": False}, (2, 3, 6, 7)),
    ("same", {"kernel_size": (2, 4), "padding": "same"}, (2, 3, 6, 7)),
    ("valid", {"kernel_size": 2, "padding": "valid"}, (2, 3, 6, 7)),
    ("reflect", {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"}, (2, 3, 6, 7)),
    (
        "circular",
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
        (2, 3, 6, 7),
    ),
    ("one image", {"kernel_size": 3, "padding": 1}, (3, 6, 7)),
]
MAPS = LINEAR + [
    (f"conv {name}", lambda options=options: nn.Conv2d(3, 4, **options), shape)
    for name, options, shape in CONV
]
PATHS = ("dense", "sparse")


@pytest.fixture(params=MAPS, ids=lambda each: each[0])
def plain_map(request):
    _, make, shape = request.param
    torch.manual_seed(0)
    inputs = torch.randn(shape, dtype=torch.float64)
    return make().double(), inputs


def network_of(module, path, noise="local", density=0.3):
    network = make_sparse(
        module, density=density, settings=SparseSettings(noise=noise, path=path, scale=0.5)
    )
    part = next(iter(network.layers.values()))
    with torch.no_grad():
        part.log_scales += torch.linspace(-0.5, 0.5, len(part.log_scales))
    network.generator.manual_seed(3)
    return network, part


@pytest.mark.filterwarnings("ignore:Using padding='same' with even")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("noise", ["local", "weights", "none"])
def test_values_and_gradients_are_those_of_a_dense_oracle(plain_map, path, noise):
    module, inputs = plain_map
    network, part = network_of(module, path, noise)
    given = inputs.clone().requires_grad_()
    outputs = network(given)
    outer = torch.linspace(-1, 1, outputs.numel(), dtype=torch.float64).view(outputs.shape)
    parameters = [
        p for p in network.parameters() if noise != "none" or p is not part.log_scales
    ]
    found = torch.autograd.grad(outputs, [given, *parameters], outer)

    network.generator.manual_seed(3)
    expected, gradients = dense_gaussian_map(module, part, inputs, noise, outer)
    torch.testing.assert_close(outputs, expected, **EXACT)
    for each, right in zip(found, gradients, strict=True):
        torch.testing.assert_close(each, right, **EXACT)


def test_both_paths_draw_the_same_noise(plain_map):
    module, inputs = plain_map
    found = [network_of(module, path)[0](inputs) for path in PATHS]
    torch.testing.assert_close(*found, **EXACT)


def test_the_noise_has_the_variance_of_the_weights():
    torch.manual_seed(0)
    network, part = network_of(nn.Linear(6, 3).double(), "sparse", density=0.6)
    inputs = torch.randn(6, dtype=torch.float64).expand(20_000, 6)
    with torch.no_grad():
        outputs = network(inputs)
        variance = (part.to_dense(part.scales) * inputs[0]).square().sum(-1)
        mean = part.to_dense() @ inputs[0] + part.bias
    error = (variance / len(inputs)).sqrt()
    assert ((outputs.mean(0) - mean).abs() < Z * error).all()
    spread = (outputs - mean).square().mean(0)
    assert ((spread - variance).abs() < Z * variance * (2 / len(inputs)) ** 0.5).all()


@pytest.mark.parametrize("path", PATHS)
def test_an_output_without_active_weights_is_its_bias_and_has_gradients(path):
    network = make_sparse(
        nn.Linear(50, 40), density=0.001, settings=SparseSettings(path=path)
    )
    outputs = network(torch.randn(8, 50))
    outputs.square().sum().backward()
    assert torch.isfinite(outputs).all()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters())


def test_choosing_a_path_changes_nothing():
    torch.manual_seed(0)
    module, inputs = nn.Linear(80, 60), torch.randn(4, 80)
    network, part = network_of(module, "auto")
    state = network.generator.get_state()
    outputs = network(inputs)
    assert part.path in PATHS
    assert all(p.grad is None for p in network.parameters())
    network.generator.set_state(state)
    torch.testing.assert_close(network(inputs), outputs)


@pytest.mark.parametrize(
    ("module", "inputs", "density", "path"),
    [
        (nn.Linear(30, 20), (4, 30), 0.01, "dense"),
        (nn.Linear(512, 256), (4, 512), 0.1, "sparse"),
        (nn.Linear(512, 256), (4, 512), 0.11, "dense"),
        (nn.Linear(511, 256), (4, 511), 0.1, "dense"),
        (nn.Conv2d(64, 64, 3), (2, 64, 5, 5), 0.01, "dense"),
        (nn.Conv2d(512, 512, 3), (1, 512, 3, 3), 0.03, "sparse"),
        (nn.Conv2d(512, 512, 3), (1, 512, 3, 3), 0.04, "dense"),
    ],
)
def test_size_and_density_decide_how_a_layer_computes(module, inputs, density, path):
    network = make_sparse(module, density=density)
    network(torch.randn(inputs))
    assert network.layers[""].path == path


def test_what_has_no_sparse_product_is_dense(monkeypatch):
    network = make_sparse(nn.Linear(512, 256), density=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        network(torch.randn(4, 512).bfloat16())
    assert network.layers[""].path == "dense"
    assert not matmul.can_multiply_sparsely("cpu", torch.int64)
    monkeypatch.setattr(layers, "can_multiply_sparsely", lambda *_: False)
    again = make_sparse(nn.Linear(512, 256), density=0.05)
    again(torch.randn(4, 512))
    assert again.layers[""].path == "dense"


def test_a_whole_map_is_dense_and_stores_no_indices():
    network = make_sparse(nn.Linear(30, 20), density=1.0)
    network(torch.randn(4, 30))
    part = network.layers[""]
    assert part.path == "dense"
    assert part.pattern.indices is None
    assert network.state_bytes() == 2 * 4 * 600


def test_evaluation_is_of_the_means():
    network, part = network_of(nn.Linear(7, 9).double(), "sparse")
    inputs = torch.randn(5, 7, dtype=torch.float64)
    expected = nn.functional.linear(inputs, part.to_dense(), part.bias)
    torch.testing.assert_close(network.eval()(inputs), expected, **EXACT)


def test_grouped_convolutions_stay_deterministic_and_are_refused_by_name():
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3))
    network = make_sparse(model, density=0.5)
    assert list(network.layers) == ["1"]
    with pytest.raises(
        ArgumentError, match="ungrouped Conv2d layers of the model, got '0'"
    ):
        make_sparse(model, settings=SparseSettings(layers=["0"]))


def test_tied_maps_stay_tied():
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    model[2].weight, model[2].bias = model[0].weight, model[0].bias
    network = make_sparse(model, density=0.5)
    assert network.model[0] is network.model[2]
    state = network.dense_state_dict()
    assert set(state) == set(model.state_dict())
    assert torch.equal(state["0.weight"], state["2.weight"])


def test_a_module_at_two_places_stays_one():
    shared = nn.Linear(5, 5)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    network = make_sparse(model, density=0.5)
    assert network.model[0] is network.model[2] is network.layers["0"]
    plain = deepcopy(model)
    plain.load_state_dict(network.dense_state_dict())
    x = torch.randn(4, 5)
    torch.testing.assert_close(plain(x), network.eval()(x))


def test_what_is_frozen_stays_so():
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    model[1].bias.requires_grad_(False)
    network = make_sparse(model, density=0.5)
    assert list(network.layers) == ["1", "2"]
    assert not network.model[0].weight.requires_grad
    assert not network.layers["1"].bias.requires_grad
    assert network.layers["1"].means.requires_grad
    assert network.layers["2"].bias.requires_grad
    named = make_sparse(model, density=0.5, settings=SparseSettings(layers=["0"]))
    assert named.layers["0"].means.requires_grad
    with pytest.raises(
        ArgumentError, match="where all weights are frozen. There are: 0, 1, 2"
    ):
        make_sparse(model.requires_grad_(False))


@pytest.mark.parametrize("start", [None, "magnitude", "random"])
def test_a_subset_is_the_first_active_set(start):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    for parameter in model.parameters():
        parameter.data.uniform_(0.5, 1.0)
    chosen = smidgen.select.weights(model, by="magnitude", fraction=0.2)
    network = make_sparse(model, chosen, start=start)
    assert list(network.layers) == ["0", "2"]
    for name, layer in network.layers.items():
        indices = chosen.indices(f"{name}.weight")
        assert torch.equal(layer.pattern.list_indices().long(), indices)
        factor = (layer.pattern.total / len(indices)) ** 0.5 if start == "random" else 1.0
        stored = model.get_parameter(f"{name}.weight").flatten()[indices]
        torch.testing.assert_close(layer.means, stored * factor)


def test_a_subset_says_which_layers_are_sparse():
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    last = smidgen.select.last_layer(model)
    network = make_sparse(model, last, settings=SparseSettings(layers=["1"]))
    assert list(network.layers) == ["1"]
    assert network.density == 1
    with pytest.raises(ArgumentError, match="density must be left out if there is a sub"):
        make_sparse(model, last, density=0.5)
    with pytest.raises(ArgumentError, match="got none of 0"):
        make_sparse(model, last, settings=SparseSettings(layers=["*"]))
    with pytest.raises(ArgumentError, match="subset must be of this model: 1.weight"):
        make_sparse(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)), last)
    everything = last.complement() | last
    with pytest.raises(ArgumentError, match=r"of the model, got '1\.weight'. Name"):
        make_sparse(model[:1], everything)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputing_a_map_with_noise_is_refused(reentrant):
    network, _ = network_of(nn.Linear(7, 9).double(), "dense")
    inputs = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    outputs = checkpoint(network, inputs, use_reentrant=reentrant)
    with pytest.raises(StructureError, match="cannot be recomputed in the backward pass"):
        outputs.sum().backward()
    network.set_noise("none")
    checkpoint(network, inputs, use_reentrant=reentrant).sum().backward()
    means = network.layers[""].means
    (expected,) = torch.autograd.grad(network(inputs).sum(), means)
    torch.testing.assert_close(means.grad, expected, **EXACT)


@pytest.mark.parametrize(
    ("indices", "words"),
    [([], "at least 1 active weight"), ([1, 1], "distinct"), ([6], r"\[0, 6\), got 6")],
)
def test_wrong_patterns_are_refused(indices, words):
    with pytest.raises(SubsetError, match=words):
        Pattern(2, 3, torch.tensor(indices))


def test_a_matrix_too_large_for_int32_is_refused():
    with pytest.raises(StructureError, match=r"fewer than 2\^31"):
        Pattern(2**16, 2**16)
