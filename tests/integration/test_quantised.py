"""Quantised bases, by the real packages: the numbers of the same model in plain form."""

from __future__ import annotations

import subprocess
import sys
from copy import copy

import gguf
import pytest
import torch
from peft import prepare_model_for_kbit_training
from torch import nn
from torch.testing import assert_close
from transformers import AutoModelForSequenceClassification

import smidgen
from smidgen.errors import ArgumentError, DataError, StructureError
from smidgen.fit.finetune import FinetuneSettings
from smidgen.integrations.huggingface import save_model
from smidgen.runtime.guard import fingerprint
from tests.support.quantised import (
    bnb,
    dequantised,
    llama,
    quantise_4bit,
    quantise_8bit,
    quantise_torchao,
    texts,
    torchao,
    with_lora,
)
from tests.support.tiny import word_tokenizer
from tests.support.tolerances import EIGHT_BITS, SINGLE

pytestmark = [
    # bitsandbytes casts activations; PEFT cannot merge into torchao's weights.
    pytest.mark.filterwarnings("ignore:MatMul8bitLt:UserWarning"),
    pytest.mark.filterwarnings("ignore:TorchaoLoraLinear was instantiated:UserWarning"),
    # PEFT keeps the head as it was beside the trained one, and never runs it.
    pytest.mark.filterwarnings("ignore:1 chosen layers never ran"),
    # A quantised base is none of the layers that can be chosen.
    pytest.mark.filterwarnings("ignore:only .* of the model.s"),
]

BASES = {
    "nf4": lambda: quantise_4bit(llama()),
    "fp4 double": lambda: quantise_4bit(llama(), "fp4", double=True),
    "torchao": lambda: quantise_torchao(llama()),
    "int8": lambda: quantise_8bit(llama()),
}


def with_quantised_activations():
    return quantise_torchao(llama(), torchao.Int8DynamicActivationInt8WeightConfig())


def choose(model, which):
    if which == "last":
        return smidgen.select.last_layer(model)
    if which == "lora":
        return smidgen.select.named(model, "*lora_*")
    if which == "sparse":
        return smidgen.select.sparse_kfac(model, percent=50)
    return smidgen.select.weights(model, fraction=0.2)


def fitted(model, which, structure):
    subset = choose(model, which)
    return smidgen.fit.laplace(model, texts(), subset, structure=structure, progress=False)


def assert_alike(found, expected, name):
    if name in ("int8", "dynamic"):  # which round activations, too
        most = EIGHT_BITS * float(expected.abs().max())
        assert_close(found, expected, rtol=0, atol=most)
    else:
        assert_close(found, expected, **SINGLE)


WAYS = [("last", "kron"), ("sparse", "isotropic"), ("single", "diag")]
ON_LORA = [("lora", "kron"), ("lora", "isotropic"), ("last", "diag"), ("sparse", "kron")]


def assert_same_numbers(model, twin, ways, name):
    for which, structure in ways:
        ours = fitted(model, which, structure)
        # The twin has more layers to choose from: the same are chosen.
        told = {"structure": structure, "progress": False}
        plain = smidgen.fit.laplace(twin, texts(), ours.subset, **told)
        one, other = (
            smidgen.predict(posterior, network, texts()[0])
            for posterior, network in ((ours, model), (plain, twin))
        )
        assert_alike(one.logits, other.logits, name)
        assert_alike(one.logit_covariance, other.logit_covariance, name)


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("lora", [False, True], ids=["plain", "lora"])
def test_a_quantised_base_has_the_numbers_of_its_plain_twin(name, lora):
    model, twin = BASES[name](), dequantised(BASES[name]())
    if lora:
        model, twin = with_lora(model), with_lora(twin)
    assert_same_numbers(model, twin, ON_LORA if lora else WAYS, name)


def test_layers_that_cut_the_graph_are_refused_below_them_and_fine_elsewhere():
    model, twin = with_quantised_activations(), dequantised(with_quantised_activations())
    assert_same_numbers(model, twin, WAYS, "dynamic")
    adapted = with_lora(with_quantised_activations())
    assert_same_numbers(adapted, with_lora(twin), [("last", "kron")], "dynamic")
    with pytest.raises(
        StructureError, match="must let gradients through, got one of class"
    ):
        fitted(adapted, "lora", "kron")
    settings = smidgen.fit.SwagSettings(steps=4, every=1, rank=2, learning_rate=1e-3)
    subset = choose(adapted, "lora")
    with pytest.raises(DataError, match="outputs must be differentiable in the weights"):
        smidgen.fit.swag(adapted, texts(), subset, settings=settings, progress=False)


