"""What every posterior promises: a new one is tested by its row in `POSTERIORS`."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import torch

import smidgen
from smidgen.errors import ArgumentError, StoreError
from smidgen.posterior.registry import POSTERIORS
from smidgen.posterior.store import find_posterior_digest, read_posterior_digest
from tests.support.posteriors import LIKELIHOODS, fit_quickly, make_problem

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")


@pytest.fixture(scope="module", params=LIKELIHOODS)
def kind(request):
    return request.param


@pytest.fixture(scope="module", params=POSTERIORS)
def fitted(request, kind):
    problem, batches = make_problem(kind)
    return fit_quickly(request.param, problem, batches), problem, batches


def numbers(predictive):
    """What is predicted: probabilities, or mean and variance."""
    if predictive.kind == "gaussian":
        return torch.stack([predictive.mean, predictive.total_variance])
    return predictive.probs


def test_it_is_of_its_kind(fitted):
    posterior, problem, _ = fitted
    assert type(posterior) is POSTERIORS[posterior.method].posterior
    assert isinstance(posterior, smidgen.Posterior)
    assert (posterior.subset.size > 0) == posterior.stochastic
    assert (posterior.floats > 0) == posterior.stochastic
    assert posterior.likelihood.outputs == problem.likelihood.outputs


@pytest.mark.parametrize("samples", [None, 0, 3])
def test_batches_are_predicted_like_one_batch(fitted, samples, unchanged):
    posterior, problem, batches = fitted
    with unchanged(problem.model):
        each = [smidgen.predict(posterior, problem, b, samples=samples) for b in batches]
        joined = smidgen.predict_batches(
            posterior, problem, batches, samples=samples, progress=False
        )
    together = torch.cat([numbers(one) for one in each], -2)
    torch.testing.assert_close(numbers(joined), together)
    assert torch.isfinite(together).all()


def test_a_saved_one_predicts_the_same(fitted, tmp_path, unchanged):
    posterior, problem, batches = fitted
    posterior = posterior.with_temperature(1.5)
    with unchanged(problem.model):
        folder = smidgen.save(posterior, tmp_path / "posterior")
        loaded = smidgen.load(folder, problem.model)
    assert loaded == posterior
    assert loaded.subset.origin == posterior.subset.origin
    digests = {find_posterior_digest(each) for each in (posterior, loaded)}
    assert digests == {read_posterior_digest(folder)}
    before = smidgen.predict(posterior, problem, batches[0])
    after = smidgen.predict(loaded, problem, batches[0])
    assert torch.equal(numbers(before), numbers(after))
    assert "smidgen.load" in (folder / "README.md").read_text()
    with pytest.raises(StoreError, match="exists already"):
        smidgen.save(posterior, folder)


def test_calibration_keeps_the_kind_and_is_saved(fitted, tmp_path, unchanged):
    posterior, problem, batches = fitted
    with unchanged(problem.model):
        calibrated = smidgen.calibrate(posterior, problem, batches, progress=False)
    assert type(calibrated) is type(posterior)
    assert posterior.calibration is None
    assert calibrated.calibration.examples == 16
    folder = smidgen.save(calibrated, tmp_path / "posterior")
    loaded = smidgen.load(folder, problem)
    assert loaded.calibration == calibrated.calibration
    assert find_posterior_digest(loaded) == read_posterior_digest(folder)


def test_copies_are_equal_and_temperatures_differ(fitted):
    posterior, _, _ = fitted
    assert deepcopy(posterior) == posterior
    warm = posterior.with_temperature(2)
    assert warm.temperature == 2.0
    assert warm != posterior
    assert warm.with_temperature(posterior.temperature) == posterior
    with pytest.raises(ArgumentError, match="temperature must be > 0 and finite, got 0"):
        posterior.with_temperature(0)


def test_notes_are_json(fitted):
    posterior, problem, batches = fitted
    calibrated = smidgen.calibrate(posterior, problem, batches, progress=False)
    for each in (posterior, calibrated):
        notes = each.settings(), each.summary(), each.record_config()
        assert json.loads(json.dumps(notes))[0]["temperature"] == each.temperature
        assert each.headline()
        assert each.describe()


def test_strangers_are_refused(fitted):
    posterior, problem, batches = fitted
    other = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 2))
    with pytest.raises(ArgumentError, match="model must"):
        smidgen.predict(posterior, other, batches[0])
    with pytest.raises(ArgumentError, match="batch must be one batch, got a DataLoader"):
        smidgen.predict(posterior, problem, torch.utils.data.DataLoader(batches))
    for verb in (smidgen.predict, smidgen.calibrate):
        with pytest.raises(ArgumentError, match="posterior must be a smidgen posterior"):
            verb(problem.model, posterior, batches[0])


@pytest.mark.parametrize("thing", ["delta", "subset"])
def test_deltas_and_subsets_are_files(tmp_path, thing):
    problem, _ = make_problem("classes")
    subset = smidgen.select.last_layer(problem.model)
    saved = subset
    if thing == "delta":
        saved = smidgen.make_delta(problem.model, subset, torch.ones(subset.size), {})
    path = smidgen.save(saved, tmp_path / "file.safetensors")
    loaded = smidgen.load(path)
    assert type(loaded) is type(saved)
    assert getattr(loaded, "subset", loaded) == subset
    with pytest.raises(StoreError, match="exists already"):
        smidgen.save(saved, path)
    smidgen.save(saved, path, overwrite=True)
    with pytest.raises(ArgumentError, match="thing must be a posterior"):
        smidgen.save(problem, tmp_path / "other")


def test_a_link_is_refused_where_draws_predict(fitted):
    posterior, problem, batches = fitted
    for link in ("laplace-bridge", smidgen.Link(top=2)):
        with pytest.raises(ArgumentError, match="link must be left out"):
            smidgen.predict(posterior, problem, batches[0], link=link, samples=3)


def test_calibrated_as_a_point_it_predicts_as_one(fitted):
    posterior, problem, batches = fitted
    if posterior.linearised:
        pytest.skip("it is not calibrated by draws")
    calibrated = smidgen.calibrate(posterior, problem, batches, samples=0, progress=False)
    assert calibrated.samples == 0
    point = smidgen.predict(calibrated, problem, batches[0], samples=0)
    default = smidgen.predict(calibrated, problem, batches[0])
    assert torch.equal(numbers(default), numbers(point))


def test_anything_else_than_a_subset_is_refused(fitted):
    posterior, problem, batches = fitted
    with pytest.raises(ArgumentError, match=r"subset must be a smidgen.Subset, got list"):
        getattr(smidgen.fit, posterior.method)(problem, batches, batches)
