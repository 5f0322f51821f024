"""Sparse training of an image classifier: SSVI and its baselines, on validation or test.

Density 1 is dense VI, `deterministic` sparse training without noise, both at once plain
training; `pruned` cuts the trained network down as well. With `report = false` the cell is
a trial: validation data are scored, test data never.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from smidgen import evaluate, fit
from smidgen.errors import ArgumentError, DivergedError
from smidgen.fit import SsviSettings
from smidgen.integrations.arrays import Arrays
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.problem import Problem
from smidgen.posterior.sampling import sampled_outputs
from smidgen.posterior.sparse import SparsePosterior
from smidgen.sparse import SparseNetwork, SparseSettings, make_sparse, prune_network
from smidgen.sparse.architectures import mlp, small_resnet
from smidgen.sparse.budgets import Budget
from smidgen.sparse.build import FirstWeights
from smidgen.sparse.prune import PruningScore
from smidgen.workflows.method import Method, score_methods
from smidgen_studies.data.images import ImageData, Images, read_images, scoring_batches
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Count, Draws, Fraction, Positive, Unsigned
from smidgen_studies.methods.mixtures import mixture_methods
from smidgen_studies.methods.sparse_costs import costs, stored_bytes
from smidgen_studies.methods.trials import TrialChoice, choose_values, describe_trial

_DEFAULTS = {
    "learning_rate": SsviSettings.learning_rate,
    "temperature": SsviSettings.temperature,
    "weight_decay": SsviSettings.weight_decay,
    "scale": 0.1,
}
_REMOVAL: dict[bool, PruningScore] = {False: "snr", True: "magnitude"}
_BUDGET: Budget = "erk"
# Of `SsviSettings`: the network is made here, so training is told none of them.
_OF_NETWORK = ("density", "start", "num_data")

Data = ImageData
ON_PROCESSOR = True


@dataclass(frozen=True)
class Settings:
    """Which network, and how it is trained.

    What is None is chosen: the value of the trial with the lowest validation NLL among
    the needed cells. `log_scale_rate` is a rate itself and no multiple of the means', so
    that methods of different rates can leave their first scales equally far.
    `images` is how many training images are used, `samples` the draws of a prediction,
    `scaled` whether there is a second row with a temperature fitted on validation data.
    """

    density: Fraction = 1.0
    deterministic: bool = False
    removal: PruningScore | None = None
    budget: Budget = _BUDGET
    start: FirstWeights = "random"
    network: Literal["mlp", "resnet"] = "mlp"
    hidden: tuple[Count, ...] = (256, 256)
    width: Count = 8
    learning_rate: Positive | None = None
    temperature: Unsigned | None = None
    scale: Positive | None = None
    weight_decay: Unsigned | None = None
    log_scale_rate: Unsigned = 0.01
    epochs: Count = 10
    batch: Count = 128
    every: Count = SsviSettings.every
    images: Count | None = None
    samples: Draws = 10
    pruned: tuple[Fraction, ...] = ()
    scaled: bool = True
    report: bool = True

    def __post_init__(self) -> None:
        if any(each > self.density for each in self.pruned):
            raise ArgumentError(
                f"pruned must be at most density, {self.density}, got {list(self.pruned)}."
            )

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Names of the methods that its record has."""
        if not self.report:
            return ()
        name, _ = name_method(self)
        own = [name, *(f"{name}-pruned-{100 * each:g}" for each in self.pruned)]
        scaled = [f"{each}-temperature" for each in own] if self.scaled else []
        return (*own, *scaled)

    @property
    def score(self) -> PruningScore:
        """The score of removal: by default SNR, of points magnitude."""
        return self.removal or _REMOVAL[self.deterministic]

    def training(self, values: Mapping[str, float]) -> SsviSettings:
        """How to train at a choice."""
        rate = values["learning_rate"]
        return SsviSettings(
            epochs=self.epochs,
            learning_rate=rate,
            scale_rate=self.log_scale_rate / rate,
            temperature=values["temperature"],
            weight_decay=values["weight_decay"],
            removal=self.score,
            every=self.every,
        )


def run(job: Job) -> Mapping[str, Any]:
    """Train and score on validation data, and if it is to be reported on test data."""
    settings: Settings = job.settings
    data = read_images(job)
    given = {name: getattr(settings, name) for name in _DEFAULTS}
    choice = choose_values(given, job.needs, _DEFAULTS)
    model = _model(settings, data, job.seed)
    scale = choice.values["scale"]
    network = make_sparse(
        model,
        density=settings.density,
        start=settings.start,
        settings=SparseSettings(
            budget=settings.budget, scale=scale, deterministic=settings.deterministic
        ),
        seed=job.seed,
    )
    training = settings.training(choice.values)
    batches = data.shuffled(settings.batch, job.seed, settings.images)
    noted: dict[str, Any] = {"choice": choice.to_dict()}
    try:
        found = fit.ssvi(
            network,
            batches,
            settings=training,
            seed=job.seed,
            checkpoint=job.work / "checkpoint",
            progress=False,
        )
    except DivergedError:
        if settings.report:
            raise
        return {**noted, "trial": _trial(settings, choice)}
    told = {name: x for name, x in vars(training).items() if name not in _OF_NETWORK}
    median_scale = _median_scale(found.network, scale)
    noted["training"] = {
        **told,
        "images": len(batches.dataset),
        "train_nll": found.history[-1].train_nll,
        "state_bytes": found.state_bytes,
        "seconds": sum(epoch.seconds for epoch in found.history),
        "median_scale": median_scale,
    }
    held = _outputs(found.network, data.validation, settings)
    if not settings.report:
        predictive = Categorical(held.shape[-1]).mixture(held, 1.0)
        labels = data.validation.labels
        scores = (
            float(score(predictive, labels).mean())
            for score in (evaluate.nll, evaluate.correct)
        )
        trial = _trial(settings, choice, *scores, scale=median_scale)
        return {**noted, "trial": trial}
    twin = make_sparse(model, density=1.0, seed=job.seed)
    return {**noted, **_reported(settings, found.network, twin, held, data, training)}


