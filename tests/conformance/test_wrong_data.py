"""Every verb that reads data refuses what is not finite or not labelled, and says which batch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen.errors import DataError
from smidgen.prediction import dropout_outputs
from smidgen.sparse import SparseSettings
from tests.support.posteriors import QUICK

_CHAIN = smidgen.fit.LangevinSettings(
    steps=24, burn_in=12, thin=6, head="none", num_data=32
)
_TUNE = smidgen.fit.FinetuneSettings(epochs=1)


def make_network():
    """A saturating network: an infinite input leaves its outputs finite."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # Large weights saturate tanh, whose derivative is then exactly zero.
        return nn.Sequential(
            nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.1), nn.Linear(6, 3)
        ).eval()


def make_batches(kind="classes", count=4):
    generator = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(count):
        inputs = torch.randn(8, 4, generator=generator)
        targets = torch.randint(3, (8,), generator=generator)
        if kind == "regression":
            targets = torch.randn(8, 3, generator=generator)
        batches.append((inputs, targets))
    return batches


class Setup:
    """A problem, good batches, and posteriors fitted to them when asked for."""

    def __init__(self, kind="classes"):
        likelihoods = {"classes": smidgen.Categorical(3), "regression": smidgen.Gaussian(3)}
        self.problem = smidgen.Problem(make_network(), likelihoods[kind])
        self.good = make_batches(kind)
        self.whole = smidgen.select.named(self.problem.model, "*")
        self._fitted = {}

    def fitted(self, method):
        if method not in self._fitted:
            self._fitted[method] = FITS[method](self, self.good)
        return self._fitted[method]


def _laplace(structure):
    return lambda s, batches: smidgen.fit.laplace(
        s.problem, batches, s.whole, structure=structure, progress=False
    )


def _predict(method, **options):
    return lambda s, batches: smidgen.predict_batches(
        s.fitted(method), s.problem, batches, progress=False, **options
    )


def _calibrate(method, **options):
    return lambda s, batches: smidgen.calibrate(
        s.fitted(method), s.problem, batches, progress=False, **options
    )


def _trained(method, **options):
    return lambda s, batches: getattr(smidgen.fit, method)(
        s.problem, batches, s.whole, progress=False, **options
    )


FITS = {
    **{name: _laplace(name) for name in ("kron", "ekfac", "diag", "full")},
    "laplace_many": lambda s, batches: smidgen.fit.laplace_many(
        s.problem, batches, {1: s.whole}, progress=False
    ),
    "swag": _trained("swag", settings=QUICK["swag"]),
    "ssvi": lambda s, batches: smidgen.fit.ssvi(
        s.problem, batches, settings=QUICK["ssvi"], progress=False
    ),
}
TRAINED = {
    "swag": FITS["swag"],
    "ssvi": FITS["ssvi"],
    "langevin": _trained("langevin", settings=_CHAIN),
    "finetune": lambda s, batches: smidgen.fit.finetune(
        s.problem, batches, settings=_TUNE, progress=False
    ),
    "finetune a subset": _trained("finetune", settings=_TUNE),
    "squared gradients": lambda s, batches: smidgen.select.scores.squared_gradient(
        s.problem, batches, progress=False
    ),
}
LABELLED = {
    **TRAINED,
    **{f"calibrate {name}": _calibrate(name) for name in ("kron", "diag", "swag", "ssvi")},
    "swag's validation": lambda s, batches: _trained(
        "swag",
        settings=smidgen.fit.SwagSettings(steps=8, every=2, rank=3),
        validation=batches,
    )(s, s.good),
    "finetune's validation": lambda s, batches: _trained(
        "finetune", settings=_TUNE, validation=batches
    )(s, s.good),
    "ssvi's validation": lambda s, batches: smidgen.fit.ssvi(
        s.problem, s.good, settings=QUICK["ssvi"], validation=batches, progress=False
    ),
    "compare": lambda s, batches: smidgen.compare(
        s.problem, s.fitted("kron"), batches, progress=False
    ),
    "compare's validation": lambda s, batches: smidgen.compare(
        s.problem, s.fitted("kron"), s.good, validation=batches, progress=False
    ),
}
UNLABELLED = {
    **{name: FITS[name] for name in ("kron", "ekfac", "diag", "full", "laplace_many")},
    "predict kron": _predict("kron"),
    "predict full": _predict("full"),
    "predict kron by draws": _predict("kron", samples=4),
    "predict swag": _predict("swag"),
    "predict ssvi": _predict("ssvi"),
    "point_outputs": lambda s, batches: smidgen.point_outputs(
        s.problem, batches, progress=False
    ),
    "dropout_outputs": lambda s, batches: dropout_outputs(
        s.problem, batches, samples=2, progress=False
    ),
    "verify": lambda s, batches: smidgen.verify(s.problem, batches, rows=2, columns=2),
    "activation": lambda s, batches: smidgen.select.scores.activation(
        s.problem, batches, progress=False
    ),
    "curvature": lambda s, batches: smidgen.select.scores.curvature(
        s.problem, batches, progress=False
    ),
    "shifted data": lambda s, batches: smidgen.compare(
        s.problem, s.fitted("kron"), s.good, shifted={"other": batches}, progress=False
    ),
}
VERBS = {**LABELLED, **UNLABELLED}


