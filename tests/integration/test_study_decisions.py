"""Kinds of cells for decisions, on a tiny real encoder and tiny images."""

from __future__ import annotations

import numpy as np
import pytest

from smidgen.errors import ArgumentError, DataError
from smidgen_studies.kinds.decisions import labels, text
from smidgen_studies.methods.decisions.methods import DECIDING
from tests.integration.test_cli import rows
from tests.integration.test_study_kinds import done, job, methods
from tests.support.tiny import saved_encoder
from tests.unit.workflows.test_method import require_readable

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")

STUDY = """
title = "Decisions"
[[data]]
name = "letters"
train = "train.tsv"
test = "test.tsv"
text = "sentence"
label = "verdict"
train_size = 60
validation_size = 40
max_length = 12
outside = {{ others = "others.csv" }}
outside_text = {{ others = "words" }}
outside_size = 20
[[data]]
name = "squares"
train = "squares.npz"
test = "test-squares.npz"
outside = {{ noise = "noise.npz" }}
validation_size = 40
[[cells]]
name = "map"
kind = "finetune"
base = "{encoder}"
only = ["letters"]
early_stopping = false
epochs = 2
learning_rate = 0.01
[[cells]]
name = "member"
kind = "finetune"
base = "{encoder}"
only = ["letters"]
early_stopping = false
epochs = 1
report = false
each = {{ member = [1] }}
[[cells]]
name = "decisions"
kind = "decisions-text"
only = ["letters"]
needs = ["map", "member"]
percent = 30
[[cells]]
name = "images"
kind = "decisions-images"
only = ["squares"]
members = 2
width = 2
steps = 4
percent = 30
[[cells]]
name = "labels"
kind = "label-efficiency"
only = ["squares"]
first = 20
step = 10
rounds = 2
width = 2
steps = 4
each = {{ by = ["random", "entropy", "information", "information-diverse"] }}
[profiles.small]
seeds = [0]
"""


def save_squares(path, count, seed):
    """Write images of 8 × 8 dots whose brighter half is the class."""
    generator = np.random.default_rng(seed)
    images = generator.uniform(0, 0.6, (count, 8, 8))
    found = generator.integers(0, 2, count)
    images[np.arange(count)[:, None], :, 4 * found[:, None] + np.arange(4)] += 0.4
    np.savez(path, images=images.astype(np.float32), labels=found)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    root = tmp_path_factory.mktemp("decisions")
    saved_encoder(root / "encoder")
    for seed, (name, count) in enumerate([("train", 160), ("test", 50)]):
        lines = {text: ("bad", "good")[label] for text, label in rows(count, seed)}
        written = [f"{text}\t{label}" for text, label in lines.items()]
        (root / f"{name}.tsv").write_text("sentence\tverdict\n" + "\n".join(written) + "\n")
    others = [text for text, _ in rows(30, 9)]
    (root / "others.csv").write_text("words\n" + "\n".join(others) + "\n")
    for seed, (name, count) in enumerate(
        [("squares", 120), ("test-squares", 50), ("noise", 30)]
    ):
        save_squares(root / f"{name}.npz", count, seed)
    made, ledger = done(STUDY.format(encoder=root / "encoder"), root, root)
    return root, {cell.name: (cell, ledger.record(cell)) for cell in made.cells}, ledger


@pytest.mark.parametrize(
    ("name", "outside"), [("decisions", "others"), ("images", "noise")]
)
def test_every_method_is_scored_for_decisions(study, name, outside):
    _, found, _ = study
    reported = methods(found[name][1])
    assert tuple(reported) == DECIDING
    for each, row in reported.items():
        require_readable(each, row["label"])
        assert [part["max_error"] for part in row["automation"]] == [0.05, 0.1]
        assert "entropy" in row["score_detection"][outside]
    for each in DECIDING[2:]:
        assert "logit_variance" in reported[each]["score_detection"][outside]
    point = reported["map"]["score_detection"][outside]
    assert {"distance", "class_distance", "energy"} < set(point)


def test_an_ensemble_needs_members(study):
    root, found, ledger = study
    cell, _ = found["decisions"]
    with pytest.raises(ArgumentError, match="2 members or more, got 1"):
        text.run(job(cell, root, ledger, needs=(ledger.finished(cell.needs[0]),)))


def test_every_way_of_choosing_labels_starts_from_the_same_rows(study):
    _, found, _ = study
    curves = {
        name: record.results["curve"]
        for name, (_, record) in found.items()
        if name.startswith("labels-")
    }
    assert len(curves) == 4
    for curve in curves.values():
        assert [row["labels"] for row in curve] == [20, 30, 40]
        assert curve[0] == curves["labels-random"][0]
    chosen = {str(curve[1:]) for curve in curves.values()}
    assert len(chosen) > 1
    record = found["labels-random"][1]
    (row,) = record.results["methods"]
    last = record.results["curve"][-1]
    assert row["scores"]["accuracy"]["value"] == pytest.approx(last["accuracy"])


def test_a_pool_that_is_too_small_is_refused(study):
    root, found, ledger = study
    cell, _ = found["labels-random"]
    settings = {**cell.settings, "rounds": 50}
    with pytest.raises(DataError, match="must hold 520 images for 50 rounds, got 80"):
        labels.run(job(cell, root, ledger, settings=settings))
