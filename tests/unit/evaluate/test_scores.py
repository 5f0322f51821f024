"""Scores against slow obvious references, hand-made answers and sampling theory."""

from __future__ import annotations

import json
import time
from dataclasses import FrozenInstanceError
from math import exp, log, pi, sqrt

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.testing import assert_close

from smidgen import evaluate
from smidgen.errors import ArgumentError, DataError
from smidgen.evaluate.association import average_ranks
from smidgen.evaluate.intervals import redraw
from smidgen.outputs.likelihood import Bernoulli
from smidgen.outputs.predictive import (
    BernoulliPredictive,
    CategoricalPredictive,
    GaussianPredictive,
)
from tests.support.tolerances import Z

NAN = float("nan")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.fixture
def classes() -> tuple[CategoricalPredictive, Tensor]:
    """300 examples of 4 classes, predicted better than by chance."""
    source = generator(1)
    logits = torch.randn(300, 4, generator=source, dtype=torch.float64) * 2
    targets = torch.multinomial((logits / 2).softmax(-1), 1, generator=source)
    return CategoricalPredictive.from_logits(logits), targets.squeeze(-1)


@pytest.fixture
def labels() -> tuple[BernoulliPredictive, Tensor]:
    source = generator(2)
    logits = torch.randn(50, 3, generator=source, dtype=torch.float64)
    targets = torch.randint(2, (50, 3), generator=source)
    return BernoulliPredictive.from_logits(logits), targets


@pytest.fixture
def numbers() -> tuple[GaussianPredictive, Tensor]:
    source = generator(3)
    mean = torch.randn(60, 2, generator=source, dtype=torch.float64)
    variance = torch.rand(60, 2, generator=source, dtype=torch.float64)
    targets = mean + torch.randn(60, 2, generator=source, dtype=torch.float64)
    return GaussianPredictive(mean, variance, 0.5), targets


def sure_and_right(n: int, seed: int = 4) -> tuple[Tensor, Tensor]:
    """Overconfident predictions: right with probability confidence − 0.1."""
    source = generator(seed)
    confidence = 0.5 + 0.5 * torch.rand(n, generator=source, dtype=torch.float64)
    return confidence, (torch.rand(n, generator=source) < confidence - 0.1).double()


