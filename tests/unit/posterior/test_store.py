"""Saved posteriors come back equal; damaged, foreign or half-written ones are refused."""

from __future__ import annotations

import copy
import json
import os
import shutil
from dataclasses import replace

import pytest
import torch

import smidgen
from smidgen.curvature.operators import STRUCTURES
from smidgen.errors import DataError, StoreError
from smidgen.runtime.artifact import fill_folder
from smidgen.runtime.reading import read_safetensors
from smidgen.runtime.record import Record
from tests.support.cases import Case, OneBlock, bert, padded_tokens
from tests.support.tolerances import EXACT


@pytest.fixture
def fitted(tmp_path):
    model, batch = Case("one-block", OneBlock, 2, padded_tokens).make()
    subset = smidgen.select.sparse_kfac(model, percent=40)
    posterior = smidgen.fit.laplace(model, [batch], subset, precision=0.7)
    smidgen.save(posterior.with_temperature(1.3), tmp_path / "saved")
    return posterior.with_temperature(1.3), model, batch, tmp_path / "saved"


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_posterior_comes_back_equal(case, structure, tmp_path):
    model, batch = case.make()
    problem = case.problem(model)
    subset = smidgen.select.sparse_kfac(model, percent=40)
    posterior = smidgen.fit.laplace(problem, [batch], subset, structure=structure)
    posterior = smidgen.calibrate(posterior, problem, [batch])
    smidgen.save(posterior, tmp_path / "saved")
    loaded = smidgen.load(tmp_path / "saved", model)
    assert loaded == posterior
    assert loaded != posterior.with_precision(77.0)
    assert repr(loaded) == repr(posterior)
    before = smidgen.predict(posterior, problem, batch).to_dict()
    after = smidgen.predict(loaded, problem, batch).to_dict()
    for name, values in before.items():
        torch.testing.assert_close(torch.tensor(after[name]), torch.tensor(values), **EXACT)


def test_the_folder_holds_three_files_and_no_pickle(fitted):
    _, _, _, folder = fitted
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "config.json",
        "posterior.safetensors",
    ]
    card = (folder / "README.md").read_text()
    assert "library_name: smidgen" in card


def test_another_model_is_refused(fitted):
    _, model, _, folder = fitted
    with torch.no_grad():
        model.classifier.bias[0] += 1e-6
    with pytest.raises(StoreError, match="was fitted to another model"):
        smidgen.load(folder, model)
    with pytest.raises(StoreError, match="was fitted to another model"):
        smidgen.load(folder, bert(2))


def truncate(folder):
    path = folder / "posterior.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def edit(folder):
    path = folder / "posterior.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


def rewrite(change):
    """An edit with the right digest: everything is checked on its own besides."""

    def edit_and_seal(folder):
        path = folder / "posterior.safetensors"
        tensors, config = (
            read_safetensors(path)[0],
            json.loads((folder / "config.json").read_text()),
        )
        del config["digest"], config["tensors"]
        change(tensors, config)
        fill_folder(folder / "config.json", path, config, tensors)

    return edit_and_seal


def reshape(tensors, config):
    key = next(k for k in tensors if k.startswith("row_values/"))
    tensors[key] = torch.cat([tensors[key], tensors[key]])


def shrink(tensors, config):
    key = next(k for k in tensors if k.startswith("row_values/"))
    tensors[key] = tensors[key][:1].clone()


def out_of_bounds(tensors, config):
    key = next(k for k in tensors if k.startswith("rows/"))
    tensors[key] = tensors[key] + 1000


def set_value(part, value):
    def edit_tensor(tensors, config):
        key = next(k for k in tensors if k.startswith(f"{part}/"))
        tensors[key].view(-1)[0] = value

    return edit_tensor


def drop(tensors, config):
    del tensors[next(k for k in tensors if k.startswith("row_values/"))]


def add(tensors, config):
    tensors["more"] = torch.ones(1)


def change(**entries):
    return lambda tensors, config: config.update(entries)


def edit_config(**entries):
    def edit_text(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **entries}))

    return edit_text


