"""SmolLM2 with LoRA on queries and values, answering whether a review is good.

The outputs are two logits at the last position: of " negative" and of " positive". Rows are
SST-2's if they are at hand, else the demo's sentences.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

import smidgen
from smidgen.integrations.demo_data import load_demo
from smidgen.integrations.text import TextTable, read_text
from smidgen_studies.methods.cached_folder import cached_folder
from smidgen_studies.methods.fetched_models import load_smollm2

RANK, TARGETS = 8, ("q_proj", "v_proj")
ROWS = {"train": 480, "validation": 320, "test": 400}
BATCH, LONGEST, EPOCHS, RATE, FEWEST_WORDS = 16, 64, 3, 5e-4, 6
_SHARED = Path(__file__).parents[3] / "shared" / "data"
Tokens = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Sentiment:
    """The fine-tuned model as a problem, its adapters, and batches sorted by length."""

    problem: smidgen.Problem
    subset: smidgen.Subset
    train: list[Tokens]
    validation: list[Tokens]
    test: list[Tokens]
    data: str


def load_sentiment() -> Sentiment:
    """Load the model with its adapters, fine-tuned in this run or before."""
    data, tables = _read_tables()
    base, tokenizer = load_smollm2()
    batches = {name: _tokenise(tokenizer, table) for name, table in tables.items()}
    answers = [tokenizer.encode(f" {name}")[0] for name in ("negative", "positive")]

    def outputs(model: nn.Module, batch: Tokens) -> Tensor:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        found = model(**inputs, use_cache=False, logits_to_keep=1)
        return found.logits[:, -1, answers]

    def tune(folder: Path) -> None:
        config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=list(TARGETS))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            adapted = get_peft_model(load_smollm2()[0], config)
        tuned = smidgen.fit.finetune(
            smidgen.Problem(adapted, smidgen.Categorical(2), forward=outputs),
            batches["train"],
            validation=batches["validation"],
            settings=smidgen.fit.FinetuneSettings(
                epochs=EPOCHS, patience=EPOCHS, learning_rate=RATE, stop_on="nll"
            ),
            progress=False,
        )
        tuned.model.save_pretrained(str(folder))

    name = f"smollm2-lora-{RANK}-{data}-{ROWS['train']}".lower()
    model = PeftModel.from_pretrained(base, str(cached_folder(name, tune))).eval()
    problem = smidgen.Problem(model, smidgen.Categorical(2), forward=outputs)
    subset = smidgen.select.named(model, ["*lora_A*", "*lora_B*"])
    return Sentiment(problem, subset, **batches, data=data)


def _read_tables() -> tuple[str, dict[str, TextTable]]:
    folder = Path(os.environ.get("SMIDGEN_DATA", _SHARED)) / "glue" / "SST-2"
    if not folder.is_dir():
        found = load_demo(**ROWS, seed=0, progress=False)
        tables = {"train": found.train, "validation": found.validation, "test": found.test}
        return "demo", tables
    read = {
        name: read_text(folder / f"{name}.tsv", text="sentence", label="label")
        for name in ("train", "dev")
    }
    # The training file is full of short phrases, the other is whole sentences.
    long = [
        row
        for row, text in enumerate(read["train"].texts)
        if len(text.split()) >= FEWEST_WORDS
    ]
    chosen = random.Random(0).sample(long, ROWS["train"] + ROWS["validation"])
    tested = random.Random(1).sample(range(len(read["dev"])), ROWS["test"])
    return "SST-2", {
        "train": read["train"].take(chosen[: ROWS["train"]]),
        "validation": read["train"].take(chosen[ROWS["train"] :]),
        "test": read["dev"].take(tested),
    }


def _tokenise(tokenizer: PreTrainedTokenizerBase, table: TextTable) -> list[Tokens]:
    """Batches of prompts, padded on the left: the last position is the question's."""
    ordered = table.take(table.by_length())
    tokenizer.padding_side = tokenizer.truncation_side = "left"
    batches = []
    for start in range(0, len(ordered), BATCH):
        part = ordered.take(range(len(ordered))[start : start + BATCH])
        prompts = [f"Review: {text.strip()}\nSentiment:" for text in part.texts]
        encoded = tokenizer(
            prompts, return_tensors="pt", padding=True, truncation=True, max_length=LONGEST
        )
        labels = torch.tensor(part.labels)
        batches.append({**encoded, "labels": labels})
    return batches
