"""Every call into smidgen that golden numbers are pinned of; no other file here has one.

A case is a short function of no more than its own name's arguments. It returns numbers by
name: tensors, floats, texts and lists. If an interface is renamed, this file is edited and
the numbers stay.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import torch
from safetensors.torch import load_file

import smidgen
from smidgen import evaluate, fit, select
from smidgen.fit import SsviSettings, SwagCollector
from smidgen.outputs.predictive import (
    BernoulliPredictive,
    CategoricalPredictive,
    GaussianPredictive,
)
from smidgen.posterior.sampling import sampled_outputs
from smidgen.posterior.variance_table import variance_table
from smidgen.prediction import dropout_outputs
from smidgen.runtime.packed_records import unpack_records
from smidgen.sparse import SparseSettings, make_sparse, prune_network
from smidgen.workflows.ramp.laplace import RampSettings, ramp
from smidgen.workflows.ramp.swag import SwagRampSettings, swag_ramp
from smidgen.workflows.variances import marginal_variances
from smidgen_studies.engine.ledger import Ledger
from smidgen_studies.engine.study import list_profiles, read_study
from tests.golden import models
from tests.golden.models import batches, blobs, model, products, sparse_regression
from tests.support.settings import grouped

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FIXTURES = HERE / "fixtures"
QUIET = {"progress": False}


@dataclass(frozen=True)
class Case:
    """A case: how to run it, and how near its numbers must come on another machine.

    `relative` is a tolerance of its own. `portable` says that another machine should find
    nearly the same numbers at all: signs of eigenvectors decide what a draw is, and choices
    by a hair's breadth which way a training goes.
    """

    group: str
    run: Callable[[], dict]
    relative: float | None = None
    portable: bool = True


CASES: dict[str, Case] = {}


def case(*variants, **how):
    """Register a function, or one case for each tuple of arguments."""

    def register(function):
        group = function.__name__.replace("_", "-")
        for values in variants or [()]:
            name = "-".join([group, *map(str, values)])
            assert name not in CASES, name
            CASES[name] = Case(group, partial(function, *values), **how)
        return function

    return register


# A search that stops within a share of 1e-6 of the lowest point's place.
SEARCHED = {"relative": 1e-5}
# Some tens of steps in fp32, each rounding anew.
TRAINED = {"relative": 1e-4}
# What draws in an eigenbasis, or moves single weights in and out.
BOUND = {"portable": False}

KINDS = {
    "categorical": smidgen.Categorical,
    "bernoulli": smidgen.Bernoulli,
    "gaussian": smidgen.Gaussian,
}
STRUCTURES = {
    "kron": {"structure": "kron"},
    "kron-expand": {"structure": "kron", "approximation": "expand"},
    "ekfac": {"structure": "ekfac"},
    "diag": {"structure": "diag"},
    "full": {"structure": "full"},
}


def problem_of(name, kind, outputs, **more):
    return smidgen.Problem(model(name, outputs, **more), KINDS[kind](outputs))


@contextmanager
def folder():
    with tempfile.TemporaryDirectory() as found:
        yield Path(found)


def predicted(predictive, before=""):
    """All that a predictive says."""
    if isinstance(predictive, CategoricalPredictive):
        found = {
            "log_probs": predictive.log_probs,
            "covariance": predictive.logit_covariance,
            "classes": predictive.classes,
            "confidence": predictive.confidence,
        }
    elif isinstance(predictive, BernoulliPredictive):
        found = {"probs": predictive.probs, "variance": predictive.logit_variance}
    else:
        found = {
            "mean": predictive.mean,
            "variance": predictive.variance,
            "noise": predictive.noise,
        }
    found["entropy"] = predictive.entropy
    found["information"] = predictive.mutual_information
    return {f"{before}{n}": v for n, v in found.items() if v is not None}


def fitted(posterior, problem):
    """What a Laplace posterior is."""
    noise = posterior.likelihood
    curvature = [posterior.operators[name].dense() for name in posterior.operators]
    return {
        "operators": list(posterior.operators),
        "curvature": torch.cat([each.flatten() for each in curvature]),
        "values": torch.cat([each.values for each in posterior.operators.values()]),
        "precisions": list(posterior.precisions.values()),
        "temperature": posterior.temperature,
        "floats": posterior.floats,
        "num_data": posterior.num_data,
        "log_likelihood": posterior.log_likelihood,
        "evidence": fit.log_evidence(posterior, problem),
        "noise": float(noise.scale),
        "relative_noise": list(getattr(noise, "relative", None) or []),
        "subset": posterior.subset.digest(),
        "fingerprint": posterior.fingerprint,
    }


def tuned(posterior):
    """How precision and temperature were chosen."""
    tuning = {n: v for n, v in asdict(posterior.calibration).items() if v is not None}
    lists = {n: list(v) if isinstance(v, tuple) else v for n, v in tuning.items()}
    return {
        "precisions": list(posterior.precisions.values()),
        "temperature": posterior.temperature,
        "noise": float(posterior.likelihood.scale),
        **{f"tuning {name}": value for name, value in lists.items()},
    }


# Laplace: every structure, likelihood and kind of network.

TASKS = [
    ("mlp", "categorical", 2),
    ("mlp", "categorical", 4),
    ("mlp", "bernoulli", 3),
    ("mlp", "gaussian", 1),
    ("mlp", "gaussian", 2),
    ("conv", "categorical", 4),
    ("conv", "gaussian", 2),
    ("block", "categorical", 2),
    ("block", "categorical", 4),
    ("block", "bernoulli", 3),
    ("block", "gaussian", 1),
    ("bert", "categorical", 2),
]


@case(*[(*task, structure) for task in TASKS for structure in STRUCTURES])
def laplace(name, kind, outputs, structure):
    problem = problem_of(name, kind, outputs)
    train = batches(name, kind, outputs)
    percent = 40 if structure == "full" else 70
    subset = select.sparse_kfac(problem.model, percent=percent)
    posterior = fit.laplace(
        problem,
        train,
        subset,
        **grouped(fit.LaplaceSettings, **STRUCTURES[structure]),
        **QUIET,
    )
    (test,) = batches(name, kind, outputs, seed=4, count=1)
    found = smidgen.predict(posterior, problem, test)
    return {**fitted(posterior, problem), **predicted(found)}


@case(*[(s,) for s in STRUCTURES])
def laplace_single(structure):
    """The same in fp32, as models are."""
    problem = problem_of("mlp", "categorical", 4, dtype=torch.float32)
    train = batches("mlp", "categorical", 4, dtype=torch.float32)
    subset = select.sparse_kfac(problem.model, percent=60)
    posterior = fit.laplace(
        problem,
        train,
        subset,
        **grouped(fit.LaplaceSettings, **STRUCTURES[structure]),
        **QUIET,
    )
    found = smidgen.predict_batches(posterior, problem, train, **QUIET)
    return {**fitted(posterior, problem), **predicted(found)}


# What was computed in fp32 is written down as fp64 too.
for _structure in STRUCTURES:
    _name = f"laplace-single-{_structure}"
    CASES[_name] = replace(CASES[_name], relative=1e-4)


@case(*[(s,) for s in STRUCTURES])
def laplace_noise_per_output(structure):
    problem = problem_of("mlp", "gaussian", 2)
    train = batches("mlp", "gaussian", 2, count=4)
    subset = select.sparse_kfac(problem.model, percent=50)
    how = {**STRUCTURES[structure], "noise": "per-output", "num_data": 100}
    posterior = fit.laplace(
        problem,
        train,
        subset,
        precision=0.3,
        **grouped(fit.LaplaceSettings, **how),
        **QUIET,
    )
    found = smidgen.predict_batches(posterior, problem, train, **QUIET)
    return {**fitted(posterior, problem), **predicted(found)}


@case(*[(s, n) for s in STRUCTURES for n in ("mlp", "block")])
def laplace_drawn_labels(structure, name):
    problem = problem_of(name, "categorical", 4)
    train = batches(name, "categorical", 4)
    subset = select.sparse_kfac(problem.model, percent=40)
    how = {**STRUCTURES[structure], "fisher_draws": 2}
    posterior = fit.laplace(
        problem, train, subset, **grouped(fit.LaplaceSettings, seed=5, **how), **QUIET
    )
    plain = fit.laplace(
        problem, train, subset, **grouped(fit.LaplaceSettings, **how), **QUIET
    )
    found = smidgen.predict(posterior, problem, train[0])
    return {**fitted(posterior, problem), **predicted(found), **sides(plain)}


def sides(posterior):
    values = [each.values for each in posterior.operators.values()]
    return {"values of a fixed seed": torch.cat(values)}


SUBSETS = {
    "percent": (lambda m: select.sparse_kfac(m, percent=30), STRUCTURES),
    "last-layer": (select.last_layer, STRUCTURES),
    "modules": (lambda m: select.modules(m, count=2), ["kron", "ekfac", "diag"]),
    "attention": (
        lambda m: select.modules(m, count=1, group="attention", order="min"),
        ["kron"],
    ),
    "named": (lambda m: select.named(m, ["up.*", "classifier.bias"]), STRUCTURES),
    "weights": (lambda m: select.weights(m, fraction=0.1), ["diag", "full"]),
    "weights-per-layer": (
        lambda m: select.weights(m, fraction=0.1, per_layer=True),
        ["diag", "full"],
    ),
}


@case(*[(subset, s) for subset, (_, known) in SUBSETS.items() for s in known])
def laplace_subset(kind, structure):
    problem = problem_of("block", "categorical", 4)
    train = batches("block", "categorical", 4)
    subset = SUBSETS[kind][0](problem.model)
    posterior = fit.laplace(
        problem,
        train,
        subset,
        **grouped(fit.LaplaceSettings, **STRUCTURES[structure]),
        **QUIET,
    )
    found = smidgen.predict(posterior, problem, train[0])
    return {**fitted(posterior, problem), **predicted(found)}


def simple(name="mlp", kind="categorical", outputs=4, percent=70, **how):
    problem = problem_of(name, kind, outputs)
    train = batches(name, kind, outputs)
    subset = select.sparse_kfac(problem.model, percent=percent)
    return (
        problem,
        train,
        fit.laplace(problem, train, subset, **grouped(fit.LaplaceSettings, **how), **QUIET),
    )


LINKS = {
    2: ("auto", "probit", "diagonal-probit", "sampling", "laplace-bridge"),
    4: ("auto", "diagonal-probit", "sampling", "laplace-bridge"),
}


@case(*[(n, link) for n in LINKS for link in LINKS[n]])
def link(outputs, link):
    problem, train, posterior = simple(outputs=outputs)
    posterior = posterior.with_temperature(1.3).with_precision(0.2)
    plain = smidgen.predict(posterior, problem, train[0], link=link)
    few = smidgen.Link(link, draws=16)
    found = smidgen.predict(posterior, problem, train[0], link=few, seed=9)
    return {**predicted(plain), **predicted(found, "drawn ")}


@case((2,), (3,), (4,))
def top(count):
    problem, train, posterior = simple("block")
    link = smidgen.Link(top=count)
    found = smidgen.predict(posterior, problem, train[0], link=link)
    again = smidgen.calibrate(posterior, problem, train, link=link, **QUIET)
    return {**predicted(found), **tuned(again)}


for _count in (2, 3, 4):
    CASES[f"top-{_count}"] = replace(CASES[f"top-{_count}"], **SEARCHED)


@case((2,), (4,))
def point(outputs):
    problem, train, _ = simple("block", outputs=outputs)
    found, targets = smidgen.point_outputs(problem, train, **QUIET)
    return {"outputs": found, "targets": targets}


@case(*[(s,) for s in STRUCTURES], **BOUND)
def weight_samples(structure):
    problem, train, posterior = simple("block", percent=40, **STRUCTURES[structure])
    found = smidgen.predict(posterior, problem, train[0], samples=8)
    runs = sampled_outputs(problem, posterior, train[:1], samples=8, reuse=False)
    ((_, outputs),) = runs
    alone = problem.likelihood.mixture(outputs, posterior.temperature)
    generator = torch.Generator().manual_seed(3)
    weights = posterior.sample_deviations(generator)
    return {
        **predicted(found),
        **predicted(alone, "without reuse "),
        "weights": torch.cat(list(weights.values())),
    }


@case(("categorical", 4), ("bernoulli", 3), ("gaussian", 2))
def weight_samples_diagonal(kind, outputs):
    problem, train, posterior = simple("mlp", kind, outputs, structure="diag")
    found = smidgen.predict_batches(posterior, problem, train, samples=8, **QUIET)
    return predicted(found)


@case(("mlp",), ("block",), ("conv",))
def laplace_many(name):
    problem = problem_of(name, "categorical", 4)
    train = batches(name, "categorical", 4)
    levels = {p: select.sparse_kfac(problem.model, percent=p) for p in (20, 45, 100)}
    levels["last"] = select.last_layer(problem.model)
    posteriors = fit.laplace_many(problem, train, levels, **QUIET)
    grid = torch.tensor([0.01, 1.0, 50.0], dtype=torch.float64)
    table = variance_table(problem, train, posteriors, grid, "sampling")
    found = {"outputs": table.outputs, "targets": table.targets}
    for level, posterior in posteriors.items():
        found |= {f"{level} {n}": v for n, v in fitted(posterior, problem).items()}
        shares = [(level, each) for each in posterior.operators]
        found[f"{level} covariance"] = table.total(shares)
    return found


# EKFAC measures in the eigenbasis of its factors. Those of a transformer's maps have fewer
# directions than rows, and what basis is found where nothing varies is rounding's choice.
for _name, _case in list(CASES.items()):
    if "ekfac" in _name and re.search("block|bert|subset", _name):
        CASES[_name] = replace(_case, **BOUND)


# Tuning.


def noisy(problem, train):
    """Labels that the model does not know too well."""
    generator = torch.Generator().manual_seed(2)
    found = []
    for batch in train * 6:
        outputs, _ = smidgen.point_outputs(problem, [batch], **QUIET)
        labels = problem.likelihood.draw_targets(outputs / 1.5, generator)
        pair = isinstance(batch, tuple)
        found.append((batch[0], labels) if pair else {**batch, "labels": labels})
    return found


TUNED = [("bert", "categorical", 2), ("mlp", "gaussian", 1), ("block", "bernoulli", 3)]


@case(
    *[
        (*task, scope, what)
        for task in TUNED
        for scope in ("scalar", "group", "layer")
        for what in ("joint", "precision", "temperature")
        if what != "temperature" or task[1] != "gaussian"
    ],
    **SEARCHED,
)
def tune(name, kind, outputs, scope, what):
    problem, train, posterior = simple(name, kind, outputs)
    held = noisy(problem, train)
    settings = fit.CalibrationSettings(scope=scope, what=what)
    found = smidgen.calibrate(posterior, problem, held, settings=settings, **QUIET)
    return tuned(found)


@case(*[(s,) for s in STRUCTURES], **SEARCHED)
def tune_structure(structure):
    problem, train, posterior = simple("mlp", outputs=4, **STRUCTURES[structure])
    held = noisy(problem, train)
    coarse = fit.CalibrationSettings(refine=False)
    found = smidgen.calibrate(posterior, problem, held, settings=coarse, **QUIET)
    scalar = fit.CalibrationSettings(scope="scalar")
    fine = smidgen.calibrate(posterior, problem, held, settings=scalar, **QUIET)
    return {**tuned(found), **{f"fine {n}": v for n, v in tuned(fine).items()}}


@case(("scalar",), ("group",), ("layer",), **SEARCHED)
def tune_by_evidence(scope):
    found = {}
    for name, kind, outputs in TUNED:
        problem, _, posterior = simple(name, kind, outputs)
        again = fit.calibrate_by_evidence(posterior, problem, scope=scope)
        found[f"{name} precisions"] = list(again.precisions.values())
        found[f"{name} evidence"] = fit.log_evidence(again, problem)
    return found


@case(**SEARCHED)
def temperature():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(60, 4, dtype=torch.float64, generator=generator)
    targets = torch.multinomial((logits / 1.7).softmax(-1), 1, generator=generator)
    targets = targets.squeeze(-1)
    targets[::7] = -100
    return {"temperature": fit.temperature(logits, targets)}


# SWAG.

SWAG = {"steps": 30, "every": 2, "rank": 4, "seed": 1}


def swagged(posterior):
    found = {
        "mean": posterior.mean,
        "variance": posterior.variance,
        "deviations": posterior.deviations,
        "snapshots": posterior.snapshots,
        "num_data": posterior.num_data,
        "learning_rate": posterior.learning_rate,
        "rates": [list(each) for each in posterior.rates],
        "temperature": posterior.temperature,
        "noise": float(posterior.likelihood.scale),
        "subset": posterior.subset.digest(),
    }
    if posterior.calibration is not None:
        found |= {f"tuning {n}": v for n, v in asdict(posterior.calibration).items()}
    return {n: v for n, v in found.items() if v is not None}


@case(
    *[("block", "categorical", 4, s) for s in ("low-rank", "diagonal", "none")],
    ("mlp", "gaussian", 2, "low-rank"),
    ("mlp", "bernoulli", 3, "low-rank"),
    relative=1e-6,
)
def swag(name, kind, outputs, spread):
    problem = problem_of(name, kind, outputs)
    train = batches(name, kind, outputs, count=3)
    subset = select.weights(problem.model, fraction=0.4)
    how = {**SWAG, "learning_rate": 0.02, "covariance": spread, **QUIET}
    found = fit.swag(problem, train, subset, **grouped(fit.SwagSettings, burn_in=4, **how))
    sampled = smidgen.predict(found, problem, train[0], samples=8)
    return {**swagged(found), **predicted(sampled)}


@case(("categorical", 2), ("gaussian", 2), ("bernoulli", 3), **SEARCHED)
def swag_rates(kind, outputs):
    """Rates chosen on validation data, then a temperature or a noise."""
    problem = problem_of("mlp", kind, outputs)
    train = batches("mlp", kind, outputs, count=3)
    subset = select.sparse_kfac(problem.model, percent=60)
    held = noisy(problem, train)
    how = {**SWAG, "learning_rate": [0.001, 0.01], "trial_steps": 10, "samples": 6}
    found = fit.swag(
        problem, train, subset, validation=held, **grouped(fit.SwagSettings, **how), **QUIET
    )
    again = smidgen.calibrate(found, problem, held, samples=6, **QUIET)
    sampled = smidgen.predict_batches(again, problem, train, samples=6, **QUIET)
    return {**swagged(again), **predicted(sampled)}


@case(**TRAINED)
def swag_dropout():
    """Shuffled batches and dropout, in fp32."""
    net = model("normed", 2, dtype=torch.float32)
    train, held = products()
    subset = select.named(net, ["0.weight", "1.*", "4.*"])
    found = fit.swag(
        net, train, subset, **grouped(fit.SwagSettings, learning_rate=0.01, **SWAG), **QUIET
    )
    again = smidgen.calibrate(found, net, held, samples=6, **QUIET)
    return swagged(again)


@case(relative=1e-6)
def swag_collector():
    net = model("mlp", 2)
    subset = select.last_layer(net)
    collector = SwagCollector(net, subset, rank=3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        with torch.no_grad():
            weight = net[4].weight
            weight.add_(torch.randn(weight.shape, generator=generator).double() / 10)
        collector.collect()
    return swagged(collector.posterior(smidgen.Categorical(2), num_data=7))


# Ramping studies.


def parted(problem, train):
    """Training, validation and test batches with labels of their own."""
    everything = noisy(problem, train)
    return everything[0::3], everything[1::3], everything[2::3]


def listed_points(points):
    return {
        "points": [f"{p['scheme']} {p['level']:g} {p.get('repeat', 0)}" for p in points],
        **{
            name: [p[name] for p in points]
            for name in ("floats", "weights", "fraction", "temperature", "nll", "ece")
        },
    }


def listed_scores(record):
    found = {"best": record.results["ramp"]["best"]}
    for method in record.results["methods"]:
        for name, score in method["scores"].items():
            found[f"{method['name']} {name}"] = [
                score["value"],
                score["low"],
                score["high"],
            ]
    norms = record.results["norms"]
    found["norms"] = [each["norm"] for each in norms]
    return found


@case(("bert", 2), ("block", 3), ("mlp", 4), **SEARCHED)
def ramp_laplace(name, outputs):
    problem = problem_of(name, "categorical", outputs)
    sets = parted(problem, batches(name, "categorical", outputs))
    grid = (0.1, 1.0, 10.0)
    settings = RampSettings(
        percents=(20, 50, 100), precisions=grid, repeats=2, most_stochastic=0.5
    )
    found = ramp(problem, *sets, settings, **QUIET)
    points = [asdict(each) for each in found.points]
    chosen = {
        f"chosen {n}": list(p.precisions.values()) for n, p in found.posteriors.items()
    }
    precisions = {"precision": [each["precision"] for each in points]}
    return {
        **listed_points(points),
        **precisions,
        **{name: sorted(set(values)) for name, values in chosen.items()},
        **listed_scores(found.record),
    }


@case(**SEARCHED)
def ramp_swag():
    problem = problem_of("block", "categorical", 2)
    sets = parted(problem, batches("block", "categorical", 2))
    settings = SwagRampSettings(
        fractions=(0.1, 0.4), rates=(0.01,), steps=10, every=2, rank=3, samples=4
    )
    with folder() as place:
        record = swag_ramp(problem, *sets, place / "ramp", settings, **QUIET)
    return {**listed_points(record.results["ramp"]["points"]), **listed_scores(record)}


# Sparse networks.

LOADER = {"wide": partial(blobs), "images": partial(blobs, image=True)}


def trained(found):
    """What a sparse training came to."""
    network = found.network
    scores = [epoch.scores() for epoch in found.history]
    lists = {
        f"history {name}": [each[name] for each in scores]
        for name in scores[0]
        if name != "seconds"
    }
    moves = [str(value) for move in found.changes for value in asdict(move).values()]
    return {
        **networked(network),
        **lists,
        "moves": sha256(" ".join(moves).encode()).hexdigest(),
        "move count": len(found.changes),
        "state bytes": found.state_bytes,
        "derived bytes": found.derived_bytes,
    }


def networked(network):
    found = {
        "density": network.density,
        "subset": network.subset().digest(),
        "connectivity": [list(each) for each in network.connectivity().values()],
    }
    for name, part in network.layers.items():
        found[f"{name} means"] = part.means.detach()
        found[f"{name} indices"] = part.pattern.list_indices()
        if part.log_scales is not None:
            found[f"{name} log-scales"] = part.log_scales.detach()
        if part.bias is not None:
            found[f"{name} bias"] = part.bias.detach()
    return found


@case(
    *[
        (name, path, budget, optimiser)
        for name in ("wide", "images")
        for path in ("dense", "sparse")
        for budget, optimiser in (("uniform", "adam"), ("global", "sgd"), ("erk", "adam"))
    ],
    **BOUND,
)
def ssvi(name, path, budget, optimiser):
    net = model(name, 3, dtype=torch.float32)
    network = make_sparse(
        net, density=0.3, settings=SparseSettings(budget=budget, path=path)
    )
    rate = 0.02 if optimiser == "adam" else 0.05
    training = SsviSettings(
        epochs=3, learning_rate=rate, every=3, temperature=0.1, optimiser=optimiser
    )
    held = blobs(image=name == "images", seed=5, shuffle=False)
    found = fit.ssvi(network, LOADER[name](), validation=held, settings=training, **QUIET)
    batch = next(iter(held))
    sampled = smidgen.predict(found, net, batch, samples=6)
    means = smidgen.predict(found, net, batch, samples=0)
    return {
        "first subset": network.subset().digest(),
        **trained(found),
        **predicted(sampled),
        **predicted(means, "of the means "),
    }


@case(
    *[("noise", noise) for noise in ("local", "weights")],
    ("start", "magnitude"),
    ("deterministic", True),
    ("removal", "magnitude"),
    ("prior", 0.5),
    **BOUND,
)
def ssvi_choice(what, value):
    net = model("wide", 3, dtype=torch.float32)
    start = value if what == "start" else None
    made = {} if what in ("start", "removal") else {what: value}
    settings = SparseSettings(path="dense", **made)
    network = make_sparse(net, density=0.3, start=start, settings=settings, seed=2)
    told = {"removal": value} if what == "removal" else {}
    training = SsviSettings(epochs=2, learning_rate=0.02, every=3, **told)
    found = fit.ssvi(network, blobs(), settings=training, seed=3, **QUIET)
    return trained(found)


@case(**BOUND)
def ssvi_still():
    """An active set that stays: no weight goes or comes, so other machines agree."""
    net = model("wide", 3, dtype=torch.float32)
    network = make_sparse(net, density=0.5, settings=SparseSettings(path="dense"))
    training = SsviSettings(epochs=2, learning_rate=0.01, replaced=0.0)
    return trained(fit.ssvi(network, blobs(), settings=training, **QUIET))


CASES["ssvi-still"] = replace(CASES["ssvi-still"], portable=True, **TRAINED)


def short_network(path="dense"):
    net = model("wide", 3, dtype=torch.float32)
    network = make_sparse(net, density=0.4, settings=SparseSettings(path=path))
    training = SsviSettings(epochs=2, learning_rate=0.02, every=3, temperature=0.1)
    return net, fit.ssvi(network, blobs(), settings=training, **QUIET)


@case(*[(by, budget) for by in ("magnitude", "snr") for budget in ("global", "uniform")])
def prune(by, budget):
    net, whole = short_network()
    few = prune_network(whole.network, 0.2, by=by, budget=budget)
    still = prune_network(whole.network, 0.2, by=by, budget=budget, deterministic=True)
    found, points = replace(whole, network=few), replace(whole, network=still)
    batch = next(iter(blobs(shuffle=False)))
    return {
        **networked(found.network),
        **predicted(smidgen.predict(found, net, batch, samples=4)),
        **predicted(smidgen.predict(points, net, batch), "as points "),
    }


@case(**BOUND)
def export():
    """Written out, saved and loaded, and every draw's outputs."""
    net, posterior = short_network("sparse")
    with folder() as place:
        smidgen.save(posterior, place / "network")
        loaded = smidgen.load(place / "network", net)
        files = sorted(each.name for each in (place / "network").iterdir())
    # Folders of every kind have one format; the file once was called by its kind.
    files = [name.replace("posterior.", "sparse.") for name in files]
    batch = next(iter(blobs(shuffle=False)))
    runs = sampled_outputs(smidgen.Problem(net), loaded, [batch], samples=4)
    ((_, outputs),) = runs
    dense = loaded.network.dense_state_dict()
    network = networked(loaded.network)
    return {**network, "files": files, "outputs": outputs, **named(dense)}


