"""One predictor for many threads, whose answers are those of a file's rows."""

import csv
import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from threading import Barrier

import pytest

import smidgen
from smidgen.errors import ArgumentError
from smidgen.workflows.run.rows import read_noted_rows
from tests.support.predictors import (
    fit_text_predictor,
    load_tiny,
    make_image_predictor,
    make_images,
    make_table_predictor,
    make_texts,
)
from tests.support.tiny import saved_encoder

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
THREADS, CALLS = 8, 25


def text_predictor(folder):
    saved_encoder(folder / "encoder")
    return fit_text_predictor(*load_tiny(folder / "encoder"))


def make_cases(kind, folder):
    """A predictor, and requests of one to a few rows."""
    if kind == "text":
        texts, _ = make_texts(24)
        return text_predictor(folder), [texts[n : n + 1 + n % 3] for n in range(20)]
    if kind == "images":
        images, _ = make_images(24)
        return make_image_predictor(), [images[n : n + 1 + n % 3] for n in range(20)]
    rows = [{"age": 30 + n, "income": n / 9 - 1} for n in range(24)]
    return make_table_predictor(), [rows[n : n + 1 + n % 3] for n in range(20)]


@pytest.mark.parametrize("kind", ["table", "images", "text"])
def test_many_threads_get_the_answers_of_one(kind, tmp_path):
    predictor, requests = make_cases(kind, tmp_path)
    expected = [predictor(rows).to_dicts() for rows in requests]
    start = Barrier(THREADS)

    def work(number):
        start.wait()
        for call in range(CALLS):
            at = (number + call) % len(requests)
            assert predictor(requests[at]).to_dicts() == expected[at]
        return CALLS

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(work, range(THREADS))) == THREADS * CALLS


@pytest.mark.parametrize("kind", ["table", "images", "text"])
@pytest.mark.parametrize("copied", [deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_answers_alike(kind, copied, tmp_path):
    predictor, requests = make_cases(kind, tmp_path)
    copy = copied(predictor)
    assert copy.task.problem.model is not predictor.task.problem.model
    assert copy(requests[0]).to_dicts() == predictor(requests[0]).to_dicts()
    assert copy.rules == predictor.rules


def test_rows_in_memory_and_in_a_file_have_the_same_answers(tmp_path):
    predictor = make_table_predictor()
    rows = [{"age": 30.5 + n, "income": n / 8} for n in range(20)]
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("income", "age"))
        writer.writeheader()
        writer.writerows(rows)
    read, _ = read_noted_rows(predictor.note, path, labelled=False)
    assert predictor.answer(read).to_dicts() == predictor(rows).to_dicts()


def test_the_size_of_a_batch_changes_no_answer():
    predictor = make_table_predictor()
    rows = [[30 + n, n / 8] for n in range(20)]
    for whole, parts in zip(predictor(rows), predictor(rows, batch_size=3), strict=True):
        assert whole.confidence == pytest.approx(parts.confidence, rel=1e-4)
        assert whole.set == parts.set
    with pytest.raises(
        ArgumentError, match="batch_size must be a whole number from 1, got 0"
    ):
        predictor(rows, batch_size=0)


def test_nothing_is_changed_or_rebuilt_by_a_call(unchanged, tmp_path, monkeypatch):
    predictor = text_predictor(tmp_path)
    texts, _ = make_texts(5)
    network = predictor.task.problem.model
    predictor(texts)
    built = []
    real = smidgen.LaplacePosterior.covariance_terms

    def count(posterior, *given, **named):
        built.append(1)
        return real(posterior, *given, **named)

    monkeypatch.setattr(smidgen.LaplacePosterior, "covariance_terms", count)
    with unchanged(network):
        predictor(texts)
        predictor(texts[:2])
    assert not built


def test_it_says_what_it_is():
    assert repr(make_table_predictor()) == (
        "Predictor(table: age, income -> 2 classes, laplace)"
    )
    number = make_table_predictor(classes=None)
    assert repr(number) == "Predictor(table: age, income -> risk, laplace)"
    assert number.is_regression
    assert number.classes is None
    assert make_image_predictor().columns == ()
    assert "shape (1, 6, 6) -> 3 classes" in repr(make_image_predictor())
