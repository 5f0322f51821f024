"""Language models from folders: a model, a GGUF file, or an adapter with what it was asked.

A fine-tuned folder holds a PEFT adapter, the tokenizer, and `answers.json`: the base model, the
template and the choices. So later commands need nothing but the folder.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from smidgen.errors import ArgumentError, reason
from smidgen.integrations.answers.answer_model import AnswerModel
from smidgen.integrations.answers.asking import make_answer_problem
from smidgen.integrations.answers.template import Question
from smidgen.integrations.devices import find_device
from smidgen.integrations.huggingface import silence
from smidgen.integrations.model_folder import UNLOADABLE, find_model_folder
from smidgen.integrations.reading.task_note import TASK_NOTE, TaskNote
from smidgen.integrations.sharing.adapter_config import check_adapter_config
from smidgen.integrations.text_length import limit_to_positions
from smidgen.outputs.problem import Problem
from smidgen.runtime.files import new_folder, refuse_taken
from smidgen.runtime.reading import (
    convert_json,
    open_regular,
    parse_object,
    read_whole,
    refuse_outside,
)
from smidgen.runtime.writing.answers_note import ANSWERS_NOTE, find_answers_folder
from smidgen.runtime.writing.claim import RUN_NOTE

_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_WRITTEN = (
    *(ANSWERS_NOTE, *_ADAPTER, "README.md", RUN_NOTE, TASK_NOTE),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*"),
    *("vocab.*", "merges.txt"),
)


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A causal language model, its tokenizer, what it is asked, and where it came from."""

    model: Any  # of transformers, or of peft
    tokenizer: PreTrainedTokenizerBase
    answers: Question
    base: str
    gguf: str | None = None

    def ask(self) -> Problem:
        """Pose the choice among the answers."""
        return make_answer_problem(self.model, self.tokenizer, self.answers)

    def with_adapter(self, *, rank: int, seed: int = 0) -> LanguageModel:
        """Put a new LoRA adapter into every layer but the output; one that is there stays."""
        if isinstance(self.model, PeftModel):
            return self
        told = LoraConfig(
            task_type="CAUSAL_LM",
            r=rank,
            lora_alpha=2 * rank,
            lora_dropout=0.05,
            target_modules="all-linear",
        )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return replace(self, model=get_peft_model(self.model, told))

    def save(
        self,
        tuned: AnswerModel,
        folder: Path,
        *,
        overwrite: bool = False,
        note: TaskNote | None = None,
    ) -> None:
        """Take the adapter's weights of a tuned copy, and write them with what was asked.

        Args:
            tuned: The tuned copy.
            folder: Where to write.
            overwrite: Whether to replace an adapter.
            note: What training saw.
        """
        refuse_taken_answers(folder, overwrite=overwrite)
        causal = self.model.get_base_model()
        causal.base_model.load_state_dict(tuned.backbone.state_dict())
        asked = {
            "base": self.base,
            "gguf": self.gguf,
            "template": self.answers.template,
            "choices": self.answers.choices,
            "chat": self.answers.chat,
        }
        with new_folder(folder, overwrite=overwrite) as work, silence():
            self.model.save_pretrained(work, save_embedding_layers=False)
            self.tokenizer.save_pretrained(work)
            (work / ANSWERS_NOTE).write_text(json.dumps(asked, indent=1), encoding="utf-8")
            if note is not None:
                note.save(work)
            refuse_taken_answers(folder, overwrite=overwrite)


def load_language_model(
    name_or_folder: str | Path,
    answers: Question | None = None,
    *,
    gguf: str | None = None,
    device: str | torch.device | None = None,
) -> LanguageModel:
    """Load a causal language model, or an adapter that was fine-tuned on answers.

    Args:
        name_or_folder: A folder made by `save_pretrained`, a model id on the hub, a folder
            with a GGUF file, or one that 'smidgen finetune --prompt' made.
        answers: What to ask; a fine-tuned folder knows it.
        gguf: The name of the GGUF file in the folder; its weights are unpacked.
        device: Where the model goes: "auto", or what `torch.device` takes; the CPU by default.

    Returns:
        The model in evaluation mode, with its tokenizer.

    Raises:
        ArgumentError: If the model cannot be found or loaded, is no causal language model,
            or it is not known what to ask, or twice.
    """
    target = find_device("cpu" if device is None else device)
    name = str(name_or_folder)
    tuned = find_answers_folder(name)
    if tuned is None:
        if answers is None:
            raise ArgumentError(
                f"answers must be given for {name!r}, which has no {ANSWERS_NOTE}. Pass a "
                "template and choices."
            )
        base = str(Path(name).resolve()) if os.path.isdir(name) else name
        model, tokenizer = _load_base(name, gguf)
        return LanguageModel(model.to(target), tokenizer, answers, base, gguf)
    if answers is not None or gguf is not None:
        raise ArgumentError(
            f"model must be a language model if a prompt or a GGUF file is given, got {name!r}, "
            f"whose {ANSWERS_NOTE} has its own. Leave them out."
        )
    found = _read_note(tuned)
    model, _ = _load_base(found.base, found.gguf)
    tokenizer = _load_tokenizer(tuned, model)
    adapted = _add_saved(model, tuned).to(target)
    return replace(found, model=adapted, tokenizer=tokenizer)