def _model(settings: Settings, data: Images, seed: int) -> nn.Module:
    shape = tuple(data.train.inputs.shape[1:])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if settings.network == "resnet":
            return small_resnet(shape, data.train.classes, width=settings.width)
        return mlp(shape, data.train.classes, hidden=settings.hidden)


def _outputs(network: SparseNetwork, arrays: Arrays, settings: Settings) -> Tensor:
    """Outputs of every draw, (S, N, C)."""
    # Outputs are taken as they are, whatever the labels: of other data these may be none.
    likelihood = Categorical(max(2, arrays.classes))
    posterior = SparsePosterior(network=network, likelihood=likelihood)
    problem, batches = Problem(network, likelihood), scoring_batches(arrays)
    runs = sampled_outputs(problem, posterior, batches, samples=settings.samples)
    return torch.cat([outputs for _, outputs in runs], 1)


def _trial(
    settings: Settings, choice: TrialChoice, *scores: float, scale: float | None = None
) -> dict[str, Any]:
    given = [each for each in _DEFAULTS if getattr(settings, each) is not None]
    return {
        **describe_trial(*name_method(settings), given, choice, *scores),
        "median_scale": scale,
    }


def _reported(
    settings: Settings,
    network: SparseNetwork,
    twin: SparseNetwork,
    held: Tensor,
    data: Images,
    training: SsviSettings,
) -> dict[str, Any]:
    """The rows of a network, and of what is left of it after pruning."""
    name, label = name_method(settings)
    batch = (data.train.inputs[: settings.batch], data.train.labels[: settings.batch])
    measured = costs(network, twin, batch, training)
    whole = stored_bytes(twin)
    networks = {name: (label, network, held, measured)}
    for density in settings.pruned:
        # By the budget that SSVI has, so that only the way there differs.
        cut = prune_network(network, density, by=settings.score, budget=settings.budget)
        percent = f"{100 * density:g}"
        networks[f"{name}-pruned-{percent}"] = (
            f"{label}, pruned to {percent} %",
            cut,
            _outputs(cut, data.validation, settings),
            {},
        )
    methods: list[Method] = []
    extras: dict[str, dict[str, Any]] = {}
    for own, (words, each, outputs, cost) in networks.items():
        made = _methods(own, each, outputs, data, settings)
        methods += made
        stored = stored_bytes(each)
        common = {
            **cost,
            "fraction": each.density if each.stochastic else 0.0,
            "active": each.count,
            "stored_bytes": stored,
            "stored_ratio": stored / whole,
        }
        for method in made:
            ending = "" if method.name == own else ", temperature"
            extras[method.name] = {**common, "label": words + ending}
    results = score_methods(methods, data.test.labels)
    results["methods"] = [_joined(m, extras[m["name"]]) for m in results["methods"]]
    return {**results, "data": data.sizes}


def _methods(
    name: str, network: SparseNetwork, held: Tensor, data: Images, settings: Settings
) -> list[Method]:
    """One row as it is, and one with a temperature, if it is asked for."""
    likelihood = Categorical(held.shape[-1])
    values = network.count * (2 if network.stochastic else 1)
    rows = mixture_methods(
        name,
        (held, data.validation.labels),
        _outputs(network, data.test, settings),
        floats=values,
        settings={"samples": settings.samples},
    )
    outside = {
        other: _outputs(network, arrays, settings) for other, arrays in data.outside.items()
    }
    found = []
    for row in rows if settings.scaled else rows[:1]:
        divisor = row.settings["temperature"]
        assert divisor is not None
        shifted = {
            other: likelihood.mixture(outputs, float(divisor))
            for other, outputs in outside.items()
        }
        found.append(replace(row, shifted=shifted))
    return found


def _joined(method: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """A method's entry with its costs, and the first detection as a score of its own."""
    found = {**method, **extra}
    for detected in list(method.get("detection", {}).values())[:1]:
        found["scores"] = {**found["scores"], "ood_auroc": detected}
    return found


def _median_scale(network: SparseNetwork, scale: float) -> float | None:
    """The median of σ over the first σ, of all active weights; None of points."""
    ratios = [
        part.scales.detach() / (scale * network.priors[name])
        for name, part in network.layers.items()
        if part.log_scales is not None
    ]
    return float(torch.cat(ratios).median()) if ratios else None


def name_method(settings: Settings) -> tuple[str, str]:
    """The name of a method in records, and for people."""
    percent = f"{100 * settings.density:g}"
    if settings.density == 1:
        name, label = (
            ("dense", "Dense") if settings.deterministic else ("dense-vi", "Dense VI")
        )
    elif settings.deterministic:
        name, label = f"sparse-{percent}", f"Sparse {percent} %"
    else:
        name, label = f"ssvi-{percent}", f"SSVI {percent} %"
    if settings.score != _REMOVAL[settings.deterministic]:
        name, label = f"{name}-{settings.score}", f"{label}, removal by {settings.score}"
    if settings.budget != _BUDGET:
        name, label = f"{name}-{settings.budget}", f"{label}, budget {settings.budget}"
    return name, label
