"""The whole path: closed forms, 100 percent = KFAC, tuning = brute force, refusals."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn
from transformers import BatchEncoding

import smidgen
from smidgen.curvature.taps import tapped
from smidgen.errors import ArgumentError, DataError, SmidgenWarning, StructureError
from smidgen.fit.calibration.precision import GRID
from smidgen.runtime.guard import fingerprint, quick_fingerprint
from smidgen.weights.affine import coverage
from smidgen.weights.blocks import find_blocks
from smidgen.weights.subset import Entries, Subset, Whole
from tests.support.cases import Case, OneBlock, bert, mlp, padded_tokens, vectors
from tests.support.oracles import linear_regression_posterior
from tests.support.settings import grouped
from tests.support.tolerances import EXACT, SINGLE, SOLVER

EDGES_ARE_FINE = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")


def loader(outputs=2, rows=48, seed=0, kind="categorical"):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, dtype=torch.float64, generator=generator)
    noise = torch.randn(rows, outputs, dtype=torch.float64, generator=generator)
    y = x[:, :outputs] + 0.7 * noise
    if kind == "categorical":
        y = y.argmax(-1)
    return [(x[i : i + 16], y[i : i + 16]) for i in range(0, rows, 16)]


def drawn_from(model, batches, temperature, seed):
    """The same inputs with labels drawn from the model itself at a temperature."""
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for x, _ in batches:
        probs = (model(x).detach() / temperature).softmax(-1)
        drawn.append((x, torch.multinomial(probs, 1, generator=generator).squeeze(1)))
    return drawn


def test_linear_regression_equals_the_closed_form():
    model, _ = Case("linear", lambda n: nn.Linear(4, n), 1, vectors).make()
    batches = loader(outputs=1, kind="gaussian")
    posterior = smidgen.fit.laplace(
        model, batches, smidgen.select.last_layer(model), precision=0.3
    )
    x = torch.cat([b[0] for b in batches])
    y = torch.cat([b[1] for b in batches])
    design = torch.cat([torch.ones(len(x), 1).double(), x], 1)
    noise = float((y - model(x).detach()).square().mean())
    assert posterior.likelihood.noise == pytest.approx(noise)
    covariance = linear_regression_posterior(design, noise, 0.3)
    predictive = smidgen.predict(posterior, model, batches[0])
    rows = design[:16]
    torch.testing.assert_close(
        predictive.variance, (rows @ covariance * rows).sum(-1, keepdim=True), **EXACT
    )


def test_all_of_sparse_kfac_is_kfac():
    """100 percent equals a subset of whole parameters, to the last bit of the selection."""
    model, batch = Case("one-block", OneBlock, 2, padded_tokens).make()
    sparse = smidgen.select.sparse_kfac(model, percent=100)
    universe = coverage(model).universe
    whole = Subset(universe, {name: Whole() for name in universe})
    assert sparse == whole
    left = smidgen.predict(smidgen.fit.laplace(model, [batch], sparse), model, batch)
    right = smidgen.predict(smidgen.fit.laplace(model, [batch], whole), model, batch)
    torch.testing.assert_close(left.log_probs, right.log_probs, **EXACT)


def test_single_precision_agrees_with_double():
    model, batch = Case("one-block", OneBlock, 2, padded_tokens).make()
    subset = smidgen.select.sparse_kfac(model, percent=60)
    double = smidgen.predict(smidgen.fit.laplace(model, [batch], subset), model, batch)
    model = model.float()
    posterior = smidgen.fit.laplace(model, [batch], subset)
    assert next(iter(posterior.operators.values())).row_vectors.dtype == torch.float32
    single = smidgen.predict(posterior, model, batch)
    torch.testing.assert_close(single.log_probs, double.log_probs, **SINGLE)


def test_bf16_models_get_fp32_factors():
    model, batch = Case("one-block", OneBlock, 2, padded_tokens).make()
    model = model.to(torch.bfloat16)
    subset = smidgen.select.sparse_kfac(model, percent=60)
    posterior = smidgen.fit.laplace(model, [batch], subset)
    assert next(iter(posterior.operators.values())).row_vectors.dtype == torch.float32
    assert torch.isfinite(smidgen.predict(posterior, model, batch).probs).all()


@pytest.mark.parametrize(
    ("outputs", "link"),
    [
        (2, "quadrature"),
        (2, "probit"),
        (2, "diagonal-probit"),
        (3, "sampling"),
        (3, "diagonal-probit"),
    ],
)
@pytest.mark.parametrize("what", ["joint", "precision", "temperature"])
@EDGES_ARE_FINE
def test_tuning_equals_refitting_every_candidate(outputs, link, what):
    """The curve of the one pass is the NLL of predicting anew at each grid point."""
    model, _ = Case("mlp", mlp, outputs, vectors).make()
    validation = drawn_from(model, loader(outputs, rows=96, seed=1), 0.7, seed=4)
    targets = torch.cat([y for _, y in validation])
    posterior = smidgen.fit.laplace(
        model, loader(outputs), smidgen.select.sparse_kfac(model, percent=60), precision=0.5
    )
    grid = [0.05, 0.5, 5.0]
    tuned = smidgen.calibrate(
        posterior,
        model,
        validation,
        link=link,
        settings=smidgen.fit.CalibrationSettings(
            what=what, scope="scalar", precisions=grid, refine=False
        ),
    )
    tried = [0.5] if what == "temperature" else grid
    assert tuned.calibration.precisions == pytest.approx(tried)
    scores = []
    for index, precision in enumerate(tried):
        candidate = posterior.with_precision(precision)

        def nll(temperature, candidate=candidate):
            predictive = smidgen.predict_batches(
                candidate.with_temperature(temperature),
                model,
                validation,
                link=link,
            )
            return float(-predictive.log_probs.gather(1, targets[:, None]).mean())

        assert tuned.calibration.nll[index] == pytest.approx(nll(1.0), rel=1e-9)
        # With the prior on log T, worth as much as (log T)²/2 in the sum of all NLLs.
        found = minimize_scalar(
            lambda t, nll=nll: nll(exp(t)) + t**2 / 2 / len(targets), bounds=(-4, 4)
        )
        scale, scaled = tuned.calibration.scales[index], tuned.calibration.joint_nll[index]
        score = scaled + log(scale) ** 2 / 2 / len(targets)
        assert score == pytest.approx(found.fun, rel=SOLVER["rtol"])
        assert scaled == pytest.approx(nll(scale), rel=1e-9)
        scores.append(score)
    curve = list(tuned.calibration.nll) if what == "precision" else scores
    assert tuned.precision == pytest.approx(tried[curve.index(min(curve))])
    if what == "precision":
        assert tuned.temperature == 1.0


@EDGES_ARE_FINE
def test_regression_tuning_equals_refitting_every_candidate():
    model, _ = Case("mlp", mlp, 1, vectors).make()
    train, validation = loader(1, kind="gaussian"), loader(1, seed=1, kind="gaussian")
    targets = torch.cat([y for _, y in validation])
    subset = smidgen.select.sparse_kfac(model, percent=60)
    posterior = smidgen.fit.laplace(model, train, subset)
    tuned = smidgen.calibrate(
        posterior,
        model,
        validation,
        settings=smidgen.fit.CalibrationSettings(scope="scalar", refine=False),
    )
    predictive = smidgen.predict_batches(tuned, model, validation)
    nll = float(smidgen.evaluate.nll(predictive, targets).mean())
    assert nll == pytest.approx(min(tuned.calibration.joint_nll), rel=1e-9)
    alone = smidgen.calibrate(
        posterior,
        model,
        validation,
        settings=smidgen.fit.CalibrationSettings(
            what="precision", scope="scalar", refine=False
        ),
    )
    assert alone.likelihood.noise == posterior.likelihood.noise
    predictive = smidgen.predict_batches(alone, model, validation)
    nll = float(smidgen.evaluate.nll(predictive, targets).mean())
    assert nll == pytest.approx(min(alone.calibration.nll), rel=1e-9)
    with pytest.raises(ArgumentError, match="'temperature' is for classification"):
        smidgen.calibrate(
            posterior,
            model,
            validation,
            settings=smidgen.fit.CalibrationSettings(what="temperature"),
        )


def test_the_edge_of_the_grid_is_mentioned():
    model, _ = Case("mlp", mlp, 2, vectors).make()
    posterior = smidgen.fit.laplace(model, loader(), smidgen.select.last_layer(model))
    # Labels surer than the model: any variance hurts, so the largest precision wins.
    sure = drawn_from(model, loader(seed=1), 0.2, seed=4)
    with pytest.warns(SmidgenWarning, match="at the upper edge of its grid"):
        smidgen.calibrate(
            posterior,
            model,
            sure,
            settings=smidgen.fit.CalibrationSettings(
                what="precision", precisions=[0.1, 1.0]
            ),
        )


def test_the_default_grid_spans_what_was_promised():
    assert GRID[0] == pytest.approx(1e-4)
    assert GRID[-1] == pytest.approx(1e6)


def test_temperature_is_that_of_a_scalar_search():
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(400, 3, dtype=torch.float64, generator=generator)
    noise = torch.rand(400, 3, dtype=torch.float64, generator=generator)
    targets = (logits / 3 - (-noise.log()).log()).argmax(-1)  # Gumbel: drawn at T = 3
    found = smidgen.fit.temperature(logits, targets)

    def score(t):
        scores = (logits / t).log_softmax(-1)
        nll = float(-scores.gather(1, targets[:, None]).sum())
        return nll + log(t) ** 2 / 2  # the prior

    best = minimize_scalar(score, bounds=(0.1, 20), options={"xatol": 1e-10})
    assert found == pytest.approx(best.x, rel=SOLVER["rtol"])
    assert 2 < found < 4


def test_a_separable_set_keeps_the_temperature_near_one():
    logits = torch.tensor([[5.0, 0.0], [0.0, 5.0]])
    assert 0.9 < smidgen.fit.temperature(logits, torch.tensor([0, 1])) < 1


def test_any_iterable_and_any_forward_will_do():
    model, batch = Case("one-block", OneBlock, 2, padded_tokens).make()
    subset = smidgen.select.sparse_kfac(model, percent=50)
    expected = smidgen.predict(smidgen.fit.laplace(model, [batch], subset), model, batch)
    problem = smidgen.Problem(
        model,
        forward=lambda net, own: net(own["ids"], own["mask"]),
        targets=lambda own: own["y"],
        mask=lambda own: own["mask"].bool(),
    )
    own = {"ids": batch["input_ids"], "mask": batch["attention_mask"], "y": batch["labels"]}
    posterior = smidgen.fit.laplace(problem, (each for each in [own]), subset)
    found = smidgen.predict(posterior, problem, own)
    torch.testing.assert_close(found.log_probs, expected.log_probs, **EXACT)


def test_a_sample_of_the_data_can_stand_for_all():
    model, _ = Case("mlp", mlp, 2, vectors).make()
    subset = smidgen.select.last_layer(model)
    part = smidgen.fit.laplace(
        model, loader(), subset, settings=smidgen.fit.LaplaceSettings(num_data=96)
    )
    whole = smidgen.fit.laplace(model, loader() + loader(), subset)
    for name in whole.operators:
        torch.testing.assert_close(
            part.operators[name].dense(), whole.operators[name].dense(), **EXACT
        )


def test_ekfac_reads_its_batches_twice():
    model, _ = Case("mlp", mlp, 2, vectors).make()
    subset = smidgen.select.last_layer(model)
    twice = smidgen.fit.laplace(model, loader(), subset, structure="ekfac")
    assert twice.num_data == 48
    with pytest.raises(ArgumentError, match="readable twice.*got an iterator"):
        smidgen.fit.laplace(model, iter(loader()), subset, structure="ekfac")


def test_what_a_structure_keeps():
    model, _ = Case("linear", lambda n: nn.Linear(4, n), 2, vectors).make()
    subset = smidgen.select.last_layer(model)
    kept = {
        structure: smidgen.fit.laplace(model, loader(), subset, structure=structure).floats
        for structure in ("kron", "ekfac", "diag")
    }
    assert kept == {"kron": 4 + 25, "ekfac": 4 + 25 + 10, "diag": 10}


def test_maps_that_never_run_are_mentioned():
    model, _ = Case("mlp", mlp, 2, vectors).make()
    model.register_module("idle", nn.Linear(2, 2).double())
    model.forward = lambda x: nn.Sequential(*list(model)[:-1])(x)
    with pytest.warns(SmidgenWarning, match="never ran.*idle"):
        smidgen.fit.laplace(model, loader(), smidgen.select.sparse_kfac(model, percent=50))


def scattered(model):
    universe = coverage(model).universe
    return Subset(universe, {"0.weight": Entries(torch.tensor([0, 5, 9]))})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"batches": []}, DataError, "yielded no batch"),
        ({"structure": "dense"}, StructureError, "structure must be one of.*'dense'"),
        ({"approximation": "sum"}, ArgumentError, "approximation must be one of.*'sum'"),
        ({"precision": 0.0}, ArgumentError, "precision must be > 0 and finite, got 0.0"),
        ({"subset": scattered}, StructureError, "3 scattered entries.*sparse_kfac"),
        ({"model": 3}, ArgumentError, "must be a torch.nn.Module.*got int"),
        ({"batches": loader(outputs=3)}, DataError, r"labels must be in \[0, 2\), got 2"),
    ],
)
def test_bad_arguments_are_named(change, error, message):
    model, _ = Case("mlp", mlp, 2, vectors).make()
    subset = change.pop("subset", smidgen.select.last_layer)(model)
    given = {"model": model, "batches": loader(), "subset": subset, **change}
    with pytest.raises(error, match=message):
        smidgen.fit.laplace(**grouped(smidgen.fit.LaplaceSettings, **given))


def test_nan_weights_are_refused_by_name():
    model, _ = Case("mlp", mlp, 2, vectors).make()
    subset = smidgen.select.last_layer(model)
    (name,) = (part for part in subset.parts if part.endswith("weight"))
    model.get_parameter(name).data[0, 0] = torch.nan
    with pytest.raises(DataError, match=f"NaN or infinity in '{name}'"):
        smidgen.fit.laplace(model, loader(), subset)
    with pytest.raises(ArgumentError, match=f"NaN in '{name}'"):
        smidgen.select.sparse_kfac(model, percent=10)


def test_nan_below_the_chosen_layers_is_seen_in_the_outputs():
    model, _ = Case("mlp", mlp, 2, vectors).make()
    subset = smidgen.select.last_layer(model)
    model[0].weight.data[0, 0] = torch.nan
    with pytest.raises(DataError, match="outputs contain NaN or infinity"):
        smidgen.fit.laplace(model, loader(), subset)


@pytest.mark.parametrize("percent", [0, 101, -3, float("nan")])
def test_percent_is_checked(percent):
    model, _ = Case("mlp", mlp, 2, vectors).make()
    with pytest.raises(ArgumentError, match=r"percent must be in \(0, 100\], got"):
        smidgen.select.sparse_kfac(model, percent=percent)


def test_a_model_without_affine_maps_is_refused():
    with pytest.raises(StructureError, match="Sequential has no affine layer"):
        smidgen.select.sparse_kfac(nn.Sequential(nn.ReLU()), percent=10)


class TimeFirst(nn.Module):
    """Flattens (T, B, d): rows of one example do not stand together."""

    def __init__(self, flat):
        super().__init__()
        self.flat = flat
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = x.transpose(0, 1)
        time, batch, width = x.shape
        mixed = self.mix(x.reshape(-1, width)) if self.flat else self.mix(x)
        return self.head(torch.tanh(mixed.reshape(time, batch, -1)).mean(0))


@pytest.mark.parametrize(("flat", "tokens"), [(True, 7), (True, 3), (False, 7), (False, 3)])
def test_maps_that_mix_examples_stay_deterministic_and_are_named(flat, tokens):
    """Also where shapes alone cannot tell: as many tokens as examples."""
    model = TimeFirst(flat).double()
    x = torch.randn(3, tokens, 4, generator=torch.Generator().manual_seed(0)).double()
    batch = (x, torch.tensor([0, 1, 1]))
    with pytest.warns(SmidgenWarning, match="1 chosen layers stay deterministic: mix"):
        posterior = smidgen.fit.laplace(
            model, [batch], smidgen.select.sparse_kfac(model, percent=100)
        )
    assert list(posterior.operators) == ["head"]
    assert set(posterior.subset.parts) == {"head.weight", "head.bias"}
    with pytest.raises(StructureError, match="no chosen layer can be treated"):
        smidgen.fit.laplace(model, [batch], smidgen.select.named(model, "mix.*"))


class OneByOne(nn.Module):
    """Runs a layer on each example without a batch axis and stacks the results."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.stack([self.layer(row).reshape(4, -1).mean(1) for row in x]))


