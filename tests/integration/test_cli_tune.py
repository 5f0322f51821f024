"""`smidgen tune` from a bare encoder to a delta, a model and a posterior."""

from __future__ import annotations

import json

import pytest
import torch
from tests.integration.test_cli import rows, run
from tests.tiny import saved_encoder

import smidgen
from smidgen.delta import Delta
from smidgen.integrations.huggingface import load_classifier
from smidgen.record import Record

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("tune")
    saved_encoder(root / "encoder")
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
    shown = capsys.readouterr().out
    for words in ("halves of the chain agree", "mean displacement", "acceptance of"):
        assert words in shown
    told = json.loads(found.read_text())
    assert told["best"] in told["history"]
    chain = told["chain"]
    assert chain["fraction"] == 0.05
    assert 0 <= chain["overlap_of_halves"] <= 1
    assert len(chain["traces"]) == chain["samples"]
    assert 0 <= chain["acceptance"] <= 1
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
    page = (folder / "report.html").read_text()
    assert "mean displacement" in page
    assert "Halves agree on" in page
    assert Record.load(folder / "record.json").results["chain"] == chain
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


def test_a_tenth_is_held_out_and_chains_on_halves_are_compared(world, capsys):
    found = world / "held-out.json"
    words = ["--text", "sentence", "--label", "verdict", "--max-length", 12, "--elbow"]
    words += ["--posterior", "none", "--epochs", 1, "--agreement", "--json", found]
    words += ["--train", world / "train.tsv", "--out", world / "held-out"]
    assert run("tune", world / "encoder", *words) == 0
    assert "two halves of the data agree" in capsys.readouterr().out
    told = json.loads(found.read_text())
    assert told["agreement"]["fraction"] == told["chain"]["fraction"] < 1
    assert told["agreement"]["chance"] < 1


def test_regression_has_one_output_and_no_accuracy(world, capsys):
    lines = [f"{text}\t{label + 0.5}" for text, label in rows(64, 3)]
    (world / "numbers.tsv").write_text("sentence\tverdict\n" + "\n".join(lines) + "\n")
    words = ["--text", "sentence", "--label", "verdict", "--max-length", 12]
    words += ["--train", world / "numbers.tsv", "--val", world / "numbers.tsv"]
    words += ["--epochs", 1, "--fraction", 0.05, "--out", world / "regression"]
    assert run("tune", world / "encoder", *words) == 0
    assert "accuracy" not in capsys.readouterr().out
    tuned, _ = load_classifier(world / "regression" / "model")
    posterior = smidgen.load(world / "regression" / "posterior", tuned)
    assert posterior.likelihood.kind == "gaussian"
    assert (
        Record.load(world / "regression" / "record.json").results["best"]["accuracy"]
        is None
    )


def test_an_interrupted_run_goes_on(world, monkeypatch):
    more = ("--posterior", "none", "--fraction", 0.05, "--epochs", 1)
    assert tune(world, "whole", *more) == 0
    state = world / "state"

    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(smidgen.fit, "sparse_finetune", stopped)
        assert tune(world, "resumed", *more, "--checkpoint", state) != 0
    assert (state / "chain.safetensors").exists()
    with monkeypatch.context() as patch:
        # The delta is there by then, the model is not.
        patch.setattr("smidgen.integrations.huggingface.save_model", stopped)
        assert tune(world, "resumed", *more, "--checkpoint", state) != 0
    assert (world / "resumed" / "delta.safetensors").exists()
    assert tune(world, "resumed", *more, "--checkpoint", state) == 0
    assert not list(state.iterdir())
    whole, again = (
        Delta.load(world / name / "delta.safetensors") for name in ("whole", "resumed")
    )
    assert torch.equal(whole.difference, again.difference)


def test_refusals_come_before_the_work(world, capsys):
    assert tune(world, "never", "--fraction", 2) == 1
    assert "fraction must be in (0, 1], got 2.0" in capsys.readouterr().err
    assert tune(world, "never", "--fraction", 0.1, "--elbow") == 1
    assert "one of --fraction, --threshold and --elbow" in capsys.readouterr().err
    assert not (world / "never").exists()
