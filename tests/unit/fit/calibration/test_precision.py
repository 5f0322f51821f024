"""Precisions by group and layer, between grid points, and by the evidence."""

from __future__ import annotations

import math
import warnings
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

import smidgen
from smidgen.curvature.operators import STRUCTURES
from smidgen.errors import ArgumentError
from smidgen.fit.calibration.objective import Objective
from smidgen.fit.calibration.precision import GRID
from smidgen.posterior.variance_table import variance_table
from tests.support.cases import CASES, Case, OneBlock, padded_tokens
from tests.support.oracles import output_hessian
from tests.support.tolerances import EVIDENCE, EXACT, INTERPOLATED

FAST = [
    case for case in CASES if case.name in ("mlp-2", "mlp-4", "mlp-regression", "bert-2")
]
EDGES_ARE_FINE = pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")

# Those that measure a curvature; without any there is no evidence to speak of.
CURVED = [name for name in STRUCTURES if name != "isotropic"]


def noisy(case, model, batch, copies=12):
    """Batches whose targets the model does not know too well."""
    generator = torch.Generator().manual_seed(2)
    outputs = case.forward(model, batch).detach()
    likelihood = case.problem(model).likelihood
    drawn = [likelihood.draw_targets(outputs / 1.5, generator) for _ in range(copies)]
    if isinstance(batch, dict):
        return [{**batch, "labels": each} for each in drawn]
    return [(batch[0], each) for each in drawn]


def held_out_nll(posterior, model, batches):
    predictive = smidgen.predict_batches(posterior, model, batches)
    targets = torch.cat([b["labels"] if isinstance(b, dict) else b[1] for b in batches])
    return float(smidgen.evaluate.nll(predictive, targets).mean())


@pytest.mark.parametrize("case", FAST, ids=lambda case: case.name)
@pytest.mark.parametrize("structure", ["kron", "diag"])
@EDGES_ARE_FINE
def test_several_precisions_do_at_least_as_well_and_score_as_predicted(case, structure):
    model, batch = case.make()
    problem = case.problem(model)
    subset = smidgen.select.sparse_kfac(model, percent=60)
    posterior = smidgen.fit.laplace(problem, [batch], subset, structure=structure)
    validation = noisy(case, model, batch)
    found = {}
    for scope in ("scalar", "group", "layer"):
        tuned = smidgen.calibrate(
            posterior,
            problem,
            validation,
            link="auto",
            settings=smidgen.fit.CalibrationSettings(scope=scope, refine=False),
        )
        assert tuned.calibration.scope == scope
        found[scope] = tuned.calibration.chosen_nll
        if case.outputs != 4:  # sampling draws its own normals when it predicts
            nll = held_out_nll(tuned, problem, validation)
            assert nll == pytest.approx(tuned.calibration.chosen_nll, rel=1e-7)
    assert found["group"] <= found["scalar"] + 1e-12
    assert found["layer"] <= found["scalar"] + 1e-12


@pytest.mark.parametrize("case", FAST, ids=lambda case: case.name)
@EDGES_ARE_FINE
def test_a_refined_precision_is_better_and_scores_as_interpolated(case):
    model, batch = case.make()
    problem = case.problem(model)
    posterior = smidgen.fit.laplace(
        problem, [batch], smidgen.select.sparse_kfac(model, percent=100)
    )
    validation = noisy(case, model, batch)
    coarse, fine = (
        smidgen.calibrate(
            posterior,
            problem,
            validation,
            settings=smidgen.fit.CalibrationSettings(scope="scalar", refine=refine),
        )
        for refine in (False, True)
    )
    assert fine.calibration.chosen_nll <= coarse.calibration.chosen_nll
    if case.outputs != 4:
        nll = held_out_nll(fine, problem, validation)
        assert nll == pytest.approx(fine.calibration.chosen_nll, **INTERPOLATED)


