"""A ramping study from one pass equals refitting and predicting each point anew."""

from __future__ import annotations

import json

import pytest
import torch

import smidgen
from smidgen.errors import ArgumentError
from smidgen.fit.calibration.objective import Objective
from smidgen.posterior.variance_table import variance_table
from smidgen.workflows.ramp.laplace import RampSettings, ramp
from smidgen.workflows.ramp.schemes import SCHEMES, allocate
from tests.support.cases import CASES
from tests.support.tolerances import EXACT

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
SMALL = RampSettings(
    percents=(20, 50, 100), precisions=(0.1, 1.0, 10.0), repeats=2, most_stochastic=0.5
)
NAMES = ("bert-2", "one-block-3", "mlp-4", "gpt2-2")


def data(case, model, batch, seed, copies=3):
    generator = torch.Generator().manual_seed(seed)
    outputs = case.forward(model, batch).detach()
    likelihood = case.problem(model).likelihood
    found = []
    for _ in range(copies):
        labels = likelihood.draw_targets(outputs / 2, generator)
        pair = isinstance(batch, tuple)
        found.append((batch[0], labels) if pair else {**batch, "labels": labels})
    return found


@pytest.fixture(params=NAMES)
def study(request, unchanged):
    case = next(each for each in CASES if each.name == request.param)
    model, batch = case.make()
    sets = [data(case, model, batch, seed) for seed in range(3)]
    with unchanged(model):
        found = ramp(case.problem(model), *sets, SMALL, progress=False)
    return case, model, sets, found


def test_every_chosen_point_equals_one_fitted_and_predicted_alone(study):
    case, model, (train, validation, test), found = study
    problem = case.problem(model)
    targets = torch.cat([b[1] if isinstance(b, tuple) else b["labels"] for b in test])
    methods = {each["name"]: each for each in found.record.results["methods"]}
    assert set(found.chosen) == set(SCHEMES) - (
        set()
        if case.name in ("bert-2", "one-block-3", "gpt2-2")
        else {"max-attention", "min-attention"}
    )
    for scheme, point in found.chosen.items():
        assembled = found.posteriors[scheme]
        alone = smidgen.fit.laplace(problem, train, assembled.subset)
        for name, operator in alone.operators.items():
            torch.testing.assert_close(
                assembled.operators[name].dense(), operator.dense(), **EXACT
            )
        assert point.weights == assembled.subset.size
        assert point.floats == assembled.floats
        refitted = alone.with_precision(point.precision).with_temperature(point.temperature)
        predictive = smidgen.predict_batches(refitted, problem, test)
        nll = float(smidgen.evaluate.nll(predictive, targets).mean())
        assert methods[scheme]["scores"]["nll"]["value"] == pytest.approx(nll, rel=1e-7)


def test_validation_scores_are_those_of_tuning_each_point(study):
    case, model, (train, validation, _), found = study
    problem = case.problem(model)
    for scheme in ("sparse-kfac", "last-layer"):
        point = found.chosen[scheme]
        alone = smidgen.fit.laplace(problem, train, found.posteriors[scheme].subset)
        tuned = smidgen.calibrate(
            alone,
            problem,
            validation,
            settings=smidgen.fit.CalibrationSettings(
                scope="scalar", precisions=SMALL.precisions, refine=False
            ),
        )
        assert tuned.precision == pytest.approx(point.precision)
        assert tuned.temperature == pytest.approx(point.temperature, rel=1e-5)
        assert tuned.calibration.chosen_nll == pytest.approx(point.nll, rel=1e-9)


def test_the_allocation_keeps_its_budget_and_every_step_lowers_the_nll(study):
    case, model, (train, validation, _), found = study
    problem = case.problem(model)
    subsets = {p: smidgen.select.sparse_kfac(model, percent=p) for p in SMALL.percents}
    posteriors = smidgen.fit.laplace_many(problem, train, subsets)
    grid = torch.tensor([1.0]).double()
    link = problem.likelihood.resolve_link("auto")
    table = variance_table(problem, validation, posteriors, grid, link)
    objective = Objective(problem.likelihood, table.outputs, table.targets, link)
    floats = {
        (p, n): o.floats for p, q in posteriors.items() for n, o in q.operators.items()
    }
    budgets = [posteriors[p].floats for p in SMALL.percents]
    path = allocate(table, objective, floats, budgets, precision=0, temperature=0.5)
    assert path
    before = float(objective.nll(None, 0.5))
    for candidate in path:
        assert sum(floats[key] for key in candidate.blocks) <= candidate.level
        assert len({name for _, name in candidate.blocks}) == len(candidate.blocks)
        after = float(objective.nll(table.total(candidate.blocks), 0.5))
        assert after < before
        before = after


def test_the_record_is_plain_and_names_every_point(study):
    _, _, _, found = study
    loaded = json.loads(found.record.to_json())
    points = loaded["results"]["ramp"]["points"]
    assert len(points) == len(found.points)
    for scheme, index in loaded["results"]["ramp"]["chosen"].items():
        assert points[index]["scheme"] == scheme


def test_bad_settings_are_named():
    model = torch.nn.Linear(3, 2)
    with pytest.raises(ArgumentError, match="schemes must be some of"):
        ramp(model, [], [], [], RampSettings(schemes=("max",)))
    with pytest.raises(ArgumentError, match="repeats must be 1 or more, got 0"):
        ramp(model, [], [], [], RampSettings(repeats=0))
