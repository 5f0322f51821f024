"""An adapter's config opens nothing but its own weights."""

from __future__ import annotations

import json

import peft
import pytest

from smidgen.errors import ArgumentError, StoreError
from smidgen.integrations.sharing.adapter_config import check_adapter_config

WHERE = {"target_modules": ["query", "value"]}


def write(folder, values):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(values))
    return path


def check(path, base=None):
    check_adapter_config(path, base=base, advice="Save it again.")


@pytest.mark.parametrize(
    "make", [peft.LoraConfig, peft.AdaLoraConfig, peft.IA3Config, peft.LoHaConfig]
    + [peft.LoKrConfig, peft.VeraConfig, peft.OFTConfig],
)  # fmt: skip
def test_kinds_that_are_treated_are_read(make, tmp_path):
    more = {"feedforward_modules": []} if make is peft.IA3Config else {}
    more |= {"total_step": 10} if make is peft.AdaLoraConfig else {}
    made = make(**WHERE, **more, base_model_name_or_path="user/base", task_type="SEQ_CLS")
    made.save_pretrained(str(tmp_path))
    check(tmp_path / "adapter_config.json", "user/base")


@pytest.mark.parametrize(
    "kind", ["SHADOW", "XLORA", "MULTITASK_PROMPT_TUNING", "PROMPT_TUNING", "ANEW", None, 3]
)
def test_other_kinds_are_refused(kind, tmp_path):
    path = write(tmp_path, {"peft_type": kind, "shadow_model": "evil/model"})
    with pytest.raises(StoreError, match=r"its peft_type must be one of LORA, .* got"):
        check(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("megatron_core", "megatron.evil"),
        ("megatron_config", {"a": 1}),
        ("shadow_model", "evil/model"),
        ("prompt_tuning_init_state_dict_path", "/tmp/private.pt"),
        ("tokenizer_name_or_path", "evil/model"),
        ("tokenizer_kwargs", {"trust_remote_code": True}),
        ("adapters", {"a": "evil/pickled"}),
        ("adapters", ["evil/pickled"]),
    ],
)
def test_fields_that_name_others_are_refused(field, value, tmp_path):
    path = write(tmp_path, {"peft_type": "LORA", **WHERE, field: value})
    with pytest.raises(StoreError, match=f"its {field} must be empty, got .*evil|{field}"):
        check(path)
    path = write(tmp_path, {"peft_type": "LORA", "corda_config": {field: value}})
    with pytest.raises(StoreError, match=f"its {field} must be empty"):
        check(path)


def test_another_base_and_code_are_refused(tmp_path):
    named = {"peft_type": "LORA", "base_model_name_or_path": "//evil/share"}
    with pytest.raises(
        StoreError, match="base_model_name_or_path must be 'user/base', got"
    ):
        check(write(tmp_path, named), "user/base")
    asked = {"peft_type": "LORA", "auto_map": {"AutoModel": "evil.Model"}}
    with pytest.raises(ArgumentError, match="asks for code of its own"):
        check(write(tmp_path, asked))
