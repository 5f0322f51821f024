"""No curvature: the squared norm of the Jacobian, from no data at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import smidgen
from smidgen.curvature.output_layers import see_output_layers
from smidgen.errors import ArgumentError, StructureError
from smidgen.fit.calibration.groups import group_labels
from tests.support.cases import CASES, SELECTORS
from tests.support.oracles import centred, subset_jacobian
from tests.support.posteriors import make_problem
from tests.support.tolerances import EXACT

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
CLASSES = [case for case in CASES if case.kind == "categorical" and case.outputs == 2]


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("case", CLASSES, ids=lambda case: case.name)
def test_its_variance_is_the_squared_norm_of_the_jacobian(case, selector):
    model, batch = case.make()
    subset = SELECTORS[selector](model)
    problem = case.problem(model)
    posterior = smidgen.fit.isotropic(problem, subset, precision=7.0)
    found = smidgen.predict(posterior, problem, batch).logit_covariance
    jacobian = subset_jacobian(model, case.forward, batch, subset)
    if jacobian.dim() == 3:
        torch.testing.assert_close(found, centred(jacobian @ jacobian.mT / 7.0), **EXACT)


@pytest.mark.parametrize("kind", ["two-classes", "classes", "labels", "regression"])
def test_it_reads_no_batch_stores_nothing_and_is_calibrated(kind, tmp_path, unchanged):
    problem, batches = make_problem(kind)
    subset = smidgen.select.sparse_kfac(problem.model, percent=100)
    with unchanged(problem.model):
        posterior = smidgen.fit.isotropic(problem, subset)
        calibrated = smidgen.calibrate(posterior, problem, batches, progress=False)
    assert posterior.structure == "isotropic"
    assert posterior.floats == posterior.num_data == 0
    assert calibrated.calibration is not None
    folder = smidgen.save(calibrated, tmp_path / "posterior")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 20_000
    loaded = smidgen.load(folder, problem)
    assert loaded == calibrated
    left, right = (smidgen.predict(p, problem, batches[0]) for p in (loaded, calibrated))
    assert left.to_dict() == right.to_dict()


def test_through_laplace_it_is_the_same_and_a_regression_gets_its_noise():
    problem, batches = make_problem("two-classes")
    subset = smidgen.select.sparse_kfac(problem.model, percent=100)
    fitted = smidgen.fit.laplace(problem, batches, subset, structure="isotropic")
    assert fitted == smidgen.fit.isotropic(problem, subset)
    problem, batches = make_problem("regression")
    subset = smidgen.select.sparse_kfac(problem.model, percent=100)
    fitted = smidgen.fit.laplace(problem, batches, subset, structure="isotropic")
    kron = smidgen.fit.laplace(problem, batches, subset)
    assert fitted.likelihood == kron.likelihood
    assert fitted.num_data == kron.num_data == 16


def test_what_the_outputs_mean_is_taken_from_a_config_or_asked_for():
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=3,
    )
    bert = BertForSequenceClassification(config)
    posterior = smidgen.fit.isotropic(bert, smidgen.select.sparse_kfac(bert, percent=50))
    assert posterior.likelihood == smidgen.Categorical(3)
    plain = nn.Linear(3, 2)
    with pytest.raises(ArgumentError, match="likelihood must be known"):
        smidgen.fit.isotropic(plain, smidgen.select.last_layer(plain))


def test_a_subset_without_a_jacobian_is_refused():
    model = nn.Sequential(nn.Embedding(5, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    problem = smidgen.Problem(model, smidgen.Categorical(2))
    norm = smidgen.Subset(
        {"1.weight": (3,)},
        {"1.weight": smidgen.select.named(model, ["2.bias"]).parts["2.bias"]},
    )
    with pytest.raises(StructureError, match="needs parameters of affine layers"):
        smidgen.fit.isotropic(problem, norm)


@pytest.mark.parametrize("kind", ["two-classes", "classes", "labels", "regression"])
def test_head_with_factors_and_body_without_add_up(kind, tmp_path):
    problem, batches = make_problem(kind)
    model = problem.model
    head = smidgen.select.last_layer(model)
    body = smidgen.select.named(model, ["0.*"])
    fitted = smidgen.fit.laplace(problem, batches, head, precision=2.0, progress=False)
    plain = smidgen.fit.isotropic(problem, body, precision=50.0)
    joined = fitted | plain
    assert joined.structure == "kron + isotropic"
    assert joined.precisions == {"2": 2.0, "0": 50.0}
    assert joined.subset == head | body
    assert (plain | fitted).num_data == fitted.num_data

    def variance(posterior):
        predictive = smidgen.predict(posterior, problem, batches[0])
        if kind == "regression":
            return predictive.variance
        return predictive.logit_variance

    # A regression's noise scales nothing where there is no curvature: ‖J‖²/τ.
    alone = variance(plain)
    torch.testing.assert_close(
        variance(joined), variance(fitted) + alone, rtol=1e-5, atol=0
    )
    calibrated = smidgen.calibrate(joined, problem, batches, progress=False)
    assert set(calibrated.precisions) == {"0", "2"}
    folder = smidgen.save(calibrated, tmp_path / "posterior")
    assert smidgen.load(folder, problem) == calibrated


def test_layers_of_one_group_have_a_precision_with_curvature_and_one_without():
    problem, batches = make_problem("classes")
    first = smidgen.select.named(problem.model, ["0.*"])
    last = smidgen.select.last_layer(problem.model)
    fitted = smidgen.fit.laplace(problem, batches, first, progress=False)
    joined = fitted | smidgen.fit.isotropic(problem, last)

    def labels(posterior, coverage):
        return group_labels("auto", posterior, lambda: coverage)

    seen = see_output_layers(problem, batches[0])
    assert labels(joined, seen) == {"0": "mlp", "2": "head"}
    # Where no layer is known to make the outputs, both are of one group.
    unseen = smidgen.coverage(problem.model)
    groups = {layer.name: layer.group for layer in unseen.layers}
    assert groups["0"] == groups["2"]
    unseen = replace(unseen, output_layers=())
    assert labels(joined, unseen) == {"0": "mlp, kron", "2": "mlp, isotropic"}
    plain = smidgen.fit.isotropic(problem, first | last)
    assert set(labels(plain, unseen).values()) == {"mlp"}


class _Mixing(nn.Module):
    """A layer whose outputs are compared with their mean over the batch."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, inputs):
        hidden = self.body(inputs).tanh()
        return self.head(hidden - hidden.mean(0))


