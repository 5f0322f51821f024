"""The text classifier: a tiny model on lists of texts."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pandas
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator
from transformers import BertForSequenceClassification

import smidgen
from smidgen.errors import ArgumentError, DataError
from smidgen.sklearn import BayesTextClassifier
from tests.support.tiny import bert_config, saved, saved_encoder

FEW = smidgen.BayesifySettings(candidates=("last-layer",), folds=2)
LETTERS = "abcd"
pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")


def texts(rows, seed=0):
    """Texts of three to five letters; the first says the class: a or b, c or d."""
    generator = np.random.default_rng(seed)
    drawn = [generator.choice(list(LETTERS), generator.integers(3, 6)) for _ in range(rows)]
    labels = ["early" if row[0] in "ab" else "late" for row in drawn]
    return [" ".join(row) for row in drawn], np.array(labels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(saved_encoder(tmp_path_factory.mktemp("encoder")))


@pytest.fixture(scope="module")
def fitted(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(folder).fit(*texts(260))


def make(folder, **changes):
    usual = {"epochs": 12, "learning_rate": 0.02, "settings": FEW, "random_state": 0}
    return BayesTextClassifier(folder, **{**usual, "max_length": 12, **changes})


def test_it_learns_and_says_how_sure_it_is(fitted):
    X, y = texts(100, seed=1)
    assert fitted.classes_.tolist() == ["early", "late"]
    assert fitted.score(X, y) > 0.8
    probs = fitted.predict_proba(X)
    np.testing.assert_allclose(probs.sum(1), 1)
    assert (fitted.classes_[probs.argmax(1)] == fitted.predict(X)).all()


def test_texts_come_in_any_common_form(fitted):
    X, _ = texts(7, seed=2)
    expected = fitted.predict_proba(X)
    forms = (
        tuple(X),
        np.array(X),
        np.array(X, dtype=object)[:, None],
        pandas.Series(X, name="text"),
        pandas.DataFrame({"text": X}),
    )
    for form in forms:
        np.testing.assert_allclose(fitted.predict_proba(form), expected, rtol=1e-5)
    # In their order, whatever their lengths; and one by one.
    alone = np.concatenate([fitted.predict_proba([text]) for text in X])
    np.testing.assert_allclose(alone, expected, rtol=1e-4)


def test_several_columns_make_one_text(folder):
    X, y = texts(100)
    frame = pandas.DataFrame({"title": X, "body": ["d"] * 99 + [None]})
    classifier = make(folder, epochs=1).fit(frame, y)
    assert classifier.text_columns_ == ("title", "body")
    joined = [*(f"{text} . d" for text in X[:99]), X[99]]
    np.testing.assert_allclose(
        classifier.predict_proba(frame), classifier.predict_proba(joined), rtol=1e-6
    )
    with pytest.raises(ArgumentError, match="columns that were fitted, title, body, got b"):
        classifier.predict(frame[["body", "title"]])


def test_it_works_in_a_pipeline_and_in_folds(folder):
    X, y = texts(160)
    lower = FunctionTransformer(lambda rows: [text.lower() for text in rows])
    pipeline = make_pipeline(lower, make(folder, epochs=2))
    scores = cross_val_score(pipeline, [text.upper() for text in X], y, cv=2)
    assert np.isfinite(scores).all()


def test_a_trained_model_is_taken_with_its_classes(tmp_path):
    torch.manual_seed(0)
    names = {0: "late", 1: "early"}  # not in sorted order
    model = BertForSequenceClassification(
        bert_config(num_labels=2, id2label=names, label2id={v: k for k, v in names.items()})
    )
    trained = str(saved(tmp_path / "trained", model))
    X, y = texts(120)
    classifier = make(trained, prefit=True).fit(X, y)
    assert classifier.classes_.tolist() == ["late", "early"]
    for ours, theirs in zip(
        classifier.module_.parameters(), model.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
    with pytest.raises(
        ArgumentError, match="y must have the classes of the model, late, e"
    ):
        make(trained, prefit=True).fit(X, np.where(y == "late", "late", "soon"))
    with pytest.raises(ArgumentError, match="got none of early"):
        make(trained, prefit=True).fit(X, ["late"] * 120)
    with pytest.raises(ArgumentError, match="model must be a trained classifier's folder"):
        make(None, prefit=True).fit(X, y)


def test_it_abstains_by_a_rule(folder):
    X, y = texts(400)
    classifier = make(folder, rule_fraction=0.4, max_error=0.4, coverage=0.7).fit(X, y)
    assert classifier.abstain(X).shape == (400,)
    assert classifier.predict_set(X).shape == (400, 2)
    assert "at most 40 % of the answers are wrong" in str(classifier.rules_)


def test_it_is_cloned_and_stored(fitted):
    X, _ = texts(5, seed=3)
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict_proba(X) == fitted.predict_proba(X)).all()
    assert clone(fitted).get_params() == fitted.get_params()


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        ("one text", ArgumentError, r"several texts, got one str\. Put .* \[text\]"),
        ([], DataError, "a text for each row"),
        (["a", 3], DataError, "a text in every row, got 3 in row 1"),
        (["a", None], DataError, "a text in every row, got None in row 1"),
        (["a", " "], DataError, "a text in every row, got ' ' in row 1"),
        ([["a", float("nan")], [None, None]], DataError, "got None in row 1"),
        (["a", pandas.NA], DataError, "got <NA> in row 1"),
        ([["a", pandas.NA], [pandas.NaT, pandas.NA]], DataError, "got NaT in row 1"),
    ],
)
def test_what_is_no_text_is_refused(fitted, X, error, message):
    with pytest.raises(error, match=message):
        fitted.predict(X)


def test_weights_of_texts_are_refused(folder):
    X, y = texts(100)
    with pytest.raises(ArgumentError, match="sample_weight must be left out"):
        make(folder).fit(X, y, sample_weight=np.ones(100))


def test_scikit_learns_own_checks_as_far_as_they_are_for_texts(folder):
    """Those of tags, parameters and cloning; the others need tables of numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(make(folder), on_fail=None)
    assert results
    failed = [each["check_name"] for each in results if each["status"] == "failed"]
    assert not failed