def named(tensors, before="weight "):
    return {f"{before}{name}": each.detach() for name, each in tensors.items()}


for _name in [each for each in CASES if each.startswith("prune")]:
    CASES[_name] = replace(CASES[_name], **BOUND)

CHECKPOINTED = SsviSettings(epochs=3, learning_rate=0.02, every=3, temperature=0.1)


def interrupted(path, place):
    """Stop an SSVI training in its second epoch."""
    network = make_sparse(known("wide", 3), density=0.4, settings=SparseSettings(path=path))
    loader = models.StopsAfter(blobs(), 1)
    with suppress(KeyboardInterrupt):
        fit.ssvi(network, loader, settings=CHECKPOINTED, checkpoint=place, **QUIET)
    return network


@case(("dense",), ("sparse",), **BOUND)
def ssvi_resumed(path):
    """Interrupted and taken up again; `bitwise` says that it was the same run."""
    with folder() as place:
        network = interrupted(path, place / "run")
        how = {"settings": CHECKPOINTED, **QUIET}
        found = trained(fit.ssvi(network, blobs(), checkpoint=place / "run", **how))
        whole = trained(fit.ssvi(network, blobs(), **how))
    same = [torch.equal(v, whole[n]) for n, v in found.items() if torch.is_tensor(v)]
    return {**found, "bitwise": str(all(same))}


