"""Mutual information is between zero and the entropy of the predictive's own probabilities."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smidgen.outputs.information import entropy_of, mixture_information
from smidgen.outputs.likelihood import Bernoulli, Categorical
from smidgen.outputs.links import DRAWS, standard_normals
from tests.support.tolerances import EXACT, Z


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def predictive(link, classes, *, scale, spread, temperature=1.0, top=None, seed=0):
    """Of Gaussian logits with means of a scale and noise of a spread."""
    likelihood = Categorical(classes)
    size = likelihood.direction_count(link, top)
    root = spread * normal(20, size, size, seed=seed + 1)
    return likelihood.predictive(
        scale * normal(20, classes, seed=seed),
        root @ root.mT,
        link=link,
        temperature=temperature,
        normals=standard_normals(DRAWS, (top or classes) - 1),
        top=top,
    )


WAYS = [
    *((link, 2, None) for link in ("quadrature", "probit")),
    *((link, n, None) for n in (2, 5) for link in ("diagonal-probit", "sampling")),
    *(("laplace-bridge", n, None) for n in (2, 5)),
    ("sampling", 6, 3),
]


@given(
    st.sampled_from(WAYS),
    st.floats(0, 50),
    st.floats(0, 30),
    st.floats(0.1, 10),
    st.integers(0, 1000),
)
def test_information_is_between_zero_and_the_entropy(way, scale, spread, temperature, seed):
    link, classes, top = way
    found = predictive(
        link,
        classes,
        scale=scale,
        spread=spread,
        temperature=temperature,
        top=top,
        seed=seed,
    )
    information = found.mutual_information
    assert torch.isfinite(information).all()
    assert (information >= 0).all()
    assert (information <= found.entropy).all()


@given(st.floats(0, 50), st.floats(0, 30), st.floats(0.1, 10), st.integers(0, 1000))
def test_so_it_is_for_labels_and_for_draws_of_the_weights(scale, spread, temperature, seed):
    means, noise = scale * normal(9, 3, seed=seed), spread * normal(5, 9, 3, seed=seed + 1)
    covariance = torch.diag_embed(noise.var(0))
    options = {"temperature": temperature, "normals": torch.empty(0)}
    for found in (
        *(
            Bernoulli(3).predictive(means, covariance, link=link, **options)
            for link in Bernoulli.links
        ),
        Bernoulli(3).mixture(means + noise, temperature),
        Categorical(3).mixture(means + noise, temperature),
    ):
        information = found.mutual_information
        assert (information >= 0).all()
        assert (information <= found.entropy).all()


def test_it_grows_with_the_variance_and_vanishes_without():
    values = [
        predictive("quadrature", 2, scale=1.0, spread=spread).mutual_information
        for spread in (0.0, 1.0, 3.0)
    ]
    torch.testing.assert_close(values[0], torch.zeros(20).double(), **EXACT)
    assert (values[0] < values[1]).all()
    assert (values[1] < values[2]).all()


@pytest.mark.parametrize("link", ["quadrature", "probit"])
def test_of_two_classes_it_is_that_of_many_draws(link):
    found, draws = predictive(link, 2, scale=2.0, spread=1.5, temperature=1.7), 200_000
    full = found.logit_covariance
    variance = full[:, 0, 0] + full[:, 1, 1] - 2 * full[:, 0, 1]
    means = (found.logits[:, 1] - found.logits[:, 0]) / 1.7
    for row in range(3):
        p = (means[row] + variance[row].sqrt() * normal(draws, seed=row)).sigmoid()
        drawn = torch.stack([p, 1 - p], -1)
        expected = mixture_information(drawn.log())
        error = entropy_of(drawn.log()).std() / draws**0.5
        assert abs(float(found.mutual_information[row] - expected)) < Z * float(error)


def test_of_draws_it_is_that_of_the_draws_that_made_the_probabilities():
    found = predictive("sampling", 4, scale=2.0, spread=1.0)
    root = normal(20, 3, 3, seed=1)
    noise = standard_normals(DRAWS, 3) @ torch.linalg.cholesky(root @ root.mT).mT
    contrasts = (found.logits[:, 1:] - found.logits[:, :1])[:, None] + noise
    drawn = torch.cat([torch.zeros(20, DRAWS, 1).double(), contrasts], -1).softmax(-1)
    torch.testing.assert_close(found.probs, drawn.mean(1), **EXACT)
    within = torch.special.entr(drawn).sum(-1).mean(1)
    expected = found.entropy - within
    torch.testing.assert_close(found.mutual_information, expected, **EXACT)