@pytest.mark.parametrize("name", BASES)
def test_quantised_layers_are_left_out_and_the_reason_is_told(name):
    covered = smidgen.coverage(with_lora(BASES[name]()))
    adapted = "base_model.model.model.layers.0.self_attn.q_proj"
    assert covered.left_out[f"{adapted}.base_layer"] == "its weight is packed or quantised"
    assert f"{adapted}.lora_A.default" in {layer.name for layer in covered.layers}
    assert not any("base_layer" in layer.name for layer in covered.layers)


def trained_as_qlora(**kinds):
    """A model as PEFT's own preparation leaves it: checkpointed, with input gradients."""
    base = quantise_4bit(llama(), double=True, **kinds)
    base.is_loaded_in_4bit = True
    return with_lora(prepare_model_for_kbit_training(base)).train()


@pytest.mark.filterwarnings("ignore:the best temperature:smidgen.errors.SmidgenWarning")
def test_qlora_goes_all_the_way(tmp_path):
    model = trained_as_qlora()
    twin = with_lora(dequantised(quantise_4bit(llama(), double=True)))
    posteriors = []
    for network in (model, twin):
        posterior = fitted(network, "lora", "kron")
        posteriors.append(smidgen.calibrate(posterior, network, texts(), progress=False))
    smidgen.save(posteriors[0], tmp_path / "posterior")
    loaded = smidgen.load(tmp_path / "posterior", model)
    assert loaded.precision == pytest.approx(posteriors[1].precision, rel=1e-3)
    covariances = [
        smidgen.predict(posterior, network, texts()[0]).logit_covariance
        for posterior, network in ((loaded, model), (posteriors[1], twin))
    ]
    assert_close(*covariances, rtol=2e-3, atol=1e-6)
    drawn = smidgen.predict(loaded, model, texts()[0], samples=3)
    expected = smidgen.predict(posteriors[0], model, texts()[0], samples=3)
    assert torch.equal(drawn.probs, expected.probs)
    assert smidgen.verify(model, texts(1)).agrees
    assert smidgen.plan(model, batch=texts()[0]).chosen.fits


@pytest.mark.parametrize("name", BASES)
def test_verify_and_training_methods_run_on_a_quantised_base(name):
    model = with_lora(BASES[name]())
    assert smidgen.verify(model, texts(1)).agrees
    subset = choose(model, "lora")
    settings = smidgen.fit.SwagSettings(steps=4, every=1, rank=2, learning_rate=1e-3)
    swag = smidgen.fit.swag(model, texts(), subset, settings=settings, progress=False)
    assert smidgen.predict(swag, model, texts()[0], samples=2).probs.isfinite().all()
    settings = FinetuneSettings(epochs=1, learning_rate=1e-3)
    for chosen in (subset, None):
        tuned = smidgen.fit.finetune(
            model, texts(), chosen, settings=settings, progress=False
        )
        moved = [
            before_name
            for (before_name, before), after in zip(
                model.named_parameters(), tuned.model.parameters(), strict=True
            )
            if before.requires_grad and not torch.equal(before, after)
        ]
        assert moved


def as_run_on_avx512(model):
    """Lay the weights out as bitsandbytes does when a CPU with AVX512-BF16 runs the model."""
    for layer in model.modules():
        if isinstance(layer, bnb.nn.Linear4bit):
            convert = bnb.functional._convert_weight_packed_for_cpu
            layer.weight.data, layer.weight.quant_state = convert(
                layer.weight.data, layer.weight.quant_state
            )
    return model


@pytest.mark.parametrize("double", [False, True])
def test_a_4bit_model_is_the_same_after_it_was_laid_out_for_a_cpu(double):
    model = with_lora(quantise_4bit(llama(), double=double))
    posterior = fitted(model, "lora", "kron")
    before = smidgen.predict(posterior, model, texts()[0])
    as_run_on_avx512(model)
    # The layout rounds scales to bf16: the same posterior, about the same numbers.
    after = smidgen.predict(posterior, model, texts()[0])
    assert_close(after.logits, before.logits, rtol=0, atol=0.02)
    assert_close(after.logit_covariance, before.logit_covariance, rtol=0.05, atol=1e-3)
    again = fitted(model, "lora", "kron")
    assert again.fingerprint == posterior.fingerprint


@pytest.mark.parametrize("name", BASES)
def test_nothing_of_the_quantised_model_changes(name):
    model = with_lora(BASES[name]())
    quantised = {n: p for n, p in model.named_parameters() if not p.requires_grad}
    before = {
        n: (copy(getattr(p, "__dict__", {})), p.data_ptr()) for n, p in quantised.items()
    }
    scales = {
        n: copy(vars(p["quant_state"]))
        for n, (p, _) in before.items()
        if "quant_state" in p
    }
    states = {
        n: copy(vars(m.state)) for n, m in model.named_modules() if hasattr(m, "state")
    }
    posterior = fitted(model, "lora", "kron")
    smidgen.predict(posterior, model, texts()[0])
    smidgen.predict(posterior, model, texts()[0], samples=2)
    for path, (attributes, place) in before.items():
        now = quantised[path]
        assert now.data_ptr() == place
        assert vars(now).keys() == attributes.keys()
        assert all(vars(now)[key] is value for key, value in attributes.items())
        if path in scales:
            assert all(vars(now.quant_state)[k] is v for k, v in scales[path].items())
    for path, state in states.items():
        assert vars(model.get_submodule(path).state) == state