UNBATCHED = {
    "linear": lambda: (nn.Linear(6, 4), (6,)),
    "1d": lambda: (nn.Conv1d(2, 4, 3), (2, 6)),
    "1d in groups": lambda: (nn.Conv1d(2, 4, 3, groups=2), (2, 6)),
    "2d": lambda: (nn.Conv2d(2, 4, 3), (2, 5, 5)),
    "3d": lambda: (nn.Conv3d(2, 4, 2), (2, 3, 3, 3)),
    "transposed": lambda: (nn.ConvTranspose2d(2, 4, 3), (2, 3, 3)),
}


def one_by_one(kind, rows):
    torch.manual_seed(0)
    layer, shape = UNBATCHED[kind]()
    model, x = OneByOne(layer).double(), torch.randn(rows, *shape).double()
    return model, x, smidgen.select.sparse_kfac(model, percent=50)


@pytest.mark.parametrize("kind", UNBATCHED)
@pytest.mark.parametrize("rows", [4, 3])
def test_layers_of_one_example_at_a_time_stay_deterministic_and_are_named(kind, rows):
    model, x, subset = one_by_one(kind, rows)
    with pytest.warns(SmidgenWarning, match="1 chosen layers stay deterministic: layer"):
        posterior = smidgen.fit.laplace(model, [(x, torch.arange(rows) % 3)], subset)
    assert list(posterior.operators) == ["head"]