# The Langevin chain and what it selects.

COURSE = {"steps": 60, "burn_in": 20, "thin": 5, **QUIET}


def chained(scales, fraction=0.1):
    told = scales.to_dict(fraction)
    found = {
        f"{part} {name}": [each[name] for each in told[part]]
        for part in ("traces", "check")
        for name in told[part][0]
    }
    for name in ("acceptance", "overlap_of_halves", "chance", "samples"):
        found[name] = told[name]
    found |= named(scales.means, "scale ")
    if scales.displacement is not None:
        found |= named(scales.displacement, "displacement ")
    return found


@case(("langevin",), ("published",), **TRAINED)
def langevin(update):
    net, train = sparse_regression()
    problem = smidgen.Problem(net, smidgen.Gaussian(1, noise=0.25))
    how = {"update": update, "learning_rate": 1e-3, "displacement": True}
    if update == "langevin":
        how |= {"temperature": 1.0}
    found = fit.langevin(
        problem,
        train,
        seed=1,
        **grouped(fit.LangevinSettings, head="none", **how, **COURSE),
    )
    return chained(found)


@case(("defaults",), ("clipped",), ("plain",), **TRAINED)
def langevin_head(how):
    """Classes, a head without a prior, and the weights that are selected."""
    net = model("normed", 2, dtype=torch.float32)
    train, _ = products()
    told = {
        "defaults": {},
        "clipped": {"clip": 0.1, "noise_discount": 0.5, "temperature": 0.01},
        "plain": {"preconditioned": False, "num_data": 500},
    }[how]
    scales = fit.langevin(net, train, **grouped(fit.LangevinSettings, **told, **COURSE))
    chosen = select.bayestune(net, scales.means, fraction=0.1)
    elbow = select.bayestune(net, scales.means, elbow=True, head="none")
    return {
        **chained(scales),
        "subset": chosen.digest(),
        "subset size": chosen.size,
        "elbow": elbow.digest(),
    }


