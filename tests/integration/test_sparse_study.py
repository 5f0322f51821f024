"""The cells of the SSVI study on tiny images: trials choose, the rest report."""

from __future__ import annotations

import gzip
import shutil

import numpy as np
import pytest
from docs.build import ssvi_tables

from smidgen.cli import main
from smidgen.errors import ArgumentError, DataError
from smidgen.report.many_records.aggregate import gather
from smidgen.report.many_records.trials import (
    describe_edges,
    describe_trial,
    lay_out_trials,
)
from smidgen_studies.data.images import read_images
from smidgen_studies.engine.study import read_study
from smidgen_studies.kinds import sparse_training
from tests.integration.test_study_kinds import done, job, methods
from tests.support.tolerances import EXACT, SINGLE

STUDY = """
title = "Squares"
baseline = "dense-vi"
[[data]]
name = "Fashion-MNIST"
train = "squares/train-images-idx3-ubyte.gz"
test = "squares/t10k-images-idx3-ubyte.gz"
outside = { noise = "noise/t10k-images-idx3-ubyte.gz" }
validation_size = 60
test_size = 50
[[cells]]
name = "rate"
kind = "sparse-training"
seed = 0
report = false
density = 0.2
temperature = 0.1
scale = 0.1
hidden = [16]
epochs = 2
batch = 20
every = 4
samples = 4
each = { learning_rate = [1e-4, 1e-2, 1e30] }
[[cells]]
name = "grid"
kind = "sparse-training"
needs = ["rate"]
seed = 0
report = false
density = 0.2
hidden = [16]
epochs = 2
batch = 20
every = 4
samples = 4
images = 100
each = { scale = [0.01, 0.1], temperature = [1.0, 0.1] }
[[cells]]
name = "ssvi"
kind = "sparse-training"
needs = ["grid"]
density = 0.2
hidden = [16]
epochs = 2
batch = 20
every = 4
samples = 4
[[cells]]
name = "removal"
kind = "sparse-training"
needs = ["grid"]
density = 0.2
hidden = [16]
epochs = 2
batch = 20
every = 4
samples = 4
scaled = false
each = { removal = ["magnitude", "exponential"] }
[[cells]]
name = "dense-vi"
kind = "sparse-training"
learning_rate = 0.003
hidden = [16]
epochs = 2
batch = 20
samples = 4
pruned = [0.2]
[[cells]]
name = "sparse"
kind = "sparse-training"
deterministic = true
density = 0.2
budget = "uniform"
network = "resnet"
width = 2
epochs = 1
batch = 50
[profiles.small]
seeds = [1, 2]
"""