@EDGES_ARE_FINE
@pytest.mark.parametrize("kind", UNBATCHED)
def test_a_layer_of_the_only_example_counts_as_with_a_batch_axis(kind):
    model, x, subset = one_by_one(kind, 1)

    def batched(net, batch):
        return net.head(net.layer(batch[0]).reshape(len(batch[0]), 4, -1).mean(2))

    found = []
    for forward in (lambda net, batch: net(batch[0]), batched):
        problem = smidgen.Problem(model, smidgen.Categorical(3), forward=forward)
        posterior = smidgen.fit.laplace(
            problem, [(x, torch.tensor([1]))], subset, precision=1.0
        )
        assert list(posterior.operators) == ["layer", "head"]
        found.append(smidgen.predict(posterior, problem, (x,)).log_probs)
    torch.testing.assert_close(*found, **EXACT)


def test_a_frozen_backbone_and_inference_mode_will_do():
    model, _ = Case("mlp", mlp, 2, vectors).make()

    def forward(net, batch):
        with torch.no_grad():
            x = net[:2](batch[0])
        return net[2:](x)

    problem = smidgen.Problem(model, smidgen.Categorical(2), forward=forward)
    subset = smidgen.select.sparse_kfac(model, percent=100)
    posterior = smidgen.fit.laplace(problem, loader(), subset)
    # No derivative reaches the first layer: its curvature is zero, as its Jacobian is.
    assert float(posterior.operators["0"].row_values.abs().max()) == 0
    expected = smidgen.predict(posterior, problem, loader()[0]).log_probs
    with torch.inference_mode():
        inside = [(x.clone(), y.clone()) for x, y in loader()]
        again = smidgen.fit.laplace(problem, inside, subset)
        found = smidgen.predict(again, problem, inside[0]).log_probs
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("way", ["detach", "no_grad", "inference_mode", "below"])
def test_a_forward_that_cuts_all_its_graph_is_refused(way):
    model, batch = Case("mlp", mlp, 2, vectors).make()
    posterior = smidgen.fit.laplace(model, [batch], smidgen.select.last_layer(model))

    def forward(net, batch):
        if way == "detach":
            return net(batch[0]).detach()
        with torch.inference_mode() if way == "inference_mode" else torch.no_grad():
            return net(batch[0])

    cut = smidgen.Problem(model, smidgen.Categorical(2), forward=forward)
    subset = posterior.subset
    if way == "below":
        # Only layers under the cut are chosen: there is none above it to count.
        cut = smidgen.Problem(
            model,
            smidgen.Categorical(2),
            forward=lambda net, batch: net[2:](net[:2](batch[0]).detach()),
        )
        subset = smidgen.select.named(model, ["0.*"])
    with pytest.raises(
        DataError, match=r"without a gradient though '\d' ran: all cu.*no_gr"
    ):
        smidgen.fit.laplace(cut, [batch], subset)
    if way != "below":
        with pytest.raises(DataError, match="without a gradient"):
            smidgen.predict(posterior, cut, batch)