@case(**TRAINED)
def langevin_resumed():
    net = known("normed", 2)
    train, _ = products()
    with folder() as place:
        shutil.copy(FIXTURES / "chain.checkpoint", place / "run")
        how = {**COURSE, "checkpoint": place / "run", "checkpoint_every": 20}
        return chained(fit.langevin(net, train, **grouped(fit.LangevinSettings, **how)))


@case(**TRAINED)
def agreement():
    net = model("normed", 2, dtype=torch.float32)
    train, held = products()
    found = fit.agreement(
        net, train, held, fraction=0.2, **grouped(fit.LangevinSettings, **COURSE)
    )
    return {**found.to_dict(), **named(found.scales[1].means)}


# Fine-tuning and deltas.


def epochs(found):
    rows = [list(each.to_row()) for each in found.history]
    return {"history": rows, "best": found.best.number, **named(found.model.state_dict())}


@case(**TRAINED)
def finetune():
    net = model("normed", 2, dtype=torch.float32)
    train, held = products()
    with torch.random.fork_rng(devices=[]):
        found = fit.finetune(
            net,
            train,
            validation=held,
            seed=1,
            settings=fit.FinetuneSettings(epochs=3, learning_rate=0.01),
            **QUIET,
        )
    return epochs(found)


@case(**TRAINED)
def finetune_bert():
    net = model("bert", 2, dtype=torch.float32)
    train = batches("bert", "categorical", 2, count=4)
    with torch.random.fork_rng(devices=[]):
        found = fit.finetune(
            net,
            train,
            validation=train[:2],
            settings=fit.FinetuneSettings(epochs=2, learning_rate=1e-3),
            **QUIET,
        )
    return epochs(found)