class TestScores:
    def test_categorical_scores_match_a_loop(self, classes):
        predictive, targets = classes
        probs = predictive.probs.numpy()
        nll, brier, right = [], [], []
        for row, target in zip(probs, targets.tolist(), strict=True):
            nll.append(-log(row[target]))
            brier.append(sum((p - (c == target)) ** 2 for c, p in enumerate(row)))
            right.append(float(np.argmax(row) == target))
        assert evaluate.nll(predictive, targets).tolist() == pytest.approx(nll)
        assert evaluate.brier(predictive, targets).tolist() == pytest.approx(brier)
        assert evaluate.correct(predictive, targets).tolist() == right
        assert 0.3 < np.mean(right) < 0.95

    def test_bernoulli_scores_match_a_loop(self, labels):
        predictive, targets = labels
        chance = predictive.probs.numpy()
        truth = targets.numpy()
        nll = [
            -sum(log(p if y else 1 - p) for p, y in zip(ps, ys, strict=True))
            for ps, ys in zip(chance, truth, strict=True)
        ]
        brier = ((chance - truth) ** 2).sum(1)
        assert evaluate.nll(predictive, targets).tolist() == pytest.approx(nll)
        assert evaluate.brier(predictive, targets).tolist() == pytest.approx(brier)

    def test_two_classes_score_twice_the_one_label_brier(self):
        p, target = 0.8, torch.tensor([1])
        two = CategoricalPredictive(vector(1 - p, p).log()[None], vector(0, 0)[None])
        one = BernoulliPredictive(vector(1 - p, p).log()[None, None], vector(0)[None])
        pair = evaluate.brier(two, target).item()
        assert pair == pytest.approx(2 * 0.2**2)
        assert evaluate.brier(one, target).item() == pytest.approx(pair / 2)

    def test_gaussian_scores_match_scipy(self, numbers):
        predictive, targets = numbers
        scale = (predictive.variance + 0.5).sqrt()
        expected = -stats.norm.logpdf(targets, predictive.mean, scale).sum(1)
        squares = ((targets - predictive.mean).numpy() ** 2).mean(1)
        nll = evaluate.nll(predictive, targets).tolist()
        found = evaluate.squared_error(predictive, targets).tolist()
        assert nll == pytest.approx(expected)
        assert found == pytest.approx(squares)

    def test_one_output_takes_a_vector_of_targets(self):
        predictive = GaussianPredictive(vector(1, 2)[:, None], torch.zeros(2, 1), 1.0)
        found = evaluate.squared_error(predictive, vector(1, 5))
        assert found.tolist() == [0.0, 9.0]
        nll = evaluate.nll(predictive, vector(1, 5)).tolist()
        assert nll == pytest.approx([0.5 * log(2 * pi), 0.5 * log(2 * pi) + 4.5])

    @pytest.mark.parametrize("logit", [36.0, 40.0, 800.0, 1e4])
    def test_a_saturated_label_costs_its_logit_either_way(self, logit):
        likelihood, one = Bernoulli(1), torch.ones(1, 1, dtype=torch.float64)
        for sign in (-1, 1):
            outputs = sign * logit * one
            pair = torch.stack([outputs, outputs])
            for predictive in (
                BernoulliPredictive.from_logits(outputs),
                likelihood.mixture(pair, 1.0),
                likelihood.predictive(
                    outputs,
                    torch.zeros(1, 1, 1).double(),
                    link="quadrature",
                    temperature=1.0,
                    normals=torch.empty(0),
                ),
            ):
                right, wrong = (
                    evaluate.nll(predictive, torch.full((1, 1), float(label))).item()
                    for label in (sign > 0, sign < 0)
                )
                assert right == pytest.approx(exp(-logit), rel=1e-9)
                assert wrong == pytest.approx(logit, rel=1e-9)

    def test_scores_are_fp64_also_from_fp32(self):
        log_probs = torch.randn(5, 3, generator=generator()).log_softmax(-1)
        predictive = CategoricalPredictive(log_probs, log_probs)
        targets = torch.tensor([0, 1, 2, 0, 1], dtype=torch.int32)
        for score in (evaluate.nll, evaluate.brier, evaluate.correct):
            found = score(predictive, targets)
            assert found.dtype == torch.float64
            assert found.shape == (5,)

    def test_wrong_kind_names_what_can(self, classes, labels, numbers):
        with pytest.raises(
            ArgumentError,
            match="must be categorical or bernoulli for brier, got gaussian. Use sq",
        ):
            evaluate.brier(*numbers)
        with pytest.raises(ArgumentError, match="bernoulli for correct, got gaussian"):
            evaluate.correct(*numbers)
        with pytest.raises(ArgumentError, match="gaussian for covered, got bernoulli"):
            evaluate.covered(*labels)
        with pytest.raises(ArgumentError, match="gaussian for squared_error, got cat"):
            evaluate.squared_error(*classes)

    @pytest.mark.parametrize(
        ("targets", "message"),
        [
            (torch.tensor([0, 4, 1]), r"targets must be in \[0, 4\), got 4\. Map"),
            (torch.tensor([0, -1, 1]), r"targets must be in \[0, 4\), got -1\."),
            (torch.full((3,), -100), r"no example has a label \(all are -100\)\."),
            (torch.tensor([0, 1]), r"as many as the predictions \(3\), got 2\. Pass"),
            (torch.zeros(3), r"vector of class numbers, got torch\.float32 of shape"),
            (torch.zeros(3, 1).long(), r"got torch\.int64 of shape \(3, 1\)\. Pass"),
        ],
    )
    def test_wrong_classes_are_refused(self, targets, message):
        predictive = CategoricalPredictive.from_logits(torch.zeros(3, 4))
        for score in (evaluate.nll, evaluate.brier, evaluate.correct):
            with pytest.raises(DataError, match=message):
                score(predictive, targets)

    @pytest.mark.parametrize("score", [evaluate.nll, evaluate.brier])
    def test_labels_that_are_all_ignored_are_left_out(self, labels, score):
        predictive, targets = labels
        partly = targets.clone()
        partly[::3] = -100
        kept = torch.arange(len(targets)) % 3 != 0
        assert torch.equal(score(predictive, partly), score(predictive, targets)[kept])

    @pytest.mark.parametrize(
        ("targets", "message"),
        [
            (torch.zeros(6), r"targets must be of shape \(3, 2\), got \(6,\)\."),
            (torch.zeros(4, 2), r"as many as the predictions \(3\), got 4\."),
            (torch.full((3, 2), NAN), "targets must be finite numbers, got nan for"),
        ],
    )
    def test_wrong_numbers_are_refused(self, targets, message):
        mean = torch.zeros(3, 2)
        gaussian = GaussianPredictive(mean, mean, 1.0)
        bernoulli = BernoulliPredictive.from_logits(mean)
        for predictive in (gaussian, bernoulli):
            with pytest.raises(DataError, match=message):
                evaluate.nll(predictive, targets)

    def test_labels_other_than_0_and_1_are_refused(self, labels):
        with pytest.raises(DataError, match=r"targets must be 0 or 1, got 2\.0\. Pass"):
            evaluate.nll(labels[0], labels[1] * 2)

    def test_nan_predictions_are_refused_with_the_example(self):
        logits = torch.zeros(3, 2)
        logits[1, 0] = NAN
        predictive = CategoricalPredictive.from_logits(logits)
        targets = torch.zeros(3, dtype=torch.long)
        message = r"predictive must be free of NaN, got nan for example 1\. Check"
        for score in (evaluate.nll, evaluate.brier, evaluate.correct):
            with pytest.raises(DataError, match=message):
                score(predictive, targets)

    def test_a_variance_of_zero_is_refused(self):
        predictive = GaussianPredictive(torch.zeros(2, 1), torch.zeros(2, 1), 0.0)
        with pytest.raises(DataError, match=r"positive total variance, got 0\.0\. Fit"):
            evaluate.nll(predictive, torch.zeros(2))

    def test_no_examples_are_refused(self):
        predictive = CategoricalPredictive.from_logits(torch.zeros(0, 2))
        with pytest.raises(DataError, match="at least one example, got 0. Check"):
            evaluate.nll(predictive, torch.zeros(0, dtype=torch.long))


