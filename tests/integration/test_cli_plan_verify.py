"""`smidgen plan` and `smidgen verify` on tiny real model folders."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import BertForSequenceClassification, BertModel

from smidgen.cli import main
from smidgen.curvature.kronecker import KroneckerAccumulator
from tests.support.tiny import bert_config, saved


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A classifier, an encoder, a config without weights, and some texts."""
    root = tmp_path_factory.mktemp("world")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        classifier = BertForSequenceClassification(bert_config(num_labels=3))
        saved(root / "map", classifier)
        saved(root / "encoder", BertModel(bert_config()))
    classifier.config.to_json_file(root / "config.json")
    lines = ["a b c", "b", "d d a b", "c a", "a", "b b c d a"]
    (root / "texts.tsv").write_text("sentence\n" + "\n".join(lines) + "\n")
    return root


def run(*words):
    with pytest.raises(SystemExit) as leaving:
        main([str(word) for word in words])
    return leaving.value.code


def test_plan_of_a_folder_times_a_batch(world, tmp_path, capsys):
    target = tmp_path / "plan.json"
    assert run("plan", world / "map", "--percent", 30, "--json", target) == 0
    shown = capsys.readouterr().out
    assert "→  sparse-kfac 30 %" in shown
    assert "time for 1,000 examples" in shown
    found = json.loads(target.read_text())
    assert found["rows"][0]["chosen"] is True
    assert found["rows"][0]["seconds"] > 0


def test_plan_of_a_config_needs_no_weights(world, tmp_path, capsys):
    files = [tmp_path / "config.json", tmp_path / "folder.json"]
    assert run("plan", world / "config.json", "--json", files[0]) == 0
    assert "No time is given: the weights were not loaded." in capsys.readouterr().out
    assert run("plan", world / "map", "--no-time", "--json", files[1]) == 0
    config, folder = (json.loads(file.read_text())["rows"] for file in files)
    assert [row["cost"] for row in config] == [row["cost"] for row in folder]


def test_plan_knows_the_isotropic_body_of_fit(world, capsys):
    words = ["--select", "last-layer", "--isotropic-body", "--no-time"]
    assert run("plan", world / "map", *words) == 0
    assert "→  last layer | isotropic body  kron" in capsys.readouterr().out


def test_plan_gives_an_encoder_a_head(world, capsys):
    words = ["--labels", 4, "--select", "last-layer", "--structure", "full"]
    assert run("plan", world / "encoder", *words) == 0
    shown = capsys.readouterr().out
    # A head of 4 × 8 weights and 4 biases.
    assert "→  last layer" in shown
    assert " 36 " in shown
    assert run("plan", world / "encoder") == 0


@pytest.mark.parametrize(
    ("words", "weights"),
    [
        (["magnitude", "--fraction", 0.1], 0.1),
        (["bayestune", "--fraction", 0.1], 0.1),
        (["sparse-kfac-curvature", "--percent", 50], 0.3),
        (["max-mlp", "--count", 1], None),
        (["named", "--pattern", "classifier.*"], None),
    ],
)
def test_plan_knows_every_selector(world, tmp_path, words, weights):
    target = tmp_path / "plan.json"
    assert run("plan", world / "map", "--select", *words, "--json", target) == 0
    rows = json.loads(target.read_text())["rows"]
    assert rows[0]["chosen"]
    whole = max(row["cost"]["weights"] for row in rows)
    if weights is not None:
        assert rows[0]["cost"]["weights"] == pytest.approx(weights * whole, rel=0.15)
    else:
        assert 0 < rows[0]["cost"]["weights"] < whole / 4


def test_plan_says_that_norms_need_weights(world, capsys):
    assert run("plan", world / "config.json", "--select", "max-mlp") == 1
    assert "--select max-mlp compares weights" in capsys.readouterr().err
    assert run("plan", world / "config.json", "--select", "magnitude") == 0


def test_plan_refuses_what_is_no_model(world, tmp_path, capsys):
    assert run("plan", tmp_path / "nothing") == 1
    assert "model must be a folder with a config.json" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"model_type": "no such thing"}')
    assert run("plan", tmp_path) == 1
    assert "Check the path" in capsys.readouterr().err


