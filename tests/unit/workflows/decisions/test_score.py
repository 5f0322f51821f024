"""Decisions in the record of a real comparison, number by number."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen import decide, evaluate
from smidgen.errors import ArgumentError
from smidgen.workflows.decisions.score import COVERAGES
from smidgen.workflows.decisions.settings import CompareSettings

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
QUIET = {"progress": False}
KINDS = {
    "categorical": (nn.CrossEntropyLoss(), smidgen.Categorical(3)),
    "bernoulli": (nn.BCEWithLogitsLoss(), smidgen.Bernoulli(3)),
    "gaussian": (nn.MSELoss(), smidgen.Gaussian(3)),
}


def data(kind, count=360):
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, 4, dtype=torch.float64, generator=generator)
    scores = 2 * inputs[:, :3]
    scores = scores + torch.randn(count, 3, dtype=torch.float64, generator=generator)
    if kind == "categorical":
        return inputs, scores.argmax(-1)
    return inputs, (scores > 0).double() if kind == "bernoulli" else scores


@pytest.fixture(scope="module", params=KINDS)
def made(request):
    """A trained model, its calibrated posterior, and loaders to make rules and to test."""
    loss, likelihood = KINDS[request.param]
    inputs, targets = data(request.param)
    sets = [TensorDataset(inputs[i::4], targets[i::4]) for i in range(4)]
    loaders = [DataLoader(each, 30) for each in sets]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(80):
        optimiser.zero_grad()
        loss(model(inputs[::4]), targets[::4]).backward()
        optimiser.step()
    problem = smidgen.Problem(model.eval(), likelihood)
    posterior = smidgen.fit.laplace(
        problem, loaders[0], smidgen.select.last_layer(model), **QUIET
    )
    posterior = smidgen.calibrate(posterior, problem, loaders[1], **QUIET)
    return request.param, problem, posterior, *loaders[2:]


def rows_of(record):
    return {row["name"]: row for row in record.results["methods"]}


def test_every_method_has_its_decisions(made):
    kind, problem, posterior, _, test = made
    record = smidgen.compare(problem, posterior, test, **QUIET)
    predictive = smidgen.predict_batches(posterior, problem, test, **QUIET)
    _, targets = smidgen.point_outputs(problem, test, **QUIET)
    rows = rows_of(record)
    for row in rows.values():
        wanted = {"automation", "by_class", "error_detection"}
        wanted = {"intervals"} if kind == "gaussian" else wanted
        assert wanted <= set(row)
    ours = rows["last-layer"]
    if kind == "gaussian":
        for coverage, entry in zip(COVERAGES, ours["intervals"], strict=True):
            share = evaluate.covered(predictive, targets, level=coverage).mean()
            assert entry["covered"]["value"] == pytest.approx(float(share))
            reach = 2 * NormalDist().inv_cdf((1 + coverage) / 2)
            width = reach * float(predictive.total_variance.sqrt().mean())
            assert entry["width"]["value"] == pytest.approx(width)
    else:
        share = evaluate.automation_rate(predictive, targets)
        (entry,) = ours["automation"]
        assert entry["max_error"] == 0.05
        assert (entry["value"], entry["low"]) == pytest.approx((share.value, share.low))
    json.dumps(record.results, allow_nan=False)


def test_differences_say_what_was_subtracted_from_what(made):
    kind, problem, posterior, _, test = made
    if kind == "gaussian":
        return
    record = smidgen.compare(problem, posterior, test, **QUIET)
    rows, gaps = rows_of(record), record.results["differences"]
    for gap in gaps:
        ours, theirs = rows[gap["method"]], rows[gap["baseline"]]
        if gap["score"] == "automation":
            shares = [row["automation"][0]["value"] for row in (ours, theirs)]
            assert gap["value"] == pytest.approx(shares[0] - shares[1])
        if gap["score"] == "risk_coverage":
            areas = [row["risk_coverage"]["area"] for row in (ours, theirs)]
            assert gap["value"] == pytest.approx(areas[0] - areas[1])
    pairs = {(g["method"], g["baseline"]) for g in gaps if g["score"] == "automation"}
    assert pairs == {
        ("temperature", "map"),
        ("last-layer", "map"),
        ("last-layer", "temperature"),
    }


def test_rules_texts_and_names_are_taken_up(made):
    kind, problem, posterior, held, test = made
    predictive = smidgen.predict_batches(posterior, problem, held, **QUIET)
    _, targets = smidgen.point_outputs(problem, held, **QUIET)
    rules = decide.Rules(
        abstain=decide.abstain(predictive, targets, max_error=0.4)
        if kind == "categorical"
        else None,
        intervals=decide.intervals(predictive, targets, coverage=0.9)
        if kind == "gaussian"
        else None,
        strange=decide.strange(predictive),
    )
    settings = CompareSettings(
        rules=rules, texts=[f"row {i}" for i in range(90)], class_names=("x", "y", "z")
    )
    record = smidgen.compare(problem, posterior, test, settings=settings, **QUIET)
    decisions = record.results["decisions"]
    made_for = {"categorical": {"abstain"}, "gaussian": {"intervals"}}.get(kind, set())
    assert set(decisions["rules"]) == made_for | {"strange"}
    assert decisions["strange_score"] == "logit_variance"
    for part in ("least_certain", "strangest"):
        for entry in decisions[part]:
            assert entry["text"] == f"row {entry['row']}"
    if kind == "gaussian":
        assert [each["name"] for each in decisions["truth"]["outputs"]] == ["x", "y", "z"]
        assert decisions["truth"]["by_rule"]
    else:
        names = [row["name"] for row in rows_of(record)["last-layer"]["by_class"]]
        assert names == ["x", "y", "z"]
    assert "With the saved rules" in str(record)
    assert "rows_for_promise" not in decisions
    if kind == "categorical":
        settings = replace(settings, rules=decide.Rules(strange=rules.strange))
        record = smidgen.compare(problem, posterior, test, settings=settings, **QUIET)
        made = record.results["decisions"]["rows_for_promise"]
        assert made == {"needed": 45, "made": rules.strange.rows}
        assert "no error rate can be promised yet" in str(record)
        told = replace(settings.rules, unpromised="too many are wrong.")
        settings = replace(settings, rules=told)
        record = smidgen.compare(problem, posterior, test, settings=settings, **QUIET)
        assert "no rule to abstain. On its rows, too many are wrong. " in str(record)


def test_rows_without_a_label_are_skipped_but_counted(made):
    kind, problem, posterior, _, test = made
    if kind != "categorical":
        return
    ((inputs, targets),) = DataLoader(test.dataset, 90)
    labels = targets.clone()
    labels[:40] = -100
    batches = [(inputs, labels)]
    texts, numbers = [f"row {i}" for i in range(90)], list(range(1000, 1090))
    settings = CompareSettings(texts=texts)
    record = smidgen.compare(problem, posterior, batches, settings=settings, **QUIET)
    counted = smidgen.compare(
        problem, posterior, batches, settings=CompareSettings(row_numbers=numbers), **QUIET
    )
    places = [
        [entry["row"] for entry in each.results["decisions"]["least_certain"]]
        for each in (record, counted)
    ]
    assert places[1] == [1000 + place for place in places[0]]
    entries = record.results["decisions"]["least_certain"]
    assert all(
        entry["row"] >= 40 and entry["text"] == f"row {entry['row']}" for entry in entries
    )
    assert all(entry["label"] == str(int(targets[entry["row"]])) for entry in entries)


def test_several_errors_may_be_named(made):
    kind, problem, posterior, _, test = made
    if kind == "gaussian":
        return
    settings = CompareSettings(max_errors=(0.2, 0.01))
    record = smidgen.compare(problem, posterior, test, settings=settings, **QUIET)
    first, second = rows_of(record)["last-layer"]["automation"]
    assert (first["max_error"], second["max_error"]) == (0.2, 0.01)
    assert second["value"] <= first["value"]
    assert record.results["decisions"]["max_error"] == 0.2
    assert "at 80\u202f% accuracy" in str(record)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"texts": ["one"]},
            "texts must be one for each of 90 test rows, got 1. Pass them in",
        ),
        (
            {"row_numbers": [1, 2]},
            "row_numbers must be one for each of 90 test rows, got 2",
        ),
        ({"class_names": ["one"]}, "class_names must be one for each of 3 outputs, got 1"),
    ],
)
def test_what_does_not_fit_the_test_rows_is_refused(made, settings, message):
    _, problem, posterior, _, test = made
    with pytest.raises(ArgumentError, match=message):
        smidgen.compare(problem, posterior, test, settings=CompareSettings(**settings))
    with pytest.raises(ArgumentError, match="settings must be a CompareSettings, got dict"):
        smidgen.compare(problem, posterior, test, settings=settings)


def test_names_of_a_hugging_face_model_are_used(made):
    kind, problem, posterior, _, test = made
    model = problem.model

    class Config:
        id2label = {0: "bad", 1: "so so", 2: "good"}

    object.__setattr__(model, "config", Config())
    record = smidgen.compare(problem, posterior, test, **QUIET)
    Config.id2label = {i: f"LABEL_{i}" for i in range(3)}
    plain = smidgen.compare(problem, posterior, test, **QUIET)
    object.__delattr__(model, "config")
    if kind != "gaussian":
        for each, names in ((record, ["bad", "so so", "good"]), (plain, ["0", "1", "2"])):
            rows = rows_of(each)["map"]["by_class"]
            assert [row["name"] for row in rows] == names
