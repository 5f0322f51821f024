"""The command line on XLM-RoBERTa, whose classifier is registered before its encoder."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

import smidgen
from smidgen.cli import main
from smidgen.integrations.huggingface import load_classifier
from tests.support.tiny import WORDS, saved

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")

LAST = {"classifier.out_proj.weight", "classifier.out_proj.bias"}
LAST_SIZE = 8 * 3 + 3


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A tiny XLM-RoBERTa, its config alone, and labelled texts."""
    root = tmp_path_factory.mktemp("world")
    config = XLMRobertaConfig(
        vocab_size=len(WORDS),
        pad_token_id=0,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=18,
        type_vocab_size=2,
        num_labels=3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        saved(root / "map", XLMRobertaForSequenceClassification(config))
    config.to_json_file(root / "config.json")
    texts = [("a b c", 0), ("b", 1), ("d d a b", 2), ("c a", 0), ("a", 1), ("b c d", 2)]
    lines = [f"{text}\t{label}" for text, label in texts]
    (root / "texts.tsv").write_text("text\tlabel\n" + "\n".join(lines * 4) + "\n")
    return root


def run(*words):
    with pytest.raises(SystemExit) as leaving:
        main([str(word) for word in words])
    assert leaving.value.code == 0


def test_fit_takes_the_layer_that_makes_the_outputs(world, tmp_path):
    files = ["--train", world / "texts.tsv", "--val", world / "texts.tsv"]
    out = tmp_path / "posterior"
    run("fit", world / "map", *files, "--select", "last-layer", "--out", out)
    model, _ = load_classifier(world / "map")
    assert set(smidgen.load(out, model).subset.parts) == LAST


@pytest.mark.parametrize("model", ["map", "config.json"])
def test_plan_counts_it_with_weights_and_without(world, tmp_path, model):
    target = tmp_path / "plan.json"
    run("plan", world / model, "--max-length", 12, "--json", target)
    rows = json.loads(target.read_text())["rows"]
    sizes = {row["subset"]: row["cost"]["weights"] for row in rows}
    assert sizes["last layer"] == LAST_SIZE
    words = ["--select", "last-layer", "--max-length", 12, "--overwrite", "--json", target]
    run("plan", world / model, *words)
    chosen = json.loads(target.read_text())["rows"][0]
    assert (chosen["subset"], chosen["cost"]["weights"]) == ("last layer", LAST_SIZE)


def test_ramp_takes_it(world, tmp_path):
    files = [
        word
        for name in ("train", "val", "test")
        for word in (f"--{name}", world / "texts.tsv")
    ]
    target = tmp_path / "ramp"
    run("ramp", world / "map", *files, "--schemes", "last-layer,full", "--out", target)
    record = json.loads((target / "record.json").read_text())
    (point,) = (
        point
        for point in record["results"]["ramp"]["points"]
        if point["scheme"] == "last-layer"
    )
    assert point["weights"] == LAST_SIZE
