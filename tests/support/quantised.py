"""Tiny Llamas whose base is quantised by bitsandbytes or torchao, and their plain twins."""

from __future__ import annotations

import warnings

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForSequenceClassification

with warnings.catch_warnings():
    # Both warn on import of kernels that this machine lacks, and of torch itself.
    warnings.simplefilter("ignore")
    import bitsandbytes as bnb
    import torchao.quantization as torchao

CLASSES, WORDS = 3, 40


def llama():
    """A Llama of one layer, of which every matrix can be cut into blocks of 64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=WORDS,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            num_labels=CLASSES,
            pad_token_id=0,
        )
        return LlamaForSequenceClassification(config).eval()


def with_lora(model):
    """An adapter in a trained-looking state on a frozen base."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        told = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_proj", "v_proj"])
        model = get_peft_model(model, told)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(std=0.3)
    return model.eval()


def texts(count=2, size=4):
    generator = torch.Generator().manual_seed(0)

    def draw(most, *shape):
        return torch.randint(1, most, shape, generator=generator)

    mask = (torch.arange(6) < torch.tensor([6, 3, 5, 4])[:, None]).long()[:size]
    return [
        {
            "input_ids": draw(WORDS, size, 6) * mask,
            "attention_mask": mask,
            "labels": draw(CLASSES, size),
        }
        for _ in range(count)
    ]


def quantise_4bit(model, kind="nf4", *, double=False, dtype=torch.float32):
    """Replace all layers but the head, as transformers does with load_in_4bit."""

    def make(layer):
        given = {"quant_type": kind, "compress_statistics": double}
        new = bnb.nn.Linear4bit(
            layer.in_features, layer.out_features, False, compute_dtype=dtype, **given
        )
        new.weight = bnb.nn.Params4bit(layer.weight.data, module=new, **given)
        return new.to("cpu").eval()

    return _replace(model, nn.Linear, make)


def quantise_8bit(model):
    """The same with load_in_8bit."""

    def make(layer):
        shape = layer.in_features, layer.out_features
        new = bnb.nn.Linear8bitLt(*shape, bias=False, has_fp16_weights=False)
        new.weight = bnb.nn.Int8Params(layer.weight.data, has_fp16_weights=False)
        new.weight.requires_grad_(False)
        return new.to("cpu").eval()

    return _replace(model, nn.Linear, make)


def quantise_torchao(model, config=None):
    """Replace the weights of all layers but the head."""
    torchao.quantize_(model.model, config or torchao.Int8WeightOnlyConfig())
    return model


def dequantised(model):
    """The plain twin: the same model with the numbers its quantised weights stand for."""

    def make(layer):
        weight = layer.weight
        if isinstance(layer, bnb.nn.Linear4bit):
            numbers = bnb.functional.dequantize_4bit(weight.data, weight.quant_state)
        elif isinstance(layer, bnb.nn.Linear8bitLt):
            numbers = weight.CB.float() * weight.SCB[:, None] / 127
        elif type(weight) is not nn.Parameter:
            numbers = weight.dequantize()
        else:
            return layer
        new = nn.Linear(layer.in_features, layer.out_features, bias=False)
        new.weight = nn.Parameter(numbers.float(), requires_grad=False)
        return new.eval()

    return _replace(model, nn.Linear, make)


def _replace(model, kind, make):
    for path, layer in list(model.named_modules()):
        if isinstance(layer, kind) and path.rpartition(".")[2] != "score":
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, make(layer))
    return model