@pytest.fixture(scope="module")
def classes():
    return Setup("classes")


@pytest.fixture(scope="module")
def regression():
    return Setup("regression")


def spoil(batches, number, *, inputs=None, targets=None):
    """Copy batches; in the one of this number, from 1, a row of inputs or targets is changed."""
    copies = [(x.clone(), y.clone()) for x, y in batches]
    if inputs is not None:
        copies[number - 1][0][5, 2] = inputs
    if targets is not None:
        copies[number - 1][1][5] = targets
    return copies


@pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("verb", VERBS)
def test_an_input_that_is_not_finite_is_found_in_its_batch(verb, value, classes):
    batches = spoil(classes.good, 3, inputs=value)
    with pytest.raises(
        DataError, match=rf"^batch 3: inputs must be finite, got {value}"
    ) as caught:
        VERBS[verb](classes, batches)
    assert "row 5" in str(caught.value)


SQUARED = ["kron", "ekfac", "laplace_many", "activation", "curvature"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_batch_without_examples_is_refused(verb, classes):
    batches = list(classes.good)
    batches[2] = tuple(part[:0] for part in batches[2])
    with pytest.raises(DataError, match=r"batch.* 3.*holds no example"):
        VERBS[verb](classes, batches)


@pytest.mark.parametrize("verb", SQUARED)
def test_sums_that_overflow_are_found_in_their_batch(verb):
    # Finite in fp64, but its square is not; tanh hides it from the outputs.
    classes = Setup()
    classes.problem.model.double()
    batches = spoil([(x.double(), y) for x, y in classes.good], 3, inputs=1e200)
    with pytest.raises(DataError, match="^batch 3: the sums of squares must be finite"):
        UNLABELLED[verb](classes, batches)


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "full"])
def test_jacobians_that_overflow_are_found_in_their_batch(structure):
    linear = smidgen.Problem(nn.Linear(4, 3).double(), smidgen.Gaussian(3))
    subset = smidgen.select.last_layer(linear.model)
    good = [(x.double(), y.double()) for x, y in make_batches("regression")]
    posterior = smidgen.fit.laplace(
        linear, good, subset, structure=structure, progress=False
    )
    batches = spoil(good, 3, inputs=1e200)
    with pytest.raises(DataError, match="^batch 3: the sums of squares must be finite"):
        smidgen.fit.laplace(linear, batches, subset, structure=structure, progress=False)
    with pytest.raises(DataError, match="^batch 3: the outputs' covariance must be finite"):
        smidgen.predict_batches(posterior, linear, batches, progress=False)


@pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
@pytest.mark.parametrize("verb", TRAINED)
def test_gradients_that_are_not_finite_are_found_in_their_batch(verb):
    class Rooted(nn.Module):
        """Its outputs are finite at zero, their derivative is not."""

        def __init__(self):
            super().__init__()
            self.enter, self.leave = nn.Linear(4, 6, bias=False), nn.Linear(6, 3)

        def forward(self, x):
            return self.leave(self.enter(x).abs().sqrt())

    setup = Setup()
    setup.problem = smidgen.Problem(Rooted(), smidgen.Categorical(3))
    setup.whole = smidgen.select.named(setup.problem.model, "*")
    if verb == "ssvi":
        # Without noise: that keeps the activations away from zero.
        settings = SparseSettings(deterministic=True)
        network = smidgen.make_sparse(setup.problem.model, density=1.0, settings=settings)
        setup.problem = smidgen.Problem(network, smidgen.Categorical(3))
    TRAINED[verb](setup, setup.good)
    batches = [(x.clone(), y) for x, y in setup.good]
    batches[2][0][5] = 0.0
    with pytest.raises(DataError, match="^batch 3: the .* finite"):
        TRAINED[verb](setup, batches)


@pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
@pytest.mark.parametrize("verb", LABELLED)
@pytest.mark.parametrize(
    ("value", "words"), [(7, r"in \[0, 3\), got 7"), (-3, r"in \[0, 3\), got -3")]
)
def test_a_label_out_of_range_is_found_in_its_batch(verb, value, words, classes):
    batches = spoil(classes.good, 3, targets=value)
    with pytest.raises(DataError, match=rf"^batch 3: labels must be {words}"):
        LABELLED[verb](classes, batches)


@pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
@pytest.mark.parametrize("verb", LABELLED)
def test_class_labels_are_whole_numbers(verb, classes):
    batches = [(x, y.float() if i == 2 else y) for i, (x, y) in enumerate(classes.good)]
    with pytest.raises(DataError, match="^batch 3: labels must be 8 class numbers"):
        LABELLED[verb](classes, batches)


@pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
@pytest.mark.parametrize("verb", [*LABELLED, "kron"])
def test_a_target_that_is_not_a_number_is_found_in_its_batch(verb, regression):
    batches = spoil(regression.good, 3, targets=float("nan"))
    with pytest.raises(DataError, match="^batch 3: targets must be finite"):
        VERBS[verb](regression, batches)


@pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
@pytest.mark.parametrize("form", ["no labels", "all -100", "no dictionary key"])
@pytest.mark.parametrize("verb", LABELLED)
def test_data_without_any_label_are_refused(verb, form, classes):
    if form == "no labels":
        batches = [x for x, _ in classes.good]
    elif form == "all -100":
        batches = [(x, torch.full_like(y, -100)) for x, y in classes.good]
    else:
        batches = [{"input": x} for x, _ in classes.good]
    with pytest.raises(DataError, match="label") as caught:
        LABELLED[verb](classes, batches)
    assert str(caught.value).endswith(".")


def test_masks_may_be_infinite_and_nothing_else():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.score, self.head = nn.Linear(4, 1), nn.Linear(4, 2)

        def forward(self, x, float_mask):
            weights = (self.score(x)[..., 0] + float_mask).softmax(-1)
            return self.head((weights[..., None] * x).sum(1))

    model = Masked()
    mask = torch.zeros(5, 3)
    mask[:, 2] = float("-inf")
    batch = {"x": torch.randn(5, 3, 4), "float_mask": mask, "labels": torch.zeros(5).long()}
    subset = smidgen.select.last_layer(model)
    posterior = smidgen.fit.laplace(model, [batch], subset, progress=False)
    assert torch.isfinite(smidgen.predict(posterior, model, batch).probs).all()
    for key in ("x", "float_mask"):
        wrong = {**batch, key: torch.full_like(batch[key], float("nan"))}
        with pytest.raises(DataError, match=f"inputs must be finite, got nan .* {key!r}"):
            smidgen.predict(posterior, model, wrong)


def test_predict_has_one_batch_and_does_not_number_it(classes):
    x = classes.good[0][0].clone()
    x[2, 1] = float("inf")
    with pytest.raises(DataError, match="^inputs must be finite, got inf at row 2"):
        smidgen.predict(classes.fitted("kron"), classes.problem, x)


def test_targets_are_no_inputs_where_none_are_needed(regression):
    """Rows to be predicted may have no target yet, whatever their key."""
    own = smidgen.Problem(
        regression.problem.model,
        smidgen.Gaussian(3),
        forward=lambda model, batch: model(batch["features"]),
        targets=lambda batch: batch["height"],
    )
    x, y = regression.good[0]
    unknown = {"features": x, "height": torch.full_like(y, float("nan"))}
    posterior = regression.fitted("kron")
    expected = smidgen.predict(posterior, regression.problem, x)
    for method in ("kron", "swag"):
        predictive = smidgen.predict(regression.fitted(method), own, unknown)
        assert torch.isfinite(predictive.mean).all()
    assert torch.equal(smidgen.predict(posterior, own, unknown).mean, expected.mean)
    with pytest.raises(DataError, match="^batch 1: targets must be finite"):
        smidgen.fit.laplace(own, [unknown], regression.whole, progress=False)
    spoiled = {**unknown, "features": x.clone()}
    spoiled["features"][1, 0] = float("inf")
    with pytest.raises(
        DataError, match="inputs must be finite, got inf at row 1 of 'features'"
    ):
        smidgen.predict(regression.fitted("swag"), own, spoiled)