def few(net):
    some = select.weights(net, fraction=0.2, by="random", seed=3)
    return some | select.last_layer(net)


def sparsely(net, **how):
    train, held = products()
    told = {"epochs": 3, "learning_rate": 0.05, **how}
    return fit.finetune(
        net,
        train,
        few(net),
        validation=held,
        **grouped(fit.FinetuneSettings, **told),
        **QUIET,
    )


def deltaed(delta, before=""):
    found = {
        "difference": delta.difference,
        "subset": delta.subset.digest(),
        "fingerprint": delta.fingerprint,
        "left out": list(delta.left_out),
        **named(delta.replaced, "replaced "),
    }
    return {f"{before}{name}": value for name, value in found.items()}


@case(("plain",), ("decayed",), ("accumulated",), ("no-head",), **TRAINED)
def sparse_finetune(how):
    net = model("normed", 2, dtype=torch.float32)
    told = {
        "plain": {},
        "decayed": {"weight_decay": 0.1, "stop_on": "nll"},
        "accumulated": {"accumulate": 3, "seed": 2},
        "no-head": {"head": "none"},
    }[how]
    found = sparsely(net, **told)
    return {**epochs(found), **deltaed(found.delta)}


@case(**TRAINED)
def delta():
    """Applied, removed, merged, halved and without its head."""
    net = model("normed", 2, dtype=torch.float32)
    one = sparsely(net).delta
    two = sparsely(net, seed=4).delta
    merged = smidgen.merge_deltas([one, two.without_head()], [0.7, 0.3])
    x = batches("normed", "categorical", 2, dtype=torch.float32)[0][0]
    before = net(x)
    there = one.apply(net)
    on = net(x)
    there.remove()
    with merged.applied(net), torch.no_grad():
        both = net(x)
    return {
        **deltaed(one),
        **deltaed(merged, "merged "),
        **deltaed(one.half(), "half "),
        "before": before,
        "applied": on,
        "removed": net(x),
        "merged": both,
    }


