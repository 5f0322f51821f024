"""Answers: values for programs, tables for people, JSON for both."""

import json
from dataclasses import replace

import pytest
import torch

import smidgen
from smidgen.workflows.predictor.given_rows import read_given_rows
from tests.support.predictors import CLASSES, make_table_predictor

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
ROWS = [{"age": 40 + 8 * n, "income": n / 3} for n in range(-3, 10)]


@pytest.fixture(scope="module")
def answers():
    return make_table_predictor()(ROWS)


def test_an_answer_has_what_applies(answers):
    first = answers[0]
    assert isinstance(first, smidgen.Answer)
    assert first.answer == "low"
    assert first.probabilities.keys() == set(CLASSES)
    assert sum(first.probabilities.values()) == pytest.approx(1)
    assert first.confidence == pytest.approx(first.probabilities["low"], abs=1e-5)
    assert first.answer in first.set
    assert isinstance(first.abstain, bool)
    assert isinstance(first.strange, bool)
    assert first.low is first.high is None
    assert first.to_dict().keys() == {
        *("answer", "confidence", "probabilities", "set", "abstain", "strange"),
    }
    with pytest.raises(AttributeError):
        first.answer = "high"


def test_a_number_has_an_interval():
    answers = make_table_predictor(classes=None)(ROWS)
    assert all(one.low < one.answer < one.high for one in answers)
    assert answers[0].confidence is answers[0].probabilities is answers[0].set is None
    assert "confidence" not in answers.to_dicts()[0]
    numbers = torch.tensor([one.answer for one in answers])
    assert (numbers.diff() > 0).all()


@pytest.mark.parametrize("target", [(1.7e9, 3600.0), (20250101.0, 400.0), (0.0, 1e-9)])
def test_numbers_far_from_zero_keep_their_digits(target):
    """What a date or a large sum differs by is beyond six digits."""
    plain = make_table_predictor(classes=None)
    task = replace(plain.task, note=replace(plain.note, target=target))
    answers, expected = replace(plain, task=task)(ROWS), plain(ROWS)
    offset, unit = target
    for found, known in zip(answers.to_dicts(), expected.to_dicts(), strict=True):
        for name in ("answer", "low", "high"):
            value = known[name] * unit + offset
            assert found[name] == pytest.approx(value, rel=1e-15, abs=0)
    numbers = torch.tensor(answers.to_columns()["answer"], dtype=torch.float64)
    assert (numbers.diff() > 0).all()
    assert json.loads(answers.to_json()) == answers.to_dicts()


def test_without_rules_nothing_is_promised():
    answer = make_table_predictor(rules=False)(ROWS)[0]
    assert answer.set is answer.abstain is answer.strange is None


def test_answers_are_a_sequence(answers):
    assert len(answers) == len(ROWS) == len(list(answers))
    assert answers[-1] == list(answers)[-1]
    assert answers[2:4].to_dicts() == answers.to_dicts()[2:4]
    assert answers[0] in answers
    with pytest.raises(IndexError):
        answers[len(ROWS)]


def test_they_print_as_a_table(answers):
    lines = str(answers).splitlines()
    assert lines[0].split() == ["answer", "confidence", "set", "abstain", "strange"]
    assert lines[1].split()[0] == "low"
    assert len(lines) == 1 + 10 + 1
    assert lines[-1] == "… and 3 more"
    assert len(str(answers[:3]).splitlines()) == 4


def test_their_html_is_escaped(answers):
    page = answers._repr_html_()
    assert "<b>" not in page
    assert "high &lt;b&gt;" in page
    assert page.count("<tr ") == 11


def test_json_and_columns_say_the_same(answers):
    listed = json.loads(answers.to_json())
    assert listed == answers.to_dicts()
    columns = answers.to_columns()
    assert columns["answer"] == [one["answer"] for one in listed]
    assert columns["set"] == ["|".join(one["set"]) for one in listed]


def test_a_number_without_rules_has_the_central_interval():
    predictor = make_table_predictor(classes=None, rules=False)
    rows = read_given_rows(predictor.note, ROWS)
    task = predictor.task
    low, high = task.predict(predictor.posterior, rows, progress=False).central_interval(
        0.95
    )
    for answer, ends in zip(predictor(ROWS), zip(low, high, strict=True), strict=True):
        expected = [task.unscale(each).item() for each in ends]
        assert [answer.low, answer.high] == pytest.approx(expected, rel=1e-5)
