"""The callbacks for Hugging Face's Trainer, in real training runs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    BertForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import smidgen
from smidgen.errors import ArgumentError
from smidgen.trainer import BayesCallback, SwagCallback
from tests.support.tiny import bert_config, saved, word_tokenizer
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


WORDS, TOKENIZER = ("a", "b", "c", "d"), word_tokenizer(bert=True)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def texts(count, seed):
    """Sentences of two to seven letters: the class is whether the first is c or d."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 8, (count,), generator=generator).tolist()
    drawn = [torch.randint(4, (n,), generator=generator).tolist() for n in lengths]
    return Dataset.from_dict(
        {
            "text": [" ".join(WORDS[i] for i in row) for row in drawn],
            "labels": [int(row[0] > 1) for row in drawn],
        }
    )


def tokenised(count, seed):
    rows = texts(count, seed)
    return rows.map(lambda row: TOKENIZER(row["text"]))


def bert(**changes):
    torch.manual_seed(0)
    return BertForSequenceClassification(bert_config(num_labels=2, **changes))


def arguments(folder, **changes):
    usual = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 16,
        "learning_rate": 0.01,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(str(folder), **{**usual, **changes})


def train(model, settings, callback, *, eval_dataset=None):
    trainer = Trainer(
        model,
        settings,
        train_dataset=tokenised(75, 1),
        eval_dataset=tokenised(45, 2) if eval_dataset is None else eval_dataset,
        data_collator=DataCollatorWithPadding(TOKENIZER),
        callbacks=[callback],
    )
    trainer.train()
    return trainer


def in_order(dataset, size):
    """What a user would write by hand."""
    return torch.utils.data.DataLoader(
        dataset.remove_columns("text"),
        batch_size=size,
        collate_fn=DataCollatorWithPadding(TOKENIZER),
    )


@pytest.mark.parametrize(
    "left_over",
    [{}, {"gradient_checkpointing": True}, {"bf16": True}],
    ids=["plain", "checkpointed", "bf16"],
)
def test_training_ends_with_a_saved_posterior(tmp_path, left_over, capsys):
    callback = BayesCallback(progress=False)
    trainer = train(bert(), arguments(tmp_path, **left_over), callback)
    said = capsys.readouterr().out
    assert "The eval rows chose the posterior: compare on others." in said
    assert str(tmp_path / "posterior") in said
    stored = smidgen.load(tmp_path / "posterior", trainer.model)
    assert stored == callback.posterior
    # A model loaded anew from the checkpoint is the one that the posterior belongs to.
    (checkpoint,) = list(tmp_path.glob("checkpoint-20"))
    again = BertForSequenceClassification.from_pretrained(checkpoint)
    assert smidgen.load(tmp_path / "posterior", again) == stored
    assert stored.num_data == 75
    assert stored.choice.rows == 45
    batch = next(iter(in_order(tokenised(16, 3), 16)))
    probs = smidgen.predict(stored, again, batch).probs
    torch.testing.assert_close(probs.sum(1), torch.ones(16, dtype=probs.dtype))


def test_it_is_what_bayesify_makes_of_the_same_rows(tmp_path, unchanged):
    callback = BayesCallback(progress=False, seed=3)
    trainer = train(bert(), arguments(tmp_path), callback)
    # Accelerate's wrappers are taken off by loading the weights anew.
    model = BertForSequenceClassification(bert_config(num_labels=2))
    model.load_state_dict(trainer.model.state_dict())
    expected = smidgen.bayesify(
        model,
        in_order(tokenised(75, 1), 8),
        in_order(tokenised(45, 2), 16),
        seed=3,
        progress=False,
    )
    assert callback.posterior.choice.kept == expected.choice.kept
    for ours, theirs in zip(
        callback.posterior.choice.candidates, expected.choice.candidates, strict=True
    ):
        assert ours.nll == pytest.approx(theirs.nll, rel=1e-5)
    with unchanged(trainer.model):
        callback.on_train_end(
            trainer.args,
            trainer.state,
            trainer.control,
            model=trainer.model,
            train_dataloader=trainer.get_train_dataloader(),
        )


def test_the_best_model_is_the_one_made_bayesian(tmp_path, capsys):
    callback = BayesCallback(progress=False)
    settings = arguments(
        tmp_path, load_best_model_at_end=True, num_train_epochs=3, learning_rate=0.1
    )
    trainer = train(bert(), settings, callback)
    best = BertForSequenceClassification.from_pretrained(
        trainer.state.best_model_checkpoint
    )
    assert smidgen.load(tmp_path / "posterior", best) == callback.posterior
    assert "as eval rows chose the best checkpoint" in capsys.readouterr().out


def test_an_adapter_alone_is_trained_and_made_bayesian(tmp_path):
    base = saved(tmp_path / "base", bert())
    config = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    model = get_peft_model(BertForSequenceClassification.from_pretrained(base), config)
    callback = BayesCallback(progress=False)
    train(model, arguments(tmp_path), callback)
    again = PeftModel.from_pretrained(
        BertForSequenceClassification.from_pretrained(base), tmp_path / "checkpoint-20"
    )
    assert smidgen.load(tmp_path / "posterior", again) == callback.posterior


def test_several_eval_sets_choose_together(tmp_path):
    several = {"one": tokenised(30, 2), "two": tokenised(25, 3)}
    callback = BayesCallback(progress=False)
    train(bert(), arguments(tmp_path), callback, eval_dataset=several)
    assert callback.posterior.choice.rows == 55


def test_other_rows_may_choose_where_nothing_is_evaluated(tmp_path, capsys):
    callback = BayesCallback(validation=in_order(tokenised(33, 4), 10), progress=False)
    train(bert(), arguments(tmp_path, eval_strategy="no"), callback)
    assert callback.posterior.choice.rows == 33
    assert "The rows of validation chose the posterior" in capsys.readouterr().out


class Steps(TrainerCallback):
    """Counts the steps that were taken."""

    taken = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.taken += 1


def test_what_could_not_be_done_is_refused_before_training(tmp_path):
    steps = Steps()

    def start(callback, settings, dataset):
        collate = DataCollatorWithPadding(TOKENIZER)
        Trainer(
            bert(),
            settings,
            train_dataset=dataset,
            eval_dataset=tokenised(45, 2),
            data_collator=collate,
            callbacks=[steps, callback],
        ).train()

    with pytest.raises(ArgumentError, match="eval_strategy must be 'epoch' or 'steps'"):
        start(BayesCallback(), arguments(tmp_path, eval_strategy="no"), tokenised(75, 1))
    streamed = tokenised(75, 1).to_iterable_dataset()
    with pytest.raises(ArgumentError, match="train must be given for a training set"):
        start(BayesCallback(), arguments(tmp_path, max_steps=2), streamed)
    (tmp_path / "posterior").mkdir()
    (tmp_path / "posterior" / "notes.txt").write_text("mine")
    with pytest.raises(smidgen.errors.StoreError, match="posterior"):
        start(BayesCallback(), arguments(tmp_path), tokenised(75, 1))
    assert not steps.taken
    assert (tmp_path / "posterior" / "notes.txt").read_text() == "mine"


def test_too_few_steps_to_evaluate_are_told(tmp_path):
    settings = arguments(tmp_path, max_steps=2, eval_delay=50, save_strategy="no")
    with pytest.raises(ArgumentError, match=r"none in 2 steps\. Lower eval_delay"):
        train(bert(), settings, BayesCallback(progress=False))


def test_the_library_does_not_need_transformers():
    code = "import sys, smidgen.workflows.compare; print('transformers' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "False"