@pytest.mark.parametrize("before", ["uncut", "not run", "inputs only"])
def test_a_graph_that_is_cut_in_a_later_batch_is_refused(before):
    model, batch = Case("mlp", mlp, 2, vectors).make()

    def forward(net, batch):
        if before == "not run" and not cut:
            return net[2:](batch[0].new_zeros(len(batch[0]), net[2].in_features))
        return net(batch[0]).detach() if cut else net(batch[0])

    cut = False
    problem = smidgen.Problem(model, smidgen.Categorical(2), forward=forward)
    chosen = find_blocks(model, smidgen.select.named(model, ["0.*"]))
    settled = problem.with_likelihood(smidgen.Categorical(2))
    with tapped(settled, chosen) as taps:
        with torch.set_grad_enabled(before != "inputs only"):
            assert taps.run(batch).runs("0") == (before != "not run")
        cut = True
        with pytest.raises(DataError, match="without a gradient though '0' ran"):
            taps.run(batch)


def test_another_model_of_the_same_shape_is_refused():
    model, batch = Case("mlp", mlp, 2, vectors).make()
    posterior = smidgen.fit.laplace(model, loader(), smidgen.select.last_layer(model))
    smidgen.predict(posterior, model, batch)
    with torch.no_grad():
        model[0].weight[0, 0] += 1
    for refused in (
        lambda: smidgen.predict(posterior, model, batch),
        lambda: smidgen.calibrate(posterior, model, loader()),
    ):
        with pytest.raises(
            ArgumentError, match="must be the one the posterior was fitted to"
        ):
            refused()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", ["fused", "data"])
