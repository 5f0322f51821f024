"""Every kind of cell on tiny real models and data, and what the records then hold."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from docs.build import tuning_tables
from safetensors.torch import load_file

from smidgen import evaluate, fit
from smidgen.cli import main
from smidgen.errors import ArgumentError, DataError, SmidgenWarning
from smidgen.integrations.huggingface import load_classifier
from smidgen.outputs.predictive import CategoricalPredictive
from smidgen.outputs.problem import Problem, model_outputs
from smidgen.prediction import dropout_outputs, point_outputs
from smidgen.report import render
from smidgen.report.names import label_method
from smidgen.runtime.record import Record
from smidgen_studies.data.text import draw
from smidgen_studies.data.uci import read_tables
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.ledger import Ledger
from smidgen_studies.engine.run import check_cell, check_study, run_cells
from smidgen_studies.engine.study import read_study
from smidgen_studies.engine.workers.base import Workspace
from smidgen_studies.kinds import KINDS, find_kind, tuning
from smidgen_studies.methods.task_scores import score_task
from smidgen_studies.methods.tuning_methods import TuningMethod
from smidgen_studies.statistics import collect_outcomes, describe_verdicts
from tests.integration.test_cli import rows
from tests.support.inline_engine import InlineEngine
from tests.support.tiny import saved_encoder
from tests.support.tolerances import EXACT
from tests.unit.workflows.test_method import require_readable

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")

TEXT = """
title = "Letters"
[[data]]
name = "letters"
train = "train.tsv"
test = "test.tsv"
text = "sentence"
label = "verdict"
train_size = 60
validation_size = 40
test_size = 70
top_up = true
max_length = 12
[[cells]]
name = "constant"
kind = "constant"
[[cells]]
name = "map"
kind = "finetune"
base = "{encoder}"
epochs = 2
learning_rate = 0.01
[[cells]]
name = "laplace"
kind = "laplace"
needs = ["map"]
percents = [20, 50]
repeats = 1
most_stochastic = 0.5
[[cells]]
name = "dropout"
kind = "dropout"
needs = ["map"]
samples = 4
[[cells]]
name = "swag"
kind = "swag"
needs = ["map"]
scheme = "max-mlp"
fractions = [0.3]
rates = [0.01]
steps = 8
every = 2
trial_steps = 2
samples = 3
[[cells]]
name = "member"
kind = "finetune"
base = "{encoder}"
epochs = 1
learning_rate = 0.01
report = false
each = {{ member = [1] }}
[[cells]]
name = "ensemble"
kind = "ensemble"
needs = ["map", "member"]
[profiles.small]
seeds = [0]
"""
UCI = """
title = "Tables"
baseline = "map"
test_to_train = 0.33
[[data]]
name = "waves"
folder = "waves"
[[cells]]
name = "map"
kind = "uci-map"
epochs = 30
[[cells]]
name = "laplace"
kind = "uci-laplace"
needs = ["map"]
percents = [1, 10]
each = { by = ["magnitude", "variance", "random"] }
[[cells]]
name = "laplace-full"
kind = "uci-laplace"
structure = "diag"
needs = ["map"]
by = "magnitude"
percents = [100]
[[cells]]
name = "swag"
kind = "uci-swag"
needs = ["map"]
by = "magnitude"
percents = [5]
steps = 20
trial_steps = 10
samples = 8
[profiles.small]
seeds = [0, 1]
"""


def done(text, folder, data):
    path = folder / "study.toml"
    path.write_text(text)
    study, ledger = read_study(str(path)), Ledger(folder / "out")
    missing = check_study(study, ledger, data)
    engine = InlineEngine(Workspace(ledger.folder, data))
    finished = run_cells(missing, ledger, engine)
    assert not finished.failed, [ledger.failure(each)["trace"] for each in finished.failed]
    return study, ledger


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    root = tmp_path_factory.mktemp("letters")
    saved_encoder(root / "encoder")
    for seed, (name, count) in enumerate([("train", 160), ("test", 50)]):
        lines = {text: ("bad", "good")[label] for text, label in rows(count, seed)}
        written = [f"{text}\t{label}" for text, label in lines.items()]
        (root / f"{name}.tsv").write_text("sentence\tverdict\n" + "\n".join(written) + "\n")
    study, ledger = done(TEXT.format(encoder=root / "encoder"), root, root)
    return root, {cell.name: (cell, ledger.record(cell)) for cell in study.cells}, ledger


@pytest.fixture(scope="module")
def waves(tmp_path_factory):
    root = tmp_path_factory.mktemp("uci")
    folder = root / "waves"
    folder.mkdir()
    generator = np.random.default_rng(0)
    x = generator.normal(3.0, 2.0, (80, 3))
    y = np.sin(x[:, :1]) + generator.normal(0, 0.1, (80, 1))
    np.savetxt(folder / "data.txt", np.hstack([x, y]))
    np.savetxt(folder / "index_features.txt", [0, 1, 2])
    np.savetxt(folder / "index_target.txt", [3])
    for split in (0, 1):
        order = generator.permutation(80)
        np.savetxt(folder / f"index_train_{split}.txt", order[:60])
        np.savetxt(folder / f"index_test_{split}.txt", order[60:])
    study, ledger = done(UCI, root, root)
    return root, study, ledger


def methods(record):
    return {method["name"]: method for method in record.results["methods"]}


def job(cell, root, ledger, *, data=None, settings=None, **changes):
    cell = replace(cell, data=data or cell.data, settings=settings or cell.settings)
    given = {
        "data": cell.parsed_data,
        "seed": cell.seed,
        "settings": cell.parsed_settings,
        "root": root,
        "needs": tuple(ledger.finished(each) for each in cell.needs),
        "artifact": root / "artifact",
        "work": root,
    }
    return Job(**{**given, **changes})


def test_text_cells_report_every_method_once(letters):
    _, found, _ = letters
    names = [name for _, record in found.values() for name in _names(record)]
    assert len(names) == len(set(names))
    wanted = {"constant", "map", "temperature", "sparse-kfac", "last-layer", "full"}
    wanted |= {"dropout", "dropout-temperature", "ensemble", "ensemble-temperature"}
    assert wanted | {"swag-max-mlp", "max-mlp", "random", "best-budget"} <= set(names)
    for _, record in found.values():
        for method in record.results.get("methods", ()):
            assert {"nll", "accuracy", "ece_equal_mass"} <= set(method["scores"])
            require_readable(method["name"], method["label"])
    for name in ("dropout", "ensemble", "constant"):
        # Each beside itself alone: the baselines are in the record of the fine-tune.
        assert not found[name][1].results["differences"]
    assert "methods" not in found["member-1"][1].results
    swag = found["swag"][1].results
    assert {p["scheme"] for p in swag["ramp"]["points"]} == {"swag-max-mlp"}
    assert list(found["laplace"][1].results["ramp"]["chosen"])


def _names(record):
    return [method["name"] for method in record.results.get("methods", ())]


def test_rows_of_a_seed_are_apart_and_the_same_each_time(letters):
    root, found, ledger = letters
    cell = found["map"][0]
    drawn = draw(job(cell, root, ledger))
    assert (len(drawn.train), len(drawn.validation), len(drawn.test)) == (60, 40, 70)
    assert not set(drawn.train.texts) & set(drawn.validation.texts)
    assert drawn == draw(job(cell, root, ledger))
    other = draw(job(cell, root, ledger, seed=1))
    assert drawn.train != other.train
    # No seed chooses by what another is tested on.
    assert drawn.test == other.test
    assert not set(drawn.test.texts[-10:]) & {*other.train.texts, *other.validation.texts}
    test = set((root / "test.tsv").read_text().split("\n"))
    topped = [text for text in drawn.test.texts if not any(text in each for each in test)]
    assert not set(topped) & (set(drawn.train.texts) | set(drawn.validation.texts))
    header, *lines = (root / "train.tsv").read_text().splitlines()
    thrice = "\n".join([header, *(line for line in lines for _ in range(3))])
    (root / "thrice.tsv").write_text(thrice)
    told = {**cell.data, "train": "thrice.tsv"}
    with pytest.warns(SmidgenWarning, match="rows of thrice.tsv have the same first text"):
        assert draw(job(cell, root, ledger, data=told)).train == drawn.train
    with pytest.raises(DataError, match="Lower train_size"):
        draw(job(cell, root, ledger, data={**cell.data, "train_size": 1000}))
    with pytest.raises(ArgumentError, match="--data FOLDER"):
        draw(replace(job(cell, root, ledger), root=None))


def test_class_numbers_of_a_study_have_no_gaps(letters, tmp_path):
    root, found, ledger = letters
    lines = [f"a {i}\t{1 + i % 5}" for i in range(120)]
    stars = tmp_path / "stars.tsv"
    stars.write_text("sentence\tverdict\n" + "\n".join(lines) + "\n")
    cell = found["map"][0]
    data = {**cell.data, "train": str(stars), "test": str(stars)}
    with pytest.raises(DataError, match="got none of class 0 and some of 1, 2, 3, 4, 5"):
        draw(job(cell, root, ledger, data=data))


def test_the_ensemble_is_the_average_of_its_members(letters):
    root, found, ledger = letters
    cell, record = found["ensemble"]
    given = job(cell, root, ledger)
    data, probs = draw(given), []
    assert len(given.needs) == 2
    for member in given.needs:
        model, tokenizer = load_classifier(member.artifact)
        logits, targets = point_outputs(model, data.loaders(tokenizer)["test"])
        probs.append(logits.softmax(-1))
    mean = torch.stack(probs).mean(0)
    loss = evaluate.nll(CategoricalPredictive(mean.log(), mean.log()), targets).mean()
    own = methods(record)
    value = own["ensemble"]["scores"]["nll"]["value"]
    assert math.isclose(value, float(loss), rel_tol=EXACT["rtol"])
    better, plain = own["ensemble-temperature"], own["ensemble"]
    assert better["validation_nll"] <= plain["validation_nll"]


def test_the_constant_predictor_knows_the_classes_shares(letters):
    root, found, ledger = letters
    cell, record = found["constant"]
    data = draw(job(cell, root, ledger))
    share = sum(data.train.labels) / len(data.train)
    losses = [-math.log(share if label else 1 - share) for label in data.test.labels]
    value = methods(record)["constant"]["scores"]["nll"]["value"]
    assert math.isclose(value, sum(losses) / len(losses), rel_tol=EXACT["rtol"])


def test_dropout_differs_from_pass_to_pass_and_leaves_the_model(letters, unchanged):
    root, found, ledger = letters
    given = job(found["dropout"][0], root, ledger)
    model, tokenizer = load_classifier(given.needs[0].artifact)
    loader = list(draw(given).loaders(tokenizer)["test"])
    with unchanged(model):
        outputs = dropout_outputs(model, loader, samples=3, seed=5)
        again = dropout_outputs(model, loader, samples=3, seed=5)
    torch.testing.assert_close(outputs, again)
    assert not torch.equal(outputs[0], outputs[1])
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    with pytest.raises(ArgumentError, match="dropout layers"):
        dropout_outputs(model, loader)


def test_regressions_report_levels_and_what_validation_chose(waves):
    _, study, ledger = waves
    for cell in study.cells:
        record = ledger.record(cell)
        (method,) = record.results["methods"]
        levels = record.results["levels"]
        best = min(levels, key=lambda each: each["validation_nll"])
        assert method["level"] == best["level"]
        assert method["scores"] == best["scores"]
        assert all(each["noise"] > 0 for each in levels)
    names = {_names(ledger.record(cell))[0] for cell in study.cells}
    by = ("magnitude", "variance", "random", "full")
    assert names == {"map", "swag-magnitude", *(f"laplace-{each}" for each in by)}
    assert {ledger.record(cell).config["test_to_train"] for cell in study.cells} == {0.33}


def test_tables_are_standardised_by_training_rows_alone(waves):
    root, study, ledger = waves
    tables = read_tables(job(study.cells[0], root, ledger))
    assert [len(each[0]) for each in (tables.train, tables.validation, tables.test)] == [
        54,
        6,
        20,
    ]
    for each in tables.train:
        torch.testing.assert_close(each.mean(0), torch.zeros_like(each[0]), **EXACT)
        torch.testing.assert_close(
            each.std(0, correction=0), torch.ones_like(each[0]), **EXACT
        )
    with pytest.raises(DataError, match="Check --data"):
        read_tables(job(study.cells[0], root, ledger, seed=7))


def test_the_noise_of_the_point_estimate_is_that_of_validation_data(waves):
    root, study, ledger = waves
    cell = study.cells[0]
    tables = read_tables(job(cell, root, ledger))
    weights = load_file(ledger.artifact(cell) / "model.safetensors")
    hidden = tables.validation[0]
    for layer in (0, 2, 4):
        hidden = hidden @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        hidden = torch.nn.functional.leaky_relu(hidden) if layer < 4 else hidden
    noise = float((hidden - tables.validation[1]).square().mean())
    found = ledger.record(cell).results["levels"][0]["noise"]
    assert math.isclose(found, noise, rel_tol=EXACT["rtol"])


def test_every_record_has_a_page_and_the_study_has_one(letters, waves, capsys):
    for root, _, ledger in (letters, waves):
        for path in (ledger.folder / "records").glob("*.json"):
            if Record.load(path).results.get("methods"):
                assert "<h1>" in render(Record.load(path))
        words = ["study", "report", str(root / "study.toml"), "--out", str(ledger.folder)]
        with pytest.raises(SystemExit) as left:
            main(words)
        said = capsys.readouterr()
        assert left.value.code == 0, said.err
        assert "the lowest mean NLL" in " ".join(said.out.split())
        assert "What we found" in (ledger.folder / "study.html").read_text()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("recipe", {}), ("weight-samples", {"examples": 20, "draws": 2, "test_draws": 3})],
)
def test_kinds_of_single_questions_report_the_methods_they_name(letters, kind, settings):
    root, found, ledger = letters
    base = found["map"][0]
    cell = replace(base, name=kind, kind=kind, settings=settings, needs=(base,))
    results = find_kind(kind).run(job(cell, root, ledger))
    reported = [method["name"] for method in results["methods"]]
    assert sorted(reported) == sorted(cell.reported_methods)
    assert all(math.isfinite(each["scores"]["nll"]["value"]) for each in results["methods"])


def test_every_kind_refuses_settings_it_does_not_have(letters):
    cell = letters[1]["map"][0]
    for name in KINDS:
        strange = type(cell)("x", name, {}, 0, {"strange": 1})
        with pytest.raises(ArgumentError, match="no setting 'strange'"):
            check_cell(strange)
    text = dict(cell.data)
    strange = {**text, "train_sise": 3}
    with pytest.raises(ArgumentError, match="data 'letters'.*no setting 'train_sise'"):
        check_cell(replace(cell, data=strange))
    both = {**text, "validation": "validation.tsv", "validation_size": 10}
    with pytest.raises(ArgumentError, match="validation_size is for rows drawn from"):
        check_cell(replace(cell, data=both))
    with pytest.raises(ArgumentError, match="kind must be one of"):
        check_cell(type(cell)("x", "no-such-kind", {}, 0))


TUNING = """
title = "Which letters"
baseline = "bayestune"
pairwise = "bayestune"
[[data]]
name = "letters"
train = "train.tsv"
test = "test.tsv"
text = "sentence"
label = "verdict"
metric = "matthews"
train_size = 40
validation_size = 30
test_size = 60
top_up = true
shuffle_test = 0
batch_size = 8
max_length = 12
[[data]]
name = "numbers"
train = "numbers-train.tsv"
test = "numbers-test.tsv"
text = "sentence"
label = "score"
numbers = true
metric = "pearson"
train_size = 40
validation_size = 30
shuffle_test = 0
batch_size = 8
max_length = 12
[[cells]]
name = "trial"
kind = "tuning"
seed = 0
method = "full"
base = "{encoder}"
report = false
epochs = 1
each = {{ learning_rate = [1e-3, 1e-2] }}
[[cells]]
name = "trial-longer"
kind = "tuning"
seed = 0
method = "lora-longer"
base = "{encoder}"
report = false
rank = 2
each = {{ learning_rate = [1e-3, 1e-2] }}
[[cells]]
name = "constant"
kind = "tuning"
method = "constant"
[[cells]]
name = "full"
kind = "tuning"
method = "full"
base = "{encoder}"
needs = ["trial"]
[[cells]]
name = "full-longer"
kind = "tuning"
method = "full-longer"
base = "{encoder}"
needs = ["trial"]
[[cells]]
name = "lora-longer"
kind = "tuning"
method = "lora-longer"
base = "{encoder}"
rank = 2
needs = ["trial-longer"]
[[cells]]
name = "plain"
kind = "tuning"
base = "{encoder}"
fraction = 0.1
rank = 2
learning_rate = 0.01
each = {{ method = ["lora", "bitfit", "head", "random", "magnitude", "gradient"] }}
[[cells]]
name = "chain"
kind = "scales"
base = "{encoder}"
fraction = 0.1
samples = 2
[[cells]]
name = "published-chain"
kind = "scales"
base = "{encoder}"
fraction = 0.1
samples = 2
update = "published"
[[cells]]
name = "chosen"
kind = "tuning"
base = "{encoder}"
fraction = 0.1
learning_rate = 0.01
needs = ["chain"]
each = {{ method = ["bayestune", "displacement"] }}
[[cells]]
name = "published"
kind = "tuning"
method = "published"
base = "{encoder}"
fraction = 0.1
learning_rate = 0.01
needs = ["published-chain"]
[profiles.small]
seeds = [1, 2]
"""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    root = tmp_path_factory.mktemp("tuned")
    saved_encoder(root / "encoder")
    for seed, (name, count) in enumerate([("train", 160), ("test", 50)]):
        lines = dict(rows(count, seed))
        verdicts = [f"{text}\t{('bad', 'good')[label]}" for text, label in lines.items()]
        scores = [f"{t}\t{t.count('a') - t.count('b') / 2 + 0.5}" for t in lines]
        for file, heading, some in (
            (name, "verdict", verdicts),
            (f"numbers-{name}", "score", scores),
        ):
            text = f"sentence\t{heading}\n" + "\n".join(some) + "\n"
            (root / f"{file}.tsv").write_text(text)
    study, ledger = done(TUNING.format(encoder=root / "encoder"), root, root)
    return root, study, ledger


def test_every_way_of_tuning_is_scored_on_the_same_rows(tuned):
    root, study, ledger = tuned
    by_place = {}
    for cell in study.cells:
        results = ledger.record(cell).results
        if "methods" in results:
            (method,) = results["methods"]
            place = (cell.data["name"], cell.seed)
            by_place.setdefault(place, {})[method["name"]] = (cell, results)
    assert len(by_place) == 4
    for (name, _), found in by_place.items():
        assert set(found) == set(get_args(TuningMethod))
        assert len({tuple(results["targets"]) for _, results in found.values()}) == 1
        cell, results = found["full"]
        assert results["targets"] == [
            pytest.approx(each, abs=5e-4)
            for each in draw(job(cell, root, ledger)).test.labels
        ]
        scores = found["constant"][1]["methods"][0]["scores"]
        assert scores["metric"]["value"] == 0
        for method, (_, results) in found.items():
            noted = {k: v["value"] for k, v in results["methods"][0]["scores"].items()}
            values = torch.tensor(results["outputs"], dtype=torch.float64)
            targets = torch.tensor(results["targets"], dtype=torch.float64)
            metric = "pearson" if name == "numbers" else "matthews"
            assert noted == score_task(metric, values, targets, results["noise"]), method
        sizes = {name: results["trained"] for name, (_, results) in found.items()}
        chosen = ("random", "magnitude", "gradient", "displacement", "bayestune")
        assert len({sizes[each] for each in chosen}) == 1
        assert sizes["head"] < sizes["random"] < sizes["full"]
        seconds = found["bayestune"][1]["cpu_seconds"]
        (chain,) = [each for each in found["bayestune"][0].needs if each.name == "chain"]
        assert seconds["choosing"] == ledger.record(chain).results["cpu_seconds"]


def test_rates_come_from_trials_that_score_no_test_row(tuned):
    _, study, ledger = tuned
    trials = [cell for cell in study.cells if cell.name.startswith("trial")]
    assert {cell.seed for cell in trials} == {0}
    assert len(trials) == 8
    for trial in trials:
        assert not {"methods", "outputs"} & set(ledger.record(trial).results)
    for cell in study.cells:
        if cell.name in ("full", "full-longer", "lora-longer"):
            results = ledger.record(cell).results
            nll = {
                need.settings["learning_rate"]: ledger.record(need).results["trial"][
                    "validation_nll"
                ]
                for need in cell.needs
            }
            choice = results["choice"]
            assert choice["values"] == {"learning_rate": min(nll, key=nll.get)}
            assert choice["at_edge"] == ["learning_rate"]
            assert choice["tried"] == {"learning_rate": sorted(nll)}


def test_tuning_says_what_it_is_missing(tuned):
    root, study, ledger = tuned
    cell = next(cell for cell in study.cells if cell.name == "chosen-bayestune")
    bare = {"method": "bayestune", "base": str(root / "encoder")}
    with pytest.raises(ArgumentError, match="must have a learning_rate"):
        tuning.run(job(cell, root, ledger, settings=bare))
    rated = {**bare, "learning_rate": 0.01}
    with pytest.raises(ArgumentError, match="fraction must be that of the cell 'chain'"):
        tuning.run(job(cell, root, ledger, settings=rated))
    with pytest.raises(ArgumentError, match="kind 'scales'"):
        tuning.run(job(cell, root, ledger, settings=rated, needs=()))
    with pytest.raises(ArgumentError, match="method of cells '.*' must be one of"):
        tuning.run(job(cell, root, ledger, settings={"method": "everything"}))


def test_test_rows_are_shuffled_once_for_all_seeds_and_numbers_standardised(tuned):
    root, study, ledger = tuned
    cells = [cell for cell in study.cells if cell.name == "full"]
    by_name = {}
    for cell in cells:
        by_name.setdefault(cell.data["name"], []).append(draw(job(cell, root, ledger)))
    first, second = by_name["numbers"]
    assert first.test.texts == second.test.texts
    lines = (root / "numbers-test.tsv").read_text().splitlines()[1:]
    in_order = [line.split("\t")[0] for line in lines]
    assert list(first.test.texts) != in_order
    assert sorted(first.test.texts) == sorted(in_order)
    labels = torch.tensor(first.train.labels, dtype=torch.float64)
    torch.testing.assert_close(labels.mean(), torch.zeros_like(labels[0]), **EXACT)
    torch.testing.assert_close(labels.std(), torch.ones_like(labels[0]), **EXACT)
    # Where the file is too short, its rows come first and those of a seed's own after.
    left, right = (set(each.test.texts[:40]) for each in by_name["letters"])
    assert left == right


def test_a_study_of_tunings_has_a_page_and_tables(tuned, capsys, monkeypatch):
    root, study, ledger = tuned
    words = ["study", "report", str(root / "study.toml"), "--out", str(ledger.folder)]
    with pytest.raises(SystemExit) as left:
        main(words)
    said = " ".join(capsys.readouterr().out.split())
    assert left.value.code == 0
    found = collect_outcomes(ledger.record(cell) for cell in study.cells)
    for line in describe_verdicts(found):
        assert " ".join(line.split()) in said
    page = (ledger.folder / "study.html").read_text()
    for words in ("own score", "Chains over the weights", "Trials on validation data"):
        assert words in page
    chains = [cell for cell in study.cells if cell.kind == "scales"]
    for cell in chains:
        assert f"{cell.name}, seed {cell.seed}" in page
    monkeypatch.setattr(tuning_tables, "outcomes", lambda: found)
    for table in (tuning_tables.scores_table, tuning_tables.gaps_table):
        assert all(
            label_method(name, "tuning").replace("|", r"\|") in table()
            for name in get_args(TuningMethod)
            if name != "bayestune"
        )
    assert "0.001, 0.01" in tuning_tables.rates_table()
    assert tuning_tables.verdict_list().count("\n- ") == len(get_args(TuningMethod)) - 1


def test_mixed_precision_trains_an_fp32_model(letters):
    root, found, ledger = letters
    cell = found["map"][0]
    data = draw(job(cell, root, ledger, data={**cell.data, "bf16": True}))
    model, tokenizer = load_classifier(root / "encoder", labels=2, seed=0)
    batch = next(iter(data.shuffled(tokenizer, 0)))
    with torch.no_grad():
        plain, mixed = model_outputs(model, batch), data.forward(model, batch)
    assert mixed.dtype == torch.bfloat16
    assert 0 < float((plain - mixed).abs().max()) < 0.05
    tuned = fit.finetune(
        Problem(model, forward=data.forward),
        data.shuffled(tokenizer, 0),
        validation=data.loaders(tokenizer)["validation"],
        progress=False,
        settings=fit.FinetuneSettings(epochs=1),
    )
    assert {each.dtype for each in tuned.model.parameters()} == {torch.float32}
    assert draw(job(cell, root, ledger)).forward is model_outputs