def slow_bins(confidence: list[float], bins: int, binning: str) -> list[list[int]]:
    """Examples of each bin, by loops."""
    n = len(confidence)
    if binning == "equal-mass":
        order = sorted(range(n), key=lambda i: (confidence[i], i))
        return [[order[r] for r in range(n) if r * bins // n == b] for b in range(bins)]
    found: list[list[int]] = [[] for _ in range(bins)]
    for i, value in enumerate(confidence):
        inside = [b for b in range(bins) if b / bins <= value < (b + 1) / bins]
        found[inside[0] if inside else bins - 1].append(i)
    return found


class TestCalibration:
    @pytest.mark.parametrize("binning", evaluate.BINNINGS)
    @pytest.mark.parametrize(("n", "bins"), [(203, 20), (7, 20), (50, 1), (30, 15)])
    def test_error_and_curve_match_loops(self, n, bins, binning):
        # Rounded to two digits: many ties, and confidences on the edges of bins.
        confidence, correct = sure_and_right(n)
        confidence = confidence.mul(100).round().div(100)
        sure, right = confidence.numpy(), correct.numpy()
        places = slow_bins(confidence.tolist(), bins, binning)
        kept = [np.array(place) for place in places if place]
        error = sum(
            len(place) / n * abs(sure[place].mean() - right[place].mean()) for place in kept
        )
        options = {"bins": bins, "binning": binning}
        curve = evaluate.reliability_curve(confidence, correct, **options)
        found = evaluate.expected_calibration_error(confidence, correct, **options)
        assert found == pytest.approx(error)
        assert curve.count == [len(place) for place in kept]
        assert curve.confidence == pytest.approx([sure[p].mean() for p in kept])
        assert curve.accuracy == pytest.approx([right[p].mean() for p in kept])

    def test_the_two_binnings_on_a_known_case(self):
        confidence = vector(0.6, 0.7, 0.8, 0.95)
        correct = vector(1, 0, 1, 1)
        # Mass: {0.6, 0.7} half right, {0.8, 0.95} all right.
        mass = evaluate.expected_calibration_error(
            confidence, correct, bins=2, binning="equal-mass"
        )
        assert mass == pytest.approx(0.5 * abs(0.65 - 0.5) + 0.5 * abs(0.875 - 1))
        # Width: all four above one half.
        width = evaluate.expected_calibration_error(
            confidence, correct, bins=2, binning="equal-width"
        )
        assert width == pytest.approx(abs(0.7625 - 0.75))

    @pytest.mark.parametrize("binning", evaluate.BINNINGS)
    def test_confidence_of_exactly_one_is_in_the_last_bin(self, binning):
        confidence, correct = vector(1, 1, 1, 1), vector(1, 1, 1, 0)
        curve = evaluate.reliability_curve(confidence, correct, bins=1, binning=binning)
        assert curve == evaluate.ReliabilityCurve([1.0], [0.75], [4])
        error = evaluate.expected_calibration_error(
            confidence, correct, bins=1, binning=binning
        )
        assert error == 0.25

    def test_confidence_of_one_shares_a_bin_with_its_neighbours(self):
        curve = evaluate.reliability_curve(
            vector(0, 0.9, 0.96, 1), vector(0, 1, 1, 0), bins=10, binning="equal-width"
        )
        assert curve.count == [1, 3]
        assert curve.accuracy == pytest.approx([0, 2 / 3])

    def test_an_edge_belongs_to_the_bin_above(self):
        for bins in (10, 100):
            edges = torch.arange(bins + 1, dtype=torch.float64) / bins
            curve = evaluate.reliability_curve(
                edges, torch.ones_like(edges), bins=bins, binning="equal-width"
            )
            assert curve.count == [1] * (bins - 1) + [2]

    def test_equal_mass_keeps_ties_in_order_of_index(self):
        correct = vector(1, 1, 0, 0)
        curve = evaluate.reliability_curve(vector(0.9, 0.9, 0.9, 0.9), correct, bins=2)
        assert curve.accuracy == [1.0, 0.0]
        assert curve.count == [2, 2]

    def test_equal_mass_counts_differ_by_at_most_one(self):
        curve = evaluate.reliability_curve(*sure_and_right(1013), bins=20)
        assert set(curve.count) == {50, 51}
        assert sum(curve.count) == 1013
        assert curve.confidence == sorted(curve.confidence)

    def test_a_predictive_is_taken_with_its_targets(self, classes):
        predictive, targets = classes
        found = evaluate.expected_calibration_error(predictive, targets, bins=7)
        right = (predictive.predicted == targets).double()
        assert found == evaluate.expected_calibration_error(
            predictive.probs.max(-1).values, right, bins=7
        )
        assert found > 0.05

    def test_numbers_have_no_calibration_error_of_answers(self, numbers):
        with pytest.raises(ArgumentError, match="bernoulli for expected_calibration"):
            evaluate.expected_calibration_error(*numbers)

    @pytest.mark.parametrize(
        ("confidence", "correct", "message"),
        [
            (vector(93.0), vector(1), r"confidence must be in \[0, 1\], got 93\.0\."),
            (vector(0.9), vector(2), r"correct must be 0 or 1, got 2\.0\. Pass"),
            (vector(0.9), vector(1, 0), r"correct must be as long as confidence \(1\)"),
            (vector(0.9, NAN), vector(1, 0), "confidence must be free of NaN, got nan"),
            (vector(), vector(), r"confidence must be a vector .* got shape \(0,\)\."),
            (vector(0.9)[None], vector(1), r"got shape \(1, 1\)\. Pass one number"),
        ],
    )
    def test_wrong_vectors_are_refused(self, confidence, correct, message):
        verbs = (
            evaluate.expected_calibration_error,
            evaluate.reliability_curve,
            evaluate.bootstrap_calibration_error,
        )
        for verb in verbs:
            with pytest.raises(DataError, match=message):
                verb(confidence, correct)

    def test_wrong_options_are_refused(self):
        data = vector(0.9), vector(1)
        with pytest.raises(ArgumentError, match="one of equal-mass, equal-width, got"):
            evaluate.expected_calibration_error(*data, binning="equal")
        with pytest.raises(ArgumentError, match="bins must be 1 or more, got 0. Raise"):
            evaluate.reliability_curve(*data, bins=0)

    def test_curves_are_plain_json(self):
        data = sure_and_right(40)
        curve = evaluate.reliability_curve(*data, bins=5).to_dict()
        assert json.loads(json.dumps(curve)) == curve
        assert curve["count"] == [8] * 5
        risks = evaluate.risk_coverage(*data).to_dict()
        assert json.loads(json.dumps(risks)) == risks
        assert set(risks) == {"coverage", "risk", "area"}


class TestFloor:
    @pytest.mark.parametrize("binning", evaluate.BINNINGS)
    @pytest.mark.parametrize("n", [40, 277])
    def test_is_the_mean_error_of_calibrated_answers(self, n, binning):
        source, runs = generator(20), 2000
        confidence = 0.5 + 0.5 * torch.rand(n, generator=source, dtype=torch.float64) ** 2
        floor = evaluate.calibration_floor(confidence, binning=binning)
        answers = torch.rand(runs, n, generator=source, dtype=torch.float64) < confidence
        errors = vector(
            *(
                evaluate.expected_calibration_error(confidence, row, binning=binning)
                for row in answers.double()
            )
        )
        assert abs(errors.mean() - floor) < Z * errors.std() / sqrt(runs)

    def test_stands_beside_the_error_and_its_interval(self, classes, labels):
        for predictive, targets in (classes, labels):
            found = evaluate.summarise(predictive, targets, draws=20)
            for binning in evaluate.BINNINGS:
                error = found["ece_" + binning.replace("-", "_")]
                floor = evaluate.calibration_floor(predictive, targets, binning=binning)
                assert error.to_dict()["floor"] == floor > 0

    def test_falls_with_more_examples_and_is_cheap(self):
        floors = []
        for n in (277, 408, 2000):
            confidence, _ = sure_and_right(n)
            floors.append(evaluate.calibration_floor(confidence))
        assert floors == sorted(floors, reverse=True)
        assert floors[0] / floors[2] == pytest.approx(sqrt(2000 / 277), rel=0.1)
        started = time.perf_counter()
        evaluate.calibration_floor(confidence)
        assert time.perf_counter() - started < 0.5  # about 7 ms, on a busy machine too

    def test_rows_without_a_label_are_left_out(self, classes):
        predictive, targets = classes
        padded = targets.clone()
        padded[:100] = -100
        found = evaluate.calibration_floor(predictive, padded)
        assert found == evaluate.calibration_floor(predictive.confidence[100:])

    def test_numbers_have_no_floor(self, numbers):
        with pytest.raises(ArgumentError, match="bernoulli for calibration_floor"):
            evaluate.calibration_floor(*numbers)


class TestRiskCoverage:
    def test_a_known_case(self):
        confidence, correct = vector(0.5, 0.9, 0.8, 0.7), vector(0, 1, 0, 1)
        found = evaluate.risk_coverage(confidence, correct)
        assert found.coverage == [0.25, 0.5, 0.75, 1.0]
        assert found.risk == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])
        assert found.area == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 4)

    def test_equal_confidences_enter_together(self):
        confidence, correct = vector(0.9, 0.7, 0.7, 0.7), vector(1, 0, 1, 1)
        found = evaluate.risk_coverage(confidence, correct)
        assert found.coverage == [0.25, 1.0]
        assert found.risk == [0.0, 0.25]
        assert found.area == pytest.approx(0.75 * 0.25)

    def test_the_order_of_examples_does_not_matter(self):
        confidence, correct = sure_and_right(500)
        confidence = confidence.mul(20).round().div(20)
        order = torch.randperm(500, generator=generator(5))
        found = evaluate.risk_coverage(confidence, correct)
        moved = evaluate.risk_coverage(confidence[order], correct[order])
        assert found == moved
        assert len(found.risk) == 11

    def test_area_is_of_the_whole_curve_though_the_points_are_thinned(self):
        confidence, correct = sure_and_right(3000)
        found = evaluate.risk_coverage(confidence, correct)
        wrong = 1 - correct.numpy()[np.argsort(-confidence.numpy())]
        risk = np.cumsum(wrong) / np.arange(1, 3001)
        assert found.area == pytest.approx(risk.mean())
        assert len(found.coverage) == len(found.risk) == 200
        assert found.coverage[0] == pytest.approx(1 / 3000)
        assert found.coverage[-1] == 1
        assert found.risk[-1] == pytest.approx(wrong.mean())
        kept = np.rint(np.array(found.coverage) * 3000).astype(int)
        assert found.risk == pytest.approx(risk[kept - 1])

    def test_any_score_may_serve_as_confidence(self):
        found = evaluate.risk_coverage(vector(-3.5, 12), vector(0, 1))
        assert found.risk == [0.0, 0.5]

    def test_nan_and_lengths_are_refused(self):
        with pytest.raises(DataError, match="confidence must be free of NaN, got nan"):
            evaluate.risk_coverage(vector(NAN), vector(1))
        with pytest.raises(DataError, match=r"as long as confidence \(1\), got 2\."):
            evaluate.risk_coverage(vector(1), vector(1, 0))