def test_weights_that_autograd_did_not_see_change_are_noticed(way, kind):
    """A fused step and a write to `.data` leave a tensor's version as it was."""
    model = Case("mlp", mlp, 2, vectors).make()[0].to(kind)
    model.register_buffer("nothing", torch.empty(0))
    model.register_buffer("phases", torch.ones(3, dtype=torch.complex128))
    model.register_buffer("seen", torch.tensor(True))
    batches = [(x.to(kind), y) for x, y in loader()]
    posterior = smidgen.fit.laplace(model, batches, smidgen.select.last_layer(model))
    smidgen.predict(posterior, model, batches[0])
    if way == "fused":
        nn.functional.cross_entropy(model(batches[0][0]).float(), batches[0][1]).backward()
        torch.optim.AdamW(model.parameters(), lr=0.01, fused=True).step()
    else:
        for each in model.parameters():
            each.data.add_(0.01)
    with pytest.raises(ArgumentError, match="must be the one the posterior was fitted to"):
        smidgen.predict(posterior, model, batches[0])
    model.phases.data.mul_(1j)
    assert quick_fingerprint(model) == fingerprint(model)


def test_a_fingerprint_under_a_mode_leaves_nothing_behind():
    model = nn.Linear(64, 61)
    with torch.device("meta"):
        quick_fingerprint(model)
    before = quick_fingerprint(model)
    model.weight.data += 0.01
    assert quick_fingerprint(model) == fingerprint(model) != before