def test_calibration_never_chooses_from_numbers_that_are_none(classes):
    """Factors that were spoilt in memory give NaN variances: no precision is best."""
    posterior = classes.fitted("kron")
    for operator in posterior.operators.values():
        assert torch.isfinite(operator.values).all()
    name = next(iter(posterior.operators))
    broken = smidgen.fit.laplace(
        classes.problem, classes.good, classes.whole, structure="diag", progress=False
    )
    broken.operators[name].values.fill_(float("nan"))
    with pytest.raises(DataError, match="finite"):
        smidgen.calibrate(broken, classes.problem, classes.good, progress=False)
    with pytest.raises(DataError, match="finite"):
        smidgen.predict(broken, classes.problem, classes.good[0])


def random_states():
    """The states of torch's, Python's and NumPy's own generators."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), random.getstate(), numpy_state[1].tolist()


@pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_advances_a_random_state(verb, classes):
    """Also where the loader itself draws its order from torch's own generator."""
    for method in ("kron", "full", "diag", "swag", "ssvi"):
        classes.fitted(method)
    data = TensorDataset(*(torch.cat(parts) for parts in zip(*classes.good, strict=True)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    torch.manual_seed(5)
    random.seed(5)
    before = random_states()
    VERBS[verb](classes, loader)
    assert random_states() == before


OTHERS = {
    "sparse_kfac": lambda s, _: smidgen.select.sparse_kfac(
        s.problem.model, percent=50, by="random"
    ),
    "weights": lambda s, _: smidgen.select.weights(
        s.problem.model, fraction=0.1, by="random"
    ),
    "modules": lambda s, _: smidgen.select.modules(s.problem.model, count=1, by="random"),
    "choose": lambda s, loader: smidgen.select.choose(
        "sparse-kfac-curvature", s.problem, size=10, batches=loader
    ),
    "make_sparse": lambda s, _: smidgen.make_sparse(s.problem.model, density=0.5),
    "plan": lambda s, loader: smidgen.plan(s.problem, batch=s.good[0]),
    "coverage": lambda s, _: smidgen.coverage(s.problem.model),
    "agreement": lambda s, loader: smidgen.fit.agreement(
        s.problem, loader, loader, settings=_CHAIN, progress=False
    ),
    "temperature": lambda s, loader: smidgen.fit.temperature(
        *smidgen.point_outputs(s.problem, s.good, progress=False)
    ),
    "log_evidence": lambda s, _: smidgen.fit.log_evidence(s.fitted("kron"), s.problem),
    "calibrate_by_evidence": lambda s, _: smidgen.fit.calibrate_by_evidence(
        s.fitted("kron"), s.problem
    ),
    "sampled fisher": lambda s, loader: smidgen.fit.laplace(
        s.problem,
        loader,
        s.whole,
        settings=smidgen.fit.LaplaceSettings(fisher_draws=2),
        progress=False,
    ),
    "predict": lambda s, _: smidgen.predict(s.fitted("kron"), s.problem, s.good[0]),
    "predict by draws": lambda s, _: smidgen.predict(
        s.fitted("swag"), s.problem, s.good[0]
    ),
    "summarise": lambda s, _: smidgen.evaluate.summarise(
        smidgen.predict(s.fitted("kron"), s.problem, s.good[0]), s.good[0][1]
    ),
    "bootstrap_auroc": lambda s, _: smidgen.evaluate.bootstrap_auroc(
        torch.arange(5.0), torch.arange(4.0), draws=20
    ),
}


@pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
@pytest.mark.parametrize("verb", OTHERS)
def test_nothing_else_advances_a_random_state(verb, classes):
    for method in ("kron", "swag"):
        classes.fitted(method)
    data = TensorDataset(*(torch.cat(parts) for parts in zip(*classes.good, strict=True)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    before = random_states()
    OTHERS[verb](classes, loader)
    assert random_states() == before


def test_saving_and_loading_advance_no_random_state(classes, tmp_path):
    posterior = classes.fitted("kron")
    sparse = classes.fitted("ssvi")
    before = random_states()
    smidgen.load(smidgen.save(posterior, tmp_path / "kron"), classes.problem)
    smidgen.load(smidgen.save(sparse, tmp_path / "ssvi"), classes.problem)
    assert random_states() == before
