"""Saved posteriors come back equal; damaged, foreign or half-written ones are refused."""

from __future__ import annotations

import copy
import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import smidgen
from smidgen.curvature.operators import STRUCTURES
from smidgen.errors import StoreError
from smidgen.runtime.files import hash_file
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


def reshape(folder):
    """An edit that keeps the file's hash right: shapes are checked on their own."""
    path = folder / "posterior.safetensors"
    tensors = load_file(path)
    key = next(k for k in tensors if k.startswith("row_values/"))
    tensors[key] = torch.cat([tensors[key], tensors[key]])
    save_file(tensors, path)
    rehash(folder)


def out_of_bounds(folder):
    path = folder / "posterior.safetensors"
    tensors = load_file(path)
    key = next(k for k in tensors if k.startswith("rows/"))
    tensors[key] = tensors[key] + 1000
    save_file(tensors, path)
    rehash(folder)


def rehash(folder):
    config = json.loads((folder / "config.json").read_text())
    config["tensors_sha256"] = hash_file(folder / "posterior.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def old_schema(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "schema": 99}))


def change(**entries):
    def edit_config(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **entries}))

    return edit_config


def lose(name):
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "was truncated or edited"),
        (edit, "was truncated or edited"),
        (reshape, r"row_values/.* must have shape"),
        (out_of_bounds, r"must be in \[0,"),
        (old_schema, "has posterior schema 99"),
        (change(likelihood="abc"), "must have 'likelihood' of type dict"),
        (change(likelihood={"kind": "odd", "outputs": 2}), "was edited or is incomplete"),
        (change(fingerprint=3), "must have 'fingerprint' of type str"),
        (change(precision=-1.0), "precision must be > 0"),
        (change(structure="foo"), "was edited or is incomplete: KeyError"),
        (change(structure="diag"), r"moments/.* must have shape"),
        (lose("config.json"), "is not a saved posterior"),
        (lose("posterior.safetensors"), "cannot be read"),
        (shutil.rmtree, "is not a saved posterior"),
    ],
)
def test_damage_is_found(fitted, damage, message):
    _, model, _, folder = fitted
    damage(folder)
    with pytest.raises(StoreError, match=message):
        smidgen.load(folder, model)


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


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2])
def test_an_interrupt_at_any_rename_keeps_the_old_or_the_new(
    fitted, tmp_path, monkeypatch, when, nth
):
    posterior, model, _, folder = fitted
    original, calls = os.rename, []

    def interrupting(*args):
        calls.append(args)
        if len(calls) == nth and when == "before":
            raise KeyboardInterrupt
        original(*args)
        if len(calls) == nth:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupting)
    with pytest.raises(KeyboardInterrupt):
        smidgen.save(posterior.with_precision(9.0), folder, overwrite=True)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]
    done = (nth, when) == (2, "after")
    assert smidgen.load(folder, model).precision == (9.0 if done else 0.7)


@pytest.mark.parametrize("step", ["save_file", "json.dumps", "os.rename"])
@pytest.mark.parametrize("existing", [False, True])
def test_an_interrupted_save_leaves_no_half(fitted, tmp_path, monkeypatch, step, existing):
    posterior, model, _, folder = fitted
    target = folder if existing else tmp_path / "new"

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    if step == "os.rename":
        calls = []
        original = os.rename

        def second_fails(*args):
            calls.append(args)
            if len(calls) == (2 if existing else 1):
                raise KeyboardInterrupt
            original(*args)

        monkeypatch.setattr(os, "rename", second_fails)
    else:
        monkeypatch.setattr(f"smidgen.posterior.store.{step}", interrupted)
    with pytest.raises(KeyboardInterrupt):
        smidgen.save(posterior.with_precision(9.0), target, overwrite=True)
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["saved"]
    assert smidgen.load(folder, model).precision == 0.7


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
    path.write_text("{}")
    with pytest.raises(StoreError, match="is not a smidgen record.*schema"):
        Record.load(path)
    with pytest.raises(
        StoreError, match=r"missing.json must be a record, got no such file"
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
