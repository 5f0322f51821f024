"""Likelihoods' Hessian roots, links against quadrature and sampling, predictives."""

from __future__ import annotations

from math import pi

import pytest
import torch

import smidgen
from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.likelihood import Bernoulli, Categorical, Gaussian
from smidgen.outputs.links import (
    DRAWS,
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
from tests.support.cases import Case, mlp, vectors
from tests.support.oracles import centred, output_hessian, subset_jacobian
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
    normals = standard_normals(draws, 3, seed=5)
    found = class_log_probs("sampling", logits, covariance, normals=normals).exp()
    other = normal(draws, 3, 3, seed=9)
    contrast = logits[:, 1:] - logits[:, :1]
    cholesky = torch.linalg.cholesky(covariance)
    drawn = contrast + torch.einsum("bij,sbj->sbi", cholesky, other)
    probs = torch.cat([torch.zeros(draws, 3, 1).double(), drawn], -1).softmax(-1)
    error = probs.std(0) * (2 / draws) ** 0.5
    assert ((found - probs.mean(0)).abs() < Z * error).all()


def test_few_draws_err_less_than_four_times_as_many_independent_ones():
    """So that the same draws are few enough to calibrate and good enough to predict."""
    logits, root = 3 * normal(30, 10), normal(30, 9, 9, seed=1)
    covariance = root @ root.mT

    def probs(normals):
        return class_log_probs("sampling", logits, covariance, normals=normals).exp()

    exact = torch.stack([probs(standard_normals(4096, 9, seed=s)) for s in (8, 9)]).mean(0)
    few = [probs(standard_normals(DRAWS, 9, seed=s)) - exact for s in range(8)]
    independent = [probs(normal(4 * DRAWS, 9, seed=s)) - exact for s in range(8)]
    assert torch.stack(few).square().mean() < torch.stack(independent).square().mean()


def test_draws_are_standard_normal_and_settled_by_their_seed():
    draws = standard_normals(1024, 40)
    assert torch.isfinite(draws).all()
    assert (draws.mean(0).abs() < Z / 1024**0.5).all()
    covariance = draws.T.cov()
    eye = torch.eye(40).double()
    assert ((covariance - eye).abs() < Z * ((1 + eye) / 1024).sqrt()).all()
    state = torch.random.get_rng_state()
    assert torch.equal(standard_normals(16, 3, seed=2), standard_normals(16, 3, seed=2))
    assert not torch.equal(standard_normals(16, 3, seed=2), standard_normals(16, 3, seed=3))
    assert torch.equal(torch.random.get_rng_state(), state)
    # More than a Sobol sequence has dimensions.
    assert torch.isfinite(standard_normals(2, 30_000)).all()


@pytest.mark.parametrize("outputs", [2, 4])
def test_the_covariance_is_that_of_centred_logits_whatever_the_link(outputs):
    model, batch = Case("mlp", mlp, outputs, vectors).make()
    subset = smidgen.select.sparse_kfac(model, percent=60)
    posterior = smidgen.fit.laplace(model, [batch], subset, structure="full", precision=0.4)
    jacobian = subset_jacobian(model, lambda net, own: net(own[0]), batch, subset)
    roots = posterior.likelihood.root_columns(model(batch[0]).detach())  # (K, B, C)
    rows = torch.einsum("kbc,bcp->kbp", roots, jacobian).flatten(0, 1)
    precision = rows.T @ rows + 0.4 * torch.eye(subset.size).double()
    expected = centred(jacobian @ torch.linalg.solve(precision, jacobian.mT))
    two = ("quadrature", "probit") if outputs == 2 else ()
    for link in ("auto", *two, "diagonal-probit", "sampling", "laplace-bridge"):
        found = smidgen.predict(posterior, model, batch, link=link)
        torch.testing.assert_close(found.logit_covariance, expected, **EXACT)
        variance = torch.tensor(found.to_dict()["logit_variance"], dtype=torch.float64)
        torch.testing.assert_close(variance, expected.diagonal(dim1=1, dim2=2), **EXACT)
        torch.testing.assert_close(found.logit_variance, variance, **EXACT)


def test_the_diagonal_probit_is_damped_by_the_logits_own_variances():
    logits, root = normal(5, 3), normal(5, 3, 3, seed=1)
    covariance = root @ root.mT
    found = class_log_probs("diagonal-probit", logits, covariance, temperature=1.7)
    factor = (1 + pi / 8 * covariance.diagonal(dim1=1, dim2=2)).rsqrt()
    expected = (logits / 1.7 * factor).log_softmax(-1)
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("link", ["quadrature", "probit", "diagonal-probit", "sampling"])
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
    curve = likelihood.nll_curves(logits, targets, link=link, normals=normals)(covariances)
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
    assert resolve_link("auto", 2) == "quadrature"
    assert resolve_link("auto", 3) == "sampling"
    for link in ("quadrature", "probit"):
        with pytest.raises(ArgumentError, match=f"'{link}' is for two classes, got 3"):
            resolve_link(link, 3)
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
        BernoulliPredictive(
            logits[..., None].log_softmax(-1).expand(3, 2, 2),
            logits,
            torch.ones(3, 2).double(),
        ),
        GaussianPredictive(logits, logits.square(), 1.0),
    ]
    for predictive in predictives:
        assert len(predictive) == 3
        assert {len(v) for v in predictive.to_dict().values()} == {3}
        assert len(concatenate([predictive, predictive])) == 6
    assert "mutual_information" not in predictives[0].to_dict()
    assert "mutual_information" in predictives[1].to_dict()


@pytest.mark.parametrize("classes", [3, 10, 40])
def test_draws_are_common_to_covariances_that_hardly_differ(classes):
    """Eigenvectors of a prior-dominated covariance turn around at the least change."""
    count = classes - 1
    covariance = 4 * (torch.eye(count, dtype=torch.float64) + 1)
    source = torch.Generator().manual_seed(0)
    change = 1e-9 * torch.randn(count, count, generator=source, dtype=torch.float64)
    logits = torch.randn(1, classes, generator=source, dtype=torch.float64)
    found = [
        at_temperatures("sampling", logits, matrix[None])(1.0).exp()
        for matrix in (covariance, covariance + change + change.T)
    ]
    assert (found[0] - found[1]).abs().max() < 1e-8
