from __future__ import annotations

from itertools import permutations
from math import sqrt

import pytest
import torch
from torch import Tensor

from smidgen import evaluate
from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.predictive import BernoulliPredictive, CategoricalPredictive

Z = 3.5
RUNS = 400
# Both sides as powers of the true odds: 1 is honest, more is too sure, less too unsure.
PAIRS = {
    "calibrated and a little too sure": (1.0, 1.25),
    "calibrated and too sure": (1.0, 1.5),
    "calibrated and far too sure": (1.0, 2.2),
    "both too sure": (1.5, 3.0),
    "too unsure and too sure": (0.6, 1.5),
}


def two_classes(odds: Tensor) -> CategoricalPredictive:
    return CategoricalPredictive.from_logits(torch.stack([odds, 0 * odds], -1))


def simulate(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """True log odds of class 0, and classes drawn by them."""
    source = torch.Generator().manual_seed(seed)
    odds = torch.randn(n, generator=source, dtype=torch.float64) * 1.2 + 1.5
    odds = odds.abs()
    targets = (torch.rand(n, generator=source, dtype=torch.float64) > odds.sigmoid()).long()
    return odds, targets


def true_squared_error(odds: Tensor, power: float, bins: int = 20) -> float:
    """What the estimate has for its expectation: products of true gaps within bins."""
    gaps = odds.sigmoid() - (power * odds).sigmoid()
    order = odds.argsort()
    total = 0.0
    for members in torch.tensor_split(gaps[order], bins):
        count = len(members)
        products = members.sum() ** 2 - members.square().sum()
        total += float(products / (count * (count - 1))) * count / len(gaps)
    return total


@pytest.mark.parametrize("powers", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("n", [200, 1000])
def test_a_difference_has_no_bias_and_its_interval_covers(n, powers):
    ours, theirs = powers
    errors, covered, plain = [], 0, []
    for seed in range(RUNS):
        odds, targets = simulate(n, seed)
        pair = two_classes(ours * odds), two_classes(theirs * odds)
        truth = true_squared_error(odds, ours) - true_squared_error(odds, theirs)
        found = evaluate.paired_calibration_difference(*pair, targets)
        errors.append(found.value - truth)
        covered += found.low <= truth <= found.high
        if seed < RUNS // 8:
            sample = [evaluate.expected_calibration_error(p, targets) for p in pair]
            gaps = [
                (odds.sigmoid() - (power * odds).sigmoid()).abs().mean() for power in powers
            ]
            plain.append(sample[0] - sample[1] - float(gaps[0] - gaps[1]))
    errors = torch.tensor(errors)
    assert abs(errors.mean()) < min(0.005, Z * float(errors.std()) / sqrt(RUNS))
    assert 0.92 <= covered / RUNS <= 0.98
    if powers == PAIRS["calibrated and too sure"] and n == 200:
        # The plain difference of sample errors is off by most of the true one, −0.061.
        assert sum(plain) / len(plain) > 0.04


@pytest.mark.parametrize("n", [100, 400])
def test_two_calibrated_models_are_told_apart_by_chance_alone(n):
    told_apart = 0
    for seed in range(RUNS):
        odds, targets = simulate(n, seed)
        # The second knows only in which of a few groups a row is: honest, but less sharp.
        group = (odds.sigmoid() * 8).long()
        sums = torch.zeros(9, dtype=torch.float64).scatter_add(0, group, odds.sigmoid())
        mean = (sums / group.bincount(minlength=9).clamp_min(1))[group]
        pair = two_classes(odds), two_classes(mean.logit())
        found = evaluate.paired_calibration_difference(*pair, targets)
        told_apart += not found.low <= 0 <= found.high
    assert 0.02 <= told_apart / RUNS <= 0.08


def test_the_estimate_is_the_mean_product_of_pairs():
    confidence = torch.tensor([0.6, 0.7, 0.9, 0.95, 0.8], dtype=torch.float64)
    correct = torch.tensor([1.0, 0, 1, 1, 0], dtype=torch.float64)
    residuals = (correct - confidence).tolist()
    found = evaluate.squared_calibration_error(confidence, correct, bins=1)
    products = [a * b for a, b in permutations(residuals, 2)]
    assert found.value == pytest.approx(sum(products) / len(products))
    # Bins of one answer tell nothing: at most half as many bins as answers are used.
    many = evaluate.squared_calibration_error(confidence, correct, bins=20)
    assert many == evaluate.squared_calibration_error(confidence, correct, bins=2)


def test_a_variance_is_that_of_all_pairs_by_loops():
    odds, targets = simulate(30, 7)
    pair = two_classes(odds), two_classes(1.7 * odds)
    bins = 4
    h = torch.zeros(30, 30, dtype=torch.float64)
    for sign, predictive in zip((1, -1), pair, strict=True):
        residuals = (predictive.predicted == targets).double() - predictive.confidence
        place = torch.empty(30, dtype=torch.long)
        place[predictive.confidence.argsort(stable=True)] = torch.arange(30) * bins // 30
        for i, j in permutations(range(30), 2):
            if place[i] == place[j]:
                count = int((place == place[i]).sum())
                h[i, j] += sign * residuals[i] * residuals[j] / (count - 1) / 30
    linear = h.sum(1)
    variance = 4 * (linear - linear.mean()).square().sum() - 2 * h.square().sum()
    half = 1.959964 * sqrt(max(float(variance), float(h.square().sum())))
    found = evaluate.paired_calibration_difference(*pair, targets, bins=bins)
    assert found.value == pytest.approx(float(h.sum()))
    assert found.high - found.value == pytest.approx(half, rel=1e-6)


def test_a_prediction_does_not_differ_from_itself():
    odds, targets = simulate(50, 0)
    found = evaluate.paired_calibration_difference(*[two_classes(odds)] * 2, targets)
    assert found.to_dict() == pytest.approx({"value": 0, "low": 0, "high": 0}, abs=1e-9)


def test_labels_of_one_example_are_not_paired():
    # All labels of an example are right or wrong together: no sign of a gap.
    errors = []
    for seed in range(300):
        source = torch.Generator().manual_seed(seed)
        right = torch.rand(60, 1, generator=source, dtype=torch.float64) < 0.8
        correct = right.expand(60, 5).double()
        confidence = torch.full((60, 5), 0.8, dtype=torch.float64)
        errors.append(evaluate.squared_calibration_error(confidence, correct, bins=1).value)
    errors = torch.tensor(errors)
    spread = float(errors.std()) / sqrt(len(errors))
    assert abs(errors.mean()) < Z * spread
    # Pairs within an example would add 0.16 · 4 / 299 each.
    assert spread * Z < 0.16 * 4 / 299


def test_labels_and_equal_widths_are_taken():
    source = torch.Generator().manual_seed(3)
    probs = torch.rand(80, 3, generator=source, dtype=torch.float64)
    labels = (torch.rand(80, 3, generator=source) < probs).double()
    first = BernoulliPredictive.from_logits(probs.logit())
    second = BernoulliPredictive.from_logits(3 * probs.logit())
    for binning in evaluate.BINNINGS:
        found = evaluate.paired_calibration_difference(
            first, second, labels, binning=binning
        )
        assert found.high < 0


def test_wrong_calls_are_refused():
    odds, targets = simulate(3, 0)
    one = two_classes(odds[:1])
    with pytest.raises(DataError, match="must be of two examples or more, got 1"):
        evaluate.paired_calibration_difference(one, one, targets[:1])
    with pytest.raises(ArgumentError, match="bins must be 1 or more, got 0. Raise"):
        evaluate.squared_calibration_error(two_classes(odds), targets, bins=0)
    with pytest.raises(ArgumentError, match="level must be between 0 and 1, got 95"):
        evaluate.squared_calibration_error(two_classes(odds), targets, level=95)
