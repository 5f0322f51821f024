"""The code of the how-to pages runs, page by page, after the block that makes its names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from docs.build.committed import ROOT
from peft import LoraConfig, get_peft_model
from transformers import BertForSequenceClassification

import smidgen
from smidgen_studies.engine.study import read_study
from tests.support.quantised import llama
from tests.support.tiny import bert_config

HOW_TO = ROOT / "docs" / "how-to"
# Pages about models that the first block does not make.
OTHER_MODELS = {"lora", "quantised"}
PAGES = [page for page in sorted(HOW_TO.glob("*.md")) if page.stem not in OTHER_MODELS]

pytestmark = [
    pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:bitsandbytes.*"),
]


def read_blocks(page: Path, language: str = "python") -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@cache
def make_names() -> dict[str, Any]:
    """The names that the section's first page makes, for all of its pages."""
    names: dict[str, Any] = {}
    (start,) = read_blocks(HOW_TO / "index.md")
    exec(start, names)
    return names


def run_page(page: Path, names: dict[str, Any]) -> dict[str, Any]:
    for block in read_blocks(page):
        exec(compile(block, page.name, "exec"), names)
    return names


def make_texts(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    words = torch.randint(
        4, 8, (count, 8, 6), generator=torch.Generator().manual_seed(seed)
    )
    return [
        {"input_ids": w, "attention_mask": torch.ones_like(w), "labels": w[:, 1] % 2}
        for w in words
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_page(page, dict(make_names()))
    if page.stem == "abstain":
        assert len(names["answers"]) + len(names["for_a_person"]) == 600
    if page.stem == "intervals":
        assert (names["low"] < names["high"]).all()
    if page.stem == "strange-inputs":
        assert names["unlike"].double().mean() > 0.05


def test_an_adapter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    adapter = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    model = get_peft_model(BertForSequenceClassification(bert_config()), adapter)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.1)
    names = {"smidgen": smidgen, "model": model}
    names |= {
        name: make_texts(3, seed)
        for seed, name in enumerate(["train_loader", "val_loader", "new_loader"])
    }
    names = run_page(HOW_TO / "lora.md", names)
    assert names["predictive"].probs.shape == (24, 2)


def test_a_quantised_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    llama().save_pretrained("my-model")
    names = {"smidgen": smidgen, "train_loader": make_texts(3, 0)}
    names = run_page(HOW_TO / "quantised.md", names | {"val_loader": make_texts(3, 1)})
    assert names["posterior"].calibration is not None


def test_a_study_of_ones_own_is_read(tmp_path):
    (text,) = read_blocks(HOW_TO / "studies.md", "toml")
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    assert len(read_study(str(path)).cells) == 6


def test_every_page_is_listed():
    index = (HOW_TO / "index.md").read_text(encoding="utf-8")
    pages = {page.name for page in HOW_TO.glob("*.md")} - {"index.md"}
    assert pages == set(re.findall(r"\]\(([a-z-]+\.md)\)", index))
