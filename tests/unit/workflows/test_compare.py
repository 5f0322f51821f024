"""`compare`: posteriors beside their baselines on test data."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen.errors import ArgumentError
from tests.support.cases import Case, mlp, vectors


@pytest.fixture(scope="module")
def made():
    model = Case("mlp", mlp, 3, vectors).make()[0]
    rows = TensorDataset(torch.randn(60, 4, dtype=torch.float64), torch.randint(3, (60,)))
    subset = smidgen.select.last_layer(model)
    return model, rows, smidgen.fit.laplace(model, DataLoader(rows, 20), subset)


def test_a_loader_that_shuffles_gives_the_scores_of_one_that_does_not(made):
    model, rows, posterior = made
    scores = []
    before = torch.get_rng_state()
    for shuffle in (False, True):
        # Its order is of the caller's random state, which stays as it was.
        loader = DataLoader(rows, 20, shuffle=shuffle)
        record = smidgen.compare(model, posterior, loader, progress=False)
        found = {each["name"]: each["scores"] for each in record.results["methods"]}
        scores.append([of["nll"]["value"] for of in found.values()])
    assert scores[0] == pytest.approx(scores[1], rel=1e-12)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["map", "temperature", " "])
def test_a_name_that_is_a_baselines_is_refused_before_any_pass(made, name):
    model, _, posterior = made
    unread = iter([])
    with pytest.raises(
        ArgumentError, match="name of a posterior must be none of map, temp"
    ):
        smidgen.compare(model, {name: posterior}, unread)


def test_one_shifted_set_is_in_memory_at_a_time(made):
    model, rows, posterior = made
    alive, most = weakref.WeakSet(), []

    class Batches:
        def __iter__(self):
            for x, y in DataLoader(rows, 20):
                batch = x.clone()
                alive.add(batch)
                most.append(len(alive))
                yield batch, y

    shifted = {str(i): Batches() for i in range(4)}
    record = smidgen.compare(
        model, posterior, DataLoader(rows, 20), shifted=shifted, progress=False
    )
    assert set(record.results["methods"][0]["detection"]) == set(shifted)
    # A set is three batches; the last of the set before may still be held.
    assert max(most) <= 2 * 3


pytestmark = pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
SWAG = {"settings": smidgen.fit.SwagSettings(steps=30, every=3, rank=4, learning_rate=0.05)}
SSVI = {"settings": smidgen.fit.SsviSettings(epochs=30)}
KINDS = {
    "categorical": (nn.CrossEntropyLoss(), smidgen.Categorical(3)),
    "bernoulli": (nn.BCEWithLogitsLoss(), smidgen.Bernoulli(3)),
    "gaussian": (nn.MSELoss(), smidgen.Gaussian(3)),
}


def regressed(kind, count=90):
    """Inputs, and targets of that kind that depend on them."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, 4, dtype=torch.float64, generator=generator)
    noise = torch.randn(count, 3, dtype=torch.float64, generator=generator)
    scores = inputs[:, :3] + noise
    if kind == "categorical":
        return inputs, scores.argmax(-1)
    return inputs, (scores > 0).double() if kind == "bernoulli" else scores


def side_by_side(kind):
    """A trained model with a Laplace, a SWAG and an SSVI posterior, all calibrated."""
    loss, likelihood = KINDS[kind]
    inputs, targets = regressed(kind)
    sets = [TensorDataset(inputs[i::3], targets[i::3]) for i in range(3)]
    train, validation, test = (DataLoader(each, 10, shuffle=True) for each in sets)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(60):
        optimiser.zero_grad()
        loss(model(inputs[::3]), targets[::3]).backward()
        optimiser.step()
    problem = smidgen.Problem(model.eval(), likelihood)
    subset = smidgen.select.last_layer(model)
    quiet = {"progress": False}
    posteriors = [
        smidgen.fit.laplace(problem, train, subset, **quiet),
        smidgen.fit.swag(problem, train, subset, **SWAG, **quiet),
        smidgen.fit.ssvi(problem, train, **SSVI, **quiet),
    ]
    tuned = [smidgen.calibrate(p, problem, validation, **quiet) for p in posteriors]
    return problem, posteriors, tuned, validation, test


@pytest.fixture(scope="module", params=KINDS)
def beside(request):
    return request.param, *side_by_side(request.param)


def test_posteriors_of_every_kind_stand_beside_the_baselines(beside, tmp_path):
    kind, problem, _, tuned, _, test = beside
    record = smidgen.compare(
        problem, tuned, test, shifted={"far": [torch.ones(5, 4).double()]}
    )
    rows = {row["name"]: row for row in record.results["methods"]}
    assert list(rows) == ["map", "temperature", "last-layer", "swag", "ssvi"]
    wanted = {"nll", "rmse", "coverage"} if kind == "gaussian" else {"nll", "accuracy"}
    for row in rows.values():
        assert wanted <= set(row["scores"])
        assert "far" in row["detection"]
    labels = [rows[name]["label"] for name in ("last-layer", "swag", "ssvi")]
    assert labels == ["Last layer", "SWAG, last layer", "SSVI"]
    shown = str(record)
    assert "SWAG, last layer" in shown
    assert "Against the MAP" in shown
    page = record.report(tmp_path / "page.html").read_text()
    assert "SWAG, last layer" in page
    assert isinstance(smidgen.Record.load(record.save(tmp_path / "r.json")), smidgen.Record)