def test_the_table_between_grid_points_is_near_the_exact_covariance():
    case = next(case for case in CASES if case.name == "bert-2")
    model, batch = case.make()
    problem = case.problem(model)
    posterior = smidgen.fit.laplace(
        problem, [batch], smidgen.select.sparse_kfac(model, percent=100)
    )
    grid = torch.tensor(GRID, dtype=torch.float64)
    table = variance_table(
        problem, [batch], {"": posterior}, grid, "quadrature", label=lambda *_: "all"
    )
    for wanted in (GRID[0], 3e-4, 0.02, 7.0, 800.0, 3e5):
        exact = variance_table(
            problem,
            [batch],
            {"": posterior},
            torch.tensor([wanted]).double(),
            "quadrature",
            label=lambda *_: "all",
        )
        torch.testing.assert_close(
            table.at("all", wanted),
            exact.covariance["all"][0],
            rtol=INTERPOLATED["rel"],
            atol=0,
        )
    torch.testing.assert_close(
        table.at("all", GRID[7]), table.covariance["all"][7], **EXACT
    )


@pytest.mark.parametrize("case", FAST, ids=lambda case: case.name)
@pytest.mark.parametrize("structure", CURVED)
def test_the_evidence_equals_dense_determinants(case, structure):
    model, batch = case.make()
    subset = smidgen.select.sparse_kfac(model, percent=60)
    problem = case.problem(model)
    posterior = smidgen.fit.laplace(
        problem, [batch], subset, structure=structure, precision=0.7
    )
    outputs = case.forward(model, batch).detach()
    targets = batch["labels"] if isinstance(batch, dict) else batch[1]
    if case.kind == "gaussian":
        targets = targets.reshape(outputs.shape)
    expected = float(posterior.likelihood.log_prob(outputs, targets).sum())
    for operator in posterior.operators.values():
        dense = operator.dense() / posterior.likelihood.scale
        eye = torch.eye(len(dense)).double()
        expected -= 0.5 * float(torch.logdet(dense / 0.7 + eye))
    weights = torch.cat(
        [model.get_parameter(n).flatten()[subset.indices(n)] for n in subset.parts]
    )
    expected -= 0.5 * 0.7 * float(weights.detach().square().sum())
    found = smidgen.fit.log_evidence(posterior, problem)
    assert found == pytest.approx(expected, rel=1e-9)


def dense_values(structure, layers):
    """Curvatures of a network's layers from inputs (N, m) and δ = Λ^½ ∂f/∂a (N, C, n)."""
    if structure == "full":
        roots = [torch.einsum("bcn,bm->bcnm", d, x).flatten(2) for x, d in layers]
        # Squares of singular values: exact where the matrix itself would be rounded.
        return torch.linalg.svdvals(torch.cat(roots, -1).flatten(0, 1)).square()
    values = []
    for x, delta in layers:
        g = torch.linalg.svd(delta.flatten(0, 1), full_matrices=True)
        a = torch.linalg.svd(x / len(x) ** 0.5, full_matrices=True)
        if structure == "kron":
            values.append(torch.outer(g.S.square(), a.S.square()))
            continue
        if structure == "ekfac":
            x, delta = x @ a.Vh.T, delta @ g.Vh.T
        values.append(torch.einsum("bcn,bm->nm", delta.square(), x.square()))
    return torch.cat([value.flatten() for value in values])


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
@pytest.mark.parametrize("structure", CURVED)
def test_the_evidence_of_an_fp32_model_is_right_at_any_precision(structure, kind):
    """Fewer examples than weights: most directions have no curvature, and must add none."""
    torch.manual_seed(0)
    outputs = 3 if kind == "categorical" else 1
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, outputs)
    )
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, 8, generator=generator) * 2
    y = torch.randn(12, 1, generator=generator)
    if kind == "categorical":
        y = torch.randint(outputs, (12,), generator=generator)
    likelihood = {"categorical": smidgen.Categorical, "gaussian": smidgen.Gaussian}[kind]
    subset = smidgen.select.sparse_kfac(model, percent=100)
    posterior = smidgen.fit.laplace(
        smidgen.Problem(model, likelihood(outputs)), [(x, y)], subset, structure=structure
    )
    twin = deepcopy(model).double()
    hidden = twin[:2](x.double()).detach()
    logits = twin[2](hidden).detach()
    values, vectors = torch.linalg.eigh(
        torch.stack([output_hessian(kind, row) for row in logits])
    )
    last = values.clamp_min(0).sqrt()[..., None] * vectors.mT  # (N, C, C)
    first = last @ twin[2].weight.detach() * (1 - hidden.square())[:, None]
    one = torch.ones(12, 1).double()
    layers = [
        (torch.cat([one, x.double()], 1), first),
        (torch.cat([one, hidden], 1), last),
    ]
    curvature = dense_values(structure, layers) / posterior.likelihood.scale
    norm = sum(float(p.detach().square().sum()) for p in twin.parameters())
    fitted = float(posterior.likelihood.log_prob(logits, y).sum())
    for tau in [10.0**power for power in range(-10, 5)]:
        exact = fitted - 0.5 * float((curvature / tau).log1p().sum()) - 0.5 * tau * norm
        found = smidgen.fit.log_evidence(posterior.with_precision(tau), model)
        assert found == pytest.approx(exact, **EVIDENCE), tau


