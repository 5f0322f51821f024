"""What `smidgen finetune` saw is what `fit`, `evaluate` and `predict` read by."""

from __future__ import annotations

import json
import random
import shutil

import pytest
import torch
from transformers import BertForSequenceClassification, BertModel

from smidgen.cli import main
from smidgen.integrations.reading.task_note import TASK_NOTE, TaskNote
from smidgen.integrations.text import read_text
from smidgen.runtime.record import Record
from tests.support.tiny import bert_config, saved

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")

COUNT = 180
COLUMNS = ("--text", "first", "--text-pair", "second", "--label", "verdict")


def run(*words):
    """Run the program as the shell would; return its exit code."""
    with pytest.raises(SystemExit) as leaving:
        main(["--quiet", *map(str, words)])
    return leaving.value.code


def write_pairs(path, count, seed):
    """Pairs of sentences of letters; the first with more of a than the second is 'more'.

    The last tenth repeats the first, in capitals.
    """
    draw = random.Random(seed)
    lines = []
    for _ in range(count - count // 10):
        one, two = (" ".join(draw.choices("abcd", k=6)) for _ in range(2))
        better = one.count("a") + draw.random() > two.count("a") + 0.5
        lines.append(f"{one}\t{two}\t{'more' if better else 'less'}")
    lines += [line.replace("a", "A") for line in lines[: count // 10]]
    path.write_text("first\tsecond\tverdict\n" + "\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """An encoder, pairs, the model that was fine-tuned without --val, and its posterior."""
    root = tmp_path_factory.mktemp("world")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        saved(root / "encoder", BertModel(bert_config()))
    for seed, (name, count) in enumerate([("train", COUNT), ("val", 40), ("test", 50)]):
        write_pairs(root / f"{name}.tsv", count, seed)
    assert not finetune(root, root / "map")
    assert not fit(root, root / "posterior", "--json", root / "fit.json")
    return root


def finetune(root, target, *more):
    training = ("--epochs", 2, "--lr", 0.01, "--max-length", 14, "--seed", 3)
    return run("finetune", root / "encoder", "--train", root / "train.tsv", *COLUMNS,
               *training, "--out", target, *more)  # fmt: skip


def fit(root, target, *more, model="map", train="train.tsv"):
    return run("fit", root / model, "--train", root / train, "--select", "last-layer",
               "--out", target, *more)  # fmt: skip


def predict(root, target, *more):
    code = run("predict", root / "map", root / "posterior", "--data", root / "test.tsv",
               "--json", target, *more)  # fmt: skip
    return code or json.loads(target.read_text())["predictions"]


def evaluate(root, *more, model="map"):
    return run("evaluate", root / model, root / "posterior", "--test", root / "test.tsv",
               *more)  # fmt: skip


def show_error(capsys):
    shown = " ".join(capsys.readouterr().err.split())
    assert shown.startswith("smidgen: ")
    assert "Traceback" not in shown
    return shown


def test_finetune_notes_what_it_saw_and_held_out(world):
    note = TaskNote.load(world / "map")
    assert (note.kind, note.columns, note.text_pair) == ("text", ("first",), "second")
    assert (note.label, note.classes) == ("verdict", ("less", "more"))
    assert (note.max_length, note.base) == (14, str(world / "encoder"))
    assert [(file.path, file.rows) for file in note.files] == [
        (str(world / "train.tsv"), COUNT)
    ]
    parts = note.split.rows
    assert note.split.seed == 3
    assert sorted(row for part in parts.values() for row in part) == list(range(COUNT))
    assert {name: len(part) for name, part in parts.items()} == pytest.approx(
        {"train": COUNT - 64, "validation": 32, "calibration": 32}, abs=4
    )
    # A text and the same in capitals are on one side.
    part_of = {row: name for name, part in parts.items() for row in part}
    repeated = COUNT // 10
    for row in range(repeated):
        assert part_of[row] == part_of[COUNT - repeated + row]


def test_it_is_said_how_many_rows_are_held_out(world, tmp_path, capsys):
    assert not finetune(world, tmp_path / "map", "--epochs", 1)
    parts = TaskNote.load(tmp_path / "map").split.rows
    held_out = len(parts["validation"]) + len(parts["calibration"])
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        f"Held {held_out} of {COUNT} rows out by seed 3: {len(parts['validation'])} to stop, "
        "the others for 'smidgen fit' to calibrate on"
    ) in shown


def test_fit_uses_the_rows_that_finetune_held_out(world, tmp_path, capsys):
    parts = TaskNote.load(world / "map").split.rows
    whole = read_text(world / "train.tsv", text="first", text_pair="second",
                      label="verdict")  # fmt: skip
    for name in ("train", "calibration"):
        part = whole.take(parts[name])
        names = [("less", "more")[label] for label in part.labels]
        rows = zip(part.texts, part.pairs, names, strict=True)
        lines = ["\t".join(row) for row in rows]
        (tmp_path / f"{name}.tsv").write_text(
            "first\tsecond\tverdict\n" + "\n".join(lines) + "\n"
        )
    by_hand = ("--val", tmp_path / "calibration.tsv", "--json", tmp_path / "hand.json")
    assert not fit(world, tmp_path / "hand", *by_hand, train=tmp_path / "train.tsv")
    told, same = (json.loads(path.read_text())
                  for path in (world / "fit.json", tmp_path / "hand.json"))  # fmt: skip
    assert told["tuning"]["examples"] == len(parts["calibration"])
    assert told | {"posterior": ""} == same | {"posterior": ""}
    capsys.readouterr()
    assert not run("fit", world / "map", "--train", world / "train.tsv", "--out",
                   tmp_path / "kept", "--json", tmp_path / "kept.json")  # fmt: skip
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["choice"]["rows"] == len(parts["calibration"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Calibrating on {len(parts['calibration'])} rows of" in shown


def test_evaluate_says_how_many_rows_trained_the_model(world, tmp_path, capsys):
    lines = (world / "train.tsv").read_text().splitlines()
    mixed = tmp_path / "mixed.tsv"
    mixed.write_text("\n".join([*lines[:8], "a a b c d d\tb b b b b b\tmore"]) + "\n")
    for path, seen in ((world / "train.tsv", COUNT), (mixed, 7)):
        capsys.readouterr()
        assert not run("evaluate", world / "map", world / "posterior", "--test", path,
                       "--json", tmp_path / "record.json", "--overwrite")  # fmt: skip
        told = f"{seen} of these {COUNT if seen == COUNT else 8} rows trained this model"
        assert told in " ".join(capsys.readouterr().err.split())
        (note,) = Record.load(tmp_path / "record.json").results["notes"]
        assert note.startswith(told)
    assert not evaluate(world)
    assert "trained this model" not in capsys.readouterr().err


def test_verify_and_ramp_read_as_training_did(world, tmp_path, capsys):
    numbers = tmp_path / "verified.json"
    data = ("--data", world / "test.tsv", "--batches", 1)
    assert not run("verify", world / "map", *data, "--json", numbers)
    told = tmp_path / "told.json"
    typed = ("--text", "first", "--text-pair", "second")
    assert not run("verify", world / "map", *data, *typed, "--json", told)
    assert json.loads(numbers.read_text()) == json.loads(told.read_text())
    files = [word for name in ("train", "val", "test")
             for word in (f"--{name}", world / f"{name}.tsv")]  # fmt: skip
    small = ("--schemes", "last-layer", "--percents", 100)
    assert not run("ramp", world / "map", *files, *small, "--out", tmp_path / "ramp")
    assert Record.load(tmp_path / "ramp" / "record.json").config["max_length"] == 14
    capsys.readouterr()
    assert run("verify", world / "map", *data, "--text", "second") == 1
    assert "--text must be what training saw, 'first'" in show_error(capsys)
    code = run("ramp", world / "map", *files, "--max-length", 20, "--out", tmp_path / "no")
    assert code == 1
    assert "--max-length must be what training saw, 14" in show_error(capsys)


def test_a_forgotten_pair_changes_no_answer(world, tmp_path, capsys):
    typed = ("--text", "first", "--text-pair", "second", "--max-length", 14)
    whole = predict(world, tmp_path / "whole.json", *typed)
    assert predict(world, tmp_path / "bare.json") == whole
    record, bare = tmp_path / "record.json", tmp_path / "record2.json"
    assert not evaluate(world, *COLUMNS, "--max-length", 14, "--json", record)
    assert not evaluate(world, "--json", bare)
    found = [Record.load(path).results["methods"][2]["scores"] for path in (record, bare)]
    assert found[0] == found[1]
    # Without the note, it would have.
    plain = tmp_path / "plain"
    shutil.copytree(world / "map", plain)
    (plain / TASK_NOTE).unlink()
    assert not run("predict", plain, world / "posterior", "--data", world / "test.tsv",
                   "--text", "first", "--json", tmp_path / "alone.json")  # fmt: skip
    assert json.loads((tmp_path / "alone.json").read_text())["predictions"] != whole


@pytest.mark.parametrize(
    ("typed", "fragment"),
    [
        (("--text", "second"), "--text must be what training saw, 'first', got 'second'."),
        (("--text-pair", "first"), "--text-pair must be what training saw, 'second', got"),
        (
            ("--label", "first"),
            "--label must be what training saw, 'verdict', got 'first'.",
        ),
        (("--max-length", 12), "--max-length must be what training saw, 14, got 12."),
    ],
)
def test_what_differs_from_training_is_refused(world, tmp_path, capsys, typed, fragment):
    commands = [
        lambda: fit(world, tmp_path / "new", *typed),
        lambda: evaluate(world, *typed),
    ]
    if "--label" not in typed:
        commands.append(lambda: predict(world, tmp_path / "new", *typed))
    for command in commands:
        assert command() == 1
        shown = show_error(capsys)
        assert fragment in shown
        assert "Leave it out" in shown
    assert not (tmp_path / "new").exists()


def test_fit_without_val_asks_for_the_same_file(world, tmp_path, capsys):
    assert fit(world, tmp_path / "new", train="val.tsv") == 1
    shown = show_error(capsys)
    assert "--train must be the file that rows were held out of" in shown
    assert "val.tsv', which differs from it. Give that file, or --val." in shown
    isotropic = ("--structure", "isotropic", "--out", tmp_path / "new")
    assert run("fit", world / "map", *isotropic) == 1
    assert "got none. Give that file, or --val." in show_error(capsys)
    assert not (tmp_path / "new").exists()
    # The name does not matter, and any file will do beside --val.
    shutil.copy(world / "train.tsv", tmp_path / "moved.tsv")
    assert not fit(world, tmp_path / "moved", train=tmp_path / "moved.tsv")
    others = ("--val", world / "test.tsv")
    assert not fit(world, tmp_path / "other", *others, train="val.tsv")


def test_a_file_to_stop_by_is_noted_and_named(world, tmp_path, capsys):
    target, val = tmp_path / "map", world / "val.tsv"
    assert not finetune(world, target, "--val", val, "--epochs", 1)
    note = TaskNote.load(target)
    assert [file.rows for file in note.files] == [COUNT, 40]
    rows = note.split.rows
    assert rows == {
        "train": tuple(range(COUNT)),
        "validation": tuple(range(COUNT, COUNT + 40)),
    }
    assert fit(world, tmp_path / "new", model=target) == 1
    shown = show_error(capsys)
    assert "--val must be given" in shown
    assert f"Give --val {val}." in shown


def test_a_model_without_a_note_is_read_as_before(world, tmp_path, capsys):
    with torch.random.fork_rng(devices=[]):
        saved(tmp_path / "plain", BertForSequenceClassification(bert_config(num_labels=2)))
    assert fit(world, tmp_path / "new", model=tmp_path / "plain") == 1
    assert "Give --val FILE." in show_error(capsys)
    val = ("--val", world / "val.tsv")
    assert fit(world, tmp_path / "new", *val, model=tmp_path / "plain") == 1
    assert "'text'" in show_error(capsys)


def test_a_damaged_note_is_refused(world, tmp_path, capsys):
    broken = tmp_path / "broken"
    shutil.copytree(world / "map", broken)
    path = broken / TASK_NOTE
    path.write_text(path.read_text().replace('"second"', '"first"'))
    for code in (evaluate(world, model=broken), fit(world, tmp_path / "p", model=broken)):
        assert code == 1
    assert "task.json" in show_error(capsys)
    assert not (tmp_path / "p").exists()


def test_too_few_rows_are_not_divided(world, tmp_path, capsys):
    lines = (world / "train.tsv").read_text().splitlines()[:61]
    (tmp_path / "few.tsv").write_text("\n".join(lines) + "\n")
    code = run("finetune", world / "encoder", "--train", tmp_path / "few.tsv", *COLUMNS,
               "--out", tmp_path / "new")  # fmt: skip
    assert code == 1
    shown = show_error(capsys)
    assert "--train must have 80 rows or more to hold some out, got 60" in shown
    assert "give --val" in shown
    assert not (tmp_path / "new").exists()


def test_a_noted_model_can_be_replaced(world, tmp_path):
    assert not finetune(world, tmp_path / "map", "--epochs", 1)
    assert not finetune(world, tmp_path / "map", "--epochs", 1, "--seed", 4, "--overwrite")
    assert TaskNote.load(tmp_path / "map").split.seed == 4


@pytest.mark.parametrize("typed", [(), ("--max-length", 13)])
def test_finetune_of_a_model_with_few_positions(world, tmp_path, capsys, typed):
    config = bert_config()
    config.max_position_embeddings = 12
    with torch.random.fork_rng(devices=[]):
        saved(tmp_path / "short", BertModel(config))
    files = ("--train", world / "train.tsv", *COLUMNS, "--epochs", 1)
    code = run("finetune", tmp_path / "short", *files, *typed, "--out", tmp_path / "map")
    if typed:
        assert code == 1
        assert "--max-length must be at most 12, as many tokens" in show_error(capsys)
    else:
        assert code == 0
        assert TaskNote.load(tmp_path / "map").max_length == 12