def test_the_temperature_comes_of_validation_or_is_left_out(beside):
    kind, problem, plain, tuned, validation, test = beside
    alone = smidgen.compare(problem, plain[0], test, progress=False)
    assert [row["name"] for row in alone.results["methods"]] == ["map", "last-layer"]
    assert "Temperature scaling is missing" in alone.results["notes"][0]
    assert "Temperature scaling is missing" in str(alone)
    fitted = smidgen.compare(problem, plain[0], test, validation=validation)
    key = "noise" if kind == "gaussian" else "temperature"
    scale = fitted.results["methods"][1][key]
    assert scale == pytest.approx(tuned[0].calibration.map_scale, rel=1e-3)


def test_the_map_is_the_model_whatever_stands_beside_it(beside):
    """In any order, calibrated or not, and beside a posterior with weights of its own."""
    _, problem, _, tuned, validation, test = beside
    laplace, swag, ssvi = tuned
    rows = [
        smidgen.compare(problem, several, test, validation=validation, progress=False)
        for several in ([laplace], [laplace, swag], [swag, laplace], [ssvi, laplace])
    ]
    scores = [row.results["methods"][0]["scores"]["nll"]["value"] for row in rows]
    assert scores == pytest.approx([scores[0]] * len(scores), rel=1e-6)
    outputs, targets = smidgen.point_outputs(problem, test, progress=False)
    if problem.likelihood.kind != "gaussian":
        plain = -problem.likelihood.log_prob(outputs, targets).mean()
        alone = smidgen.compare(problem, ssvi, test, progress=False)
        assert alone.results["methods"][0]["scores"]["nll"]["value"] == pytest.approx(
            float(plain), rel=1e-6
        )
        # Its scale is that of its means: it says nothing of the model.
        assert "Temperature scaling is missing" in alone.results["notes"][0]


def test_held_out_data_choose_what_the_verdict_is_about(beside):
    _, problem, _, tuned, _, test = beside
    record = smidgen.compare(problem, tuned, test, progress=False)
    names = [row["name"] for row in record.results["methods"]][-len(tuned) :]
    scores = [posterior.calibration.chosen_nll for posterior in tuned]
    assert record.results["primary"] == names[scores.index(min(scores))]


def test_posteriors_of_one_name_are_told_apart(beside):
    _, problem, _, tuned, _, test = beside
    record = smidgen.compare(problem, [tuned[0], tuned[0]], test, progress=False)
    names = [row["name"] for row in record.results["methods"]]
    assert names[2:] == ["last-layer", "last-layer-2"]
    with pytest.raises(ArgumentError, match="must be one posterior or more, got none"):
        smidgen.compare(problem, [], test)


def test_a_posterior_worse_than_temperature_is_said_in_python_too(beside):
    kind, problem, plain, _, validation, test = beside
    # Hardly any prior: far from the trained weights; or far too sure of every class.
    wide = replace(plain[0], precision=1e-6)
    if kind == "categorical":
        wide = replace(plain[0], temperature=0.05)
    scaling = "fitted noise" if kind == "gaussian" else "temperature scaling"
    with pytest.warns(smidgen.SmidgenWarning, match=f"^worse than {scaling} on these"):
        record = smidgen.compare(problem, wide, test, validation=validation, progress=False)
    assert f"Last layer is worse than {scaling}, its NLL is clearly higher" in str(record)
    assert "Bayes helped" not in str(record)


def test_a_comparison_holds_every_difference_and_what_chance_gives(beside):
    kind, problem, _, tuned, _, test = beside
    far = {"far": [5 * torch.ones(5, 4).double()]}
    record = smidgen.compare(problem, tuned[0], test, shifted=far, progress=False)
    scores = {gap["score"] for gap in record.results["differences"]}
    classes = kind != "gaussian"
    wanted = {"nll", "detection.far", *["squared_calibration"] * classes}
    decisions = {"automation", "risk_coverage"} if classes else set()
    weights = ["mutual_information", "logit_variance"]
    answers = {"categorical": ["confidence", "entropy"], "bernoulli": ["entropy"]}.get(
        kind, []
    )
    finds = {"error_detection": [*answers, *weights] if classes else []}
    finds["detection.far"] = [*(answers or ["entropy"]), *weights]
    by_score = {f"{what}.{score}" for what, scores in finds.items() for score in scores}
    assert scores == wanted | decisions | by_score
    assert ("(by chance)" in str(record)) is classes
    for row in record.results["methods"] if classes else ():
        assert 0 < row["scores"]["ece_equal_mass"]["floor"] < 0.5
        assert 0 < row["scores"]["ece_equal_width"]["floor"] < 0.5