# Selectors.


@case(*[(name,) for name in select.SELECTORS])
def selector(name):
    problem = problem_of("bert", "categorical", 2)
    train = batches("bert", "categorical", 2)
    sizes = {"percent": [15, 40], "fraction": [0.02, 0.3], "count": [1, 2], None: [None]}
    found = {}
    for size in sizes[select.SELECTORS[name].size]:
        scores = marginal_variances(problem, train) if name != "named" else None
        subset = select.choose(
            name,
            problem,
            size=size,
            batches=train,
            seed=11,
            scores=scores,
            patterns=["*attention*weight", "classifier.*"],
        )
        found |= {f"{size} digest": subset.digest(), f"{size} weights": subset.size}
    return found


@case(("activation",), ("curvature",), ("squared_gradient",), ("magnitude",))
def scores(name):
    problem = problem_of("bert", "categorical", 2)
    score = getattr(select.scores, name)
    if name == "magnitude":
        return named(dict(score(problem.model)))
    return named(score(problem, batches("bert", "categorical", 2)))


@case()
def marginals():
    problem = problem_of("mlp", "categorical", 2)
    return named(marginal_variances(problem, batches("mlp", "categorical", 2)))


@case(("mlp",), ("conv",), ("block",), ("bert",))
def coverage(name):
    found = smidgen.coverage(model(name, 3))
    return {
        "maps": [f"{m.name} {m.weight} {m.bias} {m.group}" for m in found.layers],
        "universe": [f"{n} {s}" for n, s in found.universe.items()],
        "output map": " ".join(layer.name for layer in found.output_layers) or "None",
    }