def write_images(folder, name, count, seed, *, noise=False, side=8):
    """A bright row says the class; three classes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, count)
    images = generator.integers(0, 120, (count, side, side))
    if not noise:
        images[np.arange(count), 2 * labels] += 100
    folder.mkdir(exist_ok=True)
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        axes = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
        head = bytes([0, 0, 8, array.ndim]) + axes
        with gzip.open(folder / f"{name}-{kind}-ubyte.gz", "wb") as file:
            file.write(head + array.astype(np.uint8).tobytes())


@pytest.fixture(scope="module")
def squares(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    write_images(root / "squares", "train", 200, 0)
    write_images(root / "squares", "t10k", 60, 1)
    write_images(root / "noise", "t10k", 60, 2, noise=True)
    study, ledger = done(STUDY, root, root)
    found = {(cell.name, cell.seed): (cell, ledger.record(cell)) for cell in study.cells}
    return root, found, ledger


def trials(found, template):
    return [r.results for (name, _), (_, r) in found.items() if name.startswith(template)]


def test_trials_never_score_test_data(squares, tmp_path):
    """Test images of another size can be read, but no network here could score them."""
    root, found, ledger = squares
    cell, record = found["grid-0.1-1.0", 0]
    assert {"trial", "choice", "training", "notes"} == set(record.results)
    shutil.copytree(root / "squares", tmp_path / "squares")
    shutil.copytree(root / "noise", tmp_path / "noise")
    write_images(tmp_path / "squares", "t10k", 55, 9, side=10)
    again = sparse_training.run(job(cell, tmp_path, ledger, work=tmp_path / "again"))
    assert again["trial"]["validation_nll"] > 0
    reported = {**cell.settings, "report": True}
    given = job(cell, tmp_path, ledger, work=tmp_path / "third", settings=reported)
    with pytest.raises(RuntimeError, match="shape"):
        sparse_training.run(given)


def test_a_cell_takes_what_the_best_trial_had(squares):
    _, found, _ = squares
    rates = {
        t["trial"]["values"]["learning_rate"]: t["trial"] for t in trials(found, "rate")
    }
    assert rates[1e30]["validation_nll"] is None
    finite = [rate for rate in rates if rates[rate]["validation_nll"] is not None]
    best = min(finite, key=lambda rate: rates[rate]["validation_nll"])
    grid = [each["trial"] for each in trials(found, "grid")]
    assert {trial["values"]["learning_rate"] for trial in grid} == {best}
    lowest = min(grid, key=lambda trial: trial["validation_nll"])
    for seed in (1, 2):
        choice = found["ssvi", seed][1].results["choice"]
        assert choice["values"] == lowest["values"]
        assert choice["tried"] == {
            "learning_rate": [1e-4, 1e-2, 1e30],
            "temperature": [0.1, 1.0],
            "scale": [0.01, 0.1],
        }
        assert {"temperature", "scale"} <= set(choice["at_edge"])
        assert ("learning_rate" in choice["at_edge"]) == (best == 1e-4)
    assert found["dense-vi", 1][1].results["choice"]["tried"] == {}


def test_log_scales_have_one_rate_whatever_the_means_have(squares):
    _, found, _ = squares
    for name in ("ssvi", "dense-vi", "removal-magnitude"):
        training = found[name, 1][1].results["training"]
        assert training["learning_rate"] * training["scale_rate"] == pytest.approx(0.01)
        assert training["median_scale"] > 0
    assert found["sparse", 1][1].results["training"]["median_scale"] is None


def test_reported_rows_have_scores_costs_and_a_temperature(squares):
    _, found, _ = squares
    own = {
        name: entry
        for cell in ("ssvi", "dense-vi", "sparse", "removal-magnitude")
        for name, entry in methods(found[cell, 1][1]).items()
    }
    rows = ("ssvi-20", "dense-vi", "dense-vi-pruned-20", "sparse-20-uniform")
    ends = [f"{name}-temperature" for name in rows]
    assert set(own) == {*rows, *ends, "ssvi-20-magnitude"}
    for name, entry in own.items():
        wanted = {"accuracy", "nll", "brier", "ece_equal_mass", "ood_auroc"}
        assert wanted <= set(entry["scores"])
        assert entry["stored_ratio"] == pytest.approx(
            entry["stored_bytes"] / own["dense-vi"]["stored_bytes"]
        ) or name.startswith("sparse")
        assert ("seconds_ratio" in entry) == ("pruned" not in name)
    for name in rows:
        plain, scaled = own[name], own[f"{name}-temperature"]
        assert scaled["validation_nll"] <= plain["validation_nll"] + EXACT["atol"]
        assert scaled["label"] == f"{plain['label']}, temperature"
    assert own["dense-vi"]["operations_ratio"] == 1
    ratio = own["ssvi-20"]["active_operations_ratio"]
    assert ratio <= own["ssvi-20"]["operations_ratio"]
    # Pruned by the same budget: as many weights as SSVI has.
    assert own["dense-vi-pruned-20"]["active"] == own["ssvi-20"]["active"]


def test_images_of_a_seed_are_apart_and_standardised(squares):
    root, found, ledger = squares
    cell = found["ssvi", 1][0]
    images = read_images(job(cell, root, ledger))
    assert [len(e) for e in (images.train, images.validation, images.test)] == [140, 60, 50]
    assert images.train.inputs.mean().abs() < SINGLE["atol"]
    other = read_images(job(cell, root, ledger, seed=2))
    assert not np.array_equal(images.validation.labels, other.validation.labels)
    np.testing.assert_array_equal(images.test.labels, other.test.labels)
    with pytest.raises(DataError, match="images must be 1 to 140, got 141"):
        images.shuffled(20, 0, 141)
    with pytest.raises(DataError, match="train_size of 'Fashion-MNIST' must be 1 to 140"):
        read_images(job(cell, root, ledger, data={**cell.data, "train_size": 500}))
    with pytest.raises(DataError, match="Check --data"):
        read_images(job(cell, root / "noise", ledger))


def test_needs_that_are_no_trials_or_all_fail_are_refused(squares):
    root, found, ledger = squares
    cell = found["ssvi", 1][0]
    other = ledger.finished(found["dense-vi", 1][0])
    with pytest.raises(ArgumentError, match="needs must be trials"):
        sparse_training.run(job(cell, root, ledger, needs=(other,)))
    failed = ledger.finished(found["rate-1e+30", 0][0])
    with pytest.raises(ArgumentError, match="Try lower rates"):
        sparse_training.run(job(cell, root, ledger, needs=(failed,)))


def test_the_page_has_the_grid_the_scores_of_removal_and_the_edges(squares, capsys):
    root, _, ledger = squares
    words = ["study", "report", str(root / "study.toml"), "--out", str(ledger.folder)]
    with pytest.raises(SystemExit) as left:
        main(words)
    said = " ".join(capsys.readouterr().out.split())
    assert left.value.code == 0
    assert "At an end of what was tried" in said
    page = (ledger.folder / "study.html").read_text()
    assert "Trials on validation data" in page
    assert "first scale 0.01" in page
    assert "no finite loss" in page
    assert "SSVI 20 %, removal by exponential" in page
    assert "Operations ÷ dense VI" in page


def test_trials_are_laid_out_by_what_was_varied(squares):
    _, found, _ = squares
    held = [each["trial"] for each in trials(found, "rate") + trials(found, "grid")]
    rates, grid = lay_out_trials(held)
    assert rates.columns == ("rate 0.0001", "rate 0.01", "rate 1e+30")
    assert rates.rows == ("",)
    assert grid.columns == ("T 0.1", "T 1")
    assert grid.rows == ("first scale 0.01", "first scale 0.1")
    corner = grid.trials[1][0]
    assert (corner["values"]["scale"], corner["values"]["temperature"]) == (0.1, 0.1)
    assert "σ/σ₀" in describe_trial(corner)
    assert describe_edges({}) == []
    inner = {"values": {"scale": 2}, "tried": {"scale": [1, 2, 3]}, "at_edge": []}
    assert describe_edges({"x": inner}) == [
        "No chosen setting lies at an end of what was tried."
    ]


def test_tables_of_the_docs_are_made_of_such_records(squares, monkeypatch):
    records = tuple(record for _, record in squares[1].values())
    monkeypatch.setattr(ssvi_tables, "read_records", lambda _: records)
    monkeypatch.setattr(ssvi_tables, "read_table", lambda _: gather(records))
    monkeypatch.setattr(ssvi_tables, "SPARSE", ("ssvi-20",))
    main_rows, costs = ssvi_tables.main_table(), ssvi_tables.costs_table()
    assert "| Dense VI, temperature |" in main_rows
    assert "uncertain by ±" in main_rows
    nll = ssvi_tables.seeds_of("ssvi-20")
    base = ssvi_tables.seeds_of("dense-vi")
    plain = [
        nll[s]["scores"]["nll"]["value"] / base[s]["scores"]["nll"]["value"] for s in (1, 2)
    ]
    assert f"| {sum(plain) / 2:.3f} |" in main_rows
    assert "| SSVI 20 % |" in costs
    assert "SSVI 20 %, first scale 0.01" in ssvi_tables.grid_table()
    assert "(edge)" in ssvi_tables.trials_table()
    said = ssvi_tables.found()
    assert "SSVI 20 % against dense VI, 2 seeds" in said
    assert "log-scales at one rate" in said
    assert ssvi_tables.resnet_table() == ssvi_tables.NONE


def test_the_shipped_study_can_be_done_and_tests_nothing_twice():
    for profile in ("small", "full"):
        study = read_study("ssvi", profile)
        for cell in study.cells:
            assert _told(cell).report == (cell.seed > 0)
            assert all(not need.settings.get("report", True) for need in cell.needs)
    names = [
        (cell.data["name"], cell.seed, *sparse_training.name_method(_told(cell)))
        for cell in read_study("ssvi").cells
        if _told(cell).report
    ]
    assert len(names) == len(set(names))


def _told(cell):
    return sparse_training.Settings(**cell.settings)
