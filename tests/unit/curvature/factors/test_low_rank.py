"""Fewer eigenvectors change variances, and by no more than was promised."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smidgen
from smidgen.curvature.factors.factor_sum import Spectrum
from smidgen.curvature.factors.low_rank import bound_error, cap_ranks, choose_box
from smidgen.errors import ArgumentError, SmidgenWarning
from smidgen.posterior.output_covariance import output_moments
from smidgen.weights.blocks import find_blocks
from tests.support.cases import CASES
from tests.support.tolerances import EXACT

DECADES = [10.0**k for k in range(-5, 6)]


def variances(posterior, problem, batch, tolerance=None):
    """Variances of random directions of the outputs, (B, K)."""
    blocks = find_blocks(problem.model, posterior.subset)
    count = problem.likelihood.outputs
    directions = torch.randn(
        3, count, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    (moments,) = output_moments(
        problem,
        [batch],
        blocks,
        posterior.covariance_terms(blocks, tolerance=tolerance),
        lambda outputs: directions[:, None].expand(-1, len(outputs), -1),
    )
    return moments.total[0].diagonal(dim1=-2, dim2=-1)


@pytest.mark.filterwarnings("ignore:variances may be off:smidgen.SmidgenWarning")
@pytest.mark.parametrize("tolerance", [0.3, 0.01, 1e-6])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_compressed_variances_are_within_the_bound(case, tolerance):
    model, batch = case.make()
    problem = case.problem(model)
    subset = smidgen.select.sparse_kfac(model, percent=100)
    whole = smidgen.fit.laplace(problem, [batch], subset)
    cut = 0
    for precision in DECADES:
        whole = whole.with_precision(precision)
        small = whole.compress(tolerance)
        cut += small.floats < whole.floats
        assert small.variance_error <= tolerance
        exact, bounded = (variances(p, problem, batch) for p in (whole, small))
        assert ((bounded / exact - 1).abs() <= small.variance_error + 1e-9).all()
    assert cut, "no precision allowed anything to be left out"


def test_what_is_outside_the_box_is_computed_as_the_dense_matrix_says():
    """With vectors left out, the operator is still what its dense form says."""
    for case in CASES:
        model, batch = case.make()
        problem = case.problem(model)
        subset = smidgen.select.sparse_kfac(model, percent=100)
        small = smidgen.fit.laplace(problem, [batch], subset, precision=3.0).compress(0.5)
        scale = small.likelihood.scale
        for name, operator in small.operators.items():
            dense = operator.dense()
            eye = torch.eye(len(dense), dtype=torch.float64)
            inverse = scale * torch.linalg.inv(dense + 3.0 * scale * eye)
            torch.testing.assert_close(
                operator.variances(3.0 * scale, scale), inverse.diagonal(), **EXACT
            )
            assert operator.size == len(dense), name


def test_draws_of_a_cut_operator_have_its_covariance():
    torch.manual_seed(0)
    model = nn.Linear(6, 4).double()
    x = torch.randn(50, 6).double()
    posterior = smidgen.fit.laplace(
        smidgen.Problem(model, smidgen.Categorical(4)),
        [x],
        smidgen.select.last_layer(model),
        precision=20.0,
    ).compress(0.5)
    (operator,) = posterior.operators.values()
    assert not operator.is_complete
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack(
        [next(iter(posterior.sample_deviations(generator).values())) for _ in range(20_000)]
    )
    eye = torch.eye(operator.size, dtype=torch.float64)
    expected = torch.linalg.inv(operator.dense() + 20.0 * eye)
    found = draws.T @ draws / len(draws)
    # Of a normal variable, the mean of n products has a deviation of √((v_i v_j + c²)/n).
    spread = (torch.outer(*[expected.diagonal()] * 2) + expected.square()) / len(draws)
    assert ((found - expected).abs() <= 5 * spread.sqrt()).all()


def spectrum(*values, rest=0.0, level=0.0):
    """Eigenvalues with the unit vectors."""
    return Spectrum(
        torch.tensor(values),
        torch.eye(len(values)),
        torch.tensor(rest),
        torch.tensor(level),
    )


def test_a_bound_is_reached_by_factors_that_deserve_it():
    rows, columns = spectrum(4.0, 1.0), spectrum(2.0, 0.5)
    assert bound_error(rows, columns, 1.0) == 0
    # Without both columns A is taken for 1.25, ± 0.75.
    nothing = columns.keep(torch.tensor([False, False]))
    assert (float(nothing.level), float(nothing.rest)) == (1.25, 0.75)
    assert bound_error(rows, nothing, 8.0) == 4 * 0.75 / 8
    # One value that is dropped alone is its own level: nothing is lost.
    left, right = choose_box(rows, columns, 8.0, 0.1)
    assert (left.values.tolist(), right.values.tolist()) == ([4.0], [2.0])
    assert (float(left.level), float(right.level)) == (1.0, 0.5)
    assert choose_box(rows, spectrum(2.0, 0.5, rest=9.0), 1.0, 0.3) is None


def test_what_was_missed_before_stays_missed():
    # A sketch may miss 0.3 in any direction; then the two smallest values are dropped.
    sketched = spectrum(0.1, 0.2, 3.0, rest=0.3)
    kept = sketched.keep(torch.tensor([False, False, True]))
    assert float(kept.level) == pytest.approx((0.1 + 0.2 + 0.3) / 2)
    assert float(kept.rest) == pytest.approx(0.3)
    # Directions that are left out already are within their level ± rest.
    again = kept.keep(torch.tensor([False]))
    assert float(again.level) == pytest.approx((0.0 + 3.0 + 0.3) / 2)
    assert float(again.rest) == pytest.approx(1.65)


@pytest.mark.parametrize("tolerance", [0.01, 0.1])
def test_a_prediction_of_a_large_layer_takes_the_shortcut_within_its_tolerance(tolerance):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 128), nn.GELU(), nn.Linear(128, 2)).double()
    x = torch.randn(400, 300).double() * torch.logspace(0, -3, 300).double()
    problem = smidgen.Problem(model, smidgen.Categorical(2)).with_likelihood(
        smidgen.Categorical(2)
    )
    subset = smidgen.select.sparse_kfac(model, percent=100)
    posterior = smidgen.fit.laplace(problem, x.split(100), subset, progress=False)
    shortcuts = 0
    for precision in DECADES:
        posterior = posterior.with_precision(precision)
        exact = variances(posterior, problem, x[:9])
        found = variances(posterior, problem, x[:9], tolerance)
        assert ((found / exact - 1).abs() <= tolerance + 1e-9).all()
        shortcuts += not torch.equal(exact, found)
        plain = smidgen.predict(posterior, problem, x[:9], tolerance=None)
        short = smidgen.predict(posterior, problem, x[:9], tolerance=tolerance)
        torch.testing.assert_close(plain.probs, short.probs, rtol=tolerance, atol=0)
    assert shortcuts > 3


@pytest.mark.parametrize("tolerance", [0, 1, -0.1, 2.0, float("nan"), "small", True])
def test_a_tolerance_outside_its_range_is_refused(tolerance):
    model = nn.Linear(3, 2)
    problem = smidgen.Problem(model, smidgen.Categorical(2))
    posterior = smidgen.fit.isotropic(problem, smidgen.select.last_layer(model))
    with pytest.raises(ArgumentError, match=r"tolerance must be in \(0, 1\)"):
        smidgen.predict(posterior, problem, torch.ones(1, 3), tolerance=tolerance)
    with pytest.raises(ArgumentError, match=r"tolerance must be in \(0, 1\)"):
        posterior.compress(tolerance)


@pytest.mark.parametrize("structure", ["ekfac", "diag", "full", "isotropic"])
def test_there_is_nothing_to_cut_but_factors(structure):
    model, batch = CASES[0].make()
    subset = smidgen.select.sparse_kfac(model, percent=40)
    problem = CASES[0].problem(model)
    posterior = smidgen.fit.laplace(problem, [batch], subset, structure=structure)
    small = posterior.compress(0.5)
    assert dict(small.operators) == dict(posterior.operators)
    assert small.variance_error == 0


@pytest.mark.parametrize("rank", [0, -3, 1.5, "many", True])
def test_a_rank_below_one_is_refused(rank):
    with pytest.raises(ArgumentError, match="rank must be a whole number, 1 or more"):
        smidgen.fit.LaplaceSettings(rank=rank)


def test_only_very_wide_sides_are_cut_and_share_a_budget():
    ordinary = [(768, 769), (3072, 769), (64, 577), (2, 385)]
    assert cap_ranks(ordinary, None) == ordinary
    lora = [(8, 576), (576, 8), (8, 576), (192, 8)] * 30
    ranks = cap_ranks(lora, None)
    stored = sum(n * k + m * j for (n, m), (k, j) in zip(lora, ranks, strict=True))
    assert stored <= 2_000_000
    assert all(min(pair) == 8 for pair in ranks)
    assert cap_ranks(ordinary, 5)[3] == (2, 5)


def test_a_head_beside_adapters_keeps_its_vectors():
    adapters = [(8, 576), (576, 8)] * 30
    assert cap_ranks([*adapters, (2, 577)], None)[-1] == (2, 577)
    assert cap_ranks([*adapters, (2, 577)], None)[:-1] == cap_ranks(adapters, None)
    assert cap_ranks([(2, 4097)], None) == [(2, 255)]


def sketched(rank=20, precision=1.0, rows=200):
    """A posterior of a wide layer whose factor is cut to a rank."""
    torch.manual_seed(0)
    model = nn.Linear(600, 8).double()
    x = torch.randn(rows, 600).double()
    problem = smidgen.Problem(model, smidgen.Categorical(8)).with_likelihood(
        smidgen.Categorical(8)
    )
    posterior = smidgen.fit.laplace(
        problem,
        [(x, torch.arange(rows) % 8)],
        smidgen.select.last_layer(model),
        precision=precision,
        settings=smidgen.fit.LaplaceSettings(rank=rank),
    )
    return posterior, problem, x


def test_a_bound_beyond_what_was_asked_for_is_told():
    posterior, problem, x = sketched()
    assert posterior.variance_error > 1
    for tolerance in (0.01, None):
        with pytest.warns(SmidgenWarning, match=r"variances may be off by up to .*rank="):
            smidgen.predict(posterior, problem, x[:3], tolerance=tolerance)
    with pytest.warns(SmidgenWarning, match="calibrate before compress"):
        posterior.compress()
    enough, problem, x = sketched(precision=1e6)
    smidgen.predict(enough, problem, x[:3])
    # Less than ten percent, and more than what this call asks for.
    error = enough.variance_error
    assert 1e-6 < error < 0.01
    with pytest.warns(SmidgenWarning, match="variances may be off"):
        smidgen.predict(enough, problem, x[:3], tolerance=error / 2)


def test_calibration_leaves_out_what_the_vectors_do_not_tell():
    posterior, problem, x = sketched()
    data = [(x, torch.arange(len(x)) % 8)]
    settings = smidgen.fit.CalibrationSettings(what="precision")
    with pytest.warns(SmidgenWarning, match="lower edge of its grid: below it variances"):
        chosen = smidgen.calibrate(
            posterior, problem, data, settings=settings, progress=False
        )
    assert chosen.variance_error <= 0.5
    settings = smidgen.fit.CalibrationSettings(precisions=[1e-3, 1e-2])
    with pytest.raises(ArgumentError, match="precisions must be large enough for factors"):
        smidgen.calibrate(posterior, problem, data, settings=settings, progress=False)


def test_no_evidence_of_cut_factors_or_of_none():
    posterior, problem, _ = sketched()
    for call in (smidgen.fit.log_evidence, smidgen.fit.calibrate_by_evidence):
        with pytest.raises(ArgumentError, match="must have all eigenvalues of its factors"):
            call(posterior, problem)
        plain = smidgen.fit.isotropic(problem, posterior.subset)
        with pytest.raises(ArgumentError, match="must have curvature in all its layers"):
            call(plain, problem)


def test_a_rank_is_for_factors_only():
    posterior, problem, x = sketched()
    settings = smidgen.fit.LaplaceSettings(rank=3)
    with pytest.raises(
        ArgumentError, match=r"rank is for structure 'kron'.*got 3 with 'diag'"
    ):
        smidgen.fit.laplace(
            problem, [x], posterior.subset, structure="diag", settings=settings
        )


def test_variances_of_a_cut_operator_are_never_negative():
    torch.manual_seed(0)
    x = torch.zeros(50, 64)
    x[:, :12] = 1000 * torch.randn(50, 12)
    model = nn.Linear(64, 8, bias=False)
    problem = smidgen.Problem(model, smidgen.Categorical(8))
    subset = smidgen.select.last_layer(model)
    settings = smidgen.fit.LaplaceSettings(rank=12)
    posterior = smidgen.fit.laplace(problem, [x], subset, precision=0.1, settings=settings)
    (operator,) = posterior.operators.values()
    assert not operator.is_complete
    assert (operator.variances(0.1, 1.0) > 0).all()