def test_the_evidence_of_a_linear_model_is_the_exact_marginal_likelihood():
    """Bayesian linear regression, its noise known: log N(y; 0, σ²I + X Xᵀ/τ)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 4, dtype=torch.float64, generator=generator)
    y = torch.randn(30, 1, dtype=torch.float64, generator=generator)
    tau, noise = 0.3, 0.8
    model = torch.nn.Linear(4, 1, bias=False).double()
    # The mode of that posterior, which a trained network stands for.
    mode = torch.linalg.solve(
        x.T @ x / noise + tau * torch.eye(4).double(), x.T @ y / noise
    )
    model.weight.data.copy_(mode.T)
    posterior = smidgen.fit.laplace(
        smidgen.Problem(model, smidgen.Gaussian(1)),
        [(x, y)],
        smidgen.select.last_layer(model),
        structure="full",
        precision=tau,
    )
    likelihood = replace(posterior.likelihood, noise=noise)
    log_likelihood = float(likelihood.log_prob(model(x).detach(), y).sum())
    posterior = replace(posterior, likelihood=likelihood, log_likelihood=log_likelihood)
    covariance = noise * torch.eye(30).double() + x @ x.T / tau
    exact = torch.distributions.MultivariateNormal(torch.zeros(30).double(), covariance)
    found = smidgen.fit.log_evidence(posterior, model)
    assert found == pytest.approx(float(exact.log_prob(y[:, 0])), rel=1e-9)


# Keys: δ sums to zero over positions, so reduced factors say nothing about them.
@EDGES_ARE_FINE
@pytest.mark.parametrize("scope", ["scalar", "group", "layer"])
def test_no_other_precision_has_more_evidence(scope):
    model, batch = Case("one-block", OneBlock, 2, padded_tokens).make()
    posterior = smidgen.fit.laplace(
        model, [batch], smidgen.select.sparse_kfac(model, percent=100)
    )
    tuned = smidgen.fit.calibrate_by_evidence(posterior, model, scope=scope)
    best = smidgen.fit.log_evidence(tuned, model)
    for factor in (0.5, 0.9, 1.1, 2.0):
        other = {name: tau * factor for name, tau in tuned.precisions.items()}
        assert smidgen.fit.log_evidence(tuned.with_precision(other), model) < best
    if scope == "layer":
        scalar = smidgen.fit.calibrate_by_evidence(posterior, model)
        assert best > smidgen.fit.log_evidence(scalar, model)


@EDGES_ARE_FINE
def test_evidence_needs_labels_and_scope_is_named():
    model, batch = Case("one-block", OneBlock, 2, padded_tokens).make()
    plain = {k: v for k, v in batch.items() if k != "labels"}
    subset = smidgen.select.last_layer(model)
    posterior = smidgen.fit.laplace(
        smidgen.Problem(model, smidgen.Categorical(2)), [plain], subset
    )
    with pytest.raises(ArgumentError, match="fitted to labelled data"):
        smidgen.fit.log_evidence(posterior, model)
    assert math.isfinite(smidgen.fit.calibrate_by_evidence(posterior, model).precision)
    with pytest.raises(ArgumentError, match="scope must be one of"):
        smidgen.calibrate(
            posterior, model, [batch], settings=smidgen.fit.CalibrationSettings(scope="map")
        )
    full = smidgen.fit.laplace(model, [batch], subset, structure="full")
    assert isinstance(smidgen.calibrate(full, model, [batch]).precision, float)
    with pytest.raises(ArgumentError, match="scope must be 'scalar' for structure 'full'"):
        smidgen.calibrate(
            full, model, [batch], settings=smidgen.fit.CalibrationSettings(scope="layer")
        )


@EDGES_ARE_FINE
def test_a_tuned_regression_has_the_evidence_of_its_own_noise():
    case = next(each for each in CASES if each.name == "mlp-regression")
    model, batch = case.make()
    problem = case.problem(model)
    subset = smidgen.select.last_layer(model)
    fitted = smidgen.fit.laplace(problem, [batch], subset)
    tuned = smidgen.calibrate(fitted, problem, noisy(case, model, batch))
    assert tuned.likelihood.noise != fitted.likelihood.noise
    outputs = case.forward(model, batch).detach()
    expected = tuned.likelihood.log_prob(outputs, batch[1].reshape(outputs.shape)).sum()
    assert tuned.log_likelihood == pytest.approx(float(expected), rel=1e-9)


@EDGES_ARE_FINE
def test_precision_alone_keeps_the_temperature():
    case = next(each for each in CASES if each.name == "mlp-2")
    model, batch = case.make()
    posterior = smidgen.fit.laplace(model, [batch], smidgen.select.last_layer(model))
    warm = posterior.with_temperature(2)
    validation = noisy(case, model, batch)
    tuned = smidgen.calibrate(
        warm,
        model,
        validation,
        settings=smidgen.fit.CalibrationSettings(what="precision", refine=False),
    )
    assert tuned.temperature == 2.0
    nll = held_out_nll(tuned, model, validation)
    assert nll == pytest.approx(tuned.calibration.chosen_nll, rel=1e-9)


def test_evidence_refuses_another_model_and_names_its_edge():
    case = next(each for each in CASES if each.name == "mlp-2")
    model, batch = case.make()
    posterior = smidgen.fit.laplace(model, [batch], smidgen.select.last_layer(model))
    with torch.no_grad():
        model[0].weight.mul_(5)
    with pytest.raises(ArgumentError, match="model must be the one"):
        smidgen.fit.log_evidence(posterior, model)
    with torch.no_grad():
        model[-1].weight.zero_()
        model[-1].bias.zero_()
    posterior = smidgen.fit.laplace(model, [batch], smidgen.select.last_layer(model))
    with pytest.warns(smidgen.SmidgenWarning, match="at the edge of the precisions"):
        smidgen.fit.calibrate_by_evidence(posterior, model)


def test_the_edge_is_that_of_what_was_chosen_for_each_group():
    case = next(each for each in CASES if each.name == "bert-2")
    model, batch = case.make()
    problem = case.problem(model)
    subset = smidgen.select.sparse_kfac(model, percent=60)
    posterior = smidgen.fit.laplace(problem, [batch], subset)

    # The common precision lies within this grid, that of some layer at its lower end.
    def settings(scope):
        return smidgen.fit.CalibrationSettings(
            scope=scope, precisions=GRID[10:17], refine=False
        )

    # Rows enough that the prior on the temperature does not matter.
    validation = 100 * noisy(case, model, batch)
    one = smidgen.calibrate(
        posterior,
        problem,
        validation,
        settings=settings("scalar"),
    )
    assert not one.calibration.at_edge
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tuned = smidgen.calibrate(
            posterior,
            problem,
            validation,
            settings=settings("layer"),
        )
    ends = {GRID[10], GRID[16]}
    at_ends = [name for name, each in tuned.precisions.items() if each in ends]
    assert at_ends
    assert set(tuned.precisions.values()) - ends
    assert tuned.calibration.at_edge
    text = " ".join(str(each.message) for each in caught)
    assert all(name in text for name in at_ends)


@EDGES_ARE_FINE
def test_a_coarse_grid_is_not_interpolated():
    case = next(each for each in CASES if each.name == "mlp-2")
    model, batch = case.make()
    posterior = smidgen.fit.laplace(model, [batch], smidgen.select.last_layer(model))
    validation = noisy(case, model, batch)
    for grid in ((1e-2, 1, 1e2), (1e-1, 1, 10, 1e2), (1e-4, 0.1, 1e3)):
        tuned = smidgen.calibrate(
            posterior,
            model,
            validation,
            settings=smidgen.fit.CalibrationSettings(
                scope="scalar", what="precision", precisions=grid
            ),
        )
        assert min(abs(tuned.precision - each) for each in grid) < 1e-12
        nll = held_out_nll(tuned, model, validation)
        assert nll == pytest.approx(tuned.calibration.chosen_nll, rel=1e-9)


@pytest.mark.parametrize("link", ["auto", smidgen.Link(draws=24), smidgen.Link(top=3)])
@EDGES_ARE_FINE
def test_many_classes_are_calibrated_with_the_draws_that_predict_them(link):
    case = next(case for case in FAST if case.name == "mlp-4")
    model, batch = case.make()
    subset = smidgen.select.sparse_kfac(model, percent=60)
    posterior = smidgen.fit.laplace(model, [batch], subset)
    validation = noisy(case, model, batch)
    settings = smidgen.fit.CalibrationSettings(scope="scalar", refine=False)
    tuned = smidgen.calibrate(
        posterior, model, validation, link=link, seed=3, settings=settings
    )
    predictive = smidgen.predict_batches(tuned, model, validation, link=link, seed=3)
    targets = torch.cat([y for _, y in validation])
    nll = float(smidgen.evaluate.nll(predictive, targets).mean())
    assert nll == pytest.approx(tuned.calibration.chosen_nll, rel=1e-9)


@pytest.mark.parametrize("link", ["sampling", "laplace-bridge", "diagonal-probit"])
def test_a_point_estimate_is_scored_as_its_softmax(link):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 5, dtype=torch.float64, generator=generator)
    targets = smidgen.Categorical(5).draw_targets(logits, generator)
    objective = Objective(smidgen.Categorical(5), logits, targets, link)
    for scale in (0.5, 2.0):
        expected = torch.nn.functional.cross_entropy(logits / scale, targets)
        torch.testing.assert_close(objective.nll(None, scale)[0], expected, **EXACT)
    scale, nll = (float(each) for each in objective.best(None))
    assert scale == pytest.approx(smidgen.fit.temperature(logits, targets))
    # With the prior on log T, worth as much as (log T)²/2 in the sum of 50 NLLs.
    for near in (0.99 * scale, 1.01 * scale):
        penalties = [math.log(each) ** 2 / 100 for each in (scale, near)]
        assert nll + penalties[0] < float(objective.nll(None, near)) + penalties[1]


@EDGES_ARE_FINE
def test_the_link_of_a_calibration_is_remembered_and_stored(tmp_path):
    case = next(case for case in FAST if case.name == "mlp-4")
    model, batch = case.make()
    problem, validation = case.problem(model), noisy(case, model, batch)
    subset = smidgen.select.last_layer(model)
    fitted = smidgen.fit.laplace(problem, [batch], subset, progress=False)
    for link in ("diagonal-probit", smidgen.Link("sampling", draws=40, top=3)):
        tuned = smidgen.calibrate(fitted, model, validation, link=link, progress=False)
        smidgen.save(tuned, tmp_path / "saved", overwrite=True)
        loaded = smidgen.load(tmp_path / "saved", model)
        assert loaded == tuned
        for posterior in (tuned, loaded, loaded.compress()):
            named = smidgen.predict(posterior, model, batch, link=link).probs
            assert torch.equal(smidgen.predict(posterior, model, batch).probs, named)
            other = smidgen.predict(posterior, model, batch, link="laplace-bridge").probs
            assert not torch.equal(other, named)
        # What was chosen is what is predicted.
        assert held_out_nll(tuned, model, validation) == pytest.approx(
            tuned.calibration.chosen_nll, rel=1e-5
        )
    usual = smidgen.calibrate(tuned, model, validation, progress=False)
    assert usual.link == smidgen.Link()
    assert "link" not in usual.summary()["tuning"]
    compared = smidgen.compare(model, tuned, validation, progress=False)
    (_, _, method) = compared.results["methods"]
    assert method["scores"]["nll"]["value"] == pytest.approx(
        tuned.calibration.chosen_nll, rel=1e-5
    )
