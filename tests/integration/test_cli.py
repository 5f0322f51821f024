"""The command line on a tiny real model folder: every command, and every refusal."""

from __future__ import annotations

import json
import random
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForSequenceClassification, BertModel

import smidgen
from smidgen.cli import main
from smidgen.integrations.huggingface import load_classifier
from smidgen.posterior.swag import Snapshots
from smidgen.runtime.record import Record
from smidgen.select import SELECTORS
from smidgen.workflows.ramp.schemes import SCHEMES
from tests.support.tiny import bert_config, saved

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")


def rows(count, seed):
    """Sentences of the letters a to d; more a than b is 'good'."""
    generator = random.Random(seed)
    for _ in range(count):
        words = generator.choices("abcd", k=generator.randint(2, 9))
        label = int(words.count("a") + generator.random() > words.count("b") + 0.5)
        yield " ".join(words), label


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A pretrained encoder, three data files, a fine-tuned model and its posterior."""
    root = tmp_path_factory.mktemp("world")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        saved(root / "encoder", BertModel(bert_config()))
        other = BertForSequenceClassification(bert_config(num_labels=2))
        saved(root / "other", other)
    for seed, (name, count) in enumerate([("train", 96), ("val", 64), ("test", 80)]):
        lines = [f"{text}\t{('bad', 'good')[label]}" for text, label in rows(count, seed)]
        (root / f"{name}.tsv").write_text("sentence\tverdict\n" + "\n".join(lines) + "\n")
    columns = ["--text", "sentence", "--label", "verdict"]
    files = ["--train", root / "train.tsv", "--val", root / "val.tsv"]
    run(
        "finetune",
        root / "encoder",
        *files,
        *columns,
        "--out",
        root / "map",
        "--epochs",
        3,
        "--lr",
        0.01,
        "--max-length",
        12,
        "--json",
        root / "map.json",
    )
    run(
        "fit",
        root / "map",
        *files,
        *columns,
        "--out",
        root / "posterior",
        "--percent",
        40,
        "--max-length",
        12,
        "--json",
        root / "fit.json",
    )
    return root


def run(*words):
    """Run the program as the shell would; return its exit code."""
    with pytest.raises(SystemExit) as leaving:
        main([str(word) for word in words])
    return leaving.value.code


def evaluate(root, posterior="posterior", model="map", *more):
    return run(
        "evaluate",
        root / model,
        root / posterior,
        "--test",
        root / "test.tsv",
        "--text",
        "sentence",
        "--label",
        "verdict",
        "--max-length",
        12,
        *more,
    )


def test_finetune_and_fit_write_what_they_say(world):
    history = json.loads((world / "map.json").read_text())
    assert history["best"] in history["history"]
    config = json.loads((world / "map" / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "good"}
    found = json.loads((world / "fit.json").read_text())
    assert found["tuning"]["examples"] == 64
    assert min(found["tuning"]["joint_nll"]) <= found["tuning"]["map_scaled_nll"] + 1e-9
    assert (world / "posterior" / "posterior.safetensors").is_file()


def test_predict_names_classes_and_uncertainty(world, tmp_path, capsys):
    target = tmp_path / "found.json"
    code = run(
        "predict",
        world / "map",
        world / "posterior",
        "--data",
        world / "test.tsv",
        "--text",
        "sentence",
        "--max-length",
        12,
        "--json",
        target,
    )
    assert code == 0
    predictions = json.loads(target.read_text())["predictions"]
    assert len(predictions) == 80
    for row in predictions:
        assert sum(row["probs"]) == pytest.approx(1)
        assert row["label"] == ("bad", "good")[row["predicted"]]
        assert row["mutual_information"] >= 0
    shown = capsys.readouterr().out
    assert "from weights" in shown
    assert f"{predictions[0]['confidence']:.3f}" in shown


def test_long_texts_leave_room_for_the_numbers(world, tmp_path, capsys):
    data = write(tmp_path / "long.tsv", "sentence\n" + " ".join("abcd" * 60) + "\n")
    assert run("predict", world / "map", world / "posterior", "--data", data,
               "--text", "sentence") == 0  # fmt: skip
    assert " 0." in capsys.readouterr().out


def test_the_version_is_told(capsys):
    assert run("--version") == 0
    assert smidgen.__version__ in capsys.readouterr().out


def test_evaluate_and_report(world, tmp_path, capsys):
    shift = f"letters={world / 'val.tsv'}"
    record, page = tmp_path / "record.json", tmp_path / "page.html"
    code = evaluate(
        world, "posterior", "map", "--shift", shift, "--json", record, "--report", page
    )
    assert code == 0
    found = Record.load(record)
    names = [method["name"] for method in found.results["methods"]]
    assert names == ["map", "temperature", "sparse-kfac"]
    assert "letters" in found.results["methods"][2]["detection"]
    shown = capsys.readouterr().out
    assert "Sparse-KFAC" in shown
    assert "In brackets: the ECE that a perfectly calibrated model would show" in shown
    floor = found.results["methods"][2]["scores"]["ece_equal_mass"]["floor"]
    assert f"({floor:.3f})" in shown
    again = tmp_path / "again.html"
    assert run("report", record, "--out", again) == 0
    assert again.read_text() == page.read_text()


def test_a_name_with_brackets_is_shown_as_it_is(world, capsys):
    assert evaluate(world, "posterior", "map", "--name", "[small] ten [/b]") == 0
    assert "[small] ten [/b]" in capsys.readouterr().out


def ramp(root, target, *more):
    files = (f"--{n}={root / n}.tsv" for n in ("train", "val", "test"))
    columns = ("--text", "sentence", "--label", "verdict", "--max-length", 12)
    return run("ramp", root / "map", *files, *columns, "--out", target, *more)


def test_ramp_writes_a_record_a_page_and_the_best_posterior(world, tmp_path, capsys):
    target = tmp_path / "ramp"
    code = ramp(world, target, "--percents", "20,50,100", "--repeats", 2, "--save", "best",
                "--most-stochastic", 0.5, "--json", tmp_path / "same.json")  # fmt: skip
    assert code == 0
    shown = capsys.readouterr().out
    record = Record.load(target / "record.json")
    assert record == Record.load(tmp_path / "same.json")
    names = [method["name"] for method in record.results["methods"]]
    # All 64 rows are right: no block lowers their NLL, so there is no best allocation.
    assert names == ["map", "temperature", *(s for s in SCHEMES if s != "best-budget")]
    assert record.results["data"] == {"train": 96, "validation": 64, "test": 80}
    # The table has no room for the floor of each.
    assert re.search(r"An ECE of 0\.\d{3}( to 0\.\d{3})? is what a perfectly", shown)
    assert all(point["ece_floor"] > 0 for point in record.results["ramp"]["points"])
    for phase in record.results["seconds"]:
        assert f" s  {phase}" in shown
    best = record.results["ramp"]["best"]
    small = [m for m in record.results["methods"][2:] if m["fraction"] <= 0.5]
    assert best == min(small, key=lambda m: m["validation_nll"])["name"]
    again = tmp_path / "again.html"
    assert run("report", target / "record.json", "--out", again) == 0
    assert again.read_text() == (target / "report.html").read_text()
    found = tmp_path / "found.json"
    assert evaluate(world, target / "posterior", "map", "--json", found) == 0
    scores = {m["name"]: m["scores"] for m in Record.load(found).results["methods"]}
    ours = {m["name"]: m["scores"] for m in record.results["methods"]}
    _, _, saved_one = scores.values()
    assert saved_one["nll"]["value"] == pytest.approx(ours[best]["nll"]["value"], rel=1e-4)
    baseline = scores["temperature"]["nll"]["value"]
    assert baseline == pytest.approx(ours["temperature"]["nll"]["value"], rel=1e-4)


def test_without_curvature_no_training_data_are_needed(world, tmp_path):
    names = ["--text", "sentence", "--label", "verdict", "--max-length", 12]
    told = []
    for more in ((), ("--train", world / "train.tsv")):
        numbers = tmp_path / f"{len(more)}.json"
        code = run("fit", world / "map", "--val", world / "val.tsv", *names,
                   "--select", "last-layer", "--isotropic-body", "--structure", "isotropic",
                   "--out", tmp_path / f"{len(more)}", "--json", numbers, *more)  # fmt: skip
        assert code == 0
        told.append(json.loads(numbers.read_text()))
    assert told[0] | {"posterior": ""} == told[1] | {"posterior": ""}


def test_ramp_saves_as_few_eigenvectors_as_fit_does(world, tmp_path):
    floats = []
    for more in ((), ("--exact",)):
        target = tmp_path / f"ramp{len(more)}"
        some = ("--schemes", "sparse-kfac", "--percents", 100, "--most-stochastic", 1)
        assert ramp(world, target, *some, "--save", "best", *more) == 0
        network, _ = load_classifier(world / "map")
        posterior = smidgen.load(target / "posterior", network)
        assert posterior.variance_error <= 0.01
        floats.append(posterior.floats)
    assert floats[0] < floats[1]


def test_ramp_takes_some_schemes_and_refuses_to_overwrite(world, tmp_path, capsys):
    target = tmp_path / "ramp"
    some = ("--schemes", "sparse-kfac,last-layer", "--schemes", "full", "--percents", 40)
    assert ramp(world, target, *some, "--save", "last-layer") == 0
    record = (target / "record.json").read_text()
    assert set(json.loads(record)["results"]["ramp"]["chosen"]) == {
        "sparse-kfac",
        "last-layer",
        "full",
    }
    assert ramp(world, target, *some) == 1
    assert "exists already" in capsys.readouterr().err
    assert (target / "record.json").read_text() == record
    assert ramp(world, target, *some, "--save", "full", "--overwrite") == 0


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        (("--schemes", "max"), "--schemes must be some of sparse-kfac,"),
        (("--percents", "1,0"), "--percents must be numbers in (0, 100], got '0'"),
        (("--percents", "ten"), "got 'ten'. Try 1,3,10,100."),
        (("--most-stochastic", 10), "--most-stochastic must be in (0, 1], got 10"),
        (("--schemes", "full", "--save", "random"), "--save must be 'best' or one of full"),
    ],
)
def test_bad_options_of_ramp_are_named(world, tmp_path, capsys, options, fragment):
    assert ramp(world, tmp_path / "new", *options) == 1
    assert fragment in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_files_are_not_overwritten_unless_told(world, tmp_path, capsys):
    precious = write(tmp_path / "precious.json", "mine")
    for command in (
        ("report", Path(__file__).parents[2] / "results" / "demo.json", "--out", precious),
        ("predict", world / "map", world / "posterior", "--data", world / "test.tsv",
         "--text", "sentence", "--json", precious),
    ):  # fmt: skip
        assert run(*command) == 1
        assert "exists already" in capsys.readouterr().err
    assert evaluate(world, "posterior", "map", "--report", precious) == 1
    assert precious.read_text() == "mine"
    assert evaluate(world, "posterior", "map", "--report", precious, "--overwrite") == 0
    assert "<html" in precious.read_text()


def test_help_shows_an_example(capsys):
    for command in ("demo", "finetune", "fit", "predict", "evaluate", "ramp", "report"):
        assert run(command, "--help") == 0
        assert f"Example: smidgen {command}" in capsys.readouterr().out


def fit_with(world, target, **changes):
    options = {
        "train": world / "train.tsv",
        "val": world / "val.tsv",
        "text": "sentence",
        "label": "verdict",
        "out": target,
        "max-length": 12,
        "model": world / "map",
    }
    options.update(changes)
    model = options.pop("model")
    return run("fit", model, *(w for k, v in options.items() for w in (f"--{k}", v)))


def test_without_a_choice_fit_tries_several_and_tells(world, tmp_path, capsys):
    folder, numbers = tmp_path / "kept", tmp_path / "kept.json"
    assert fit_with(world, folder, json=numbers) == 0
    shown = capsys.readouterr().out
    found = json.loads(numbers.read_text())
    assert found["verdict"] in shown
    names = [each["name"] for each in found["choice"]["candidates"]]
    assert names[:3] == ["temperature", "last-layer", "isotropic"]
    assert found["kept"] in names
    assert found["choice"]["rows"] == 64
    network, _ = load_classifier(world / "map")
    posterior = smidgen.load(folder, network)
    assert posterior.choice.to_json() == found["choice"]
    record = tmp_path / "record.json"
    assert evaluate(world, folder, "map", "--json", record) == 0
    assert Record.load(record).results["choice"]["kept"] == found["kept"]


def test_what_the_choice_may_cost_is_typed(world, tmp_path, capsys):
    numbers = tmp_path / "kept.json"
    budget = {"memory": "0.3 kB", "seconds": "600"}
    assert fit_with(world, tmp_path / "kept", json=numbers, **budget) == 0
    left_out = json.loads(numbers.read_text())["choice"]["left_out"]
    assert left_out
    assert all("and memory allows 300 bytes" in each["reason"] for each in left_out)
    capsys.readouterr()
    for options, message in (
        ({"memory": "much"}, "--memory must be a number of bytes, got 'much'. Try 50MB."),
        ({"seconds": "0"}, "--seconds must be above 0, got 0"),
        ({"memory": "1MB", "percent": 3}, "--memory must be left out where options say"),
        ({"seconds": 9, "select": "last-layer"}, "--seconds must be left out where"),
    ):
        assert fit_with(world, tmp_path / "none", **options) == 1
        assert message in " ".join(capsys.readouterr().err.split())


def test_without_training_data_nothing_is_tried(world, tmp_path, capsys):
    names = ["--text", "sentence", "--label", "verdict", "--max-length", 12]
    code = run(
        "fit", world / "map", "--val", world / "val.tsv", *names, "--out", tmp_path / "p"
    )
    assert code == 1
    shown = " ".join(capsys.readouterr().err.split())
    assert "--train must be given for the choice among posteriors" in shown
    assert not (tmp_path / "p").exists()


def test_the_other_layers_join_without_curvature(world, tmp_path, capsys):
    folder, alone = tmp_path / "joined", tmp_path / "alone"
    last = {"select": "last-layer"}
    assert fit_with(world, alone, **last, json=tmp_path / "alone.json") == 0
    capsys.readouterr()
    report = tmp_path / "joined.json"
    assert fit_body(world, folder, **last, json=report) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "with structure kron; without curvature, " in shown
    found, before = (json.loads((tmp_path / f"{n}.json").read_text())
                     for n in ("joined", "alone"))  # fmt: skip
    assert found["floats"] <= before["floats"]
    assert found["fraction"] == 1
    # The prior that keeps several precisions together may cost a little.
    assert found["tuning"]["chosen_nll"] <= before["tuning"]["chosen_nll"] + 1e-3
    network, _ = load_classifier(world / "map")
    posterior = smidgen.load(folder, network)
    assert posterior.structure == "kron + isotropic"
    structures = {name: op.structure for name, op in posterior.operators.items()}
    assert [n for n, kind in structures.items() if kind == "kron"] == ["classifier"]
    # One for the head, and one or more for the body.
    assert set(posterior.precision) == set(structures)
    assert evaluate(world, folder, "map", "--json", tmp_path / "e.json") == 0
    methods = Record.load(tmp_path / "e.json").results["methods"]
    assert (methods[2]["name"], methods[2]["label"]) == (
        "head-isotropic",
        "Last layer | isotropic body",
    )


def fit_body(world, target, **changes):
    """The same command with `--isotropic-body`, which takes no value."""
    given = {"text": "sentence", "label": "verdict", "max-length": 12, **changes}
    words = [word for k, v in given.items() for word in (f"--{k}", v)]
    files = ("--train", world / "train.tsv", "--val", world / "val.tsv", "--out", target)
    return run("fit", world / "map", *files, *words, "--isotropic-body")


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({"percent": 40}, "an isotropic body needs a layer of which nothing is chosen, got "
         "weights of all "),
        ({"structure": "full", "select": "last-layer"},
         "--structure must keep layers apart for --isotropic-body, got full"),
        ({"method": "swag"}, "--isotropic-body is not for --method swag"),
    ],
)  # fmt: skip
def test_a_body_that_cannot_join_is_named(world, tmp_path, capsys, options, fragment):
    assert fit_body(world, tmp_path / "new", **options) == 1
    assert fragment in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


SWAG = {
    "method": "swag",
    "select": "max-mlp",
    "steps": 30,
    "every": 3,
    "rank": 4,
    "trial-steps": 12,
    "rate": "0.01,0.1",
    "samples": 6,
}


def test_a_swag_posterior_is_fitted_predicts_and_is_evaluated(world, tmp_path, capsys):
    folder = tmp_path / "swag"
    assert fit_with(world, folder, **SWAG, json=tmp_path / "fit.json") == 0
    found = json.loads((tmp_path / "fit.json").read_text())
    assert found["method"] == "swag"
    assert found["learning_rate"] in (0.01, 0.1)
    assert found["floats"] == (4 + 2) * found["weights"]
    assert not list(tmp_path.glob(".*"))
    columns = ("--text", "sentence", "--max-length", 12)
    data = ("--data", world / "test.tsv", "--json", tmp_path / "p.json")
    assert run("predict", world / "map", folder, *data, *columns) == 0
    rows = json.loads((tmp_path / "p.json").read_text())["predictions"]
    assert len(rows) == 80
    assert all(0.5 <= row["confidence"] <= 1 for row in rows)
    test = ("--test", world / "test.tsv", "--label", "verdict")
    page = ("--report", tmp_path / "r.html", "--json", tmp_path / "e.json")
    assert run("evaluate", world / "map", folder, *test, *columns, *page) == 0
    record = json.loads((tmp_path / "e.json").read_text())
    names = [each["name"] for each in record["results"]["methods"]]
    assert names == ["map", "temperature", "swag"]
    assert "SWAG" in (tmp_path / "r.html").read_text()
    assert "SWAG" in capsys.readouterr().out


def test_an_interrupted_collection_goes_on(world, tmp_path, capsys, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert fit_with(world, whole, **SWAG) == 0
    taken = []
    original = Snapshots.add

    def stops(self, values):
        taken.append(1)
        if len(taken) == 15:
            raise KeyboardInterrupt
        original(self, values)

    monkeypatch.setattr("smidgen.posterior.swag.Snapshots.add", stops)
    monkeypatch.setattr("smidgen.workflows.fit_posterior.CHECKPOINT_EVERY", 4)
    assert fit_with(world, broken, **SWAG) == 130
    assert (tmp_path / ".broken.run" / "training").exists()
    assert fit_with(world, broken, **SWAG) == 0
    assert "Resuming from" in capsys.readouterr().out
    network, _ = load_classifier(world / "map")
    assert smidgen.load(broken, network) == smidgen.load(whole, network)


def test_a_ramping_study_of_swag_and_going_on_with_it(world, tmp_path, capsys):
    files = [f for n in ("train", "val", "test") for f in (f"--{n}", world / f"{n}.tsv")]
    columns = ["--text", "sentence", "--label", "verdict", "--max-length", 12]
    options = {k: v for k, v in SWAG.items() if k != "select"}
    given = [word for k, v in options.items() for word in (f"--{k}", v)]
    given += ["--out", tmp_path / "ramp"]
    plain = ("ramp", world / "map", *files, *columns, *given)
    command = (*plain, "--fractions", "0.1,0.3")
    assert run(*command, "--schemes", "max-mlp,magnitude") == 0
    first = Record.load(tmp_path / "ramp" / "record.json")
    points = first.results["ramp"]["points"]
    assert {p["scheme"] for p in points} == {"max-mlp", "magnitude"}
    sized = [p for p in points if p["scheme"] == "magnitude"]
    assert [p["level"] for p in sized] == [0.1, 0.3]
    assert all(p["floats"] == 6 * p["weights"] for p in points)
    # Chosen on validation data: each scheme's lowest NLL.
    for scheme, place in first.results["ramp"]["chosen"].items():
        own = [p["nll"] for p in points if p["scheme"] == scheme]
        assert points[place]["nll"] == min(own)
    assert "Largest weights" in capsys.readouterr().out
    assert "% of all weights" in (tmp_path / "ramp" / "report.html").read_text()
    # A second study over the same folder repeats nothing that is there.
    assert run(*command, "--overwrite", "--schemes", "max-mlp,magnitude,full") == 0
    second = Record.load(tmp_path / "ramp" / "record.json")
    assert second.results["ramp"]["points"][: len(points)] == points
    assert len(second.results["ramp"]["points"]) == len(points) + 1
    names = [each["name"] for each in second.results["methods"]]
    assert names == ["map", "temperature", "max-mlp", "magnitude", "full"]
    # Other settings or other data are another study; fewer schemes are not.
    fewer = ("--schemes", "magnitude", "--fractions", "0.1")
    assert run(*plain, "--overwrite", *fewer) == 0
    third = Record.load(tmp_path / "ramp" / "record.json")
    assert [p["level"] for p in third.results["ramp"]["points"]] == [0.1]
    # So they are refused, or start anew.
    stored = tmp_path / "ramp" / "points"
    before = sorted(path.name for path in stored.iterdir())
    for name in ("record.json", "report.html", "run.json"):
        (tmp_path / "ramp" / name).unlink()
    for other in (("--steps", 33), ("--train", world / "val.tsv")):
        assert run(*plain, *fewer, *other) == 1
        assert "belongs to another study" in capsys.readouterr().err
        assert sorted(path.name for path in stored.iterdir()) == before
    assert run(*plain, "--overwrite", *fewer, "--steps", 33) == 0
    assert {path.name for path in stored.iterdir()} == {"magnitude-0.1", "points.json"}
    assert run(*plain, "--overwrite", "--fractions", "10%") == 1
    assert "--fractions must be numbers in (0, 1], got '10%'" in capsys.readouterr().err
    assert run(*command, "--overwrite", "--percents", 10) == 1
    assert "--percents is not for --method swag" in capsys.readouterr().err


def test_options_of_the_other_method_are_refused(world, tmp_path, capsys):
    assert fit_with(world, tmp_path / "p", method="swag", structure="diag") == 1
    assert "--structure is not for --method swag" in capsys.readouterr().err
    assert fit_with(world, tmp_path / "p", rate="0.1") == 1
    assert "--rate is not for --method laplace" in capsys.readouterr().err
    # Also where what is given is the default.
    assert fit_with(world, tmp_path / "p", rank=20) == 1
    assert "--rank is not for --method laplace, got 20" in capsys.readouterr().err


def test_weight_samples_are_not_for_a_linearised_posterior(world, capsys):
    data = ("--data", world / "test.tsv", "--text", "sentence", "--max-length", 12)
    command = ("predict", world / "map", world / "posterior", *data)
    assert run(*command, "--samples", 8) == 1
    assert (
        "--samples is for a posterior that predicts by draws, got 8"
        in capsys.readouterr().err
    )


def test_swag_refuses_a_rate_that_is_none(world, tmp_path, capsys):
    assert fit_with(world, tmp_path / "p", method="swag", rate="fast") == 1
    assert "--rate must be numbers > 0, got 'fast'" in capsys.readouterr().err


def write(path, text):
    path.write_text(text)
    return path


BAD_FITS = {
    "wrong column": (
        lambda w, t: {"text": "sentense"},
        "--text must be what training saw, 'sentence', got 'sentense'",
        "Leave it out",
    ),
    "column gone": (
        lambda w, t: {"val": write(t / "c.tsv", "words\tverdict\na b\tgood\n")},
        "--text must be one of the columns of c.tsv (words, verdict)",
        "got 'sentence'",
    ),
    "missing file": (lambda w, t: {"train": t / "no.tsv"}, "no.tsv", "must be a file"),
    "empty file": (
        lambda w, t: {"train": write(t / "e.tsv", "")},
        "e.tsv",
        "at least one row",
    ),
    "no rows": (
        lambda w, t: {"train": write(t / "h.tsv", "sentence\tverdict\n")},
        "h.tsv",
        "at least one row",
    ),
    "unlabelled": (
        lambda w, t: {"val": write(t / "u.tsv", "sentence\tverdict\na b\tgood\nc\t\n")},
        "row 2",
        "label",
    ),
    "unknown label": (
        lambda w, t: {"val": write(t / "x.tsv", "sentence\tverdict\na b\tugly\n")},
        "'ugly'",
        "bad, good",
    ),
    "class out of range": (
        lambda w, t: {"val": write(t / "n.tsv", "sentence\tverdict\na b\t7\n")},
        "7",
        "class number from 0 to 1",
    ),
    "percent 0": (
        lambda w, t: {"percent": 0},
        "percent must be in (0, 100], got 0",
        "try 10",
    ),
    "percent 101": (lambda w, t: {"percent": 101}, "(0, 100], got 101", "try 10"),
    "percent for nothing": (
        lambda w, t: {"percent": 5, "select": "last-layer"},
        "--percent is for --select sparse-kfac, sparse-kfac-random",
        "got 5 with last-layer. Leave",
    ),
    "fraction for rows": (
        lambda w, t: {"fraction": 0.1},
        "--fraction is for --select magnitude",
        "got 0.1 with sparse-kfac",
    ),
    "two sizes": (
        lambda w, t: {"percent": 5, "size": 5},
        "--size and --percent both set the size",
        "Leave one",
    ),
    "a size for nothing": (
        lambda w, t: {"size": 5, "select": "last-layer"},
        "--size is for --select",
        "got 5 with last-layer",
    ),
    "fraction 0": (
        lambda w, t: {"fraction": 0, "select": "variance"},
        "fraction must be in (0, 1], got 0",
        "try 0.01",
    ),
    "half a module": (
        lambda w, t: {"size": 1.5, "select": "max-all"},
        "count must be a whole number from 1 to",
        "got 1.5",
    ),
    "patterns for nothing": (
        lambda w, t: {"pattern": "classifier.*"},
        "--pattern is for --select named, got ['classifier.*'] with sparse-kfac",
        "Leave",
    ),
    "no pattern": (
        lambda w, t: {"select": "named"},
        "--select named needs --pattern, got none",
        "Try --pattern",
    ),
    "no such parameter": (
        lambda w, t: {"select": "named", "pattern": "head.*"},
        "'head.*'",
        "none of",
    ),
    "scattered factors": (
        lambda w, t: {"select": "magnitude", "structure": "kron"},
        "--structure must be diag or full or isotropic for --select magnitude",
        "got kron. Leave it out for diag",
    ),
    "no model": (lambda w, t: {"model": t / "nowhere"}, "nowhere", ""),
    "no trained head": (lambda w, t: {"model": w / "encoder"}, "encoder", ""),
    "output taken": (lambda w, t: {"out": w / "posterior"}, "exists already", "overwrite"),
}


@pytest.mark.parametrize("name", BAD_FITS)
def test_bad_input_gets_one_clear_sentence(world, tmp_path, capsys, name):
    change, *fragments = BAD_FITS[name]
    target = tmp_path / "new"
    before = (world / "posterior" / "config.json").read_text()
    assert fit_with(world, target, **change(world, tmp_path)) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("smidgen: ")
    assert "Traceback" not in shown
    for fragment in fragments:
        assert fragment in shown
    assert not target.exists()
    assert (world / "posterior" / "config.json").read_text() == before


@pytest.mark.parametrize("name", SELECTORS)
def test_every_selector_fits_and_is_told_apart(world, tmp_path, name):
    changes = {"pattern": "classifier.*"} if name == "named" else {}
    if SELECTORS[name].size:
        changes["size"] = {"percent": 30, "fraction": 0.02, "count": 2}[
            SELECTORS[name].size
        ]
    found, folder = tmp_path / "found.json", tmp_path / "posterior"
    assert fit_with(world, folder, select=name, json=found, **changes) == 0
    summary = json.loads(found.read_text())
    assert summary["selector"] == name
    config = json.loads((folder / "config.json").read_text())
    scattered = SELECTORS[name].scattered
    assert config["structure"] == ("diag" if scattered else "kron")
    record = tmp_path / "record.json"
    page = tmp_path / "page.html"
    assert evaluate(world, folder, "map", "--json", record, "--report", page) == 0
    method = Record.load(record).results["methods"][2]["name"]
    assert method == name


def test_two_posteriors_stand_on_one_page_by_names_of_their_own(world, tmp_path, capsys):
    files = []
    for percent in (20, 60):
        folder, record = tmp_path / f"p{percent}", tmp_path / f"{percent}.json"
        assert fit_with(world, folder, select="sparse-kfac", size=percent) == 0
        name = f"{percent} percent"
        assert evaluate(world, folder, "map", "--name", name, "--json", record) == 0
        files.append(record)
    page = tmp_path / "both.html"
    assert run("report", *files, "--out", page) == 0
    assert all(f"{percent} percent" in page.read_text() for percent in (20, 60))
    nameless = tmp_path / "nameless.json"
    assert evaluate(world, tmp_path / "p60", "map", "--json", nameless) == 0
    # This network knows so little that both posteriors score what the point estimate does.
    record, alike = Record.load(nameless), tmp_path / "alike.json"
    results = deepcopy(dict(record.results))
    results["methods"][2]["scores"]["nll"]["value"] += 0.1
    replace(record, results=results).save(alike)
    capsys.readouterr()
    assert run("report", nameless, alike, "--out", tmp_path / "no.html") != 0
    assert "--name" in capsys.readouterr().err


def test_a_structure_that_is_no_kfac_is_not_called_so(world, tmp_path, capsys):
    folder, record = tmp_path / "posterior", tmp_path / "record.json"
    assert fit_with(world, folder, select="sparse-kfac", size=30, structure="diag") == 0
    said = capsys.readouterr().out
    assert "with structure diag" in said
    assert "Calibrating on held-out data" in said
    assert evaluate(world, folder, "map", "--json", record) == 0
    found = Record.load(record).results["methods"][2]
    assert found["label"] == "Sparse-KFAC, diag"


def test_random_choices_follow_the_seed(world, tmp_path):
    subsets = []
    for number, seed in enumerate((3, 3, 4)):
        folder = tmp_path / str(number)
        select = {"select": "random-weights", "fraction": 0.01, "seed": seed}
        assert fit_with(world, folder, **select) == 0
        network = BertForSequenceClassification.from_pretrained(world / "map")
        subsets.append(smidgen.load(folder, network).subset)
    assert subsets[0] == subsets[1] != subsets[2]


def test_size_is_percent_for_sparse_kfac(world, tmp_path):
    network = BertForSequenceClassification.from_pretrained(world / "map")
    assert fit_with(world, tmp_path / "new", size=40) == 0
    loaded = [smidgen.load(p, network) for p in (world / "posterior", tmp_path / "new")]
    assert loaded[0].subset == loaded[1].subset


def test_nan_weights(world, tmp_path, capsys):
    with torch.random.fork_rng():
        network = BertForSequenceClassification(bert_config(num_labels=2))
    network.classifier.weight.data[0, 0] = torch.nan
    saved(tmp_path / "broken", network)
    assert fit_with(world, tmp_path / "new", model=tmp_path / "broken") == 1
    assert "NaN" in capsys.readouterr().err


def test_a_posterior_of_another_model(world, capsys):
    assert evaluate(world, "posterior", "other") == 1
    assert "was fitted to another model" in capsys.readouterr().err


def test_a_damaged_posterior(world, tmp_path, capsys):
    folder = tmp_path / "posterior"
    folder.mkdir()
    for file in (world / "posterior").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    path = folder / "posterior.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    assert (
        run(
            "evaluate",
            world / "map",
            folder,
            "--test",
            world / "test.tsv",
            "--text",
            "sentence",
            "--label",
            "verdict",
        )
        == 1
    )
    assert "cut off or edited" in capsys.readouterr().err
    tensors = load_file(world / "posterior" / "posterior.safetensors")
    save_file({k: v * 2 for k, v in tensors.items()}, path)
    assert (
        run(
            "predict",
            world / "map",
            folder,
            "--data",
            world / "test.tsv",
            "--text",
            "sentence",
        )
        == 1
    )
    assert "damaged or edited" in capsys.readouterr().err


def test_an_interrupted_fit_leaves_nothing(world, tmp_path, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("smidgen.posterior.base.Posterior.card", interrupted)
    assert fit_with(world, tmp_path / "new") == 130
    assert "interrupted" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback(world):
    with pytest.raises(Exception, match="percent must be in"):
        main(
            [
                "fit",
                str(world / "map"),
                "--train",
                str(world / "train.tsv"),
                "--val",
                str(world / "val.tsv"),
                "--text",
                "sentence",
                "--label",
                "verdict",
                "--percent",
                "0",
                "--out",
                str(world / "never"),
                "--debug",
            ]
        )


def test_wrong_usage_leaves_with_2(capsys):
    assert run("fit") == 2
    assert run("fit", "model", "--select", "everything") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_reports_of_what_is_no_record(tmp_path, capsys):
    assert run("report", write(tmp_path / "r.json", "{"), "--out", tmp_path / "p.html") == 1
    assert "is not a smidgen record" in capsys.readouterr().err
    assert not (tmp_path / "p.html").exists()


@pytest.mark.parametrize("command", ["finetune", "bayestune"])
def test_star_ratings_get_no_class_zero(world, tmp_path, capsys, command):
    lines = [f"{'abcd'[i % 4]}\t{1 + i % 5}" for i in range(40)]
    stars = write(tmp_path / "stars.tsv", "sentence\tstars\n" + "\n".join(lines) + "\n")
    files = ("--train", stars, "--val", stars, "--text", "sentence", "--label", "stars")
    assert run(command, world / "encoder", *files, "--out", tmp_path / "out") == 1
    shown = capsys.readouterr().err
    assert "got none of class 0 and some of 1, 2, 3, 4, 5" in shown
    assert not (tmp_path / "out").exists()


def test_finetune_sends_decimal_labels_to_bayestune(world, tmp_path, capsys):
    data = write(tmp_path / "n.tsv", "sentence\tscore\na b\t0.5\nc\t1.5\n")
    files = ("--train", data, "--val", data, "--text", "sentence", "--label", "score")
    assert run("finetune", world / "encoder", *files, "--out", tmp_path / "out") == 1
    assert "smidgen bayestune" in capsys.readouterr().err


def test_ssvi_is_fitted_predicts_and_is_evaluated(world, tmp_path, capsys):
    folder, record = tmp_path / "ssvi", tmp_path / "e.json"
    assert fit_with(world, folder, method="ssvi") == 0
    assert evaluate(world, folder, "map", "--json", record) == 0
    results = Record.load(record).results
    # The scale that its calibration found is that of its own means, not the model's.
    assert [row["name"] for row in results["methods"]] == ["map", "ssvi"]
    assert "Temperature scaling is missing" in results["notes"][0]
    assert fit_with(world, tmp_path / "p", method="ssvi", rate="0.1") == 1
    assert "--rate is not for --method ssvi" in capsys.readouterr().err


def test_the_density_of_ssvi_is_typed(world, tmp_path, capsys):
    folder, numbers = tmp_path / "ssvi", tmp_path / "fit.json"
    assert fit_with(world, folder, method="ssvi", density=0.2, json=numbers) == 0
    assert "the largest weights of every layer" in " ".join(capsys.readouterr().out.split())
    network, _ = load_classifier(world / "map")
    sparse = smidgen.load(folder, network).network
    assert sparse.count == pytest.approx(0.2 * sparse.total, rel=0.02)
    assert json.loads(numbers.read_text())["density"] == pytest.approx(0.2, rel=0.02)
    for options, message in (
        ({"method": "ssvi", "density": 2}, "--density must be in (0, 1], got 2"),
        ({"density": 0.1}, "--density is not for --method laplace, got 0.1"),
        (
            {"method": "ssvi", "density": 0.1, "select": "magnitude"},
            "--select must be left out beside --density, got magnitude",
        ),
    ):
        assert fit_with(world, tmp_path / "none", **options) == 1
        assert message in " ".join(capsys.readouterr().err.split())
