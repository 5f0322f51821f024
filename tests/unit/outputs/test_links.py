"""Likelihoods' Hessian roots, links against quadrature and sampling, predictives."""

from __future__ import annotations

import pytest
import torch

from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.likelihood import Bernoulli, Categorical, Gaussian
from smidgen.outputs.links import (
    at_temperatures,
    directions,
    resolve_link,
    standard_normals,
)
from smidgen.outputs.predictive import (
    BernoulliPredictive,
    CategoricalPredictive,
    GaussianPredictive,
    concatenate,
)
from tests.support.oracles import output_hessian
from tests.support.tolerances import EXACT, PROBIT, Z


def normal(*shape, seed=0):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def class_log_probs(link, logits, covariance, *, temperature=1.0, normals=None):
    return at_temperatures(link, logits, covariance, normals=normals)(temperature)


@pytest.mark.parametrize(
    "likelihood", [Categorical(2), Categorical(5), Bernoulli(3), Gaussian(2)], ids=str
)
@pytest.mark.parametrize("spread", [1.0, 40.0])
def test_root_columns_square_to_the_hessian(likelihood, spread):
    logits = spread * normal(7, likelihood.outputs)
    columns = likelihood.root_columns(logits)
    found = torch.einsum("kbc,kbd->bcd", columns, columns)
    expected = torch.stack([output_hessian(likelihood.kind, each) for each in logits])
    torch.testing.assert_close(found, expected, **EXACT)


def test_two_classes_need_one_backward_pass():
    assert len(Categorical(2).root_columns(normal(3, 2))) == 1


def test_roots_are_finite_at_certainty():
    logits = torch.tensor([[1e4, 0.0, -1e4], [0.0, 0.0, 1e4]])
    assert torch.isfinite(Categorical(3).root_columns(logits)).all()


@pytest.mark.parametrize("variance", [0.0, 0.3, 5.0])
def test_two_class_probit_is_near_the_integral(variance):
    """E[sigmoid] by a fine sum over the normal density."""
    logits = torch.tensor([[0.0, d] for d in (-4.0, -0.5, 0.0, 2.0)]).double()
    covariance = torch.full((4, 1, 1), variance).double()
    grid = torch.linspace(-8, 8, 4001).double()
    weights = (-0.5 * grid**2).exp() / (-0.5 * grid**2).exp().sum()
    exact = ((logits[:, 1:] + variance**0.5 * grid).sigmoid() * weights).sum(1)
    found = class_log_probs("probit", logits, covariance).exp()
    torch.testing.assert_close(found[:, 1], exact, **PROBIT)
    torch.testing.assert_close(found.sum(-1), torch.ones(4).double(), **EXACT)


def test_sampling_agrees_with_brute_force_within_its_error():
    logits = normal(3, 4)
    root = normal(3, 3, 3, seed=1)
    covariance = root @ root.transpose(1, 2)
    draws = 20_000
    normals = standard_normals(draws, 3, generator=torch.Generator().manual_seed(5))
    found = class_log_probs("sampling", logits, covariance, normals=normals).exp()
    other = normal(draws, 3, 3, seed=9)
    contrast = logits[:, 1:] - logits[:, :1]
    cholesky = torch.linalg.cholesky(covariance)
    drawn = contrast + torch.einsum("bij,sbj->sbi", cholesky, other)
    probs = torch.cat([torch.zeros(draws, 3, 1).double(), drawn], -1).softmax(-1)
    error = probs.std(0) * (2 / draws) ** 0.5
    assert ((found - probs.mean(0)).abs() < Z * error).all()


@pytest.mark.parametrize("link", ["probit", "diagonal-probit", "sampling"])
def test_no_variance_is_a_plain_softmax_with_temperature(link):
    logits = normal(5, 2)
    count = len(directions(link, 2))
    found = class_log_probs(
        link, logits, torch.zeros(5, count, count).double(), temperature=1.7
    )
    torch.testing.assert_close(found, (logits / 1.7).log_softmax(-1), **EXACT)


@pytest.mark.parametrize("link", ["sampling", "diagonal-probit", "laplace-bridge"])
def test_the_tuned_nll_is_that_of_the_predictive(link):
    likelihood, logits = Categorical(5), normal(6, 5)
    size = len(directions(link, 5))
    root = normal(3, 6, size, size, seed=1)
    covariances, targets = root @ root.mT, torch.tensor([0, 1, 2, 3, 4, 0])
    normals = standard_normals(16, 4)
    curve = likelihood.nll_of_temperature(
        logits, covariances, targets, link=link, normals=normals
    )
    temperatures = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    for found, covariance, each in zip(
        curve(temperatures), covariances, temperatures, strict=True
    ):
        whole = class_log_probs(
            link, logits, covariance, temperature=float(each), normals=normals
        )
        wanted = -whole[torch.arange(6), targets].mean()
        torch.testing.assert_close(found, wanted, **EXACT)