# Metrics.


def arrays():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    first = CategoricalPredictive.from_logits(2 * normal(80, 4))
    second = CategoricalPredictive.from_logits(first.logits + normal(80, 4), 1.5)
    targets = torch.multinomial((first.logits / 2).softmax(-1), 1, generator=generator)
    labels = (normal(80, 3) > 0).double()
    yes = BernoulliPredictive.from_logits(normal(80, 3))
    normal(80, 3)  # so that the numbers below stay
    spread = normal(80, 2).exp()
    numbers = GaussianPredictive(normal(80, 2), spread, 0.5 * torch.ones(80, 2).double())
    return first, second, targets.squeeze(-1), yes, labels, numbers, normal(80, 2)


def interval(found):
    return [found.value, found.low, found.high]


@case()
def metrics():
    first, second, targets, yes, labels, numbers, values = arrays()
    right = evaluate.correct(first, targets)
    curve = evaluate.risk_coverage(first.confidence, right)
    found = {
        "correct": right,
        "nll": evaluate.nll(first, targets),
        "brier": evaluate.brier(first, targets),
        "nll of labels": evaluate.nll(yes, labels),
        "brier of labels": evaluate.brier(yes, labels),
        "nll of numbers": evaluate.nll(numbers, values),
        "squared error": evaluate.squared_error(numbers, values),
        "auroc": evaluate.auroc(first.entropy[:40], second.entropy[40:]),
        "risk": curve.risk,
        "risk area": curve.area,
    }
    for binning in evaluate.BINNINGS:
        told = {"binning": binning}
        error = evaluate.expected_calibration_error
        found[f"ece {binning}"] = error(first.confidence, right, **told)
        found[f"floor {binning}"] = evaluate.calibration_floor(first.confidence, **told)
        found[f"ece {binning} of ten"] = error(first.confidence, right, bins=10, **told)
        reliability = evaluate.reliability_curve(first.confidence, right, **told)
        found[f"reliability {binning}"] = [
            list(reliability.confidence),
            list(reliability.accuracy),
            list(reliability.count),
        ]
    return found


@case()
def intervals():
    first, second, targets, yes, labels, numbers, values = arrays()
    few_draws = {"draws": 200}
    one, two = (evaluate.nll(each, targets) for each in (first, second))
    right = evaluate.correct(first, targets)
    found = {
        "mean": evaluate.bootstrap_mean(one, **few_draws),
        "paired": evaluate.paired_difference(one, two, **few_draws),
        "auroc": evaluate.bootstrap_auroc(one[:40], two[:30], **few_draws),
        "rank": evaluate.rank_correlation(one, two, **few_draws),
    }
    for binning in evaluate.BINNINGS:
        told = {"binning": binning, **few_draws}
        error = evaluate.bootstrap_calibration_error
        found[f"ece {binning}"] = error(first.confidence, right, **told)
        paired = evaluate.paired_calibration_difference(
            first, second, targets, binning=binning
        )
        found[f"paired squared calibration {binning}"] = paired
    given = {
        "classes": (first, targets),
        "labels": (yes, labels),
        "numbers": (numbers, values),
    }
    for name, pair in given.items():
        told = evaluate.summarise(*pair, **few_draws)
        pinned = list(told) if name == "classes" else ["nll", "brier", "rmse"]
        found |= {f"{name} {score}": told[score] for score in pinned if score in told}
    return {name: interval(value) for name, value in found.items()}


@case(**TRAINED)
def dropout():
    net = model("normed", 2, dtype=torch.float32)
    _, held = products()
    return {"outputs": dropout_outputs(net, held, samples=4, seed=3, **QUIET)}


# Plans: what is counted, not what is timed.


@case(("laplace", "kron"), ("laplace", "diag"), ("laplace", "full"), ("swag", "kron"))
def plan(method, structure):
    problem = problem_of("bert", "categorical", 2)
    (batch,) = batches("bert", "categorical", 2, count=1)
    structure = structure if method == "laplace" else None
    found = smidgen.plan(problem, batch=batch, method=method, structure=structure)
    found = {f"{n} of the choice": v for n, v in asdict(found.chosen.cost).items()}
    return {n: v for n, v in found.items() if isinstance(v, int | float | str)}


# Studies: which cells there are, and which of them have records.


STUDIES = ("bayestune", "bridges", "chains", "glue-ramp", "glue-table2", "ssvi", "uci")


@case(*[(name,) for name in STUDIES])
def study_keys(name):
    found, slugs = {}, {}
    ledger = Ledger(ROOT / "results")
    for profile in list_profiles(name):
        cells = read_study(name, profile).cells
        keys = sorted(each.key for each in cells)
        found[f"{profile} count"] = len(keys)
        found[f"{profile} sha256"] = sha256(" ".join(keys).encode()).hexdigest()
        slugs |= {ledger.record_path(each).name: each for each in cells}
    records = sorted(f"{each}.json" for each in unpack_records(ledger.pack_path(name)))
    done = sorted(n for n, each in slugs.items() if ledger.is_done(each))
    return {
        **found,
        "records": len(records),
        "sha256 of records": sha256(" ".join(records).encode()).hexdigest(),
        "records that no cell has": sorted(set(records) - slugs.keys()),
        "keys with a record": [slugs[each].key for each in done],
        "a record": recorded(ledger.record(slugs[done[0]])),
    }


