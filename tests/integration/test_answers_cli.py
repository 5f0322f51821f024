"""The commands on a tiny language model that chooses among answers."""

from __future__ import annotations

import json
import random

import pytest
import torch
from transformers import BertForSequenceClassification

import smidgen
from smidgen.cli import main
from smidgen.integrations.answers import Question, make_answer_loader, read_prompts
from smidgen.integrations.answers.folder import load_language_model
from smidgen.integrations.reading.task_note import TaskNote
from tests.support.tiny import bert_config, byte_tokenizer, saved, tiny_llama
from tests.support.tiny_gguf import save_gguf

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")

PROMPT = r"Review: {sentence}\nSentiment:"
ONE = (" positive", " negative")
ASKED = ["--prompt", PROMPT, "--choices", "positive,negative"]


def run(*words):
    """Run the program as the shell would; return its exit code."""
    with pytest.raises(SystemExit) as leaving:
        main([str(word) for word in words])
    return leaving.value.code


def write(path, count, seed):
    """Sentences with more of 'fine' than of 'dull' are positive."""
    generator = random.Random(seed)
    lines = ["sentence\tverdict"]
    for _ in range(count):
        words = generator.choices(["fine", "dull", "film", "plot"], k=5)
        better = words.count("fine") + generator.random() > words.count("dull") + 0.5
        lines.append(f"{' '.join(words)}\t{'positive' if better else 'negative'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A tied Llama, data, the folder that was fine-tuned from it, and its posterior."""
    root = tmp_path_factory.mktemp("world")
    with torch.random.fork_rng(devices=[]):
        saved(root / "llama", tiny_llama(tied=True).float())
        saved(root / "classifier", BertForSequenceClassification(bert_config()))
    byte_tokenizer().save_pretrained(root / "llama")
    for seed, (name, count) in enumerate([("train", 64), ("val", 48), ("test", 40)]):
        write(root / f"{name}.tsv", count, seed)
    files = ["--train", root / "train.tsv", "--val", root / "val.tsv"]
    files += ["--label", "verdict", "--max-length", 40]
    tuned = ["--out", root / "tuned", "--epochs", 3, "--lr", 0.02, "--lora-rank", 2]
    assert not run("finetune", root / "llama", *ASKED, *files, *tuned)
    fitted = ["--out", root / "posterior", "--select", "last-layer"]
    assert not run("fit", root / "tuned", *files, *fitted)
    return root


def test_the_folder_knows_what_was_asked(world):
    note = json.loads((world / "tuned" / "answers.json").read_text())
    assert note == {
        "base": str(world / "llama"),
        "gguf": None,
        "template": "Review: {sentence}\nSentiment:",
        "choices": [" positive", " negative"],
        "chat": False,
    }
    written = {path.name for path in (world / "tuned").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= written
    # The base is not written again.
    assert not any(name.startswith("model") for name in written)


def test_predictions_are_those_of_the_library(world, tmp_path):
    found = tmp_path / "found.json"
    words = ["--data", world / "test.tsv", "--max-length", 40, "--json", found]
    assert not run("predict", world / "tuned", world / "posterior", *words)
    rows = json.loads(found.read_text())["predictions"]
    loaded = load_language_model(world / "tuned")
    problem = loaded.ask()
    table = read_prompts(world / "test.tsv", loaded.answers, label=None)
    batches = make_answer_loader(
        table, loaded.tokenizer, loaded.answers, batch_size=16, max_length=40
    )
    posterior = smidgen.load(world / "posterior", problem.model)
    assert list(posterior.subset.parts) == ["head.weight"]
    wanted = smidgen.predict_batches(posterior, problem, batches).to_dict()
    assert [row["probs"] for row in rows] == wanted["probs"]
    assert rows[0]["text"] == table.texts[0]
    assert {row["label"] for row in rows} <= {"positive", "negative"}


def test_evaluate_reads_the_prompt_from_the_folder(world, tmp_path, capsys):
    found = tmp_path / "record.json"
    words = ["--test", world / "test.tsv", "--label", "verdict", "--max-length", 40]
    words += ["--shift", f"train={world / 'train.tsv'}", "--json", found]
    assert not run("evaluate", world / "tuned", world / "posterior", *words)
    scores = {m["name"] for m in json.loads(found.read_text())["results"]["methods"]}
    assert "map" in scores


def test_the_folder_knows_the_label_the_length_and_the_rows_held_out(
    world, tmp_path, capsys
):
    write(tmp_path / "rows.tsv", 160, 4)
    tuned, rows = tmp_path / "tuned", ["--train", tmp_path / "rows.tsv"]
    words = ["--label", "verdict", "--max-length", 40, "--epochs", 1, "--lora-rank", 2]
    assert not run("finetune", world / "llama", *ASKED, *rows, *words, "--out", tuned)
    note = TaskNote.load(tuned)
    assert (note.label, note.max_length, note.columns) == ("verdict", 40, ())
    assert note.classes == ("positive", "negative")
    fitted, found = tmp_path / "posterior", tmp_path / "fit.json"
    last = ["--select", "last-layer", "--out", fitted, "--json", found]
    assert not run("fit", tuned, *rows, *last)
    held_out = note.split.rows["calibration"]
    assert json.loads(found.read_text())["tuning"]["examples"] == len(held_out)
    capsys.readouterr()
    test = ["--data", world / "test.tsv", "--max-length", 16]
    assert run("predict", tuned, fitted, *test) == 1
    assert "--max-length must be what training saw, 40, got 16" in capsys.readouterr().err


@pytest.mark.parametrize(
    "choices", [ASKED[2:], ["--choice", " fine", "--choice", " dull plot"]]
)
def test_a_model_as_it_is_can_be_fitted(world, tmp_path, choices):
    files = ["--train", world / "train.tsv", "--val", world / "val.tsv"]
    words = ["--out", tmp_path / "posterior", "--percent", 30, "--max-length", 40]
    for name in ("train", "val"):
        text = (world / f"{name}.tsv").read_text()
        if choices != ASKED[2:]:
            text = text.replace("\tpositive", "\tfine").replace("\tnegative", "\tdull plot")
        (tmp_path / f"{name}.tsv").write_text(text)
    files = ["--train", tmp_path / "train.tsv", "--val", tmp_path / "val.tsv"]
    asked = ["--prompt", PROMPT, *choices, "--label", "verdict"]
    assert not run("fit", world / "llama", *asked, *files, *words)


def test_what_does_not_go_together_is_refused(world, tmp_path, capsys):
    files = ["--train", world / "train.tsv", "--val", world / "val.tsv"]
    files += ["--label", "verdict", "--out", tmp_path / "out"]

    def refuse(sentence, *words):
        assert run(*words, *files) in (1, 2)
        said = " ".join(capsys.readouterr().err.split())
        assert sentence in said, said

    llama, tuned = world / "llama", world / "tuned"
    refuse(
        "classifier",
        *("fit", world / "classifier", *ASKED),
    )
    refuse("whose answers.json has its own. Leave them out", "fit", tuned, *ASKED)
    refuse(
        "{text} in the template must be one of the columns of train.tsv (sentence, verdict)",
        *("fit", llama, "--prompt", "{text}:", *ASKED[2:]),
    )
    refuse("--choices must come with --prompt, got none", "fit", llama, *ASKED[:2])
    refuse("--choices must come with --prompt, got 'positive,n", "fit", llama, *ASKED[2:])
    refuse("--choice must be left out beside", "fit", llama, *ASKED, "--choice", " a")
    refuse("must be the name of a file in", "fit", llama, *ASKED, "--gguf", "no.gguf")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "answers.json").write_text("{}")
    refuse("whose answers.json cannot be read", "fit", tmp_path / "empty")


def test_an_adapter_of_a_gguf_file_is_tuned_and_tuned_further(world, tmp_path, capsys):
    model = tiny_llama(tied=True).float()
    (tmp_path / "packed").mkdir()
    save_gguf(tmp_path / "packed" / "tiny.gguf", model, byte_tokenizer())
    files = [
        "--train",
        world / "val.tsv",
        "--val",
        world / "test.tsv",
        "--label",
        "verdict",
    ]
    files += ["--max-length", 40, "--epochs", 1, "--lora-rank", 1]
    asked = [*ASKED, "--gguf", "tiny.gguf", "--out", tmp_path / "tuned"]
    assert not run("finetune", tmp_path / "packed", *asked, *files)
    assert not run("finetune", tmp_path / "tuned", *files, "--out", tmp_path / "further")
    note = json.loads((tmp_path / "further" / "answers.json").read_text())
    assert (note["base"], note["gguf"]) == (str(tmp_path / "packed"), "tiny.gguf")
    found = load_language_model(tmp_path / "further")
    assert found.answers == Question("Review: {sentence}\nSentiment:", ONE)
    base = found.model.get_base_model()
    embedding = base.get_input_embeddings().weight
    assert torch.equal(embedding, model.get_input_embeddings().weight)
    assert sum(p.requires_grad for p in base.parameters()) == 28
