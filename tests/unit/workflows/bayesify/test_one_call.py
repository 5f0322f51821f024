"""`bayesify` scores as refitting from scratch would, keeps what pays, and says so."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import smidgen
from smidgen import BayesifySettings, evaluate, fit, select
from smidgen.errors import ArgumentError, DataError
from smidgen.fit.calibration.precision import GRID
from smidgen.workflows.bayesify.crossfit import STRIDE, split_rows
from smidgen.workflows.bayesify.one_call import bayesify
from tests.support.posteriors import LIKELIHOODS
from tests.support.tolerances import SOLVER

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
NAMES = [
    "temperature",
    "last-layer",
    "isotropic",
    "head-isotropic",
    "sparse-kfac-10",
    "sparse-kfac-30",
]
SETTINGS = BayesifySettings(percents=(30, 10), folds=3)


def draw(model, likelihood, rows, seed, *, noise=2.0, shape=(4,)):
    """Draw rows whose targets follow the model's outputs over a temperature, in one batch."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, *shape, generator=generator, dtype=torch.float64)
    targets = likelihood.draw_targets(model(x).detach() / noise, generator)
    return x, targets if likelihood.kind == "categorical" else targets.double()


def batches_of(data, size=16):
    x, y = data
    return list(zip(x.split(size), y.split(size), strict=True))


def make(kind, *, rows=60, layers=None, seed=0, shape=(4,)):
    """A small fp64 problem, training batches, and held-out rows in one batch."""
    likelihood = LIKELIHOODS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body = (
            [nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh()]
            if layers is None
            else layers
        )
        width = 6 if layers is None else 4
        model = nn.Sequential(*body, nn.Linear(width, likelihood.outputs)).double()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.9)
    problem = smidgen.Problem(model, likelihood)
    train = batches_of(draw(model, likelihood, 48, seed + 1, shape=shape))
    return problem, train, draw(model, likelihood, rows, seed + 2, shape=shape)


def run(problem, train, held_out, settings=SETTINGS, **options):
    return bayesify(
        problem, train, batches_of(held_out), settings=settings, progress=False, **options
    )


def subsets_of(problem, train):
    model = problem.model
    last = select.last_layer(problem, train)
    return {
        "last-layer": last,
        "sparse-kfac-10": select.sparse_kfac(model, percent=10) | last,
        "sparse-kfac-30": select.sparse_kfac(model, percent=30) | last,
    }


def fit_alone(name, problem, train):
    """Fit one candidate by hand, with the tools that a user has."""
    whole = select.sparse_kfac(problem.model, percent=100)
    if name == "isotropic":
        return fit.laplace(problem, train, whole, structure="isotropic", progress=False)
    subsets = subsets_of(problem, train)
    if name != "head-isotropic":
        return fit.laplace(problem, train, subsets[name], progress=False)
    head = fit.laplace(problem, train, subsets["last-layer"], progress=False)
    body = select.named(problem.model, ["0.*", "2.*"])
    settled = smidgen.Problem(problem.model, head.likelihood)
    return head | fit.isotropic(settled, body)