class TestDetection:
    @pytest.mark.parametrize("digits", [0, 1, 8])
    def test_matches_scikit_learn_with_and_without_ties(self, digits):
        source = generator(6)
        inside = torch.randn(300, generator=source, dtype=torch.float64)
        outside = torch.randn(170, generator=source, dtype=torch.float64) + 0.7
        inside, outside = inside.round(decimals=digits), outside.round(decimals=digits)
        truth = np.repeat([0, 1], [300, 170])
        expected = roc_auc_score(truth, torch.cat([inside, outside]).numpy())
        assert evaluate.auroc(inside, outside) == pytest.approx(expected)
        assert 0.6 < expected < 0.8

    def test_direction_and_ties(self):
        assert evaluate.auroc(vector(0, 1), vector(2, 3)) == 1
        assert evaluate.auroc(vector(2, 3), vector(0, 1)) == 0
        assert evaluate.auroc(vector(1, 1), vector(1, 1, 1)) == 0.5
        # Against 2: one win and one tie; against 0: none.
        assert evaluate.auroc(vector(1, 2), vector(2, 0)) == 1.5 / 4

    def test_a_paired_difference_is_that_of_the_areas(self):
        source = generator(21)
        inside = torch.randn(120, generator=source, dtype=torch.float64)
        outside = torch.randn(90, generator=source, dtype=torch.float64) + 0.5
        first = (inside, outside)
        second = tuple(x + 0.3 * torch.randn(len(x), generator=source) for x in first)
        found = evaluate.paired_auroc_difference(first, second)
        assert found.value == evaluate.auroc(*first) - evaluate.auroc(*second)
        swapped = evaluate.paired_auroc_difference(second, first)
        assert (swapped.low, swapped.high) == pytest.approx((-found.high, -found.low))
        # DeLong's variance, pair by pair.
        wins = [(b[None] > a[:, None]).double() for a, b in (first, second)]
        gap = wins[0] - wins[1]
        variance = gap.mean(1).var() / 120 + gap.mean(0).var() / 90
        half = stats.norm.ppf(0.975) * sqrt(variance)
        assert found.high - found.value == pytest.approx(half)
        apart = evaluate.bootstrap_auroc(*first)
        assert apart.high - apart.low > 2 * (found.high - found.low)

    def test_a_paired_difference_covers_none_where_there_is_none(self):
        source, runs, covered = generator(22), 300, 0
        for _ in range(runs):
            shared = torch.randn(150, generator=source, dtype=torch.float64)
            shared[:70] += 0.7
            first, second = (
                shared + 0.5 * torch.randn(150, generator=source, dtype=torch.float64)
                for _ in range(2)
            )
            found = evaluate.paired_auroc_difference(
                (first[70:], first[:70]), (second[70:], second[:70])
            )
            covered += found.low <= 0 <= found.high
        assert abs(covered / runs - 0.95) < Z * sqrt(0.95 * 0.05 / runs)

    def test_a_paired_difference_needs_the_same_examples(self):
        two, three = vector(1, 2), vector(1, 2, 3)
        with pytest.raises(DataError, match="second outside_scores must be as long as"):
            evaluate.paired_auroc_difference((two, two), (two, three))
        with pytest.raises(DataError, match="inside_scores must be two or more, got 1"):
            evaluate.paired_auroc_difference((vector(1), two), (vector(1), two))

    def test_wrong_scores_are_refused(self):
        with pytest.raises(DataError, match=r"outside_scores must be a vector of one"):
            evaluate.auroc(vector(1), vector())
        with pytest.raises(DataError, match="inside_scores must be free of NaN"):
            evaluate.auroc(vector(NAN), vector(1))


