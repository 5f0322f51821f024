"""The estimators on tables: scikit-learn's own checks, and what they promise beyond."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV, CalibrationDisplay
from sklearn.datasets import make_blobs, make_regression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import smidgen
from smidgen.errors import ArgumentError, DataError, SmidgenWarning
from smidgen.sklearn import BayesClassifier, BayesRegressor

# Of bayesify one candidate: the estimators are tested here, and that elsewhere.
FEW = smidgen.BayesifySettings(candidates=("last-layer",), folds=2)
TINY = {
    "hidden": (8,),
    "epochs": 25,
    "learning_rate": 0.05,
    "batch_size": 32,
    "settings": FEW,
    "random_state": 0,
}
pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")


# No exception is expected: there is no dict of failed checks here.
@parametrize_with_checks([BayesClassifier(**TINY), BayesRegressor(**TINY)])
def test_scikit_learns_own_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def blobs(rows=300, classes=3, spread=4.0):
    return make_blobs(rows, 4, centers=classes, cluster_std=spread, random_state=0)


@pytest.fixture(scope="module")
def fitted():
    """A classifier that keeps rows for rules, and new rows."""
    X, y = blobs(900, spread=6.0)
    names = np.array(["crow", "ant", "bee"])[y]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier = BayesClassifier(
            **TINY, rule_fraction=0.3, max_error=0.3, coverage=0.8
        ).fit(X[:600], names[:600])
    return classifier, X[600:], names[600:]


@pytest.mark.parametrize(
    "labels", [[10, -3, 7], ["crow", "ant", "bee"], [True, False, True], [2.0, 0.0, 1.0]]
)
def test_labels_keep_their_kind_and_probabilities_their_order(labels):
    X, numbers = blobs(150)
    y = np.array(labels)[numbers]
    classifier = BayesClassifier(**TINY).fit(X, y)
    assert classifier.classes_.tolist() == sorted(set(labels))
    predicted, probs = classifier.predict(X), classifier.predict_proba(X)
    assert predicted.dtype == y.dtype
    assert (classifier.classes_[probs.argmax(1)] == predicted).all()
    # The column of a class is high where it is the class.
    for place, label in enumerate(classifier.classes_):
        assert probs[y == label, place].mean() > probs[y != label, place].mean() + 0.2
    np.testing.assert_allclose(np.exp(classifier.predict_log_proba(X)), probs)


def test_what_it_does_is_what_smidgen_does(fitted):
    """Probabilities and rules are those of the public functions on its module."""
    classifier, X, _ = fitted
    problem = smidgen.Problem(classifier.module_, smidgen.Categorical(3))
    batch = torch.tensor(X)
    predictive = smidgen.predict(classifier.posterior_, problem, batch)
    np.testing.assert_allclose(classifier.predict_proba(X), predictive.probs, rtol=1e-12)
    answered = classifier.rules_.abstain.apply(predictive).numpy()
    assert (classifier.abstain(X) == ~answered).all()
    assert (
        classifier.predict_set(X) == classifier.rules_.sets.apply(predictive).numpy()
    ).all()
    assert classifier.posterior_.choice is not None


def test_the_rules_hold_on_new_rows(fitted):
    classifier, X, y = fitted
    silent, wrong = classifier.abstain(X), classifier.predict(X) != y
    assert 0 < silent.sum() < len(X)
    assert wrong[~silent].mean() < 0.3 < wrong[silent].mean()
    members = classifier.predict_set(X)
    held = members[np.arange(len(X)), np.searchsorted(classifier.classes_, y)]
    assert held.mean() > 0.74  # at least 0.8 is promised, of 300 rows


def test_rules_need_rows():
    X, y = blobs(150)
    classifier = BayesClassifier(**TINY).fit(X, y)
    with pytest.raises(ArgumentError, match=r"rule_fraction must leave enough rows .*0\.2"):
        classifier.abstain(X)
    with pytest.raises(ArgumentError, match="rule for sets"):
        classifier.predict_set(X)
    with pytest.raises(ArgumentError, match=r"rule_fraction must be in \[0, 1\), got 1"):
        BayesClassifier(**TINY, rule_fraction=1).fit(X, y)
    with pytest.raises(ArgumentError, match="rule_fraction must leave 80 rows or more"):
        BayesClassifier(**TINY, rule_fraction=0.5).fit(X, y)


def make_network(features, outputs):
    return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, outputs))


def test_a_function_makes_the_module_and_the_seed_its_weights():
    X, y = blobs(150)
    once, again = (BayesClassifier(make_network, **TINY).fit(X, y) for _ in range(2))
    assert (once.predict_proba(X) == again.predict_proba(X)).all()
    other = BayesClassifier(make_network, **{**TINY, "random_state": 1}).fit(X, y)
    assert (once.predict_proba(X) != other.predict_proba(X)).any()
    assert next(once.module_.parameters()).dtype == torch.float32


def test_a_module_is_trained_as_a_copy(unchanged):
    X, y = blobs(150)
    module = make_network(4, 3)
    classifier = BayesClassifier(module, **TINY)
    with unchanged(module):
        classifier.fit(X, y)
        classifier.predict_proba(X)
    assert classifier.module_ is not module
    assert not torch.equal(classifier.module_[0].weight, module[0].weight)
    copied = clone(classifier)
    assert torch.equal(copied.module[0].weight, module[0].weight)


def test_a_trained_module_is_taken_as_it_is(unchanged):
    X, y = blobs(400)
    trained = BayesClassifier(make_network, **TINY).fit(X[:200], y[:200]).module_
    classifier = BayesClassifier(trained, prefit=True, settings=FEW, random_state=0)
    with unchanged(trained):
        classifier.fit(X[200:], y[200:])
    for ours, theirs in zip(
        classifier.module_.parameters(), trained.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert classifier.n_iter_ == 0
    assert classifier.posterior_.choice.rows == 100  # half of the rows calibrates
    with torch.no_grad():
        points = trained(torch.tensor(X).float()).argmax(1).numpy()
    assert (classifier.predict(X) == classifier.classes_[points]).mean() > 0.97


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda: make_network(4, 2), r"outputs of shape \(2, 3\) for 2 rows.*got \(2, 2\)"),
        (lambda: "mlp", "module must be a torch.nn.Module, or a function"),
        (lambda: lambda features, outputs: None, "module must make a torch.nn.Module"),
    ],
)
def test_other_modules_are_refused(module, message):
    X, y = blobs(150)
    with pytest.raises(ArgumentError, match=message):
        BayesClassifier(module(), **TINY).fit(X, y)


@pytest.mark.parametrize("estimator", [BayesClassifier, BayesRegressor])
@pytest.mark.parametrize(("module", "got"), [(None, "none"), (make_network, "a function")])
def test_what_has_random_weights_is_not_taken_as_trained(estimator, module, got):
    X, y = blobs(150)
    message = f"module must be a trained torch.nn.Module with prefit=True, got {got}"
    with pytest.raises(ArgumentError, match=message):
        estimator(module, prefit=True, settings=FEW).fit(X, y)


def test_devices_are_named_as_elsewhere():
    X, y = blobs(150)
    assert BayesClassifier(**TINY, device="auto").fit(X, y).score(X, y) > 0.5
    with pytest.raises(ArgumentError, match="device must be auto or a torch device"):
        BayesClassifier(**TINY, device="abacus").fit(X, y)


def test_weights_of_rows_are_refused():
    X, y = blobs(150)
    with pytest.raises(ArgumentError, match=r"sample_weight must be left out.*repeat rows"):
        BayesClassifier(**TINY).fit(X, y, sample_weight=np.ones(150))
    X, y = numbers()
    with pytest.raises(ArgumentError, match="sample_weight must be left out"):
        BayesRegressor(**TINY).fit(X, y, sample_weight=np.ones(len(X)))


def test_one_class_is_refused_and_few_rows_are_told():
    X, y = blobs(150)
    with pytest.raises(DataError, match="y must have 2 classes or more, got one class"):
        BayesClassifier(**TINY).fit(X, y * 0)
    with pytest.warns(SmidgenWarning, match="X has 60 rows, too few to hold any out"):
        classifier = BayesClassifier(**TINY).fit(X[:60], y[:60])
    assert classifier.posterior_.stochastic
    assert classifier.posterior_.choice is None


def test_equal_rows_stay_on_one_side():
    """Rows that stand in the data three times calibrate nothing that they trained."""
    X, y = blobs(100)
    seen = np.repeat(X, 3, axis=0), np.repeat(y, 3)
    classifier = BayesClassifier(**TINY).fit(*seen)
    assert classifier.posterior_.choice.rows % 3 == 0


def test_a_fitted_one_can_be_stored_as_scikit_learn_does(fitted):
    classifier, X, _ = fitted
    again = pickle.loads(pickle.dumps(classifier))
    assert (again.predict_proba(X) == classifier.predict_proba(X)).all()
    assert (again.abstain(X) == classifier.abstain(X)).all()


def test_the_safe_way_to_store_it(fitted, tmp_path):
    classifier, X, _ = fitted
    smidgen.save(classifier.posterior_, tmp_path / "posterior")
    posterior = smidgen.load(tmp_path / "posterior", classifier.module_)
    assert posterior == classifier.posterior_


def test_it_works_where_scikit_learns_do():
    X, y = blobs(240, classes=2)
    pipeline = make_pipeline(StandardScaler(), BayesClassifier(**TINY))
    assert cross_val_score(pipeline, X, y, cv=2).mean() > 0.6
    search = GridSearchCV(pipeline, {"bayesclassifier__hidden": [(4,), (8,)]}, cv=2)
    search.fit(X, y)
    assert search.best_params_["bayesclassifier__hidden"] in [(4,), (8,)]
    display = CalibrationDisplay.from_estimator(pipeline.fit(X, y), X, y, n_bins=5)
    assert len(display.prob_true) >= 2
    beside = CalibratedClassifierCV(BayesClassifier(**TINY), cv=2).fit(X, y)
    assert beside.predict_proba(X).shape == (240, 2)


def test_columns_keep_their_names():
    pandas = pytest.importorskip("pandas")
    X, y = blobs(150)
    frame = pandas.DataFrame(X, columns=list("abcd"))
    pipeline = make_pipeline(StandardScaler(), BayesClassifier(**TINY))
    pipeline.set_output(transform="pandas").fit(frame, y)
    assert pipeline[-1].feature_names_in_.tolist() == list("abcd")
    assert pipeline[-1].n_features_in_ == 4
    with pytest.raises(ValueError, match="feature names should match"):
        pipeline.predict(frame[list("dcba")])


def numbers(rows=400):
    return make_regression(rows, 4, noise=20.0, bias=1000.0, random_state=0)


def test_numbers_come_back_in_their_own_unit():
    X, y = numbers(600)
    regressor = BayesRegressor(**TINY, rule_fraction=0.3).fit(X[:400], y[:400])
    mean, deviation = regressor.predict(X[400:], return_std=True)
    assert (mean == regressor.predict(X[400:])).all()
    assert regressor.score(X[400:], y[400:]) > 0.5
    errors = (y[400:] - mean) / deviation
    assert 0.5 < np.sqrt((errors**2).mean()) < 2
    for coverage in (0.5, 0.9):
        low, high = regressor.predict_interval(X[400:], coverage=coverage)
        held = ((low <= y[400:]) & (y[400:] <= high)).mean()
        assert coverage - 0.1 < held < coverage + 0.1
        np.testing.assert_allclose((low + high) / 2, mean)


def test_intervals_without_rows_of_their_own_are_those_of_the_normal_distribution():
    X, y = numbers(200)
    regressor = BayesRegressor(**TINY).fit(X, y)
    mean, deviation = regressor.predict(X, return_std=True)
    low, high = regressor.predict_interval(X, coverage=0.95)
    np.testing.assert_allclose(high - mean, 1.959963984540054 * deviation)
    np.testing.assert_allclose(mean - low, high - mean)
    with pytest.raises(ArgumentError, match="coverage must be"):
        regressor.predict_interval(X, coverage=95)


def test_a_trained_regressor_is_not_rescaled():
    X, y = numbers(300)
    inner = BayesRegressor(make_network, **TINY).fit(X[:150], y[:150])

    class InItsUnit(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = inner.module_

        def forward(self, inputs):
            return self.network(inputs) * inner.target_scale_ + inner.target_mean_

    regressor = BayesRegressor(InItsUnit(), prefit=True, settings=FEW, random_state=0)
    regressor.fit(X[150:], y[150:])
    np.testing.assert_allclose(regressor.predict(X[:10]), inner.predict(X[:10]), rtol=1e-4)


def test_the_library_neither_needs_nor_imports_scikit_learn():
    code = (
        "import sys, smidgen; smidgen.bayesify; print('sklearn' in sys.modules)\n"
        "sys.modules['sklearn'] = None\n"
        "import importlib.util as u; found = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'sklearn' else found(name, *a)\n"
        "import smidgen.sklearn"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == "False"
    assert "smidgen.sklearn needs the package 'scikit-learn'" in run.stderr
    assert "smidgen[sklearn]" in run.stderr
