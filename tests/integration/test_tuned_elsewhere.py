"""Sparse tuning inside other people's machinery: Hugging Face's Trainer, and PEFT."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import BertForSequenceClassification, Trainer, TrainingArguments

import smidgen
from smidgen import fit, select
from smidgen.errors import ArgumentError
from smidgen.integrations.peft_adapter import make_peft_model, save_peft
from smidgen.weights.delta import make_delta
from smidgen.weights.subset import Entries
from tests.support.tiny import bert_config
from tests.support.tolerances import SINGLE


def bert():
    torch.manual_seed(0)
    return BertForSequenceClassification(bert_config(num_labels=2)).eval()


def rows(count=24):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 8, (count, 6), generator=generator)
    return [
        {"input_ids": row, "attention_mask": torch.ones(6).long(), "labels": row[0] % 2}
        for row in ids
    ]


def weights_only(model, fraction=0.05):
    """Single entries of Linear weights, and the head whole."""
    scores = select.scores.random(model, 2)
    kept = {name: each for name, each in scores.items() if name.endswith("weight")}
    return select.bayestune(model, kept, fraction=fraction)


def test_a_trainer_moves_the_chosen_weights_only(tmp_path):
    model = bert()
    before = deepcopy(model.state_dict())
    subset = weights_only(model)
    optimiser = fit.SubsetAdamW(model, subset, lr=1e-2, clip=1.0)
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_grad_norm=0.0,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        seed=0,
    )
    trainer = Trainer(model, arguments, train_dataset=rows(), optimizers=(optimiser, None))
    trainer.train()
    after = model.state_dict()
    changed = 0
    for name, value in before.items():
        moved = (after[name] != value).flatten().nonzero().flatten()
        assert torch.isin(moved, subset.indices(name)).all()
        changed += moved.numel()
    assert changed > 0.9 * subset.size
    base = bert()
    delta = make_delta(base, subset, optimiser.difference, {})
    delta.apply(base)
    assert all(torch.equal(v, after[n]) for n, v in base.state_dict().items())


def tuned(model, subset):
    batch = {name: torch.stack([row[name] for row in rows()]) for name in rows()[0]}
    return fit.finetune(
        smidgen.Problem(model),
        [batch] * 4,
        subset,
        validation=[batch],
        settings=fit.FinetuneSettings(epochs=2, learning_rate=0.02),
    )


# PEFT multiplies sparse tensors without saying whether torch shall check them.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_peft_holds_single_weights_and_a_head(tmp_path, unchanged):
    model = bert()
    found = tuned(model, weights_only(model))
    with unchanged(model):
        folder = save_peft(found.delta, model, tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(bert(), folder).eval()
    ids = torch.stack([row["input_ids"] for row in rows()])
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(input_ids=ids).logits, found.model(input_ids=ids).logits, **SINGLE
        )
        assert not torch.allclose(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


class Alike(nn.Module):
    """Names that end as others do."""

    def __init__(self):
        super().__init__()
        self.query, self.inner = nn.Linear(6, 6), nn.Module()
        self.inner.query, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.inner.query(torch.tanh(self.query(x)))))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_peft_changes_no_module_whose_name_only_ends_alike(kind):
    torch.manual_seed(0)
    model, x = Alike().to(kind), torch.ones(2, 6, dtype=kind)
    part = Entries(torch.tensor([1, 7]))
    subset = smidgen.Subset({"query.weight": (6, 6)}, {"query.weight": part})
    delta = make_delta(model, subset, torch.full((2,), 1 / 3, dtype=kind), {})
    found = make_peft_model(delta, model)(x)
    with delta.applied(model):
        torch.testing.assert_close(found, model(x), **SINGLE)
    head = {f"query.{name}": p + 1 for name, p in model.query.named_parameters()}
    rest = smidgen.Subset({"inner.query.weight": (6, 6)}, {"inner.query.weight": part})
    with pytest.raises(ArgumentError, match="got 'query' beside 'inner.query'"):
        make_peft_model(make_delta(model, rest, torch.ones(2), head), model)


def test_what_peft_cannot_hold_is_refused_by_name(tmp_path):
    model = bert()
    name = "bert.encoder.layer.0.attention.self.query.bias"
    shapes = {name: (8,)}
    subset = smidgen.Subset(shapes, {name: Entries(torch.tensor([1, 2]))})
    delta = make_delta(model, subset, torch.ones(2), {})
    with pytest.raises(ArgumentError, match="nn.Linear only .*query.bias"):
        save_peft(delta, model, tmp_path)
    head = select.named(model, "classifier.weight")
    crowded = make_delta(model, head, torch.ones(16), {})
    with pytest.raises(ArgumentError, match="room for 20 entries .* got 'classifier"):
        save_peft(crowded, model, tmp_path)