class TestIntervals:
    def test_mean_is_bootstrap_of_the_mean_without_the_loop(self):
        values = torch.randn(40, generator=generator(7), dtype=torch.float64)
        options = {"draws": 200, "level": 0.8}
        slow = evaluate.bootstrap(lambda rows: values[rows].mean(), 40, **options)
        fast = evaluate.bootstrap_mean(values, **options)
        assert fast.to_dict() == pytest.approx(slow.to_dict())
        assert fast.low < fast.value < fast.high

    @pytest.mark.parametrize("level", [0.5, 0.95])
    def test_width_follows_the_standard_error(self, level):
        values = torch.randn(400, generator=generator(8), dtype=torch.float64)
        found = evaluate.bootstrap_mean(values, draws=4000, level=level)
        width = (found.high - found.low) / (values.std().item() / sqrt(400))
        tail = (1 - level) / 2
        ends = stats.norm.ppf(1 - tail)
        # The spread of a percentile of 4000 normal numbers, for two of them.
        spread = sqrt(2 * tail * (1 - tail) / 4000) / stats.norm.pdf(ends)
        assert abs(width - 2 * ends) < Z * spread

    def test_intervals_cover_the_truth_as_often_as_they_say(self):
        source, runs = generator(9), 400
        covered = 0
        for run in range(runs):
            values = torch.rand(80, generator=source, dtype=torch.float64)
            found = evaluate.bootstrap_mean(values, draws=300, level=0.9, seed=run)
            covered += found.low <= 0.5 <= found.high
        spread = sqrt(0.9 * 0.1 / runs)
        assert abs(covered / runs - 0.9) < Z * spread

    def test_default_redraws_repeat_and_leave_the_global_state(self):
        values = torch.randn(50, generator=generator(10))
        before = torch.get_rng_state()
        first = evaluate.bootstrap_mean(values)
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(1)
        assert evaluate.bootstrap_mean(values) == first
        torch.set_rng_state(before)

    def test_the_seed_decides_the_redraws(self):
        values = torch.randn(50, generator=generator(11))
        first = evaluate.bootstrap_mean(values, seed=1)
        again = evaluate.bootstrap_mean(values, seed=1)
        other = evaluate.bootstrap_mean(values, seed=2)
        assert first == again
        assert first.value == other.value
        assert first.low != other.low

    def test_chunks_do_not_change_the_redraws(self, monkeypatch):
        values = torch.randn(30, generator=generator(12), dtype=torch.float64)
        whole = evaluate.bootstrap_mean(values, draws=100)
        monkeypatch.setattr("smidgen.evaluate.intervals._CHUNK", 70)
        sizes = []

        def mean(rows: Tensor) -> Tensor:
            sizes.append(len(rows))
            return values[rows].mean(-1)

        drawn = redraw(mean, 30, draws=5, seed=0)
        assert sizes == [2, 2, 1]
        assert drawn.shape == (5,)
        assert evaluate.bootstrap_mean(values, draws=100) == whole

    def test_pairing_removes_what_both_share(self):
        source = generator(13)
        shared = 5 * torch.randn(300, generator=source, dtype=torch.float64)
        noise = 0.1 * torch.randn(300, generator=source, dtype=torch.float64)
        first, second = shared + 0.2 + noise, shared
        found = evaluate.paired_difference(first, second)
        assert found.value == pytest.approx((first - second).mean().item())
        assert 0 < found.low < 0.2 < found.high
        swapped = evaluate.paired_difference(second, first)
        assert swapped.value == pytest.approx(-found.value)
        assert swapped.high < 0
        apart = evaluate.bootstrap_mean(first)
        assert apart.high - apart.low > 20 * (found.high - found.low)

    def test_undefined_redraws_are_left_out(self):
        def without_first(rows: Tensor) -> float:
            return NAN if 0 in rows[1:] else 3.0

        found = evaluate.bootstrap(without_first, 4, draws=50)
        assert found == evaluate.Interval(3.0, 3.0, 3.0)
        with pytest.raises(DataError, match="statistic must be a number .* got NaN."):
            evaluate.bootstrap(lambda rows: NAN, 4, draws=5)

    def test_wrong_arguments_are_refused(self):
        values = vector(1, 2)
        with pytest.raises(ArgumentError, match="draws must be 1 or more, got 0."):
            evaluate.bootstrap_mean(values, draws=0)
        with pytest.raises(ArgumentError, match="level must be between 0 and 1, got 95"):
            evaluate.bootstrap_mean(values, level=95)
        with pytest.raises(ArgumentError, match="n must be 1 or more, got 0."):
            evaluate.bootstrap(lambda rows: 0.0, 0)
        with pytest.raises(DataError, match="values must be finite numbers, got inf"):
            evaluate.bootstrap_mean(vector(1, float("inf")))
        with pytest.raises(DataError, match=r"values must be a vector .* shape \(0,\)"):
            evaluate.bootstrap_mean(vector())
        with pytest.raises(DataError, match=r"second_values must be as long as first_"):
            evaluate.paired_difference(values, vector(1))

    def test_an_interval_is_frozen_plain_numbers(self):
        found = evaluate.Interval(1.0, 0.5, 2.0)
        assert found.to_dict() == {"value": 1.0, "low": 0.5, "high": 2.0}
        with pytest.raises(FrozenInstanceError):
            found.low = 0.0