def test_what_is_joined_is_checked_for_layers_that_mix_examples():
    torch.manual_seed(0)
    problem = smidgen.Problem(_Mixing().eval(), smidgen.Categorical(3))
    batches = [(torch.randn(9, 4), torch.arange(9) % 3)]
    head = smidgen.select.last_layer(problem.model)
    body = smidgen.select.named(problem.model, ["body.*"])
    fitted = smidgen.fit.laplace(problem, batches, head, progress=False)
    joined = fitted | smidgen.fit.isotropic(problem, body)
    assert joined.num_data
    with pytest.raises(StructureError, match="no chosen layer may mix the examples"):
        smidgen.calibrate(joined, problem, batches, progress=False)


def test_what_cannot_be_joined_is_refused():
    problem, batches = make_problem("classes")
    other, _ = make_problem("classes", seed=1)
    head = smidgen.select.last_layer(problem.model)
    body = smidgen.select.named(problem.model, ["0.*"])
    plain = smidgen.fit.isotropic(problem, head)
    with pytest.raises(ArgumentError, match="posteriors must have no layer in common"):
        plain | plain
    with pytest.raises(ArgumentError, match="posteriors must be of one model"):
        plain | smidgen.fit.isotropic(other, body)
    with pytest.raises(ArgumentError, match="posteriors must have the same temperature"):
        plain.with_temperature(2) | smidgen.fit.isotropic(problem, body)
    full = smidgen.fit.laplace(problem, batches, body, structure="full", progress=False)
    with pytest.raises(ArgumentError, match="posteriors must not be of structure 'full'"):
        plain | full


def test_draws_have_the_priors_variance():
    model = nn.Linear(4, 3)
    problem = smidgen.Problem(model, smidgen.Categorical(3))
    posterior = smidgen.fit.isotropic(
        problem, smidgen.select.last_layer(model), precision=4.0
    )
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([posterior.sample_deviations(generator)[""] for _ in range(4_000)])
    assert abs(float(draws.var()) * 4.0 - 1) < 5 * (2 / draws.numel()) ** 0.5


def test_data_in_the_place_of_a_subset_are_refused():
    model = nn.Linear(3, 2)
    with pytest.raises(ArgumentError, match=r"got list. The order is \(model, subset\)"):
        smidgen.fit.isotropic(model, [torch.ones(2, 3)])


def test_the_body_is_everything_but_the_head():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    problem = smidgen.Problem(model, smidgen.Categorical(2))
    last = smidgen.select.last_layer(model)
    head = smidgen.fit.laplace(problem, [torch.randn(9, 3)], last)
    joined = head | smidgen.fit.isotropic(problem, ~last)
    assert joined.subset.fraction == 1
    assert joined.structure == "kron + isotropic"
