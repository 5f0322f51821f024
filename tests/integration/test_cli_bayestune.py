"""`smidgen tune` from a bare encoder to a delta, a model and a posterior."""

from __future__ import annotations

import json
from dataclasses import replace
from math import ceil, prod

import pytest
import torch
from transformers import ModernBertConfig, ModernBertModel

import smidgen
from smidgen.errors import ArgumentError, StoreError
from smidgen.integrations.huggingface import load_classifier, load_with_head, save_model
from smidgen.integrations.text import read_text
from smidgen.report import verdict
from smidgen.runtime.memory import format_bytes
from smidgen.runtime.record import Record
from smidgen.weights.delta import Delta
from smidgen.workflows.bayestune import BayesTuneSettings, run_bayestune
from smidgen.workflows.tuned_folder import open_folder
from tests.integration.test_cli import rows, run
from tests.support.report_page import Page
from tests.support.tiny import TWO_MAPS, saved, saved_encoder, saved_encoder_of

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("tune")
    saved_encoder(root / "encoder")
    for family in TWO_MAPS:
        saved_encoder_of(family, root / family)
    for seed, (name, count) in enumerate([("train", 96), ("val", 64)]):
        lines = [f"{text}\t{('bad', 'good')[label]}" for text, label in rows(count, seed)]
        (root / f"{name}.tsv").write_text("sentence\tverdict\n" + "\n".join(lines) + "\n")
    return root


