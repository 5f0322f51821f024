"""`smidgen tune` from a bare encoder to a delta, a model and a posterior."""

from __future__ import annotations

import json

import pytest
import torch
from tests.integration.test_cli import rows, run
from tests.tiny import bert_config, saved
from transformers import BertModel

import smidgen
from smidgen.delta import Delta
from smidgen.integrations.huggingface import load_classifier

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("tune")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        saved(root / "encoder", BertModel(bert_config()))
    for seed, (name, count) in enumerate([("train", 96), ("val", 64)]):
        lines = [f"{text}\t{('bad', 'good')[label]}" for text, label in rows(count, seed)]
        (root / f"{name}.tsv").write_text("sentence\tverdict\n" + "\n".join(lines) + "\n")
    return root


def tune(root, out, *more):
    return run(
        "tune",
        root / "encoder",
        "--train",
        root / "train.tsv",
        "--val",
        root / "val.tsv",
        "--text",
        "sentence",
        "--label",
        "verdict",
        "--out",
        root / out,
        "--epochs",
        3,
        "--lr",
        0.02,
        "--max-length",
        12,
        *more,
    )


def test_one_command_gives_delta_model_and_posterior(world, capsys):
    found = world / "tuned.json"
    assert tune(world, "tuned", "--fraction", 0.05, "--json", found) == 0
    assert "halves of the chain agree" in capsys.readouterr().out
    told = json.loads(found.read_text())
    assert told["best"] in told["history"]
    assert 0 <= told["chain"]["overlap_of_halves"] <= 1
    delta = Delta.load(world / "tuned" / "delta.safetensors")
    tuned, _ = load_classifier(world / "tuned" / "model")
    # Another seed of the head: what is shipped does not depend on it.
    base, _ = load_classifier(world / "encoder", labels=2, seed=5)
    delta.apply(base)
    for name, value in base.state_dict().items():
        assert torch.equal(value, tuned.state_dict()[name]), name
    posterior = smidgen.load(world / "tuned" / "posterior", tuned)
    assert posterior.structure == "diag"
    assert posterior.subset.size == told["weights"]
    data = ["--data", world / "val.tsv", "--text", "sentence", "--max-length", 12]
    folder = world / "tuned"
    assert run("predict", folder / "model", folder / "posterior", *data) == 0


def test_half_the_delta_and_no_posterior(world):
    assert tune(world, "half", "--half", "--posterior", "none", "--fraction", 0.05) == 0
    assert not (world / "half" / "posterior").exists()
    delta = Delta.load(world / "half" / "delta.safetensors")
    assert delta.difference.dtype == torch.float16
    assert tune(world, "half", "--fraction", 0.05) == 1


def test_swag_over_the_tuned_weights(world):
    words = ("--posterior", "swag", "--fraction", 0.05, "--epochs", 1)
    assert tune(world, "swag", *words) == 0
    tuned, _ = load_classifier(world / "swag" / "model")
    posterior = smidgen.load(world / "swag" / "posterior", tuned)
    delta = Delta.load(world / "swag" / "delta.safetensors")
    whole = sum(each.numel() for each in delta.replaced.values())
    assert posterior.subset.size == delta.subset.size + whole


def test_refusals_come_before_the_work(world, capsys):
    assert tune(world, "never", "--fraction", 2) == 1
    assert "fraction must be in (0, 1], got 2.0" in capsys.readouterr().err
    assert not (world / "never").exists()