def refuse_taken_answers(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds something, unless it is an adapter to be replaced."""
    refuse_taken(
        folder, overwrite=overwrite, needed=ANSWERS_NOTE, written=_WRITTEN, what="adapter"
    )


def _read_note(folder: Path) -> LanguageModel:
    """Read what an adapter was asked and what it belongs to; the model itself is not loaded."""
    path = folder / ANSWERS_NOTE
    try:
        refuse_outside(path, folder)
        note = parse_object(read_whole(path))
        answers = Question(
            convert_json(note["template"], str, "template"),
            convert_json(note["choices"], tuple[str, ...], "choices"),
            convert_json(note["chat"], bool, "chat"),
        )
        base = convert_json(note["base"], str, "base")
        gguf = convert_json(note["gguf"], str | None, "gguf")
    except UNLOADABLE as error:
        raise ArgumentError(
            f"model must be a folder that 'smidgen finetune --prompt' made, got "
            f"{str(folder)!r}, whose {ANSWERS_NOTE} cannot be read ({reason(error)}). "
            "Fine-tune again."
        ) from error
    nothing: Any = None
    return LanguageModel(nothing, nothing, answers, base, gguf)


def _load_base(
    name: str, gguf: str | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    folder = find_model_folder(name) if gguf is None else _find_gguf(name, gguf)
    packed = {} if gguf is None else {"gguf_file": gguf}
    with silence():
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                **packed,
            )
        except UNLOADABLE as error:
            raise ArgumentError(
                f"model must be a causal language model that transformers can load, got "
                f"{name!r} ({reason(error)}). Leave out the prompt for a classifier."
            ) from error
    missing = sorted({*report["missing_keys"], *report["mismatched_keys"]})
    if missing:
        raise ArgumentError(
            f"model must be a trained causal language model, got {name!r} without "
            f"{missing[0]}. Leave out the prompt for a classifier."
        )
    return model.eval(), _load_tokenizer(folder, model, **packed)


def _load_tokenizer(
    folder: Path, model: PreTrainedModel, **packed: str
) -> PreTrainedTokenizerBase:
    with silence():
        try:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True, **packed
            )
        except UNLOADABLE as error:
            raise ArgumentError(
                f"model must have a tokenizer that transformers can load, got "
                f"{str(folder)!r} ({reason(error)}). Save it there with save_pretrained."
            ) from error
    limit_to_positions(model, tokenizer)
    return tokenizer


def _find_gguf(name: str, gguf: str) -> Path:
    folder = Path(name).expanduser()
    if Path(gguf).name != gguf or not os.path.isfile(folder / gguf):
        raise ArgumentError(
            f"gguf must be the name of a file in {name!r}, got {gguf!r}. Give the folder as "
            "the model, and the file's name."
        )
    refuse_outside(folder / gguf, folder)
    return folder


def _add_saved(model: PreTrainedModel, folder: Path) -> Any:
    """Put the adapter of a folder into its base model."""
    for file in _ADAPTER:
        if not os.path.isfile(folder / file):
            raise ArgumentError(
                f"model must hold an adapter, got {str(folder)!r} without {file}. Fine-tune "
                "again."
            )
        refuse_outside(folder / file, folder)
    check_adapter_config(folder / _ADAPTER[0], base=None, advice="Fine-tune again.")
    with open_regular(folder / _ADAPTER[1]), silence():
        try:
            adapted = PeftModel.from_pretrained(model, folder, is_trainable=True)
        except UNLOADABLE as error:
            raise ArgumentError(
                f"model must hold an adapter of its base model, got {str(folder)!r} "
                f"({reason(error)}). Fine-tune again."
            ) from error
    return adapted.eval()