def score_by_hand(name, problem, train, held_out, folds):
    """Refit, calibrate on all folds but one and predict that, for every fold."""
    x, y = held_out
    nll = torch.empty(len(y), dtype=torch.float64)
    settings = fit.CalibrationSettings(
        precisions=GRID[::STRIDE], refine=False, scope="head"
    )
    for fold in folds:
        rest = torch.ones(len(y), dtype=torch.bool)
        rest[fold] = False
        if name == "temperature":
            posterior = fit.point(problem, train, progress=False)
            options = {}
        else:
            posterior = fit_alone(name, problem, train)
            options = {"settings": settings}
        posterior = smidgen.calibrate(
            posterior, problem, [(x[rest], y[rest])], **options, progress=False
        )
        predictive = smidgen.predict(posterior, problem, (x[fold], y[fold]), tolerance=None)
        nll[fold] = evaluate.nll(predictive, y[fold])
    return nll


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_cross_fitted_scores_are_those_of_refitting_every_fold(kind):
    problem, train, held_out = make(kind)
    posterior = run(problem, train, held_out, seed=3)
    folds = split_rows(torch.arange(60), 3, 3)
    tried = {each.name: each for each in posterior.choice.candidates}
    assert list(tried) == NAMES
    by_hand = {name: score_by_hand(name, problem, train, held_out, folds) for name in NAMES}
    for name, each in tried.items():
        assert each.nll == pytest.approx(float(by_hand[name].mean()), rel=SOLVER["rtol"])
        gap = evaluate.paired_difference(by_hand[name], by_hand["temperature"])
        assert each.low == pytest.approx(gap.low, abs=1e-4)
        assert each.high == pytest.approx(gap.high, abs=1e-4)


@pytest.mark.parametrize("kind", LIKELIHOODS)
@pytest.mark.parametrize("name", ["isotropic", "last-layer", "sparse-kfac", "temperature"])
def test_what_is_kept_is_calibrated_as_by_hand_on_all_rows(kind, name, unchanged):
    problem, train, held_out = make(kind)
    settings = BayesifySettings(candidates=(name,), percents=(30,), folds=2)
    with unchanged(problem.model):
        posterior = run(problem, train, held_out, settings)
    if posterior.choice.kept == "temperature":
        assert isinstance(posterior, smidgen.PointPosterior)
        alone, options = fit.point(problem, train, progress=False), {}
    else:
        alone = fit_alone(posterior.choice.kept, problem, train)
        options = {"settings": fit.CalibrationSettings(scope="head")}
    alone = smidgen.calibrate(alone, problem, [held_out], **options, progress=False)
    assert type(posterior) is type(alone)
    assert posterior.temperature == pytest.approx(alone.temperature, rel=1e-6)
    x, _ = held_out
    ours, theirs = (
        smidgen.predict(each, problem, (x, None), tolerance=None)
        for each in (posterior, alone)
    )
    if kind == "regression":
        torch.testing.assert_close(ours.total_variance, theirs.total_variance, **SOLVER)
    else:
        torch.testing.assert_close(ours.probs, theirs.probs, **SOLVER)
    assert posterior.calibration.examples == 60


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_the_account_is_saved_and_loaded_and_compared(kind, tmp_path):
    problem, train, held_out = make(kind)
    posterior = run(problem, train, held_out)
    loaded = smidgen.load(smidgen.save(posterior, tmp_path / "posterior"), problem)
    assert loaded == posterior
    assert loaded.choice == posterior.choice
    assert str(loaded.choice) == str(posterior.choice)
    assert posterior.summary()["choice"]["kept"] == posterior.choice.kept
    test = batches_of(draw(problem.model, problem.likelihood, 40, 9))
    record = smidgen.compare(problem, posterior, test, progress=False)
    noted = record.results["choice"]
    assert noted["kept"] == posterior.choice.kept
    assert noted["verdict"] == posterior.choice.verdict()
    assert [each["name"] for each in noted["candidates"]] == NAMES
    assert noted["verdict"] in str(record)