@pytest.mark.parametrize("shape", [(1024, 1024), (768, 3072), (768, 768)])
@pytest.mark.parametrize("part", ["columns", "rows"])
def test_some_columns_or_rows_that_autograd_did_not_see_change_are_noticed(shape, part):
    model = nn.Linear(*shape)
    before = quick_fingerprint(model)
    written = model.weight.data if part == "rows" else model.weight.data.T
    written[3::8] += 0.01
    assert quick_fingerprint(model) == fingerprint(model) != before


@pytest.mark.parametrize(
    ("outputs", "targets", "problem_type", "expected"),
    [
        (2, torch.tensor([0, 1]), None, "categorical"),
        (2, torch.tensor([[0.0, 1.0], [1.0, 1.0]]), None, "bernoulli"),
        (2, torch.tensor([[0, 1], [1, 1]]), "multi_label_classification", "bernoulli"),
        (1, torch.tensor([3, 1]), None, "gaussian"),
        (2, torch.tensor([[0.5, 1.0], [1.0, 2.0]]), "regression", "gaussian"),
    ],
)
def test_hugging_face_models_are_read_by_their_own_rule(
    outputs, targets, problem_type, expected
):
    model = bert(outputs)
    model.config.problem_type = problem_type
    ids = torch.tensor([[1, 2], [3, 4]])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": targets}
    posterior = smidgen.fit.laplace(model, [batch], smidgen.select.last_layer(model))
    assert posterior.likelihood.kind == expected


