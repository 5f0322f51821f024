"""A model's folder and its posterior's, from two commands, become one ready folder."""

import csv
import json
import shutil

import huggingface_hub
import pytest

import smidgen
from smidgen.cli.app import main
from smidgen.integrations.reading.task_note import TASK_NOTE
from tests.support.predictors import make_texts
from tests.support.tiny import saved_encoder

CLASSES = ("bad", "good")


def run(*words):
    with pytest.raises(SystemExit) as leaving:
        main([*map(str, words), "--quiet"])
    return leaving.value.code


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """What `smidgen finetune` and `smidgen fit` leave."""
    place = tmp_path_factory.mktemp("apart")
    saved_encoder(place / "encoder")
    texts, labels = make_texts(260)
    with (place / "rows.tsv").open("w", newline="") as file:
        rows = csv.writer(file, delimiter="\t")
        rows.writerow(["review", "rating"])
        rows.writerows([t, CLASSES[label]] for t, label in zip(texts, labels, strict=True))
    data = ("--train", place / "rows.tsv")
    columns = ("--text", "review", "--label", "rating", "--max-length", 12)
    words = ("finetune", place / "encoder", *data, *columns, "--epochs", 1)
    assert run(*words, "--out", place / "model") == 0
    words = ("fit", place / "model", *data, "--select", "last-layer")
    assert run(*words, "--out", place / "posterior") == 0
    return place


def test_both_become_one(folders, tmp_path, capsys):
    out = tmp_path / "ready"
    assert run("pack", folders / "model", folders / "posterior", "--out", out) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "smidgen predict" in told
    assert "No rules: there are none in" in told
    assert "smidgen.make_rules" in told
    assert "rules.save(" in told
    predictor = smidgen.load(out)
    assert predictor.classes == CLASSES
    assert predictor.columns == ("review",)
    assert predictor.note.max_length == 12
    words = ("predict", "--data", folders / "rows.tsv", "--json")
    assert run(words[0], out, *words[1:], tmp_path / "a.json") == 0
    assert "the folder has no rule to abstain" in capsys.readouterr().err
    together = json.loads((tmp_path / "a.json").read_text())["predictions"]
    both = (folders / "model", folders / "posterior")
    assert run(words[0], *both, *words[1:], tmp_path / "b.json") == 0
    apart = json.loads((tmp_path / "b.json").read_text())["predictions"]
    assert [one["answer"] for one in together] == [one["label"] for one in apart]
    for one, other in zip(together, apart, strict=True):
        assert one["confidence"] == pytest.approx(other["confidence"], abs=1e-4)
    # The same command again finds its work done.
    assert run("pack", *both, "--out", out) == 0
    assert "done already" in capsys.readouterr().out


def test_what_training_saw_may_not_be_contradicted(folders, tmp_path, capsys):
    both = (folders / "model", folders / "posterior", "--out", tmp_path / "ready")
    assert run("pack", *both, "--text", "title") == 1
    assert "--text must be what training saw, 'review'" in capsys.readouterr().err
    assert not (tmp_path / "ready").exists()


def test_a_model_without_a_note_is_described_by_what_is_typed(folders, tmp_path):
    model = shutil.copytree(folders / "model", tmp_path / "model")
    (model / TASK_NOTE).unlink()
    typed = ("--text", "words", "--max-length", 14, "--label", "stars")
    out = tmp_path / "ready"
    assert run("pack", model, folders / "posterior", *typed, "--out", out) == 0
    note = smidgen.load(out).note
    assert (note.columns, note.max_length, note.label) == (("words",), 14, "stars")
    assert note.classes == CLASSES


def test_only_what_a_base_lacks_is_stored(folders, tmp_path, capsys):
    """The encoder was fine-tuned as a whole, so its base is no help, and that is said."""
    both = (folders / "model", folders / "posterior", "--out", tmp_path / "ready")
    assert run("pack", *both, "--base", folders / "encoder") == 1
    assert "Leave base out to store the whole model" in " ".join(
        capsys.readouterr().err.split()
    )
    # A model that is its own base needs nothing but its posterior.
    assert run("pack", *both, "--base", folders / "model") == 0
    ready = tmp_path / "ready"
    assert not list((ready / "model").rglob("*.safetensors"))
    assert len(smidgen.load(ready)(["a b", "c d"])) == 2


def test_another_posterior_is_refused(folders, tmp_path, capsys):
    other = folders / "encoder"
    words = (other, folders / "posterior", "--out", tmp_path / "ready")
    assert run("pack", *words) == 1
    assert "must be a trained classifier" in capsys.readouterr().err


def test_a_version_of_the_model_is_the_one_that_is_packed(folders, tmp_path, monkeypatch):
    """Its posterior is of these weights; what is on the main branch now is another matter."""
    commit, asked = "a" * 40, []
    # As the Hub's cache has it.
    version = shutil.copytree(folders / "model", tmp_path / "snapshots" / commit)

    def fetch(name, *, revision=None, **_):
        asked.append((name, revision))
        return str(version if revision in ("v1", commit) else folders / "encoder")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    words = ("pack", "me/stars", folders / "posterior", "--out", tmp_path / "ready")
    assert run(*words, "--revision", "v1") == 0
    assert set(asked) == {("me/stars", "v1"), ("me/stars", commit)}
    assert asked[0] == ("me/stars", "v1")