def test_a_model_that_is_sure_where_it_should_not_be_gets_more_than_a_temperature():
    """Far from the training data a network is wrong, and only a posterior knows where."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)).double()
    generator = torch.Generator().manual_seed(1)
    near = torch.randn(60, 2, generator=generator, dtype=torch.float64) * 0.5
    labels = (near[:, 0] > 0).long()
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(near), labels).backward()
        optimiser.step()
    x = torch.randn(600, 2, generator=generator, dtype=torch.float64)
    x[300:] *= 6
    y = (x[:, 0] > 0).long()
    y[300:] = torch.randint(2, (300,), generator=generator)
    posterior = run(smidgen.Problem(model), batches_of((near, labels)), (x, y))
    kept = posterior.choice.kept_candidate
    assert kept.name != "temperature"
    assert kept.high < 0
    assert posterior.choice.candidates[0].clearly_worse


def test_the_seed_makes_the_folds_and_nothing_else():
    problem, train, held_out = make("two-classes")
    first, again, other = (run(problem, train, held_out, seed=s) for s in (1, 1, 2))
    scores = [[c.nll for c in p.choice.candidates] for p in (first, again, other)]
    assert scores[0] == scores[1] != scores[2]


def test_a_budget_of_memory_leaves_out_what_is_larger_and_says_so():
    problem, train, held_out = make("classes")
    settings = BayesifySettings(percents=(10, 100), memory=2000, folds=2)
    choice = run(problem, train, held_out, settings).choice
    assert [each.name for each in choice.left_out] == ["sparse-kfac-100"]
    assert "sparse-kfac-100" not in [each.name for each in choice.candidates]
    assert "and memory allows 2.00 kB" in choice.left_out[0].reason
    assert "Not tried: Sparse-KFAC 100 % | last layer: it takes" in str(choice)
    with pytest.raises(ArgumentError, match="memory must be a number of bytes above 0"):
        BayesifySettings(memory=0)


def test_a_budget_of_time_leaves_out_what_takes_longer_and_says_so():
    problem, train, held_out = make("classes")
    choice = run(problem, train, held_out, BayesifySettings(seconds=1e-9)).choice
    assert [each.name for each in choice.candidates] == ["temperature"]
    assert len(choice.left_out) == 4
    assert all("and seconds allows 1e-09" in each.reason for each in choice.left_out)
    assert str(choice).startswith("Temperature scaling: nothing else was tried.")
    plenty = run(problem, train, held_out, BayesifySettings(seconds=3600)).choice
    assert not plenty.left_out
    with pytest.raises(ArgumentError, match="seconds must be left out for data without a"):
        bayesify(
            problem,
            iter(train),
            batches_of(held_out),
            settings=BayesifySettings(seconds=9),
            progress=False,
        )


def test_iterators_are_read_once():
    problem, train, held_out = make("classes")
    listed = run(problem, train, held_out)
    streamed = bayesify(
        problem, iter(train), iter(batches_of(held_out)), settings=SETTINGS, progress=False
    )
    assert [c.nll for c in streamed.choice.candidates] == [
        c.nll for c in listed.choice.candidates
    ]


def test_too_few_rows_are_refused_and_few_make_fewer_folds():
    problem, train, held_out = make("classes", rows=30)
    assert run(problem, train, held_out, BayesifySettings()).choice.folds == 3
    few = tuple(part[:19] for part in held_out)
    with pytest.raises(
        DataError, match="validation must have 20 labelled rows or more, got"
    ):
        run(problem, train, few)
    x, _ = held_out
    with pytest.raises(DataError, match="labels"):
        bayesify(problem, train, [x], progress=False)


def test_rows_without_a_label_do_not_count():
    problem, train, (x, y) = make("classes")
    y = y.clone()
    y[:20] = -100
    assert run(problem, train, (x, y)).choice.rows == 40


def test_one_layer_has_fewer_candidates():
    problem, train, held_out = make("classes", layers=[])
    choice = run(problem, train, held_out).choice
    names = [each.name for each in choice.candidates]
    assert names == ["temperature", "isotropic", "last-layer"]


def test_a_model_without_affine_layers_gets_a_temperature():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, x):
            return x[:, :3] * self.scale

    likelihood = smidgen.Categorical(3)
    problem = smidgen.Problem(Scale(), likelihood)
    data = draw(problem.model, likelihood, 40, 0)
    posterior = run(problem, batches_of(data), data)
    assert isinstance(posterior, smidgen.PointPosterior)
    assert [each.name for each in posterior.choice.candidates] == ["temperature"]
    assert "Not tried: All other candidates: " in str(posterior.choice)


def test_an_output_that_no_layer_makes_leaves_the_last_layer_out():
    class Tied(nn.Module):
        """Its outputs are made by a bare matrix."""

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 5)
            self.out = nn.Parameter(torch.randn(3, 5))

        def forward(self, x):
            return torch.tanh(self.inner(x)) @ self.out.T

    torch.manual_seed(0)
    problem = smidgen.Problem(Tied().double(), smidgen.Categorical(3))
    data = draw(problem.model, problem.likelihood, 60, 0)
    choice = run(problem, batches_of(data), data).choice
    names = [each.name for each in choice.candidates]
    assert names == ["temperature", "isotropic", "sparse-kfac-10", "sparse-kfac-30"]
    assert choice.candidates[-1].label == "Sparse-KFAC 30 %"


def test_the_order_is_what_a_prediction_takes_and_then_what_is_stored():
    problem, train, held_out = make("classes")
    choice = run(problem, train, held_out).choice
    # Whether a backward pass through the network is needed, and the floats.
    costs = [
        (each.name not in ("temperature", "last-layer"), each.floats)
        for each in choice.candidates
    ]
    assert costs == sorted(costs)
    assert "needs no backward pass through the network first" in str(choice)


def test_images_and_many_classes_work():
    torch.manual_seed(0)
    likelihood = smidgen.Categorical(60)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 60)
    ).double()
    problem = smidgen.Problem(model, likelihood)
    train, held_out = (draw(model, likelihood, 40, s, shape=(1, 6, 6)) for s in (1, 2))
    settings = BayesifySettings(folds=2, percents=(10,))
    choice = run(problem, batches_of(train), held_out, settings).choice
    assert len(choice.candidates) == 5
    assert all(each.nll < 10 for each in choice.candidates)


def test_progress_can_be_silent(capsys):
    problem, train, held_out = make("two-classes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(problem, train, held_out)
    assert capsys.readouterr() == ("", "")


def find_folds(monkeypatch, problem, train, batches, **options):
    """The row numbers of each fold that a run makes."""
    made = []

    def split(groups, folds, seed):
        made.append(split_rows(groups, folds, seed))
        return made[-1]

    monkeypatch.setattr("smidgen.workflows.bayesify.one_call.split_rows", split)
    settings = BayesifySettings(candidates=("last-layer",), folds=3)
    bayesify(problem, train, batches, settings=settings, progress=False, **options)
    return made[-1]


def test_groups_and_tokens_of_one_text_are_not_divided(monkeypatch):
    problem, train, held_out = make("classes")
    groups = [f"patient {row % 7}" for row in range(60)]
    folds = find_folds(monkeypatch, problem, train, batches_of(held_out), groups=groups)
    patients = [{groups[row] for row in fold.tolist()} for fold in folds]
    assert sorted(row for fold in folds for row in fold.tolist()) == list(range(60))
    assert sum(map(len, patients)) == len(set(groups))
    assert all(15 <= len(fold) <= 27 for fold in folds)
    with pytest.raises(ArgumentError, match="groups must be one for each held-out example"):
        run(problem, train, held_out, groups=groups[:40])
    with pytest.raises(DataError, match="examples of 2 groups or more, got 1"):
        run(problem, train, held_out, groups=["all"] * 60)

    # Twelve texts of five tokens in batches of four; the last token of each has no label.
    x = torch.randn(12, 5, 4, dtype=torch.float64)
    y = problem.model(x).argmax(-1)
    y[:, -1] = -100
    batches = list(zip(x.split(4), y.split(4), strict=True))
    folds = find_folds(monkeypatch, problem, batches, batches)
    texts = [{row // 4 for row in fold.tolist()} for fold in folds]
    assert [len(fold) for fold in folds] == [16, 16, 16]
    assert sum(map(len, texts)) == 12
