"""Distances of features against their definition, and what they find."""

from __future__ import annotations

import pytest
import torch
from sklearn.covariance import ledoit_wolf

from smidgen.decide import FeatureDistance
from smidgen.errors import DataError
from smidgen.evaluate import auroc
from tests.support.decisions import make_generator


def make_features(rows=300, width=4, classes=3, seed=0):
    generator = make_generator(seed)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    centres = 3 * torch.randn(classes, width, generator=make_generator(9)).double()
    mixing = torch.randn(width, width, generator=make_generator(8)).double()
    noise = torch.randn(rows, width, generator=generator).double() @ mixing
    return centres[labels] + noise, labels


def test_the_score_is_that_of_the_definition():
    features, labels = make_features()
    distance = FeatureDistance.fit(features, labels)
    new, _ = make_features(seed=1)
    means = torch.stack([features[labels == k].mean(0) for k in range(3)])

    def inverse(centred):
        shrunk, _ = ledoit_wolf(centred.numpy(), assume_centered=True)
        return torch.linalg.inv(torch.from_numpy(shrunk))

    within, whole = inverse(features - means[labels]), inverse(features - features.mean(0))
    for row, score in zip(new, distance.score(new), strict=True):
        nearest = min(float((row - m) @ within @ (row - m)) for m in means)
        away = row - features.mean(0)
        assert float(score) == pytest.approx(nearest - float(away @ whole @ away), rel=1e-8)


def test_what_is_between_the_classes_is_strange():
    features, labels = make_features(width=6)
    familiar, _ = make_features(seed=1, width=6)
    distance = FeatureDistance.fit(features, labels)
    strange = features.mean(0) + torch.randn(300, 6, generator=make_generator(3)).double()
    assert auroc(distance.score(familiar), distance.score(strange)) > 0.9


def test_more_dimensions_than_rows_are_fine():
    features, labels = make_features(rows=40, width=200)
    new, _ = make_features(rows=40, width=200, seed=1)
    scores = FeatureDistance.fit(features, labels).score(new)
    assert scores.isfinite().all()


def test_a_constant_feature_counts_nowhere():
    features, labels = make_features()
    wider = torch.cat([features, torch.full((300, 1), 7.0)], 1)
    assert FeatureDistance.fit(wider, labels).score(wider).isfinite().all()


def test_without_labels_it_is_the_plain_distance():
    features, _ = make_features()
    distance = FeatureDistance.fit(features)
    centred = features - features.mean(0)
    shrunk, _ = ledoit_wolf(centred.numpy(), assume_centered=True)
    expected = ((centred @ torch.linalg.inv(torch.from_numpy(shrunk))) * centred).sum(-1)
    torch.testing.assert_close(distance.score(features), expected)


def test_rows_without_a_label_are_left_out():
    features, labels = make_features()
    hidden = torch.where(torch.arange(300) % 2 == 0, -100, labels)
    shown = hidden >= 0
    torch.testing.assert_close(
        FeatureDistance.fit(features, hidden).score(features),
        FeatureDistance.fit(features[shown], labels[shown]).score(features),
    )


def test_what_does_not_suit_is_refused():
    features, labels = make_features()
    with pytest.raises(
        DataError, match="labels must be 300 class numbers, one for each row"
    ):
        FeatureDistance.fit(features, labels[1:])
    with pytest.raises(DataError, match="features must be of two rows or more, got 0"):
        FeatureDistance.fit(features, torch.full_like(labels, -100))
    with pytest.raises(
        DataError, match=r"of shape \(rows, width\), got \(300,\). Pool them"
    ):
        FeatureDistance.fit(features[:, 0])
    with pytest.raises(DataError, match="got NaN or infinity for row 2"):
        FeatureDistance.fit(features.index_fill(0, torch.tensor(2), torch.nan))
    with pytest.raises(DataError, match="features must have 4 numbers for each row, got 3"):
        FeatureDistance.fit(features, labels).score(features[:, :3])