def test_verify_prints_a_row_for_every_map(world, tmp_path, capsys):
    target = tmp_path / "found.json"
    data = ["--data", world / "texts.tsv", "--text", "sentence", "--max-length", 12]
    assert run("verify", world / "map", *data, "--json", target) == 0
    shown = capsys.readouterr().out
    assert "bert.encoder.layer.0.attention.self.query" in shown
    assert "All 14 layers agree" in shown
    found = json.loads(target.read_text())
    assert found["agrees"] is True
    assert found["examples"] == 6
    assert {check["lost"] for check in found["checks"]} == {False}


def test_verify_sees_curvature_that_vanishes_from_factors(world, monkeypatch, capsys):
    """Inputs of a layer that no column is said to reach, as in token outputs once."""
    honest = KroneckerAccumulator.add_inputs

    def add_inputs(self, trace, name):
        if name != "bert.pooler.dense":
            honest(self, trace, name)

    monkeypatch.setattr(KroneckerAccumulator, "add_inputs", add_inputs)
    data = ["--data", world / "texts.tsv", "--text", "sentence", "--max-length", 12]
    assert run("verify", world / "map", *data) == 1
    shown = capsys.readouterr().out
    assert "1 of 14 layers disagree, starting with bert.pooler.dense" in shown
    (row,) = (line for line in shown.splitlines() if line.startswith("bert.pooler.dense"))
    assert "100%" in row
    assert row.endswith("DISAGREES")


def test_verify_leaves_with_one_when_a_map_disagrees(world, monkeypatch, capsys):
    """A classifier that uses its head's weight once more, behind the taps' back."""
    honest = BertForSequenceClassification.forward

    def forward(self, *args, **kwargs):
        found = honest(self, *args, **kwargs)
        found.logits = found.logits + self.classifier.weight.square().sum(1)
        return found

    monkeypatch.setattr(BertForSequenceClassification, "forward", forward)
    data = ["--data", world / "texts.tsv", "--text", "sentence", "--max-length", 12]
    assert run("verify", world / "map", *data) == 1
    assert "1 of 14 layers disagree, starting with classifier" in capsys.readouterr().out


def hub_cache(folder, name, source, *files):
    """The hub's cache as it is after files of a model were fetched."""
    place = folder / f"models--{name.replace('/', '--')}"
    commit = "0" * 40
    snapshot = place / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    for file in files:
        (snapshot / file).write_bytes((source / file).read_bytes())


def test_plan_takes_a_hub_id_and_fetches_its_config_alone(world, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    hub_cache(tmp_path / "hub", "some/config", world / "map", "config.json")
    everything = [path.name for path in (world / "map").iterdir()]
    hub_cache(tmp_path / "hub", "some/model", world / "map", *everything)
    found = {}
    for name in ("some/config", "some/model", world / "map"):
        target = tmp_path / "plan.json"
        assert run("plan", name, "--overwrite", "--json", target) == 0
        found[str(name)] = json.loads(target.read_text())["rows"]
    bare, known, folder = ([row["cost"] for row in rows] for rows in found.values())
    assert bare == known == folder
    assert found["some/config"][0]["seconds"] is None
    # Weights that were fetched before are timed.
    assert found["some/model"][0]["seconds"] > 0


def test_plan_of_a_hub_id_that_cannot_be_had(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert run("plan", "nobody/nothing") == 1
    shown = capsys.readouterr().err
    assert "model on the Hugging Face hub, got 'nobody/nothing'" in shown
    assert "Check the spelling" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rank", 40], "--rank is not for --method laplace, got 40. Leave it out."),
        (["--steps", 2000], "--steps is not for --method laplace, got 2000"),
        (
            ["--method", "swag", "--structure", "ekfac"],
            "--structure is not for --method swag, got ekfac",
        ),
    ],
)
def test_plan_refuses_options_that_it_would_not_look_at(world, capsys, words, said):
    assert run("plan", world / "config.json", *words) == 1
    assert said in capsys.readouterr().err