def test_one_logit_takes_labels_without_a_column():
    model, (x, _) = Case("mlp", mlp, 1, vectors).make()
    labels = torch.tensor([0, 1, 1, 0, 1, -100])
    problem = smidgen.Problem(model, smidgen.Bernoulli(1))
    subset = smidgen.select.last_layer(model)
    flat = smidgen.fit.laplace(problem, [(x, labels)], subset)
    column = smidgen.fit.laplace(problem, [(x, labels[:, None])], subset)
    assert flat.num_data == column.num_data == 5
    torch.testing.assert_close(flat.operators["4"].dense(), column.operators["4"].dense())
    with pytest.raises(ArgumentError, match="likelihood cannot be inferred"):
        smidgen.fit.laplace(model, [(x, labels.clamp_min(0))], subset)


def test_finetuning_a_regression_stops_on_its_nll():
    model, _ = Case("mlp", mlp, 1, vectors).make()
    train = loader(1, kind="gaussian")
    found = smidgen.fit.finetune(
        model,
        train,
        validation=train,
        settings=smidgen.fit.FinetuneSettings(epochs=6, learning_rate=0.02),
    )
    assert found.best.nll == min(epoch.nll for epoch in found.history)
    assert found.best.number > 1
    with pytest.raises(ArgumentError, match="stop_on must be nll"):
        smidgen.fit.finetune(
            model,
            train,
            validation=train,
            settings=smidgen.fit.FinetuneSettings(stop_on="accuracy"),
        )


def test_examples_of_one_token_are_tokens_still():
    model, (x, _) = Case("linear", lambda n: nn.Linear(4, n), 3, vectors).make()
    labels = torch.tensor([0, 1, -100, 2, 1, 0])
    subset = smidgen.select.last_layer(model)
    problem = smidgen.Problem(model, smidgen.Categorical(3))
    tokens = smidgen.fit.laplace(problem, [(x[:, None], labels[:, None])], subset)
    rows = smidgen.fit.laplace(problem, [(x, labels)], subset)
    assert tokens.num_data == rows.num_data == 5
    torch.testing.assert_close(
        tokens.operators[""].values, rows.operators[""].values, **EXACT
    )


