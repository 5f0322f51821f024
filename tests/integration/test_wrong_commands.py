"""Wrong calls through the command line: each is one sentence on stderr, and no traceback."""

from __future__ import annotations

import json
import re

import pytest
import torch
from transformers import BertForSequenceClassification

import smidgen
from smidgen.cli import main
from smidgen.cli.app import _COMMANDS
from smidgen.errors import StoreError
from tests.support.tiny import bert_config, saved

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A model, a posterior of it, another model, and data of every wrong kind."""
    root = tmp_path_factory.mktemp("commands")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for name in ("model", "other"):
            saved(root / name, BertForSequenceClassification(bert_config(num_labels=2)))
        one = BertForSequenceClassification(bert_config(num_labels=1))
        saved(root / "regression", one)
    rows = [f"a b {'c ' * (i % 4)}d\t{i % 2}" for i in range(24)]
    (root / "good.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    (root / "empty.tsv").write_text("")
    (root / "header.tsv").write_text("text\tlabel\n")
    (root / "numbers.tsv").write_text("text\tlabel\na b\t0.25\nc d\t0.75\n" * 1)
    (root / "many.tsv").write_text("text\tlabel\na\t0\nb\t7\n")
    (root / "one.tsv").write_text("text\tlabel\na\t0\nb\t0\n")
    (root / "binary.tsv").write_bytes(bytes(range(256)) * 4)
    (root / "broken.jsonl").write_text('{"text": "a", "label": 0}\n{"text": \n')
    (root / "broken.json").write_text("{")
    (root / "list.json").write_text("[1, 2]")
    (root / "words.exe").write_text("text\n")
    (root / "noclass").mkdir()
    (root / "noclass" / "config.json").write_text(json.dumps({"model_type": "nope"}))
    code = call(
        *("fit", root / "model", "--train", root / "good.tsv", "--val", root / "good.tsv"),
        *("--percent", 50, "--out", root / "posterior"),
    )
    assert code == 0
    return root


def call(*words):
    with pytest.raises(SystemExit) as leaving:
        main(["--quiet", *map(str, words)])
    return leaving.value.code


FIT = ("fit", "{model}", "--train", "{good.tsv}", "--val", "{good.tsv}", "--out", "{new}")
BARE = ("fit", "{model}", "--val", "{good.tsv}", "--out", "{new}")
TUNE = ("bayestune", "{model}", "--train", "{good.tsv}", "--out", "{new}")
FINE = (
    "finetune",
    "{model}",
    "--train",
    "{good.tsv}",
    "--val",
    "{good.tsv}",
    "--out",
    "{new}",
)
PREDICT = ("predict", "{model}", "{posterior}", "--data", "{good.tsv}")
EVALUATE = ("evaluate", "{model}", "{posterior}", "--test", "{good.tsv}")
RAMP = (
    "ramp",
    "{model}",
    "--train",
    "{good.tsv}",
    "--val",
    "{good.tsv}",
    "--test",
    "{good.tsv}",
    "--out",
    "{new}",
)
SPARSE = ("train-sparse", "--out", "{new}")

# What is typed, {…} being a path in the world, and what the sentence must hold: the option or
# the argument, and its value.
CALLS = {
    "no such command": (("guess",), "command", "'guess'"),
    "a command misspelt": (("rum",), "command 'rum'", "Did you mean 'run'? Try"),
    "predict of no folder": (
        ("predict", "{nope}", "--data", "{good.tsv}"),
        "MODEL must be a folder that exists",
        "nope",
    ),
    "evaluate of no folder": (
        ("evaluate", "{nope}", "--test", "{good.tsv}"),
        "MODEL must be a folder that exists",
        "nope",
    ),
    "serve of no folder": (
        ("serve", "{nope}"),
        "FOLDER must be a folder that exists",
        "nope",
    ),
    "pack of no posterior": (
        ("pack", "{model}", "{nope}", "--out", "{new}"),
        "there is no folder",
        "nope",
    ),
    "no such option": (("--loud",), "option", "--loud"),
    "no such option of fit": ((*FIT, "--epochs", 3), "option", "--epochs"),
    "an option without its value": (
        ("plan", "{model}", "--percent"),
        "--percent",
        "argument",
    ),
    "one argument too many": (("plan", "{model}", "more"), "argument", "more"),
    # plan
    "plan without a model": (("plan",), "argument", "'model'"),
    "plan of no such folder": (("plan", "{nope}"), "model", "nope"),
    "plan of a data file": (("plan", "{good.tsv}"), "", "good.tsv"),
    "plan of an unknown kind": (("plan", "{noclass}"), "", "noclass"),
    "percent is text": (("plan", "{model}", "--percent", "ten"), "--percent", "'ten'"),
    "percent is 0": (("plan", "{model}", "--percent", 0), "--percent", "0"),
    "percent is 101": (("plan", "{model}", "--percent", 101), "--percent", "101"),
    "percent is NaN": (("plan", "{model}", "--percent", "nan"), "--percent", "nan"),
    "batch size 0": (("plan", "{model}", "--batch-size", 0), "--batch-size", "'0'"),
    "batch size 1.5": (("plan", "{model}", "--batch-size", 1.5), "--batch-size", "'1.5'"),
    "unknown method": (("plan", "{model}", "--method", "hmc"), "--method", "'hmc'"),
    "unknown selector": (("plan", "{model}", "--select", "best"), "--select", "'best'"),
    "size of no use": (
        ("plan", "{model}", "--select", "last-layer", "--percent", 3),
        "--percent",
        "last-layer",
    ),
    "two sizes": (("plan", "{model}", "--percent", 3, "--size", 3), "--percent", "--size"),
    "json to a folder": (
        ("plan", "{model}", "--no-time", "--json", "{noclass}"),
        "",
        "noclass",
    ),
    "no training data for a choice": ((*BARE,), "--train", "the choice among posteriors"),
    "no training data for curvature": (
        (*BARE, "--percent", 10),
        "--train",
        "--structure kron",
    ),
    "no training data for SGD": ((*BARE, "--method", "swag"), "--train", "--method swag"),
    "no training data for scores": (
        (*BARE, "--structure", "isotropic", "--select", "squared-gradient"),
        "--train",
        "--select squared-gradient",
    ),
    "no training data for a noise": (
        ("fit", "{regression}", *BARE[2:], "--structure", "isotropic"),
        "--train",
        "a regression",
    ),
    "exact factors of a diagonal": (
        (*FIT, "--structure", "diag", "--exact"),
        "--exact",
        "got diag",
    ),
    "exact factors of nothing saved": ((*RAMP, "--exact"), "--exact", "--save"),
    # finetune, bayestune
    "finetune without data": (("finetune", "{model}"), "option", "'--train'"),
    "no such data": (
        (
            "finetune",
            "{model}",
            "--train",
            "{nope}",
            "--val",
            "{good.tsv}",
            "--out",
            "{new}",
        ),
        "--train",
        "nope",
    ),
    "a folder for data": (
        (
            "finetune",
            "{model}",
            "--train",
            "{model}",
            "--val",
            "{good.tsv}",
            "--out",
            "{new}",
        ),
        "--train",
        "model",
    ),
    "empty data": (
        (
            "finetune",
            "{model}",
            "--train",
            "{empty.tsv}",
            "--val",
            "{good.tsv}",
            "--out",
            "{new}",
        ),
        "",
        "empty.tsv",
    ),
    "a header alone": (
        (
            "finetune",
            "{model}",
            "--train",
            "{header.tsv}",
            "--val",
            "{good.tsv}",
            "--out",
            "{new}",
        ),
        "",
        "header.tsv",
    ),
    "bytes for text": (
        (
            "finetune",
            "{model}",
            "--train",
            "{binary.tsv}",
            "--val",
            "{good.tsv}",
            "--out",
            "{new}",
        ),
        "",
        "binary.tsv",
    ),
    "broken lines": (
        (
            "finetune",
            "{model}",
            "--train",
            "{broken.jsonl}",
            "--val",
            "{good.tsv}",
            "--out",
            "{new}",
        ),
        "",
        "broken.jsonl",
    ),
    "a kind of file": (
        (
            "finetune",
            "{model}",
            "--train",
            "{words.exe}",
            "--val",
            "{good.tsv}",
            "--out",
            "{new}",
        ),
        "",
        "words.exe",
    ),
    "numbers for classes": (
        (
            "finetune",
            "{model}",
            "--train",
            "{numbers.tsv}",
            "--val",
            "{good.tsv}",
            "--out",
            "{new}",
        ),
        "--label",
        "numbers.tsv",
    ),
    "one class": (
        (
            "finetune",
            "{model}",
            "--train",
            "{one.tsv}",
            "--val",
            "{good.tsv}",
            "--out",
            "{new}",
        ),
        "classes",
        "1",
    ),
    "no such column": ((*FINE, "--text", "sentence"), "--text", "'sentence'"),
    "no such label": ((*FINE, "--label", "verdict"), "--label", "'verdict'"),
    "a rate below zero": ((*FINE, "--lr", -1), "--lr", "-1"),
    "no epoch": ((*FINE, "--epochs", 0), "--epochs", "'0'"),
    "stop on a guess": ((*FINE, "--stop-on", "f1"), "--stop-on", "'f1'"),
    "a folder that is taken": ((*FINE[:-1], "{noclass}"), "", "noclass"),
    "no such device": ((*FINE, "--device", "tpu"), "--device", "'tpu'"),
    "fraction is 2": ((*TUNE, "--fraction", 2), "--fraction", "2"),
    "fraction and elbow": ((*TUNE, "--fraction", 0.1, "--elbow"), "fraction", "elbow"),
    "too few to hold out": (
        ("bayestune", "{model}", "--train", "{one.tsv}", "--out", "{new}"),
        "--val",
        "one.tsv",
    ),
    # fit
    "fit without a folder": (
        ("fit", "{model}", "--train", "{good.tsv}", "--val", "{good.tsv}"),
        "option",
        "'--out'",
    ),
    "structure is a guess": ((*FIT, "--structure", "dense"), "--structure", "'dense'"),
    "swag with a structure": (
        (*FIT, "--method", "swag", "--structure", "diag"),
        "--structure",
        "swag",
    ),
    "laplace with steps": ((*FIT, "--steps", 10), "--steps", "10"),
    "rates are words": ((*FIT, "--method", "swag", "--rate", "fast"), "--rate", "'fast'"),
    "a pattern alone": ((*FIT, "--pattern", "x*"), "--pattern", "x*"),
    "a pattern without a match": (
        (*FIT, "--select", "named", "--pattern", "nope*"),
        "patterns",
        "nope*",
    ),
    "kron of single weights": (
        (*FIT, "--select", "magnitude", "--structure", "kron"),
        "--structure",
        "kron",
    ),
    "labels of other classes": (
        (
            "fit",
            "{model}",
            "--train",
            "{many.tsv}",
            "--val",
            "{good.tsv}",
            "--out",
            "{new}",
        ),
        "label",
        "7",
    ),
    "no such held-out data": (
        ("fit", "{model}", "--train", "{good.tsv}", "--val", "{nope}", "--out", "{new}"),
        "--val",
        "nope",
    ),
    # predict, evaluate, verify
    "predict without a posterior": (
        ("predict", "{model}", "{nope}", "--data", "{good.tsv}"),
        "",
        "nope",
    ),
    "predict another model": (
        ("predict", "{other}", "{posterior}", "--data", "{good.tsv}"),
        "model",
        "posterior",
    ),
    "predict with samples": ((*PREDICT, "--samples", 8), "--samples", "8"),
    "predict with one sample": ((*PREDICT, "--samples", 1), "--samples", "'1'"),
    "predict no file": (
        ("predict", "{model}", "{posterior}", "--data", "{nope}"),
        "--data",
        "nope",
    ),
    "predict swapped": (
        ("predict", "{posterior}", "{model}", "--data", "{good.tsv}"),
        "model",
        "posterior",
    ),
    "json that exists": ((*PREDICT, "--json", "{good.tsv}"), "", "good.tsv"),
    "evaluate without labels": ((*EVALUATE, "--label", "verdict"), "--label", "'verdict'"),
    "evaluate as map": ((*EVALUATE, "--name", "map"), "name", "'map'"),
    "a shift without a file": ((*EVALUATE, "--shift", "news"), "--shift", "'news'"),
    "a shift from nothing": ((*EVALUATE, "--shift", "news={nope}"), "", "nope"),
    "verify nothing": (("verify", "{model}", "--data", "{nope}"), "--data", "nope"),
    "verify no batch": (
        ("verify", "{model}", "--data", "{good.tsv}", "--batches", 0),
        "--batches",
        "'0'",
    ),
    # ramp, train-sparse, report, demo, study
    "ramp of a guess": ((*RAMP, "--schemes", "guess"), "--schemes", "'guess'"),
    "ramp of percents": ((*RAMP, "--percents", "0,200"), "--percents", "'0'"),
    "ramp of most": ((*RAMP, "--most-stochastic", 3), "--most-stochastic", "3"),
    "sparse without data": (SPARSE, "", "--train"),
    "sparse of no file": ((*SPARSE, "--train", "{nope}"), "--train", "nope"),
    "sparse of a text": ((*SPARSE, "--train", "{good.tsv}"), "", "good.tsv"),
    "density is 2": ((*SPARSE, "--train", "{good.tsv}", "--density", 2), "density", "2"),
    "run on nothing": (("run", "{nope}", "--out", "{new}"), "data", "nope"),
    "run without a label": (
        ("run", "{good.tsv}", "--table", "--out", "{new}"),
        "--label",
        "none",
    ),
    "run without enough rows": (
        ("run", "{good.tsv}", "--label", "label", "--text", "text", "--out", "{new}"),
        "rows",
        "",
    ),
    "run with a sure promise": (
        ("run", "{good.tsv}", "--label", "label", "--coverage", 1, "--out", "{new}"),
        "--coverage",
        "1",
    ),
    "predict by what is no ready folder": (
        ("predict", "{model}", "--data", "{good.tsv}"),
        "POSTERIOR",
        "model",
    ),
    "report without records": (("report",), "argument", "RECORD"),
    "report of nothing": (("report", "{nope}"), "record", "nope"),
    "report of a broken file": (("report", "{broken.json}"), "record", "broken.json"),
    "report of a list": (("report", "{list.json}"), "record", "list.json"),
    "report of an empty folder": (
        ("report", "{noclass}", "--out", "{new}.html"),
        "",
        "noclass",
    ),
    "serve of another folder": (("serve", "{model}"), "smidgen run", "model"),
    "doctor into a folder": (("doctor", "--json", "{noclass}"), "", "noclass"),
    "pack without a posterior": (
        ("pack", "{model}", "{nope}", "--out", "{new}"),
        "",
        "nope",
    ),
    "pack of another model": (
        ("pack", "{other}", "{posterior}", "--out", "{new}"),
        "another model",
        "posterior",
    ),
    "pack with a broken record": (
        ("pack", "{model}", "{posterior}", "--out", "{new}", "--record", "{broken.json}"),
        "record",
        "broken.json",
    ),
    "pack without a record": (
        ("pack", "{model}", "{posterior}", "--out", "{new}", "--record", "{nope}"),
        "--record",
        "nope",
    ),
    "push of nothing": (("push", "{nope}", "user/name"), "posterior", "nope"),
    "push of a model": (("push", "{model}", "user/name"), "posterior", "model"),
    "push without an owner": (("push", "{posterior}", "name"), "user/name", "'name'"),
    "demo of percent 0": (("demo", "--percent", 0), "--percent", "0"),
    "study of nothing": (("study", "run", "nope"), "", "nope"),
    "study of a guess": (("study", "guess"), "command", "'guess'"),
    "study of a broken file": (("study", "run", "{broken.json}"), "", "broken.json"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_command_is_one_clear_sentence(name, world, tmp_path, capsys):
    words, option, value = CALLS[name]

    def fill(word):
        word = str(word).replace("{new}", str(tmp_path / "new"))
        return re.sub(r"\{(.+?)\}", lambda found: str(world / found[1]), word)

    code = call(*map(fill, words))
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if not line.startswith("note: ")]
    assert code in (1, 2)
    assert len(lines) == 1, printed.err
    message = lines[0].removeprefix("smidgen: ")
    assert message != lines[0]
    assert option in message
    assert value in message
    assert len(message) < 500
    assert "Traceback" not in printed.out + printed.err
    assert "--debug" not in message
    # What is wrong, and then what to do.
    assert re.search(r"\w.*\. [A-Z].*\w\W*\.$", message), message
    # Nothing was begun.
    assert not (tmp_path / "new").exists()


def test_there_are_enough_of_them():
    assert len(CALLS) >= 40
    typed = {words[0] for words, _, _ in CALLS.values()}
    assert set(_COMMANDS) <= typed


def test_what_is_not_there_cannot_be_loaded(tmp_path):
    with pytest.raises(
        StoreError, match=r"^path must be a folder that exists, got 'nomail'"
    ):
        smidgen.load("nomail")