class TestCalibrationInterval:
    @pytest.mark.parametrize("binning", evaluate.BINNINGS)
    def test_redraws_match_the_plain_error_of_each(self, binning):
        confidence, correct = sure_and_right(90)
        found = evaluate.bootstrap_calibration_error(
            confidence, correct, bins=6, binning=binning, draws=60, level=0.8
        )
        slow = redraw(
            lambda rows: vector(
                *(
                    evaluate.expected_calibration_error(
                        confidence[row], correct[row], bins=6, binning=binning
                    )
                    for row in rows
                )
            ),
            90,
            draws=60,
            seed=0,
        ).numpy()
        low, high = np.quantile(slow - slow.mean() + found.value, [0.1, 0.9])
        floor = evaluate.calibration_floor(confidence, bins=6, binning=binning)
        expected = {"value": found.value, "low": low, "high": high, "floor": floor}
        assert found.to_dict() == pytest.approx(expected)
        assert found.value == evaluate.expected_calibration_error(
            confidence, correct, bins=6, binning=binning
        )

    def test_covers_the_expected_error_also_of_a_calibrated_model(self):
        # Plain percentiles cover it in about two of three runs here.
        source, n, runs = generator(14), 400, 120
        confidence = 0.5 + 0.5 * torch.rand(
            8 * runs, n, generator=source, dtype=torch.float64
        )
        correct = (torch.rand(8 * runs, n, generator=source) < confidence).double()
        errors = [
            evaluate.expected_calibration_error(c, r)
            for c, r in zip(confidence, correct, strict=True)
        ]
        expected = np.mean(errors)
        covered = 0
        for c, r in zip(confidence[:runs], correct[:runs], strict=True):
            found = evaluate.bootstrap_calibration_error(c, r, draws=200)
            assert found.low <= found.value <= found.high
            covered += found.low <= expected <= found.high
        assert covered / runs > 0.95 - Z * sqrt(0.95 * 0.05 / runs)

    def test_is_never_negative(self):
        correct = vector(*[1] * 19, 0)
        found = evaluate.bootstrap_calibration_error(
            vector(*[0.95] * 20), correct, bins=1, draws=200
        )
        assert found.value == pytest.approx(0)
        assert found.low == 0