@pytest.mark.parametrize("name", BASES)
def test_another_quantised_model_is_refused(name):
    model, other = BASES[name](), BASES[name]()
    posterior = fitted(model, "last", "kron")
    assert fingerprint(other) == posterior.fingerprint
    other.model.layers[0].mlp.up_proj = BASES[name]().model.layers[0].mlp.gate_proj
    with pytest.raises(ArgumentError, match="must be the one the posterior was fitted to"):
        smidgen.predict(posterior, other, texts()[0])


class Mixed(nn.Module):
    """Frozen parameters of types that hold no weights, beside a network."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        frozen = {"requires_grad": False}
        self.table = nn.Parameter(torch.tensor([2, 0, 1]), **frozen)
        self.flags = nn.Parameter(torch.tensor([True, False, True]), **frozen)
        self.small = nn.Parameter(torch.randn(3, 3).to(torch.float8_e4m3fn), **frozen)
        self.hidden, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x):
        x = torch.where(self.flags, x[:, self.table], 0) @ self.small.float()
        return self.head(torch.tanh(self.hidden(x)))


def test_frozen_parameters_of_other_types_are_left_alone(tmp_path, unchanged):
    model = Mixed()
    batch = torch.linspace(-1, 1, 12).reshape(4, 3), torch.tensor([0, 1, 1, 0])
    with unchanged(model):
        subset = smidgen.select.sparse_kfac(model, percent=60)
        assert set(subset.parts) == {
            "hidden.weight",
            "hidden.bias",
            "head.weight",
            "head.bias",
        }
        posterior = smidgen.fit.laplace(model, [batch], subset, progress=False)
        smidgen.save(posterior, tmp_path / "posterior")
        loaded = smidgen.load(tmp_path / "posterior", model)
        one, other = (smidgen.predict(each, model, batch) for each in (posterior, loaded))
        assert torch.equal(one.probs, other.probs)
        verified = smidgen.verify(model, [batch])
        assert verified.agrees
        # As strict as without them.
        assert verified.tolerance < 0.01
        smidgen.fit.finetune(model, [batch], progress=False)


def write_gguf(path):
    """A Llama of one layer, its matrices in 8 bits, as llama.cpp writes them."""
    writer = gguf.GGUFWriter(path, "llama")
    size, wide, words = 32, 64, 40
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(size)
    writer.add_feed_forward_length(wide)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(size // 2)
    writer.add_vocab_size(words)
    shapes = {f"attn_{part}": (size, size) for part in ("q", "k", "v", "output")}
    shapes |= {"ffn_gate": (wide, size), "ffn_up": (wide, size), "ffn_down": (size, wide)}
    shapes |= {"attn_norm": (size,), "ffn_norm": (size,)}
    shapes = {f"blk.0.{name}": shape for name, shape in shapes.items()}
    shapes |= {"token_embd": (words, size), "output": (words, size), "output_norm": (size,)}
    generator, eight = torch.Generator().manual_seed(0), gguf.GGMLQuantizationType.Q8_0
    for name, shape in shapes.items():
        numbers = 0.3 * torch.randn(shape, generator=generator).numpy()
        if len(shape) == 2:
            packed = gguf.quants.quantize(numbers, eight)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=eight)
        else:
            writer.add_tensor(f"{name}.weight", numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_gguf_base_is_a_plain_model_and_can_be_saved(tmp_path):
    write_gguf(tmp_path / "tiny.gguf")
    model = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, gguf_file="tiny.gguf", num_labels=3, pad_token_id=0
    ).eval()
    posterior = fitted(model, "sparse", "kron")
    assert smidgen.coverage(model).layers[0].name.endswith("q_proj")
    save_model(model, word_tokenizer(bert=True), tmp_path / "plain")
    assert model.hf_quantizer is not None  # as it was
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "plain").eval()
    assert fingerprint(again) == posterior.fingerprint
    one, other = (smidgen.predict(posterior, each, texts()[0]) for each in (model, again))
    assert torch.equal(one.probs, other.probs)


def test_the_library_imports_none_of_the_packages():
    told = (
        "import sys, torch, smidgen; from torch import nn; m = nn.Linear(2, 2);"
        "s = smidgen.select.last_layer(m); b = (torch.ones(2, 2), torch.tensor([0, 1]));"
        "p = smidgen.fit.laplace(m, [b], s, progress=False); smidgen.predict(p, m, b);"
        "print([n for n in ('bitsandbytes', 'torchao', 'peft', 'accelerate') if n in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr
