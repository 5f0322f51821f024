"""A ramping study from one pass equals refitting and predicting each point anew."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import smidgen
from smidgen.errors import ArgumentError
from smidgen.fit.calibration.objective import Objective
from smidgen.fit.calibration.precision import choose_precisions
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


def fit_alone(problem, train, assembled):
    """Fit a posterior to the same weights, part by part where it has several structures."""
    parts = {}
    for name, part in assembled.subset.parts.items():
        layer = name.rpartition(".")[0]
        parts.setdefault(assembled.operators[layer].structure, {})[name] = part
    posteriors = [
        smidgen.fit.laplace(
            problem,
            train,
            smidgen.Subset(assembled.subset.universe, some),
            structure=structure,
        )
        for structure, some in parts.items()
    ]
    return posteriors[0] if len(posteriors) == 1 else posteriors[0] | posteriors[1]


def precision_of(point, operator):
    bare = operator.structure == "isotropic" and point.body_precision is not None
    return point.body_precision if bare else point.precision


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
        alone = fit_alone(problem, train, assembled)
        assert alone.subset == assembled.subset
        assert alone.operators.keys() == assembled.operators.keys()
        for name, operator in alone.operators.items():
            assert assembled.operators[name].structure == operator.structure
            torch.testing.assert_close(
                assembled.operators[name].dense(), operator.dense(), **EXACT
            )
        assert point.weights == assembled.subset.size
        assert point.fraction == pytest.approx(assembled.subset.fraction)
        assert point.floats == assembled.floats
        assert alone.num_data == assembled.num_data
        taus = {name: precision_of(point, op) for name, op in alone.operators.items()}
        refitted = alone.with_precision(taus).with_temperature(point.temperature)
        assert assembled.precisions == refitted.precisions
        predictive = smidgen.predict_batches(refitted, problem, test)
        nll = float(smidgen.evaluate.nll(predictive, targets).mean())
        assert methods[scheme]["scores"]["nll"]["value"] == pytest.approx(nll, rel=1e-7)


def test_validation_scores_are_those_of_tuning_each_point(study):
    case, model, (train, validation, _), found = study
    problem = case.problem(model)
    for scheme in ("sparse-kfac", "last-layer", "isotropic"):
        point = found.chosen[scheme]
        alone = fit_alone(problem, train, found.posteriors[scheme])
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


def test_head_and_body_have_the_precisions_that_calibrating_them_alone_gives(study):
    case, model, (train, validation, _), found = study
    problem = case.problem(model)
    point, assembled = found.chosen["head-isotropic"], found.posteriors["head-isotropic"]
    alone = fit_alone(problem, train, assembled)
    structures = {name: op.structure for name, op in alone.operators.items()}
    assert set(structures.values()) == {"kron", "isotropic"}
    # All layers but the last, whatever their group.
    grid = torch.tensor(SMALL.precisions).double()
    link = problem.likelihood.resolve_link("auto")
    table = variance_table(
        problem,
        validation,
        {"": alone},
        grid,
        link,
        label=lambda _, name: structures[name],
    )
    objective = Objective(problem.likelihood, table.outputs, table.targets, link)
    _, choice = choose_precisions(objective, table, refine=False)
    assert point.precision == pytest.approx(choice.precisions["kron"])
    assert point.body_precision == pytest.approx(choice.precisions["isotropic"])
    assert point.temperature == pytest.approx(choice.scale, rel=1e-5)
    assert point.nll == pytest.approx(choice.nll, rel=1e-9)
    pairs = []
    for head in table.covariance["kron"].double():
        for body in table.covariance["isotropic"].double():
            scale, nll = objective.best((head + body)[None])
            pairs.append(float(nll + objective.penalty(scale)))
    # The prior that keeps the two together may cost a little.
    penalty = float(objective.penalty(torch.tensor(point.temperature)))
    assert point.nll + penalty <= min(pairs) + 0.02


def test_without_curvature_no_training_batch_is_read_and_nothing_is_stored():
    case = next(each for each in CASES if each.name == "bert-2")
    model, batch = case.make()
    validation, test = (data(case, model, batch, seed) for seed in range(2))

    def refuse():
        raise AssertionError("a training batch was read")
        yield

    settings = replace(SMALL, schemes=("isotropic",))
    found = ramp(case.problem(model), refuse(), validation, test, settings, progress=False)
    assert [point.floats for point in found.points] == [0, 0, 0]
    assert found.posteriors["isotropic"].num_data == 0
    assert found.posteriors["isotropic"].structure == "isotropic"
    assert found.record.results["data"]["train"] == 0


def test_only_what_the_schemes_need_is_computed(monkeypatch):
    case = next(each for each in CASES if each.name == "mlp-4")
    model, batch = case.make()
    sets = [data(case, model, batch, seed) for seed in range(3)]
    tables = []

    def remember(*args, **kwargs):
        tables.append(variance_table(*args, **kwargs))
        return tables[-1]

    monkeypatch.setattr("smidgen.workflows.ramp.laplace.variance_table", remember)
    settings = replace(SMALL, schemes=("last-layer", "head-isotropic"))
    found = ramp(case.problem(model), *sets, settings, progress=False)
    last = [name for _, name in found.chosen["last-layer"].blocks]
    kinds = {(level.percent, level.structure) for level, _ in tables[0].covariance}
    assert kinds == {(100, "kron"), (100, "isotropic")}
    assert [n for level, n in tables[0].covariance if level.structure == "kron"] == last
    assert len(tables[0].covariance) == len(last) + 1
    assert found.chosen["last-layer"].fraction < 1
