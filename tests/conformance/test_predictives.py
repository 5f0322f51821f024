"""What every way to predict promises, over all likelihoods and models.

A new link is tested by its name in `outputs.links.LINKS`; another way gets a row in `WAYS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch

import smidgen
from smidgen.errors import ArgumentError
from smidgen.outputs.links import LINKS
from smidgen.outputs.predictive import GaussianPredictive
from tests.support.cases import CASES
from tests.support.tolerances import EXACT, SOLVER

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")


@dataclass(frozen=True)
class Way:
    """A way to predict: one batch, or many."""

    name: str
    one: Callable
    many: Callable


def linearised(name, **options):
    one = partial(smidgen.predict, **options)
    return Way(name, one, partial(smidgen.predict_batches, **options))


def sparsely(call):
    """With Gaussian weights in a sparse network, the narrower the higher the precision."""

    def predicted(posterior, problem, batch, **options):
        # Of weights much wider than that all draws may be sure of the same.
        scale = 0.05 * posterior.precision**-0.5
        network = smidgen.make_sparse(
            problem.model,
            density=1.0,
            settings=smidgen.sparse.SparseSettings(prior=1.0, scale=scale, path="dense"),
        )
        own = smidgen.SparsePosterior(
            network=network,
            likelihood=posterior.likelihood,
            temperature=posterior.temperature,
        )
        return call(own, problem, batch, samples=6, **options)

    return predicted


WAYS = [
    linearised("auto"),
    *(linearised(link, link=link) for link in LINKS),
    linearised("top-2", link=smidgen.Link(top=2)),
    Way(
        "samples",
        partial(smidgen.predict, samples=6),
        partial(smidgen.predict_batches, samples=6),
    ),
    Way(
        "sparse",
        sparsely(smidgen.predict),
        sparsely(smidgen.predict_batches),
    ),
]


def draws(way, case):
    """Whether a seed has anything to say."""
    if way.name == "auto":
        return case.kind == "categorical" and case.outputs > 2
    return way.name in ("sampling", "top-2", "samples", "sparse")


def of_more_than_two(case):
    """A regression, or three classes or more."""
    return case.kind == "gaussian" or (case.kind == "categorical" and case.outputs > 2)


REFUSED = {
    "quadrature": of_more_than_two,
    "probit": of_more_than_two,
    "diagonal-probit": lambda case: case.kind == "gaussian",
    "sampling": lambda case: case.kind != "categorical",
    "laplace-bridge": lambda case: case.kind != "categorical",
    "top-2": lambda case: case.kind != "categorical",
}


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def fitted(request):
    """A posterior with a temperature; wide enough that its noise is seen."""
    case = request.param
    model, batch = case.make()
    subset = smidgen.select.sparse_kfac(model, percent=50)
    posterior = smidgen.fit.laplace(case.problem(model), [batch], subset)
    return case, posterior.with_temperature(1.3), case.problem(model), batch


@pytest.fixture(params=WAYS, ids=lambda way: way.name)
def way(request, fitted):
    if REFUSED.get(request.param.name, lambda _: False)(fitted[0]):
        pytest.skip("refused, which a test of its own asserts")
    return request.param


def numbers(predictive):
    """What is predicted: probabilities, or mean and variance."""
    if predictive.kind == "gaussian":
        return torch.stack([predictive.mean, predictive.total_variance])
    return predictive.probs


def rows(batch, start, stop):
    if isinstance(batch, dict):
        return {name: each[start:stop] for name, each in batch.items()}
    return tuple(each[start:stop] for each in batch)


def test_predictions_are_finite_distributions(fitted, way):
    case, posterior, problem, batch = fitted
    found = way.one(posterior, problem, batch)
    predicted = numbers(found)
    assert torch.isfinite(predicted).all()
    assert found.kind == case.kind
    if case.kind == "categorical":
        assert torch.isfinite(found.log_probs).all()
        ones = torch.ones(len(found)).double()
        torch.testing.assert_close(predicted.sum(-1), ones, **EXACT)
    elif case.kind == "bernoulli":
        assert ((predicted > 0) & (predicted < 1)).all()
    else:
        # An output of which no weight was chosen has no variance.
        assert (found.variance >= 0).all()
    information = found.mutual_information
    assert (information >= 0).all()
    if case.kind != "gaussian":  # an entropy of a density may be below zero
        assert (information <= found.entropy).all()
    assert torch.isfinite(information).all()
    assert torch.isfinite(found.entropy).all()
    assert {len(each) for each in found.to_dict().values()} == {len(found)}


def test_without_doubt_it_is_the_point_prediction(fitted, way):
    case, posterior, problem, batch = fitted
    if way.name == "laplace-bridge" and case.outputs > 2:
        pytest.skip("the mean of the bridge does not depend on the size of the variance")
    certain = posterior.with_precision(1e20)
    found = way.one(certain, problem, batch)
    logits = case.forward(problem.model, batch).detach()
    scaled = logits / posterior.temperature
    expected = {
        "categorical": lambda: scaled.softmax(-1),
        "bernoulli": lambda: scaled.sigmoid(),
        "gaussian": lambda: torch.stack(
            [logits, torch.full_like(logits, posterior.likelihood.scale)]
        ),
    }[case.kind]()
    torch.testing.assert_close(numbers(found), expected, **SOLVER)
    assert float(found.mutual_information.max()) < SOLVER["rtol"]


def test_doubt_is_seen(fitted, way):
    """With a wide prior something depends on the weights."""
    _, posterior, problem, batch = fitted
    found = way.one(posterior.with_precision(0.01), problem, batch)
    assert (found.mutual_information > SOLVER["rtol"]).all()


def test_batching_does_not_matter(fitted, way):
    _, posterior, problem, batch = fitted
    whole = way.one(posterior, problem, batch)
    parts = way.many(
        posterior, problem, iter([rows(batch, 0, 1), rows(batch, 1, None)]), progress=False
    )
    assert len(parts) == len(whole)
    torch.testing.assert_close(numbers(parts), numbers(whole), **EXACT)
    torch.testing.assert_close(parts.mutual_information, whole.mutual_information, **EXACT)


def test_a_seed_settles_it(fitted, way):
    case, posterior, problem, batch = fitted

    def predicted(seed):
        options = {} if seed is None else {"seed": seed}
        return numbers(way.one(posterior, problem, batch, **options))

    assert torch.equal(predicted(None), predicted(None))
    assert torch.equal(predicted(3), predicted(3))
    assert torch.equal(predicted(3), predicted(4)) != draws(way, case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_serve_is_refused(case, name):
    if not REFUSED[name](case):
        pytest.skip("it can")
    model, _ = case.make()
    likelihood = case.problem(model).likelihood
    link, top = ("auto", 2) if name == "top-2" else (name, None)
    with pytest.raises(ArgumentError, match=r"(link|top) .*(is for|must be)"):
        likelihood.resolve_link(link, top)


@pytest.mark.parametrize("coverage", [0.5, 0.95, 0.999])
def test_a_central_interval_has_its_probability(coverage):
    draw = torch.Generator().manual_seed(0)
    mean, variance, noise = torch.rand(3, 4, 2, generator=draw).unbind()
    predictive = GaussianPredictive(mean, variance, noise)
    low, high = predictive.central_interval(coverage)
    normal = torch.distributions.Normal(mean.double(), (variance + noise).double().sqrt())
    torch.testing.assert_close(
        normal.cdf(high) - normal.cdf(low), torch.full_like(low, coverage)
    )
    torch.testing.assert_close((low + high) / 2, mean.double())
    for wrong in (0, 1, "0.9"):
        with pytest.raises(ArgumentError, match="coverage must be above 0 and below 1"):
            predictive.central_interval(wrong)
