"""Prediction sets: their definition, their coverage, and those of MAPIE and TorchCP.

MAPIE itself is asked. TorchCP cannot be imported without torchsort and torch_geometric, so its
definition is written out below, slowly and from its documentation: `LAC` and
`APS(randomized=False)` with `SplitPredictor` and `ClassConditionalPredictor` (1.2.1), sets of
the scores that are at most the ceil((n + 1)(1 − α))-th smallest of the true classes'.
"""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
import torch
from mapie.classification import SplitConformalClassifier
from mapie.conformity_scores import APSConformityScore
from mapie.utils import _compute_classification_quantile

from smidgen import decide
from smidgen.errors import ArgumentError, TooFewRowsError
from smidgen.outputs.followed_predictive import FollowedPredictive
from smidgen.outputs.predictive import CategoricalPredictive
from tests.support.decisions import make_classes, make_numbers

CASES = [(57, 2, 0.8), (57, 5, 0.9), (400, 2, 0.9), (400, 5, 0.95)]


def slow_scores(probs, kind):
    """Score every class of every row, one by one."""
    scores = torch.zeros_like(probs)
    for row, values in enumerate(probs.tolist()):
        order = sorted(range(len(values)), key=lambda c: -values[c])
        for rank, c in enumerate(order, 1):
            # All classes together have 1, which a sum of floats misses by its last digit.
            together = sum(values[x] for x in order[:rank]) if rank < len(order) else 1.0
            scores[row, c] = 1 - values[c] if kind == "lac" else together
    return scores


def slow_threshold(scores, alpha):
    ordered = sorted(scores.tolist())
    return ordered[ceil((len(ordered) + 1) * (1 - alpha)) - 1]


def torchcp_sets(calibration, targets, new, alpha, kind, by_class):
    """The sets of TorchCP, written out."""
    scores = slow_scores(calibration.probs, kind)
    true = scores[torch.arange(len(targets)), targets]
    classes = scores.shape[1]
    if by_class:
        thresholds = [slow_threshold(true[targets == c], alpha) for c in range(classes)]
    else:
        thresholds = [slow_threshold(true, alpha)] * classes
    return slow_scores(new.probs, kind) <= torch.tensor(thresholds, dtype=torch.float64)


def split(rows, classes):
    predictive, targets = make_classes(2 * rows, classes)
    numbers = torch.arange(2 * rows)
    return predictive.take(numbers[:rows]), targets[:rows], predictive.take(numbers[rows:])


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("kind", ["lac", "aps"])
@pytest.mark.parametrize(("rows", "classes", "coverage"), CASES)
def test_sets_are_those_of_torchcp(rows, classes, coverage, kind, by_class):
    calibration, targets, new = split(rows, classes)
    if by_class and rows < 100:
        pytest.skip("too few rows of a class")
    rule = decide.sets(
        calibration,
        targets,
        coverage=coverage,
        kind=kind,
        by_class=by_class,
        allow_empty=True,
    )
    theirs = torchcp_sets(calibration, targets, new, 1 - coverage, kind, by_class)
    assert torch.equal(rule.apply(new), theirs)


class Stored:
    """A classifier of scikit-learn's kind that returns the probabilities it is given."""

    def __init__(self, classes):
        self.classes_ = np.arange(classes)

    def fit(self, x, y):
        return self

    def predict_proba(self, x):
        return np.asarray(x)

    def predict(self, x):
        return np.asarray(x).argmax(1)

    def __sklearn_is_fitted__(self):
        return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("rows", "classes", "coverage"), CASES)
def test_lac_sets_are_those_of_mapie(rows, classes, coverage):
    calibration, targets, new = split(rows, classes)
    mapie = SplitConformalClassifier(
        Stored(classes), confidence_level=coverage, conformity_score="lac", prefit=True
    )
    mapie.conformalize(calibration.probs.numpy(), targets.numpy())
    _, theirs = mapie.predict_set(new.probs.numpy())
    rule = decide.sets(calibration, targets, coverage=coverage, allow_empty=True)
    assert np.array_equal(rule.apply(new).numpy(), theirs[:, :, 0])


@pytest.mark.parametrize(
    ("rows", "classes", "coverage"), [(57, 3, 0.8), (57, 5, 0.9), (400, 4, 0.95)]
)
def test_aps_sets_are_those_of_mapie(rows, classes, coverage):
    """Of the same scores: MAPIE's calibration always draws random numbers, ours never."""
    calibration, targets, new = split(rows, classes)
    theirs = APSConformityScore()
    theirs.classes = np.arange(classes)
    scores, _ = theirs.get_true_label_cumsum_proba(
        targets.numpy(), calibration.probs.numpy(), theirs.classes
    )
    alpha = np.array([1 - coverage])
    theirs.quantiles_ = _compute_classification_quantile(scores, alpha)
    expected = theirs.get_prediction_sets(
        new.probs.numpy()[:, :, None], scores, alpha, cv="prefit", include_last_label=False
    )
    # Like ours, their sets without the last label are never empty.
    rule = decide.sets(calibration, targets, coverage=coverage, kind="aps")
    assert rule.thresholds[0] == pytest.approx(float(theirs.quantiles_[0]), abs=1e-12)
    assert np.array_equal(rule.apply(new).numpy(), expected[:, :, 0])