def test_whole_numbers_of_a_regression_are_never_ignored():
    model, (x, _) = Case("linear", lambda n: nn.Linear(4, n), 1, vectors).make()
    targets = torch.tensor([3, -100, 5, -100, 0, 1])
    problem = smidgen.Problem(model, smidgen.Gaussian(1))
    found = smidgen.fit.laplace(problem, [(x, targets)], smidgen.select.last_layer(model))
    squares = (targets[:, None] - model(x).detach()).square()
    assert found.num_data == 6
    assert found.likelihood.noise == pytest.approx(float(squares.mean()))


class Graph:
    """Moves itself, as a graph of PyTorch Geometric does."""

    def __init__(self, x):
        self.x, self.moves = x, 0

    def to(self, device):
        self.x, self.moves = self.x.to(device), self.moves + 1
        return self


def test_batches_keep_their_kind_and_the_callers_stay():
    model, (x, labels) = Case("mlp", mlp, 2, vectors).make()
    subset = smidgen.select.last_layer(model)
    expected = smidgen.fit.laplace(model, [(x, labels)], subset)
    encoding = BatchEncoding({"inputs": x, "labels": labels})
    graph = Graph(x)
    forwards = {
        "encoding": (encoding, lambda net, batch: net(batch.inputs)),
        "graph": ((graph, labels), lambda net, batch: net(batch[0].x) * batch[0].moves),
    }
    for batch, forward in forwards.values():
        problem = smidgen.Problem(model, smidgen.Categorical(2), forward)
        assert smidgen.fit.laplace(problem, [batch], subset) == expected
    assert graph.moves == 0
    assert encoding["inputs"] is x


def test_awkward_batches_are_named():
    model, (x, y) = Case("mlp", mlp, 2, vectors).make()
    subset = smidgen.select.last_layer(model)
    for batches, message in [
        ([(x[:0], y[:0])], "holds no example"),
        ([(x, x, y)], "got 3 items"),
        ([(x, y[:3])], "must be as many as the outputs, 6, got 3"),
    ]:
        with pytest.raises(DataError, match=message):
            smidgen.fit.laplace(model, batches, subset)
    with pytest.raises(ArgumentError, match="num_data must be 1 or more, got -5"):
        smidgen.fit.laplace(
            model, [(x, y)], subset, settings=smidgen.fit.LaplaceSettings(num_data=-5)
        )
    assert smidgen.fit.laplace(model, [(x, y.to(torch.uint8))], subset).num_data == 6


def test_temperature_names_bad_input():
    logits = torch.zeros(2, 2)
    with pytest.raises(DataError, match="NaN"):
        smidgen.fit.temperature(logits * torch.nan, torch.tensor([0, 1]))
    with pytest.raises(DataError, match=r"in \[0, 2\), got -1"):
        smidgen.fit.temperature(logits, torch.tensor([0, -1]))
    with pytest.warns(SmidgenWarning, match="is extreme"):
        smidgen.fit.temperature(40 * torch.eye(2).repeat(50, 1), torch.tensor([1, 0] * 50))


def _warn_of_a_temperature():
    logits, wrong = 40 * torch.eye(2).repeat(50, 1), torch.tensor([1, 0] * 50)
    return lambda: smidgen.fit.temperature(logits, wrong)


def _warn_of_a_precision():
    model, _ = Case("mlp", mlp, 2, vectors).make()
    data = loader(2)
    posterior = smidgen.fit.laplace(model, data, smidgen.select.last_layer(model))
    settings = smidgen.fit.CalibrationSettings(what="precision", precisions=[1e-9, 1e-8])
    return lambda: smidgen.calibrate(posterior, model, data, settings=settings)


def _warn_of_many_classes():
    model, batch = Case("mlp", mlp, 60, vectors).make()
    subset = smidgen.select.last_layer(model)
    return lambda: smidgen.fit.laplace(model, [batch], subset)


@pytest.mark.parametrize(
    "make", [_warn_of_a_temperature, _warn_of_a_precision, _warn_of_many_classes]
)
def test_a_warning_points_at_the_line_that_called(make):
    call = make()
    with pytest.warns(SmidgenWarning) as caught:
        call()
    places = {(each.filename, each.lineno) for each in caught}
    assert places == {(__file__, call.__code__.co_firstlineno)}
