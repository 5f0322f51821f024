"""What goes together to make a predictor, and what does not."""

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import ArgumentError, SmidgenError
from tests.support.predictors import fit_text_predictor, load_tiny, make_table_predictor
from tests.support.tiny import saved_encoder

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")


@pytest.fixture(scope="module")
def made():
    predictor = make_table_predictor()
    return predictor.posterior, predictor.task.problem.model


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            smidgen.describe_table(["a", "b"], classes=["x", "y", "z"]),
            "classes must be 2 names",
        ),
        (smidgen.describe_table(["a", "b"], classes=None), "classes must be 2 names"),
        ("table", "task must be a TaskNote, got str. Make it with smidgen.describe_texts"),
        (smidgen.describe_texts(classes=["x", "y"]), "tokenizer must be the text model's"),
    ],
)
def test_what_does_not_go_together(made, task, message):
    with pytest.raises(ArgumentError, match=message):
        smidgen.make_predictor(*made, task)


def test_another_model_is_refused(made):
    task = smidgen.describe_table(["a", "b"], classes=["x", "y"])
    other = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
    with pytest.raises(SmidgenError, match="fitted to"):
        smidgen.make_predictor(made[0], other, task)
    with pytest.raises(ArgumentError, match="tokenizer must be left out for table"):
        smidgen.make_predictor(*made, task, tokenizer=print)
    with pytest.raises(ArgumentError, match="rules must be a Rules, got dict"):
        smidgen.make_predictor(*made, task, rules={})
    number = make_table_predictor(classes=None)
    with pytest.raises(
        ArgumentError, match="classes must be None for a regression, got x, y"
    ):
        smidgen.make_predictor(number.posterior, number.task.problem, task)


def test_rules_of_another_posterior_are_refused(made):
    predictor = make_table_predictor()
    posterior, model = made
    warm = posterior.with_temperature(2 * posterior.temperature)
    with pytest.raises(ArgumentError, match="rules must be those of this posterior, got"):
        smidgen.make_predictor(warm, model, predictor.note, rules=predictor.rules)
    again = smidgen.make_predictor(posterior, model, predictor.note, rules=predictor.rules)
    assert again.rules == predictor.rules


def test_class_names_must_be_the_models_own(tmp_path):
    saved_encoder(tmp_path / "encoder")
    model, tokenizer = load_tiny(tmp_path / "encoder")
    model.config.id2label = {0: "bad", 1: "good"}
    fit_text_predictor(model, tokenizer)
    with pytest.raises(
        ArgumentError, match="must be those of the model's config, bad, good"
    ):
        fit_text_predictor(model, tokenizer, classes=("good", "bad"))


def test_a_predictor_reads_no_more_tokens_than_its_model(tmp_path):
    saved_encoder(tmp_path / "encoder")
    model, tokenizer = load_tiny(tmp_path / "encoder")
    tokenizer.model_max_length = 1000
    predictor = fit_text_predictor(model, tokenizer, max_length=128)
    assert predictor.note.max_length == 16
    assert len(predictor(["a b c d " * 50])) == 1


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (lambda: smidgen.describe_texts(classes=["a"]), "two classes or more"),
        (lambda: smidgen.describe_texts(classes="ab"), "two classes or more"),
        (lambda: smidgen.describe_texts(classes=["a", "a"]), "two classes or more"),
        (lambda: smidgen.describe_texts(classes=None, columns=()), "columns must be names"),
        (lambda: smidgen.describe_texts(classes=None, text_pair="text"), "different names"),
        (lambda: smidgen.describe_texts(classes=None, max_length=0), "max_length must be"),
        (
            lambda: smidgen.describe_table(["a", "a"], classes=None),
            "different names, got a, a",
        ),
        (
            lambda: smidgen.describe_table({"a": (0, 0)}, classes=None),
            "deviation above 0, got",
        ),
        (
            lambda: smidgen.describe_images(np.zeros(3), classes=["a", "b"]),
            "images must be",
        ),
    ],
)
def test_what_describes_nothing(describe, message):
    with pytest.raises(ArgumentError, match=message):
        describe()


def test_images_are_described_by_some():
    task = smidgen.describe_images(torch.rand(3, 2, 4, 5) + 1, classes=["a", "b"])
    assert task.shape == (2, 4, 5)
    assert 1 <= task.span[0] < task.span[1] <= 2