def test_links_refuse_what_they_cannot_serve():
    assert resolve_link("auto", 2) == "probit"
    assert resolve_link("auto", 3) == "sampling"
    with pytest.raises(ArgumentError, match="'probit' is for two classes, got 3"):
        resolve_link("probit", 3)
    with pytest.raises(ArgumentError, match="link must be 'auto' or one of.*'logit'"):
        resolve_link("logit", 2)


@pytest.mark.parametrize(
    ("likelihood", "logits", "targets", "message"),
    [
        (Categorical(2), torch.zeros(2, 2), torch.tensor([0, 2]), r"in \[0, 2\), got 2"),
        (Categorical(2), torch.zeros(2, 2), torch.tensor([0.0, 1.0]), "class numbers"),
        (Categorical(2), torch.zeros(2, 3), torch.tensor([0, 1]), r"shape \(batch, 2\)"),
        (
            Categorical(2),
            torch.full((1, 2), torch.nan),
            torch.tensor([0]),
            "NaN or infinity",
        ),
        (Bernoulli(1), torch.zeros(2, 1), torch.tensor([[0], [3]]), "must be 0 or 1"),
        (Bernoulli(2), torch.zeros(2, 2), torch.tensor([0, 1]), r"shape \(2, 2\)"),
        (
            Gaussian(2),
            torch.zeros(3, 2),
            torch.zeros(2, 3),
            r"shape \(3, 2\).*got \(2, 3\)",
        ),
        (Gaussian(1), torch.zeros(1, 1), torch.tensor([torch.nan]), "finite numbers"),
    ],
)
def test_bad_targets_are_named(likelihood, logits, targets, message):
    def check():
        likelihood.check_outputs(logits)
        likelihood.check_targets(logits, targets)

    with pytest.raises(DataError, match=message):
        check()


def test_mutual_information_grows_with_variance_and_vanishes_without():
    logits = torch.tensor([[0.2, 1.0]]).double()
    values = []
    for variance in (0.0, 1.0, 9.0):
        covariance = variance / 4 * torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]]).double()
        log_probs = class_log_probs("probit", logits, torch.tensor([[[variance]]]).double())
        predictive = CategoricalPredictive(log_probs, logits, covariance)
        values.append(float(predictive.mutual_information))
        assert values[-1] <= float(predictive.entropy) + PROBIT["atol"]
    assert values[0] == pytest.approx(0, abs=1e-12)
    assert values[0] < values[1] < values[2]


def test_mutual_information_of_two_classes_equals_sampling():
    logits, variance, draws = torch.tensor([[0.0, 0.7]]).double(), 2.5, 200_000
    covariance = variance / 4 * torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]]).double()
    found = CategoricalPredictive(logits, logits, covariance).mutual_information
    p = (0.7 + variance**0.5 * normal(draws)).sigmoid()
    entropy = -(p * p.log() + (1 - p) * (1 - p).log())
    mean = p.mean()
    expected = -(mean * mean.log() + (1 - mean) * (1 - mean).log()) - entropy.mean()
    assert abs(float(found) - float(expected)) < Z * float(entropy.std()) / draws**0.5


def test_regression_predictive_separates_noise_from_doubt():
    predictive = GaussianPredictive(
        torch.zeros(2, 1), torch.tensor([[0.0], [3.0]]), noise=1.0
    )
    assert predictive.total_variance.flatten().tolist() == [1.0, 4.0]
    information = predictive.mutual_information
    assert information.tolist() == pytest.approx([0.0, torch.tensor(2.0).log().item()])


def test_to_dict_lists_one_entry_per_example():
    logits = normal(3, 2)
    predictives = [
        CategoricalPredictive.from_logits(logits),
        CategoricalPredictive(
            logits.log_softmax(-1), logits, torch.zeros(3, 2, 2).double()
        ),
        BernoulliPredictive(logits.sigmoid(), logits, torch.ones(3, 2).double()),
        GaussianPredictive(logits, logits.square(), 1.0),
    ]
    for predictive in predictives:
        assert len(predictive) == 3
        assert {len(v) for v in predictive.to_dict().values()} == {3}
        assert len(concatenate([predictive, predictive])) == 6
    assert "mutual_information" not in predictives[0].to_dict()
    assert "mutual_information" in predictives[1].to_dict()