def forget_digest(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["digest"]
    (folder / "config.json").write_text(json.dumps(config))


def write_config(text):
    return lambda folder: (folder / "config.json").write_text(text)


def become_fifo(folder):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def leave_folder(folder):
    outside = folder.parent / "outside.json"
    os.rename(folder / "config.json", outside)
    (folder / "config.json").symlink_to(outside)


def lose(name):
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "is not where its header says"),
        (edit, "was damaged or edited"),
        (edit_config(temperature=1.31), "was damaged or edited"),
        (forget_digest, "an earlier version of smidgen wrote it. Save the posterior again"),
        (write_config("[" * 100_000), "nested more than 64 deep"),
        (write_config('{"schema": NaN}'), "holds the number NaN"),
        (write_config('{"schema": 1e999}'), "beyond all floats"),
        (write_config('{"schema": 3, "schema": 3}'), "says 'schema' twice"),
        (write_config("3"), "must be a JSON object"),
        (become_fifo, "is not a regular file"),
        (leave_folder, "a link that leaves its folder"),
        (rewrite(reshape), r"row_(values|vectors)/.* must have shape"),
        (rewrite(shrink), r"row_(values|vectors)/.* must have shape"),
        (rewrite(drop), r"the tensor 'row_values/.*' is missing"),
        (rewrite(add), "the tensor 'more' belongs to nothing"),
        (rewrite(set_value("row_vectors", torch.nan)), "holds NaN or infinity"),
        (rewrite(set_value("row_values", -1.0)), "must be 0 or more"),
        (rewrite(out_of_bounds), r"must be in \[0,"),
        (rewrite(change(schema=99)), "has posterior schema 99"),
        (rewrite(change(method=["laplace"])), "'method' must be one of"),
        (rewrite(change(method="odd")), "'method' must be one of"),
        (rewrite(change(likelihood="abc")), "likelihood must not be 'abc'"),
        (rewrite(change(likelihood={"kind": "odd"})), "likelihood must be one of"),
        (rewrite(change(likelihood={"kind": ["odd"]})), "likelihood must be one of"),
        (rewrite(change(fingerprint=3)), "fingerprint must not be '3'"),
        (rewrite(change(precision=-1.0)), "precision must be > 0"),
        (rewrite(change(temperature=0.0)), "temperature must be > 0"),
        (rewrite(change(temperature="1.3")), "temperature must not be '1.3'"),
        (rewrite(change(num_data=-1)), "'num_data' must be 0 or more"),
        (rewrite(change(structure="foo")), "structure must be one of"),
        (rewrite(change(structure="diag")), "the tensor 'moments/.*' is missing"),
        (rewrite(change(extra=1)), "'extra' is unknown"),
        (rewrite(change(subset={})), "universe must not be"),
        (
            rewrite(change(subset={"universe": {"a": [-2]}, "parts": {"a": "whole"}})),
            "shapes of whole numbers",
        ),
        (lose("config.json"), "is not a saved posterior.*no 'config.json'"),
        (lose("posterior.safetensors"), "no 'posterior.safetensors'"),
        (shutil.rmtree, "path must be a folder that exists, got '.*Check the spelling"),
    ],
)
def test_damage_is_found(fitted, damage, message):
    _, model, _, folder = fitted
    damage(folder)
    with pytest.raises(StoreError, match=message) as refused:
        smidgen.load(folder, model)
    said = str(refused.value)
    assert "saved" in said
    assert "\n" not in said
    assert said.endswith(".")


def test_what_load_would_refuse_is_not_saved(fitted, tmp_path):
    posterior, *_ = fitted
    name, operator = next(iter(posterior.operators.items()))
    infinite = replace(operator, row_values=operator.row_values / 0)
    damaged = replace(posterior, operators={**posterior.operators, name: infinite})
    with pytest.raises(
        StoreError, match=r"cannot be saved: row_values/.* holds NaN or inf"
    ):
        smidgen.save(damaged, tmp_path / "new")
    assert os.listdir(tmp_path) == ["saved"]