def tune(root, out, *more, model="encoder"):
    return run(
        "bayestune",
        root / model,
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
    for words in (
        "both halves of the chain choose",
        "mean displacement",
        "acceptance under",
    ):
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


@pytest.mark.parametrize("family", TWO_MAPS)
def test_all_maps_of_a_new_head_are_head(world, family, capsys):
    head = {f"{name}.{field}" for name in TWO_MAPS[family] for field in ("weight", "bias")}
    found = world / f"{family}-tuned.json"
    more = ("--fraction", 0.05, "--json", found)
    assert tune(world, f"{family}-tuned", *more, model=family) == 0
    # 8 × 8 + 8 and 8 × 2 + 2.
    assert "pretrained weights and 90 of the head" in capsys.readouterr().out
    told = json.loads(found.read_text())
    assert told["head"] == 90
    folder = world / f"{family}-tuned"
    delta = Delta.load(folder / "delta.safetensors")
    assert set(delta.replaced) == head
    assert not head & set(delta.subset.parts)
    # A share of what is pretrained, and of nothing else.
    affine = smidgen.coverage(load_classifier(folder / "model")[0]).universe
    ranked = sum(prod(shape) for name, shape in affine.items() if name not in head)
    assert delta.subset.size == ceil(0.05 * ranked)
    tuned = load_classifier(folder / "model")[0].state_dict()
    started = load_classifier(world / family, labels=2, seed=0)[0].state_dict()
    for name, value in tuned.items():
        if name in head:
            assert (value != started[name]).any(), name
        elif name not in delta.subset.parts:
            assert torch.equal(value, started[name]), name
        else:
            moved = (value != started[name]).flatten().nonzero().flatten()
            assert set(moved.tolist()) <= set(delta.subset.indices(name).tolist())
    other, _ = load_classifier(world / family, labels=2, seed=5)
    delta.apply(other)
    assert all(torch.equal(v, tuned[name]) for name, v in other.state_dict().items())


def test_a_norm_in_the_head_is_tuned_and_left_out_of_a_laplace_posterior(world, capsys):
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = ModernBertConfig(vocab_size=8, intermediate_size=16, **small, **ids)
        saved(world / "modern", ModernBertModel(config))
    more = ("--fraction", 0.05, "--epochs", 1)
    assert tune(world, "modern-tuned", *more, model="modern") == 0
    shown = capsys.readouterr().out
    assert "the head is head.dense, head.norm, classifier" in shown
    assert "Leaving out 8 weights" in shown
    delta = Delta.load(world / "modern-tuned" / "delta.safetensors")
    assert "head.norm.weight" in delta.replaced
    tuned, _ = load_classifier(world / "modern-tuned" / "model")
    posterior = smidgen.load(world / "modern-tuned" / "posterior", tuned)
    whole = sum(each.numel() for each in delta.replaced.values())
    assert posterior.subset.size == delta.subset.size + whole - 8


def test_a_head_that_is_trained_is_the_last_map(world):
    folder = world / "trained"
    model, tokenizer = load_classifier(world / "distilbert", labels=2)
    save_model(model, tokenizer, folder)
    assert load_with_head(world / "distilbert", labels=2).head == (
        *("pre_classifier.weight", "pre_classifier.bias"),
        *("classifier.weight", "classifier.bias"),
    )
    assert load_with_head(folder, labels=2).head == "last"


def test_the_page_says_what_the_terminal_says(world, capsys):
    more = ("--fraction", 0.05, "--json", world / "shown.json")
    assert tune(world, "shown", *more) == 0
    # A terminal breaks lines where it likes: paths of temporary folders differ in length.
    printed = " ".join(capsys.readouterr().out.split())
    told = json.loads((world / "shown.json").read_text())
    text = (world / "shown" / "report.html").read_text()
    page = Page(text)
    assert {"tuned", "posterior", "precision-curve", "chains"} <= page.sections
    tuning = told["posterior"]["tuning"]
    for name, part in (
        ("map", "map_nll"),
        ("temperature", "map_scaled_nll"),
        ("posterior", "chosen_nll"),
    ):
        assert float(page.numbers[name, "validation_nll"]) == tuning[part]
        assert f"{tuning[part]:.4f}" in printed
        assert f"{tuning[part]:.4f}" in text
    chosen = told["weights"] - told["head"]
    for words in (
        f"{chosen} pretrained weights and 18 of the head",
        format_bytes(told["bytes"]),
        "temperature scaling",
        f"{told['posterior']['floats']:,} floats",
    ):
        assert words in printed
        assert words in text
    lines = verdict(Record.load(world / "shown" / "record.json"))
    assert [line.split(":")[0] for line in lines] == [
        "Tuned",
        "Against the MAP",
        "Against temperature scaling",
    ]
    chosen, point = (f"{tuning[name]:.4f}" for name in ("chosen_nll", "map_nll"))
    side = "the same" if chosen == point else "lower" if chosen < point else "higher"
    assert lines[1].startswith(f"Against the MAP: {side} NLL")


def test_half_the_delta_and_no_posterior(world):
    assert tune(world, "half", "--half", "--posterior", "none", "--fraction", 0.05) == 0
    assert not (world / "half" / "posterior").exists()
    page = Page((world / "half" / "report.html").read_text())
    assert "tuned" in page.sections
    assert "posterior" not in page.sections
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


def test_python_does_what_the_command_does(world):
    assert tune(world, "told", "--fraction", 0.05) == 0
    told = Record.load(world / "told" / "record.json")
    columns = {"text": "sentence", "label": "verdict"}
    train, val = (read_text(world / f"{n}.tsv", **columns) for n in ("train", "val"))
    settings = BayesTuneSettings(fraction=0.05, epochs=3, learning_rate=0.02, max_length=12)
    shown = []
    place = open_folder(world / "python")
    how = {"show": shown.append, "progress": False}
    record = run_bayestune(world / "encoder", train, val, place, settings, **how)
    assert Record.load(place.record).to_json() == record.to_json()
    for own in (told, record):
        assert own.results["delta"].endswith("delta.safetensors")
    for name, value in json.loads(record.to_json())["results"].items():
        assert name == "delta" or value == told.results[name], name
    assert {**told.config, **json.loads(record.to_json())["config"]} == told.config
    assert record.config["device"] == "cpu"
    results = [type(each).__name__ for each in shown if not isinstance(each, str)]
    assert results == ["ChosenWeights", "FinetuneResult", "LaplacePosterior"]
    assert shown[0] == "Sampling the scales of the weights"
    with pytest.raises(StoreError, match="not empty"):
        open_folder(world / "python")
    assert open_folder(world / "python", overwrite=True).overwrite
    one = train.take([i for i, label in enumerate(train.labels) if label == 0])
    one = replace(one, label_names=None)
    with pytest.raises(ArgumentError, match="train must hold 2 classes or more, got 1"):
        run_bayestune(world / "encoder", one, val, open_folder(world / "no"), settings)
    with pytest.raises(ArgumentError, match="one of fraction, threshold and elbow"):
        BayesTuneSettings(fraction=0.1, elbow=True)


def test_a_tenth_is_held_out_and_chains_on_halves_are_compared(world, capsys):
    found = world / "held-out.json"
    words = ["--text", "sentence", "--label", "verdict", "--max-length", 12, "--elbow"]
    words += ["--posterior", "none", "--epochs", 1, "--agreement", "--json", found]
    words += ["--train", world / "train.tsv", "--out", world / "held-out"]
    assert run("bayestune", world / "encoder", *words) == 0
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
    assert run("bayestune", world / "encoder", *words) == 0
    shown = capsys.readouterr().out
    page = (world / "regression" / "report.html").read_text()
    for text in (shown, page.partition('<section id="measured">')[0]):
        assert "MAP with its noise fitted" in text
        assert "ccuracy" not in text
        assert "temperature scaling" not in text
    tuned, _ = load_classifier(world / "regression" / "model")
    posterior = smidgen.load(world / "regression" / "posterior", tuned)
    assert posterior.likelihood.kind == "gaussian"
    assert (
        Record.load(world / "regression" / "record.json").results["best"]["accuracy"]
        is None
    )


def test_an_interrupted_run_goes_on(world, monkeypatch, capsys):
    more = ("--posterior", "none", "--fraction", 0.05, "--epochs", 1)
    assert tune(world, "whole", *more) == 0
    state = world / "state"

    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(smidgen.fit, "finetune", stopped)
        assert tune(world, "resumed", *more, "--checkpoint", state) != 0
    assert (state / "chain.safetensors").exists()
    with monkeypatch.context() as patch:
        # The delta is there by then, the model is not.
        patch.setattr("smidgen.integrations.huggingface.save_model", stopped)
        assert tune(world, "resumed", *more, "--checkpoint", state) != 0
    assert (world / "resumed" / "delta.safetensors").exists()
    again = (*more, "--checkpoint", state)
    # States let a run go on with what it left, and with no other that has ended.
    before = (world / "whole" / "delta.safetensors").read_bytes()
    assert tune(world, "whole", *again) == 1
    assert tune(world, "resumed", *again) == 0
    assert not list(state.iterdir())
    made = (world / "resumed" / "record.json").read_bytes()
    capsys.readouterr()
    assert tune(world, "resumed", *again) == 0
    assert "is done already" in capsys.readouterr().out
    assert (world / "resumed" / "record.json").read_bytes() == made
    assert tune(world, "resumed", *again, "--seed", 1) == 1
    (state / "notes.txt").write_text("of no run")
    assert tune(world, "whole", *again) == 1
    assert (world / "whole" / "delta.safetensors").read_bytes() == before
    whole, again = (
        Delta.load(world / name / "delta.safetensors") for name in ("whole", "resumed")
    )
    assert torch.equal(whole.difference, again.difference)


def test_refusals_come_before_the_work(world, capsys):
    assert tune(world, "never", "--fraction", 2) == 1
    assert "fraction must be in (0, 1], got 2.0" in capsys.readouterr().err
    assert tune(world, "never", "--fraction", 0.1, "--elbow") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "one of fraction, threshold and elbow, got fraction and elbow. Leave" in said
    assert tune(world, "never", "--checkpoint", world / "other" / ".." / "never") == 1
    assert "checkpoint must be another folder than the results" in capsys.readouterr().err
    assert tune(world, "never", "--fraction", 0.1, "--max-length", 17) == 1
    assert "--max-length must be at most 16, as many" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not (world / "never").exists()
