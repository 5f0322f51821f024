"""The callback for Hugging Face's Trainer, in a real training run."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import smidgen
from smidgen.errors import ArgumentError
from smidgen.trainer import SwagCallback
from tests.support.tiny import bert_config
from tests.support.tolerances import SINGLE


class Brute(TrainerCallback):
    """Keeps every weight after every step."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.seen.append({n: p.detach().clone() for n, p in model.named_parameters()})


def rows(count):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 8, (count, 6), generator=generator)
    return [
        {
            "input_ids": row,
            "attention_mask": torch.ones(6, dtype=torch.long),
            "labels": int(row[0] > 5),
        }
        for row in ids
    ]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_callbacks_moments_are_those_of_the_steps(tmp_path):
    torch.manual_seed(0)
    model = BertForSequenceClassification(bert_config(num_labels=2))
    subset = smidgen.select.sparse_kfac(model, percent=50)
    callback, brute = SwagCallback(subset, start=4, every=2, rank=3), Brute()
    with pytest.raises(ArgumentError, match="taken no step yet"):
        callback.posterior(smidgen.Categorical(2))
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=14,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=0.01,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    data = rows(24)
    Trainer(model, arguments, train_dataset=data, callbacks=[callback, brute]).train()
    found = callback.posterior(smidgen.Categorical(2), num_data=24)
    assert len(brute.seen) == 14
    wanted = torch.stack(
        [
            torch.cat([each[n].flatten()[subset.indices(n)] for n in subset.parts])
            for each in brute.seen[5::2]
        ]
    )
    assert found.snapshots == len(wanted) == 5
    torch.testing.assert_close(found.mean, wanted.mean(0), **SINGLE)
    torch.testing.assert_close(found.variance, wanted.var(0, correction=0), **SINGLE)
    batch = {k: torch.stack([r[k] for r in data]) for k in ("input_ids", "attention_mask")}
    predictive = smidgen.predict(found, model, batch, samples=4)
    assert torch.isfinite(predictive.log_probs).all()


def test_refusals():
    model = BertForSequenceClassification(bert_config(num_labels=2))
    subset = smidgen.select.last_layer(model)
    with pytest.raises(ArgumentError, match="every must be 1 or more"):
        SwagCallback(subset, every=0)