@pytest.mark.parametrize("kind", ["lac", "aps"])
def test_sets_hold_the_class_as_often_as_asked(kind):
    predictive, targets = make_classes(40_000, 4)
    held, draws, rows = 0, 100, 200
    for draw in range(draws):
        numbers = torch.arange(2 * rows) + 2 * rows * draw
        part, truth = predictive.take(numbers), targets[numbers]
        rule = decide.sets(
            part.take(range(rows)), truth[:rows], coverage=0.9, kind=kind, allow_empty=True
        )
        members = rule.apply(part.take(range(rows, 2 * rows)))
        held += int(members.gather(1, truth[rows:, None]).sum())
    # The rank is 181 of 201. Coverages of rules vary as Beta(181, 20), targets by themselves.
    expected, total = 181 / 201, draws * rows
    deviation = (expected * (1 - expected) * (1 / total + 1 / 202 / draws)) ** 0.5
    assert abs(held / total - expected) < 3.5 * deviation


def test_by_class_every_class_is_covered():
    """One class is much harder: one threshold for all misses it more often than asked."""
    generator = torch.Generator().manual_seed(3)
    targets = (torch.rand(4000, generator=generator) < 0.15).long()
    # Towards the first class for all, and hardly less so for rows of the second.
    towards = 2 - targets + torch.randn(4000, generator=generator)
    predictive = CategoricalPredictive.from_logits(
        torch.stack([towards, torch.zeros(4000)], 1)
    )
    numbers = torch.arange(4000)
    first, second = predictive.take(numbers[:2000]), predictive.take(numbers[2000:])

    def covered(by_class):
        rule = decide.sets(
            first, targets[:2000], coverage=0.9, by_class=by_class, allow_empty=True
        )
        held = rule.apply(second).gather(1, targets[2000:, None]).squeeze(1).double()
        return [float(held[targets[2000:] == c].mean()) for c in (0, 1)]

    assert covered(False)[1] < 0.8
    assert min(covered(True)) > 0.86


def test_no_set_is_empty_unless_allowed():
    predictive, targets = make_classes(500, 3)
    for kind in ("lac", "aps"):
        strict = decide.sets(predictive, targets, coverage=0.5, kind=kind, allow_empty=True)
        usual = decide.sets(predictive, targets, coverage=0.5, kind=kind)
        empty = strict.apply(predictive).sum(-1) == 0
        members = usual.apply(predictive)
        assert empty.any()
        assert torch.equal(members[~empty], strict.apply(predictive)[~empty])
        assert torch.equal(members[empty].int().argmax(-1), predictive.predicted[empty])
        assert (members[empty].sum(-1) == 1).all()
        assert usual.mean_size == pytest.approx(float(members.sum(-1).double().mean()))


def test_rows_without_a_label_are_left_out():
    predictive, targets = make_classes(300)
    hidden = torch.where(torch.arange(300) % 3 == 0, -100, targets)
    shown = hidden != -100
    rule = decide.sets(predictive, hidden)
    assert rule.thresholds == decide.sets(predictive.take(shown), targets[shown]).thresholds
    assert (rule.rows, rule.left_out) == (200, 100)


def test_it_reads_as_a_promise():
    predictive, targets = make_classes(300)
    rule = decide.sets(predictive, targets, coverage=0.9)
    assert str(rule).startswith(
        "Sets (LAC) hold the true class with a probability of at least 90 %. Of 300 rows they "
    )
    assert "90 % for each class" in str(decide.sets(predictive, targets, by_class=True))


def test_classes_with_few_rows_are_refused_by_name():
    predictive, targets = make_classes(300)
    without = torch.where(targets == 2, 0, targets)
    with pytest.raises(TooFewRowsError, match="got none of class 2. Pass rows of it"):
        decide.sets(predictive, without, by_class=True)
    without[:5] = 2
    message = "rows of class 2 must be 9 or more for coverage=0.9, got 5. Pass more rows"
    with pytest.raises(TooFewRowsError, match=message):
        decide.sets(predictive, without, by_class=True)
    with pytest.raises(
        TooFewRowsError, match="labelled rows must be 99 or more for coverage"
    ):
        decide.sets(predictive.take(range(50)), targets[:50], coverage=0.99)


def test_what_does_not_suit_is_refused():
    predictive, targets = make_classes(300)
    rule = decide.sets(predictive, targets)
    with pytest.raises(
        ArgumentError, match="coverage must be between 0 and 1, got 90. Pass"
    ):
        decide.sets(predictive, targets, coverage=90)
    with pytest.raises(ArgumentError, match="kind must be 'lac' or 'aps', got 'raps'"):
        decide.sets(predictive, targets, kind="raps")
    with pytest.raises(ArgumentError, match="must have 3 classes, as the rule has, got 4"):
        rule.apply(make_classes(5, 4)[0])
    numbers, values = make_numbers(50)
    with pytest.raises(ArgumentError, match="got gaussian. Use smidgen.decide.intervals"):
        decide.sets(numbers, values)
    followed = FollowedPredictive(
        classes=torch.tensor([[0, 1]]),
        class_log_probs=torch.tensor([[-0.5, -1.5]]),
        class_logits=torch.zeros(1, 2),
        logit_covariance=torch.zeros(1, 2, 2),
        remaining_log_prob=torch.tensor([-2.0]),
        remaining_entropy=torch.zeros(1),
        remaining_squares=torch.zeros(1),
        remaining_scale=torch.zeros(1),
        information=torch.zeros(1),
        outputs=1000,
    )
    with pytest.raises(
        ArgumentError, match=r"those of 2 of 1,000. Predict with Link\(keep"
    ):
        decide.sets(followed, torch.tensor([0]))