class TestAssociation:
    @pytest.mark.parametrize("digits", [0, 8])
    def test_matches_scipy_with_and_without_ties(self, digits):
        source = generator(15)
        a = torch.randn(120, generator=source, dtype=torch.float64)
        b = a + torch.randn(120, generator=source, dtype=torch.float64)
        a, b = a.round(decimals=digits), b.round(decimals=digits)
        found = evaluate.rank_correlation(a, b, draws=300)
        assert found.value == pytest.approx(stats.spearmanr(a, b).statistic)
        assert -1 <= found.low < found.value < found.high <= 1
        assert found.low > 0.3

    def test_a_paired_difference_is_that_of_the_correlations(self):
        source = generator(23)
        values = torch.randn(200, generator=source, dtype=torch.float64)
        first, second = (
            values + spread * torch.randn(200, generator=source, dtype=torch.float64)
            for spread in (0.5, 2.0)
        )
        found = evaluate.paired_rank_difference(first, second, values, draws=200)
        ours, theirs = (
            evaluate.rank_correlation(side, values, draws=1).value
            for side in (first, second)
        )
        assert found.value == pytest.approx(ours - theirs)
        assert 0 < found.low < found.value < found.high
        with pytest.raises(DataError, match=r"values must be as long as first \(200\)"):
            evaluate.paired_rank_difference(first, second, values[:3])

    def test_ranks_share_the_average(self):
        assert average_ranks(vector(3, 1, 3, 0)).tolist() == [3.5, 2, 3.5, 1]

    def test_a_monotone_relation_is_perfect(self):
        a = torch.linspace(-2, 2, 30)
        assert evaluate.rank_correlation(a, a.exp(), draws=50).value == pytest.approx(1)
        found = evaluate.rank_correlation(a, -(a**3), draws=50)
        assert found.to_dict() == pytest.approx({"value": -1, "low": -1, "high": -1})

    def test_few_examples_leave_undefined_redraws_out(self):
        found = evaluate.rank_correlation(vector(1, 2, 3), vector(1, 3, 2), draws=200)
        assert found.value == pytest.approx(0.5)
        assert found.low == pytest.approx(-1)
        assert found.high == pytest.approx(1)

    def test_wrong_vectors_are_refused(self):
        with pytest.raises(DataError, match="b must hold at least two different values"):
            evaluate.rank_correlation(vector(1, 2), vector(3, 3))
        with pytest.raises(DataError, match=r"b must be as long as a \(2\), got 3\."):
            evaluate.rank_correlation(vector(1, 2), vector(1, 2, 3))