@pytest.mark.parametrize("name", ["é" * 200, "\ud800"])
def test_names_that_no_file_can_have_are_one_sentence(fitted, tmp_path, name):
    posterior, model, batch, _ = fitted
    unwritable = "cannot be written: (file name too long|a name holds no half)"
    for thing in (posterior, posterior.subset):
        with pytest.raises(StoreError, match=unwritable):
            smidgen.save(thing, tmp_path / name)
    with pytest.raises(StoreError, match="(name too long|no file can have that name)"):
        smidgen.load(tmp_path / name, model)
    with pytest.raises(StoreError, match="^checkpoint must"):
        smidgen.fit.finetune(model, [batch], checkpoint=tmp_path / name, progress=False)
    assert os.listdir(tmp_path) == ["saved"]


@pytest.mark.filterwarnings("ignore:of 5,000,000 classes:smidgen.errors.SmidgenWarning")
def test_a_forged_width_is_refused_before_anything_of_its_size_is_made(fitted):
    _, model, batch, folder = fitted

    def widen(tensors, config):
        config["likelihood"]["outputs"] = 5_000_000

    rewrite(widen)(folder)
    forged = smidgen.load(folder, model)
    for link in ("auto", "sampling", "diagonal-probit"):
        with pytest.raises(DataError, match=r"outputs must have shape \(batch, 5000000\)"):
            smidgen.predict(forged, model, batch, link=link)
    with pytest.raises(DataError, match=r"outputs must have shape \(batch, 5000000\)"):
        smidgen.calibrate(forged, model, [batch], progress=False)


def test_nothing_is_overwritten_unless_told(fitted, tmp_path):
    posterior, model, _, folder = fitted
    before = (folder / "config.json").read_text()
    with pytest.raises(StoreError, match="exists already"):
        smidgen.save(posterior.with_precision(9.0), folder)
    assert (folder / "config.json").read_text() == before
    smidgen.save(posterior.with_precision(9.0), folder, overwrite=True)
    assert smidgen.load(folder, model).precision == 9.0
    other = tmp_path / "notes"
    other.mkdir()
    (other / "diary.txt").write_text("mine")
    with pytest.raises(StoreError, match="holds 'diary.txt'"):
        smidgen.save(posterior, other, overwrite=True)
    (folder / "notes.md").write_text("mine too")
    with pytest.raises(StoreError, match="holds 'notes.md'"):
        smidgen.save(posterior, folder, overwrite=True)
    assert (other / "diary.txt").read_text() == "mine"
    assert (folder / "notes.md").read_text() == "mine too"


def test_records_come_back_equal_and_refuse_what_json_cannot_hold(tmp_path):
    record = Record("demo", {"percent": 10}, {"nll": 0.25}, seed=3)
    path = record.save(tmp_path / "deep" / "record.json")
    assert Record.load(path) == record
    assert record.versions["torch"]
    assert len(record.versions["source"]) == 12
    assert record.machine["cores"] >= 1
    with pytest.raises(StoreError, match="JSON cannot"):
        Record("demo", {}, {"nll": float("nan")}).save(path)
    assert Record.load(path) == record
    path.write_text(path.read_text().replace("0.25", "0.26"))
    with pytest.raises(StoreError, match="is not a smidgen record.*damaged or edited"):
        Record.load(path)
    path.write_text("{}")
    with pytest.raises(StoreError, match="is not a smidgen record.*no digest"):
        Record.load(path)
    with pytest.raises(
        StoreError, match=r"missing.json is not a smidgen record.*there is no"
    ):
        Record.load(tmp_path / "missing.json")


@pytest.mark.parametrize("structure", ["kron", "full"])
def test_posteriors_are_copied_pickled_and_saved_with_whole_numbers(tmp_path, structure):
    model, batch = Case("one-block", OneBlock, 2, padded_tokens).make()
    posterior = smidgen.fit.laplace(
        model, [batch], smidgen.select.last_layer(model), structure=structure, precision=1
    ).with_temperature(2)
    assert smidgen.load(smidgen.save(posterior, tmp_path / "p"), model) == posterior
    assert copy.deepcopy(posterior) == posterior
    several = posterior.with_precision(dict.fromkeys(posterior.operators, 3))
    assert copy.deepcopy(several) == several
    assert smidgen.load(smidgen.save(several, tmp_path / "q"), model) == several
