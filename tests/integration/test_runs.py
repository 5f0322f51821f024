"""How often each call runs the network: on every batch once, and twice on none."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import BertForSequenceClassification

import smidgen
from smidgen.select import scores
from tests.support.tiny import bert_config

# Rows that the networks below were given, run by run. Not in a network: a shadow has its own.
RUNS: list[int] = []
# Checks of which layers make the outputs, and of weights that are used past their layer's call,
# run as many rows of the first batch.
FEW = 2
CHECKED = [FEW, 12, 7]


class Counted(nn.Module):
    """A network that writes its runs down."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 8), nn.Linear(8, outputs)

    def forward(self, x):
        RUNS.append(len(x))
        return self.head(torch.tanh(self.body(x)))


class Turned(Counted):
    """Its body sees the examples of a batch on the second axis."""

    def forward(self, x):
        hidden = self.body(torch.stack([x, 2 * x])).mean(0)
        RUNS.append(len(x))
        return self.head(torch.tanh(hidden))


class CountedForSequenceClassification(BertForSequenceClassification):
    """BERT that writes its runs down."""

    def forward(self, input_ids, **further):
        RUNS.append(len(input_ids))
        return super().forward(input_ids, **further)


def runs_of(call):
    """Call a function; return what it returns, and the rows of each run of the network."""
    RUNS.clear()
    made = call()
    return made, list(RUNS)


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, 5, generator=generator) for rows in (12, 7)]


@pytest.fixture
def batches(inputs):
    return [(x, (x[:, 0] > 0).long()) for x in inputs]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Counted()


@pytest.fixture(params=["inferred", "given"])
def problem(request, model):
    return smidgen.Problem(
        model, smidgen.Categorical(2) if request.param == "given" else None
    )


@pytest.fixture
def subset(model):
    return smidgen.select.sparse_kfac(model, percent=100)


@pytest.mark.parametrize(
    ("structure", "expected"),
    [
        ("kron", CHECKED),
        ("ekfac", [*CHECKED, 12, 7]),
        ("diag", CHECKED),
        ("full", CHECKED),
        ("isotropic", [FEW, 12]),
    ],
)
def test_a_fit_runs_each_batch_once_in_a_pass(
    problem, batches, subset, structure, expected
):
    how = {"structure": structure, "progress": False}
    _, runs = runs_of(lambda: smidgen.fit.laplace(problem, batches, subset, **how))
    assert runs == expected


def test_batches_that_can_be_read_but_once_are_run_once(model, batches, subset):
    listed = smidgen.fit.laplace(model, batches, subset, progress=False)
    fit, runs = runs_of(
        lambda: smidgen.fit.laplace(model, iter(batches), subset, progress=False)
    )
    assert runs == CHECKED
    for name, operator in fit.operators.items():
        for one, other in zip(
            operator.tensors(), listed.operators[name].tensors(), strict=True
        ):
            assert torch.equal(one, other)


def test_a_regression_runs_each_batch_once(inputs):
    model = Counted(1)
    subset = smidgen.select.sparse_kfac(model, percent=100)
    batches = [(x, 2.5 * x[:, :1]) for x in inputs]
    for structure in ("kron", "isotropic"):
        how = {"structure": structure, "progress": False}
        _, runs = runs_of(
            lambda how=how: smidgen.fit.laplace(model, batches, subset, **how)
        )
        assert runs == CHECKED


def test_fits_of_many_subsets_share_one_run(problem, batches, model):
    subsets = {p: smidgen.select.sparse_kfac(model, percent=p) for p in (50, 100)}
    _, runs = runs_of(
        lambda: smidgen.fit.laplace_many(problem, batches, subsets, progress=False)
    )
    assert runs == CHECKED


def test_a_last_layer_is_seen_on_a_few_rows(problem, batches, model):
    last, runs = runs_of(lambda: smidgen.select.last_layer(problem, batches))
    assert runs == [FEW]
    _, runs = runs_of(lambda: smidgen.fit.laplace(problem, batches, last, progress=False))
    assert runs == [FEW, *CHECKED]


def test_a_layer_that_mixes_examples_takes_no_further_run(batches):
    model = Turned()
    subset = smidgen.select.sparse_kfac(model, percent=100)
    with pytest.warns(smidgen.errors.SmidgenWarning, match="stay deterministic: body"):
        fit, runs = runs_of(
            lambda: smidgen.fit.laplace(model, batches, subset, progress=False)
        )
    assert runs == CHECKED
    alone = smidgen.fit.laplace(
        model, batches, smidgen.select.named(model, ["head.*"]), progress=False
    )
    for one, other in zip(
        fit.operators["head"].tensors(), alone.operators["head"].tensors(), strict=True
    ):
        assert torch.equal(one, other)


def test_bert_is_run_once_a_batch():
    torch.manual_seed(0)
    model = CountedForSequenceClassification(bert_config(num_labels=3)).eval()
    ids = torch.randint(4, 8, (6, 5))
    batches = [{"input_ids": part, "labels": part[:, 0] % 3} for part in ids.split(4)]
    subset = smidgen.select.sparse_kfac(model, percent=50)
    fit, runs = runs_of(lambda: smidgen.fit.laplace(model, batches, subset, progress=False))
    assert runs == [FEW, 4, 2]
    _, runs = runs_of(lambda: smidgen.predict(fit, model, batches[0]))
    assert runs == [4]
    _, runs = runs_of(lambda: smidgen.fit.isotropic(model, subset))
    assert runs == []


@pytest.mark.parametrize("score", ["activation", "curvature", "squared_gradient"])
def test_scores_run_each_batch_once(problem, batches, score):
    _, runs = runs_of(lambda: getattr(scores, score)(problem, batches, progress=False))
    assert runs == CHECKED


@pytest.mark.filterwarnings("ignore:the best:smidgen.errors.SmidgenWarning")
def test_calibrating_and_predicting_run_each_batch_once(model, batches, subset):
    fit = smidgen.fit.laplace(model, batches, subset, progress=False)
    for _ in range(2):
        _, runs = runs_of(lambda: smidgen.predict(fit, model, batches[0]))
        assert runs == [12]
    _, runs = runs_of(lambda: smidgen.predict_batches(fit, model, batches, progress=False))
    assert runs == [12, 7]
    _, runs = runs_of(lambda: smidgen.calibrate(fit, model, batches, progress=False))
    assert runs == [FEW, 12, 7]


@pytest.mark.filterwarnings("ignore:the best:smidgen.errors.SmidgenWarning")
def test_without_curvature_calibration_alone_sees_the_data(model, batches, subset):
    problem = smidgen.Problem(model, smidgen.Categorical(2))
    flat, runs = runs_of(lambda: smidgen.fit.isotropic(problem, subset))
    assert runs == []
    _, runs = runs_of(lambda: smidgen.predict(flat, model, batches[0]))
    assert runs == [12]
    _, runs = runs_of(lambda: smidgen.calibrate(flat, model, batches, progress=False))
    assert runs == [FEW, *CHECKED]
