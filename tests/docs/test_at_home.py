"""The code of the page on other libraries runs, block after block, and does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertForSequenceClassification,
    DataCollatorWithPadding,
    TrainingArguments,
)

import smidgen
from tests.support.tiny import bert_config, word_tokenizer

for package in ("sklearn", "pandas", "torchmetrics"):
    pytest.importorskip(package)

PAGE = Path(__file__).parents[2] / "docs" / "at-home.md"


@pytest.mark.filterwarnings("ignore")
def test_its_code_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"smidgen": smidgen, **a_training_script(tmp_path)}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for code in blocks:
            exec(code, names)
    printed = capsys.readouterr().out
    assert "at most 5 % of the answers are wrong, with 90 % confidence" in printed
    y, silent = names["y_test"], names["silent"]
    wrong = names["probabilities"].argmax(1) != y
    assert wrong[~silent].mean() < 0.08  # of about 140 rows, with room for chance
    assert names["search"].best_score_ > 0.9
    target = names["X_test"][:, 0]
    held = (names["low"] <= target) & (target <= names["high"])
    assert 0.8 < held.mean() <= 1
    assert "The eval rows chose the posterior" in printed
    assert names["callback"].posterior is not None
    assert names["texts"].label_names == ("five", "one")
    found = names["metrics"].compute()
    ours = smidgen.evaluate.metrics.EceMetric(binning="equal-width")
    for batch in names["halves"]["test"].iter(100):
        predictive = smidgen.predict(names["posterior"], names["network"], batch)
        ours.update(predictive, batch["label"])
    assert float(names["theirs"].compute()) == pytest.approx(
        float(ours.compute()), abs=1e-6
    )
    assert found.keys() == {"NllMetric", "EceMetric", "EceFloorMetric"}


def a_training_script(folder):
    """What any script that fine-tunes has before its Trainer."""

    def rows(count):
        ids = torch.randint(4, 8, (count, 6)).tolist()
        return [{"input_ids": row, "labels": int(row[0] > 5)} for row in ids]

    return {
        "model": BertForSequenceClassification(bert_config(num_labels=2)),
        "arguments": TrainingArguments(
            str(folder / "trained"),
            max_steps=4,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        ),
        "train_rows": rows(64),
        "rows_that_choose": rows(40),
        "collator": DataCollatorWithPadding(word_tokenizer(bert=True)),
    }