def recorded(record):
    """What is read from a record, whole, but its digest."""
    text = json.dumps(asdict(record), indent=1) + "\n"
    return sha256(text.encode()).hexdigest()


# Files of every kind that smidgen wrote before.


def known(name, outputs, dtype=torch.float32):
    """A model whose weights are read from a file, whatever torch draws."""
    net = model(name, outputs, dtype=dtype)
    net.load_state_dict(load_file(FIXTURES / f"{name}.safetensors"))
    return net


@case(*[(s,) for s in STRUCTURES])
def stored_laplace(structure):
    problem = smidgen.Problem(known("block", 4, torch.float64), smidgen.Categorical(4))
    (batch,) = batches("block", "categorical", 4, count=1)
    posterior = smidgen.load(FIXTURES / f"laplace-{structure}", problem)
    found = smidgen.predict(posterior, problem, batch)
    sampled = smidgen.predict(posterior, problem, batch, samples=4)
    return {
        **{n: v for n, v in fitted(posterior, problem).items() if v is not None},
        **(tuned(posterior) if posterior.calibration is not None else {}),
        **predicted(found),
        **predicted(sampled, "sampled "),
    }


@case()
def stored_regression():
    problem = smidgen.Problem(known("mlp", 2, torch.float64), smidgen.Gaussian(2))
    (batch,) = batches("mlp", "gaussian", 2, count=1)
    posterior = smidgen.load(FIXTURES / "laplace-regression", problem)
    found = smidgen.predict(posterior, problem, batch)
    return {**fitted(posterior, problem), **predicted(found)}


@case()
def stored_swag():
    problem = smidgen.Problem(known("block", 4, torch.float64), smidgen.Categorical(4))
    (batch,) = batches("block", "categorical", 4, count=1)
    posterior = smidgen.load(FIXTURES / "swag", problem)
    found = smidgen.predict(posterior, problem, batch, samples=4)
    return {**swagged(posterior), **predicted(found)}


@case(relative=1e-5)
def stored_sparse():
    net = known("wide", 3)
    posterior = smidgen.load(FIXTURES / "sparse", net)
    batch = next(iter(blobs(shuffle=False)))
    found = smidgen.predict(posterior, net, batch, samples=4)
    return {**networked(posterior.network), **predicted(found)}


@case(relative=1e-5)
def stored_delta():
    net = known("normed", 2)
    found = smidgen.load(FIXTURES / "delta.safetensors")
    x = batches("normed", "categorical", 2, dtype=torch.float32)[0][0]
    with found.applied(net), torch.no_grad():
        outputs = net(x)
    return {**deltaed(found), "outputs": outputs}


@case()
def stored_subset():
    found = smidgen.load(FIXTURES / "subset.safetensors")
    sizes = [f"{n} {s}" for n, s in found.sizes().items()]
    inverse = (~found).digest()
    return {"digest": found.digest(), "sizes": sizes, "inverse": inverse}


@case()
def stored_record():
    found = smidgen.Record.load(FIXTURES / "record.json")
    return {"kind": found.kind, "seed": found.seed, "sha256": recorded(found)}


@case(**BOUND)
def stored_checkpoint():
    """A training of before goes on: the end is that of one without a break."""
    network = make_sparse(
        known("wide", 3), density=0.4, settings=SparseSettings(path="sparse")
    )
    with folder() as place:
        shutil.copy(FIXTURES / "ssvi.checkpoint", place / "run")
        how = {"settings": CHECKPOINTED, "checkpoint": place / "run", **QUIET}
        return trained(fit.ssvi(network, blobs(), **how))


def write_fixtures(place):
    """Write a file or folder of every kind that smidgen can save.

    Args:
        place: An empty folder.
    """
    plain = {"wide": (3, torch.float32), "normed": (2, torch.float32)}
    plain |= {"block": (4, torch.float64), "mlp": (2, torch.float64)}
    for name, (outputs, dtype) in plain.items():
        models.write_weights(
            model(name, outputs, dtype=dtype), place / f"{name}.safetensors"
        )
    for structure, how in STRUCTURES.items():
        problem, train, posterior = simple("block", percent=40, **how)
        if structure in ("kron", "ekfac"):
            held = noisy(problem, train)
            posterior = smidgen.calibrate(posterior, problem, held, **QUIET)
        smidgen.save(posterior, place / f"laplace-{structure}")
    _, _, posterior = simple("mlp", "gaussian", 2, noise="per-output")
    smidgen.save(posterior, place / "laplace-regression")
    subset = select.weights(problem.model, fraction=0.2)
    how = {**SWAG, "learning_rate": 0.02, **QUIET}
    posterior = fit.swag(problem, train, subset, **grouped(fit.SwagSettings, **how))
    tuning = noisy(problem, train)
    smidgen.save(smidgen.calibrate(posterior, problem, tuning, **QUIET), place / "swag")
    _, posterior = short_network()
    smidgen.save(replace(posterior, notes={"seed": 0}), place / "sparse")
    net = model("normed", 2, dtype=torch.float32)
    sparsely(net).delta.save(place / "delta.safetensors")
    (few(net) & ~select.sparse_kfac(net, percent=20)).to_file(place / "subset.safetensors")
    record = smidgen.Record("evaluate", {"data": "none"}, {"nll": 0.5, "rows": [1]}, seed=3)
    record.save(place / "record.json")
    interrupted("sparse", place / "ssvi.checkpoint")
    train, _ = products()
    with suppress(KeyboardInterrupt):
        how = {**COURSE, "checkpoint": place / "chain.checkpoint", "checkpoint_every": 20}
        fit.langevin(
            net, models.StopsAfter(train, 5), **grouped(fit.LangevinSettings, **how)
        )