class TestSummary:
    def test_categorical(self, classes):
        predictive, targets = classes
        found = evaluate.summarise(predictive, targets, draws=200)
        probs, truth = predictive.probs.numpy(), targets.numpy()
        expected = {
            "accuracy": (probs.argmax(1) == truth).mean(),
            "nll": -np.log(probs[np.arange(300), truth]).mean(),
            "brier": ((probs - np.eye(4)[truth]) ** 2).sum(1).mean(),
            "ece_equal_mass": evaluate.expected_calibration_error(
                predictive, targets, binning="equal-mass"
            ),
            "ece_equal_width": evaluate.expected_calibration_error(
                predictive, targets, binning="equal-width"
            ),
        }
        assert list(found) == list(expected)
        values = {name: interval.value for name, interval in found.items()}
        assert values == pytest.approx(expected)
        for interval in found.values():
            assert interval.low < interval.value < interval.high

    def test_gaussian(self, numbers):
        predictive, targets = numbers
        # At 201 draws both ends are drawn numbers: a root commutes with taking them.
        found = evaluate.summarise(predictive, targets, draws=201)
        assert list(found) == ["nll", "rmse", "coverage"]
        residuals = (targets - predictive.mean).numpy()
        assert found["rmse"].value == pytest.approx(np.sqrt((residuals**2).mean()))
        assert found["nll"].value == evaluate.nll(predictive, targets).mean()
        per_example = torch.from_numpy((residuals**2).mean(1))
        slow = evaluate.bootstrap(
            lambda rows: per_example[rows].mean().sqrt(), 60, draws=201
        )
        assert found["rmse"].low == pytest.approx(slow.low)
        assert found["rmse"].high == pytest.approx(slow.high)

    def test_bernoulli(self, labels):
        found = evaluate.summarise(*labels, draws=50)
        predictive, targets = labels
        assert found["brier"].value == pytest.approx(evaluate.brier(*labels).mean())
        sure = predictive.probs.maximum(1 - predictive.probs)
        right = (predictive.probs >= 0.5) == (targets == 1)
        assert found["accuracy"].value == pytest.approx(right.double().mean())
        error = evaluate.expected_calibration_error(sure.flatten(), right.flatten())
        assert found["ece_equal_mass"].value == pytest.approx(error)
        # The labels of an example are redrawn together, not one by one.
        apart = evaluate.bootstrap_calibration_error(sure.flatten(), right.flatten())
        assert found["ece_equal_mass"].low != apart.low
        assert list(found) == [
            "accuracy", "nll", "brier", "ece_equal_mass", "ece_equal_width"
        ]  # fmt: skip

    def test_coverage_is_of_central_intervals_with_the_noise(self):
        mean, ones = torch.zeros(4, 1, dtype=torch.float64), torch.ones(4, 1)
        predictive = GaussianPredictive(mean, 3 * ones, ones)
        targets = vector(3.9, -3.9, 3.95, 0.0)
        assert evaluate.covered(predictive, targets).tolist() == [1, 1, 0, 1]
        assert evaluate.covered(predictive, targets, level=0.5).tolist() == [0, 0, 0, 1]

    def test_the_seed_decides_the_intervals(self, classes):
        first = evaluate.summarise(*classes, draws=50, seed=1)
        again = evaluate.summarise(*classes, draws=50, seed=1)
        other = evaluate.summarise(*classes, draws=50, seed=2)
        assert first == again
        for name, interval in first.items():
            assert interval.value == other[name].value
            assert interval != other[name]

    def test_what_a_score_refuses_is_refused(self, classes):
        predictive, targets = classes
        with pytest.raises(DataError, match=r"as many as the predictions \(300\), got"):
            evaluate.summarise(predictive, targets[:-1])


def test_a_regression_may_mean_minus_one_hundred():
    targets = torch.tensor([-100, 3])
    mean = torch.tensor([[-99.0], [3.0]], dtype=torch.float64)
    predictive = GaussianPredictive(mean, torch.zeros(2, 1), torch.ones(1))
    assert len(evaluate.nll(predictive, targets)) == 2


def test_class_156_of_labels_without_a_sign_is_a_class():
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(0))
    predictive = CategoricalPredictive.from_logits(logits)
    targets = torch.tensor([156, 3, 199])
    unsigned = evaluate.nll(predictive, targets.to(torch.uint8))
    assert_close(unsigned, evaluate.nll(predictive, targets))


def test_rounding_is_no_difference():
    # The same prediction by two routes: its last bits must not make a verdict.
    values = torch.rand(200, generator=torch.Generator().manual_seed(0)).double() + 1
    found = evaluate.paired_difference(values * (1 + 2e-16), values)
    assert (found.value, found.low, found.high) == (0, 0, 0)
    assert evaluate.paired_difference(values + 1e-6, values).low > 0
