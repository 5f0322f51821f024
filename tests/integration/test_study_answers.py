"""Kinds of cells for language models that choose, on a tiny real Llama."""

from __future__ import annotations

import pytest
import torch

from smidgen.errors import ArgumentError
from smidgen.prediction import point_outputs
from smidgen_studies.data.answers import draw_answers
from smidgen_studies.kinds.answers import ensemble, posterior
from smidgen_studies.methods.answer_models import load_task
from tests.integration.test_cli import rows
from tests.integration.test_study_kinds import done, job, methods
from tests.support.tiny import byte_tokenizer, tiny_llama
from tests.unit.workflows.test_method import require_readable

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")

POSTERIORS = ("last-layer", "sparse-kfac", "adapter", "adapter-isotropic")
TEXT = """
title = "Letters"
[[data]]
name = "letters"
train = "train.tsv"
test = "test.tsv"
text = "sentence"
label = "verdict"
prompt = "Review: {{text}}\\nSentiment:"
choices = [" negative", " positive"]
train_size = 60
validation_size = 40
test_size = 40
max_length = 60
[[cells]]
name = "map"
kind = "answers-map"
base = "{base}"
rank = 2
learning_rate = 0.01
[[cells]]
name = "posterior"
kind = "answers-posterior"
needs = ["map"]
percent = 30
steps = 6
trial_steps = 2
every = 2
columns = 2
rates = [0.01]
samples = 3
anchors = 20
each = {{ posterior = {posteriors} }}
[[cells]]
name = "member"
kind = "answers-map"
base = "{base}"
rank = 2
epochs = 1
report = false
each = {{ member = [1] }}
[[cells]]
name = "ensemble"
kind = "answers-ensemble"
needs = ["map", "member"]
[profiles.small]
seeds = [0]
"""


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    root = tmp_path_factory.mktemp("answers")
    tiny_llama(tied=True).float().save_pretrained(root / "llama")
    byte_tokenizer().save_pretrained(root / "llama")
    for seed, (name, count) in enumerate([("train", 160), ("test", 50)]):
        lines = {text: ("bad", "good")[label] for text, label in rows(count, seed)}
        written = [f"{text}\t{label}" for text, label in lines.items()]
        (root / f"{name}.tsv").write_text("sentence\tverdict\n" + "\n".join(written) + "\n")
    text = TEXT.format(base=root / "llama", posteriors=[*POSTERIORS, "swag-adapter", "tfb"])
    study, ledger = done(text, root, root)
    return root, {cell.name: (cell, ledger.record(cell)) for cell in study.cells}, ledger


def test_every_posterior_and_rival_is_reported_once(letters):
    _, cells, _ = letters
    names = [name for _, record in cells.values() for name in _names(record)]
    wanted = {*POSTERIORS, "map", "temperature", "swag-adapter", "tfb", "tfb-temperature"}
    assert set(names) == wanted | {"ensemble", "ensemble-temperature"}
    assert len(names) == len(set(names))
    for _, record in cells.values():
        for method in record.results.get("methods", ()):
            assert {"nll", "accuracy", "ece_equal_mass"} <= set(method["scores"])
            require_readable(method["name"], method["label"])


def _names(record):
    return [method["name"] for method in record.results.get("methods", ())]


def test_an_adapter_is_left_as_it_was_trained(letters):
    root, cells, ledger = letters
    given = job(cells["ensemble"][0], root, ledger)
    data = draw_answers(given)
    task = load_task(given.needs[0].artifact, given.data, "cpu")
    outputs, targets = point_outputs(task.problem, data.loaders(task.tokenizer)["test"])
    nll = torch.nn.functional.cross_entropy(outputs, targets).item()
    known = methods(cells["map"][1])["map"]["scores"]["nll"]["value"]
    assert nll == pytest.approx(known, rel=1e-6)
    assert torch.equal(targets, data.labels("test"))


def test_only_sigma_is_stored_of_tfb_and_nothing_of_isotropic(letters):
    _, cells, _ = letters
    tfb = methods(cells["posterior-tfb"][1])
    assert tfb["tfb"]["sigma"] == tfb["tfb-temperature"]["sigma"] > 0
    assert tfb["tfb"]["temperature"] == 1
    isotropic = methods(cells["posterior-adapter-isotropic"][1])["adapter-isotropic"]
    factors = methods(cells["posterior-adapter"][1])["adapter"]
    assert isotropic["floats"] < factors["floats"]


def test_rows_are_prompts_and_choices_are_as_many_as_classes(letters):
    root, cells, ledger = letters
    cell = cells["map"][0]
    prompts = draw_answers(job(cell, root, ledger)).train.texts
    assert all(p.startswith("Review: ") and p.endswith("\nSentiment:") for p in prompts)
    for change, message in (
        ({"choices": [" a", " b", " c"]}, "must be 2, one for each class, got 3"),
        ({"prompt": "{other}"}, "prompt must name {text} and {pair} alone"),
    ):
        with pytest.raises(ArgumentError, match=message):
            draw_answers(job(cell, root, ledger, data={**cell.data, **change}))


def test_what_a_cell_needs_is_said(letters):
    root, cells, ledger = letters
    cell = cells["posterior-adapter"][0]
    with pytest.raises(ArgumentError, match="must need one of kind 'answers-map'"):
        posterior.run(job(cell, root, ledger, needs=()))
    with pytest.raises(ArgumentError, match="an ensemble must need 2 members"):
        ensemble.run(job(cells["ensemble"][0], root, ledger, needs=()))
