"""Every kind of PEFT adapter: what is treated has exact numbers, the rest is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import peft
import pytest
import torch
from transformers import BertForSequenceClassification

import smidgen
from smidgen.errors import StructureError
from tests.conformance.test_lora import CLASSES, padded
from tests.support.tiny import bert_config

WHERE = {"target_modules": ["query", "value"]}
REPLACED = "a copy in peft's modules_to_save stands in its place"


@dataclass(frozen=True)
class Kind:
    """An adapter: what of it is treated, and what of it or its base is left out and why."""

    make: Callable
    treated: str = "base_layer"
    left_out: dict[str, str] = field(default_factory=dict)


KINDS = {
    "lora": Kind(lambda **say: peft.LoraConfig(r=2, **WHERE, **say), "lora_A.default"),
    "rslora": Kind(
        lambda **say: peft.LoraConfig(r=2, use_rslora=True, **WHERE, **say),
        "lora_B.default",
    ),
    "dora": Kind(
        lambda **say: peft.LoraConfig(r=2, use_dora=True, **WHERE, **say),
        "key",
        {
            "lora_A.default": "peft's Dora uses these weights outside the layer's call",
            "query.base_layer": "peft's Dora uses these weights outside the layer's call",
            "lora_magnitude_vector.default": "DoraLinearLayer is not an affine layer",
        },
    ),
    "ia3": Kind(
        lambda **say: peft.IA3Config(
            target_modules=["query", "output.dense"],
            feedforward_modules=["output.dense"],
            **say,
        ),
        left_out={"ia3_l": "ParameterDict is not an affine layer"},
    ),
    "prompt": Kind(
        lambda **say: peft.PromptTuningConfig(num_virtual_tokens=2, **say),
        "query",
        {"prompt_encoder.default.embedding": "Embedding is not an affine layer"},
    ),
    "prefix": Kind(
        lambda **say: peft.PrefixTuningConfig(
            num_virtual_tokens=2, prefix_projection=True, encoder_hidden_size=4, **say
        ),
        "transform.0",
    ),
    "p-tuning": Kind(
        lambda **say: peft.PromptEncoderConfig(
            num_virtual_tokens=2, encoder_hidden_size=4, **say
        ),
        "query",
        {"mlp_head.0": "peft's PromptEncoder runs once for all examples of a batch"},
    ),
    "adalora": Kind(
        lambda **say: peft.AdaLoraConfig(
            init_r=3, target_r=2, total_step=10, tinit=1, tfinal=2, **WHERE, **say
        ),
        left_out={"lora_A": "ParameterDict is not an affine layer"},
    ),
    "loha": Kind(lambda **say: peft.LoHaConfig(r=2, **WHERE, **say)),
    "lokr": Kind(lambda **say: peft.LoKrConfig(r=2, **WHERE, **say)),
    "vera": Kind(lambda **say: peft.VeraConfig(r=2, **WHERE, **say)),
    "oft": Kind(lambda **say: peft.OFTConfig(r=2, oft_block_size=0, **WHERE, **say)),
    "boft": Kind(
        lambda **say: peft.BOFTConfig(boft_block_size=2, **WHERE, **say),
        "key",
        {"base_layer": "peft's boft may use these weights outside the layer's call"},
    ),
}


def perturb(model, seed=1):
    """Put adapters into a trained-looking state."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        parameter.data.add_(0.3 * drawn)
    return model


def adapted(kind):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = bert_config(num_labels=CLASSES, attn_implementation="eager")
        base = BertForSequenceClassification(config)
        model = peft.get_peft_model(base, KINDS[kind].make(task_type="SEQ_CLS")).double()
    return perturb(model)


def require_exact(model, treated):
    """What is treated runs, and agrees with autograd on the weights themselves."""
    found = smidgen.verify(model, [padded()], rows=2, columns=2)
    assert found.agrees, str(found)
    assert not any("skipped" in check.verdict for check in found.checks), str(found)
    assert not any("hardly" in check.verdict for check in found.checks), str(found)
    assert any(check.name.endswith(treated) for check in found.checks)


# peft warns of its own names and defaults.
@pytest.mark.filterwarnings("ignore::UserWarning:peft")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_treated_is_exact_and_the_rest_is_named(kind):
    model = adapted(kind)
    covered = smidgen.coverage(model)
    for end, why in {**KINDS[kind].left_out, "original_module": REPLACED}.items():
        assert why in {w for path, w in covered.left_out.items() if path.endswith(end)}
        assert not any(layer.name.endswith(end) for layer in covered.layers)
    require_exact(model, KINDS[kind].treated)


def of_adapter(model, name):
    """The layers of an adapter that are treated, and why the others are not."""
    covered = smidgen.coverage(model)
    treated = [layer.name for layer in covered.layers if f".{name}" in layer.name]
    return treated, {why for path, why in covered.left_out.items() if f".{name}" in path}


def test_of_several_adapters_the_active_one_is_treated():
    model = adapted("lora")
    model.add_adapter("other", KINDS["lora"].make(task_type="SEQ_CLS"))
    perturb(model.double(), seed=2)
    assert of_adapter(model, "other") == ([], {"its adapter 'other' is not active"})
    assert of_adapter(model, "default")[0]
    assert not of_adapter(model, "default")[1]
    model.set_adapter("other")
    assert of_adapter(model, "default") == ([], {"its adapter 'default' is not active"})
    require_exact(model, "lora_A.other")


def test_merged_and_disabled_adapters_are_left_out():
    model = adapted("lora")
    with model.disable_adapter():
        assert {"its adapter is disabled"} <= of_adapter(model, "default")[1]
        assert not of_adapter(model, "default")[0]
        require_exact(model, "classifier.original_module")
    model.merge_adapter()
    assert "its adapter is merged into the base layer" in of_adapter(model, "default")[1]
    require_exact(model, "query.base_layer")


def test_a_pass_that_would_unmerge_the_callers_weights_is_refused(unchanged):
    model = adapted("lora")
    model.merge_adapter()
    with unchanged(model), model.disable_adapter():
        subset = smidgen.select.last_layer(model)
        with pytest.raises(StructureError, match="unmerge_adapter"):
            smidgen.fit.laplace(model, [padded()], subset)
