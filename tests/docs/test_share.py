"""The code of the page on sharing runs, block after block, and does what it says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model

import smidgen
from tests.support.hub_server import run_hub, use_hub
from tests.support.predictors import fit_text_predictor, load_tiny
from tests.support.tiny import saved_encoder

PAGE = Path(__file__).parents[2] / "docs" / "share.md"


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_its_code_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, *blocks = re.findall(
        r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    with run_hub() as hub, torch.random.fork_rng():
        use_hub(monkeypatch, hub.endpoint, tmp_path / "cache")
        names = prepare(hub, tmp_path)
        for code in (first, *blocks):
            exec(code, names)
        files = hub.repositories["user/reviews"].files()
    printed = capsys.readouterr().out
    assert printed.count("answer  confidence") == 3
    assert "leaves" in printed
    card = ModelCard(files["README.md"].decode())
    assert card.data.base_model == "maker/base"
    assert "model/adapter/adapter_model.safetensors" in files
    assert "model/model.safetensors" not in files
    accuracy = ModelCard.load(tmp_path / "customers" / "README.md").data.eval_results[0]
    assert accuracy.metric_type == "accuracy"
    assert accuracy.metric_value > 0.75


def prepare(hub, folder) -> dict[str, Any]:
    """What the page says its reader has: a folder of news, and an adapter on a base."""
    encoder = saved_encoder(folder / "encoder")
    files = {path.name: path.read_bytes() for path in encoder.iterdir()}
    hub.make("maker/base", files)
    model, tokenizer = load_tiny(encoder)
    news = fit_text_predictor(model, tokenizer, columns=("title", "text"))
    smidgen.save_predictor(news, "news")
    torch.manual_seed(0)
    config = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    adapted = get_peft_model(load_tiny(encoder)[0], config).eval()
    made = fit_text_predictor(adapted, tokenizer)
    shutil.rmtree(encoder)  # from here on, the base is on the Hub alone
    return {
        "adapted": adapted,
        "tokenizer": tokenizer,
        "text_posterior": made.posterior,
        "text_rules": made.rules,
    }
