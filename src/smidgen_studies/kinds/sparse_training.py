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
from smidgen_studies.methods.trials import TrialChoice, choose_values, trial_results

_DEFAULTS = {
    "learning_rate": SsviSettings.learning_rate,
    "temperature": SsviSettings.temperature,
    "weight_decay": SsviSettings.weight_decay,
    "scale": 0.1,
}
_REMOVAL: dict[bool, PruningScore] = {False: "snr", True: "magnitude"}
_BUDGET: Budget = "erk"
# Of `SsviSettings`: these shape the network, which is made here.
_OF_NETWORK = ("density", "start", "num_data")

Data = ImageData
ON_PROCESSOR = True


@dataclass(frozen=True)
class Settings:
    """Which network, and how it is trained.

    Settings that are None come from the needed trial with the lowest validation NLL.
    `log_scale_rate` is a rate and not a multiple of the means' rate, so that methods of
    different rates can move their scales equally far. `images` limits the training images,
    `samples` are the draws of a prediction, and `scaled` adds a row with a temperature
    fitted on validation data.
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
        if self.pruned and max(self.pruned) > self.density:
            raise ArgumentError(
                f"pruned must be at most density, {self.density}, got {list(self.pruned)}."
            )

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Names of the methods that its record has."""
        if not self.report:
            return ()
        name, _ = name_method(self)
        names = [name, *(f"{name}-pruned-{100 * density:g}" for density in self.pruned)]
        scaled = [f"{name}-temperature" for name in names] if self.scaled else []
        return (*names, *scaled)

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
    """Train; score a trial on validation data, all others on test data."""
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
        scored = (evaluate.nll(predictive, labels), evaluate.correct(predictive, labels))
        scores = (float(values.mean()) for values in scored)
        trial = _trial(settings, choice, *scores, scale=median_scale)
        return {**noted, "trial": trial}
    twin = make_sparse(model, density=1.0, seed=job.seed)
    return {**noted, **_score_on_test(settings, found.network, twin, held, data, training)}


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
    given = [name for name in _DEFAULTS if getattr(settings, name) is not None]
    trial = trial_results(*name_method(settings), given, choice, *scores)
    return {**trial, "median_scale": scale}


def _score_on_test(
    settings: Settings,
    network: SparseNetwork,
    twin: SparseNetwork,
    held: Tensor,
    data: Images,
    training: SsviSettings,
) -> dict[str, Any]:
    """Score a network, and what is left of it after pruning, on test data."""
    name, label = name_method(settings)
    batch = (data.train.inputs[: settings.batch], data.train.labels[: settings.batch])
    measured = costs(network, twin, batch, training)
    networks = {name: (label, network)}
    for density in settings.pruned:
        # By the budget that SSVI has, so that only the way there differs.
        cut = prune_network(network, density, by=settings.score, budget=settings.budget)
        percent = f"{100 * density:g}"
        networks[f"{name}-pruned-{percent}"] = (f"{label}, pruned to {percent} %", cut)
    likelihood = Categorical(held.shape[-1])
    methods: list[Method] = []
    for key, (words, net) in networks.items():
        whole = net is network
        stored = stored_bytes(net)
        outputs = held if whole else _outputs(net, data.validation, settings)
        rows = mixture_methods(
            key,
            (outputs, data.validation.labels),
            _outputs(net, data.test, settings),
            floats=net.count * (2 if net.stochastic else 1),
            settings={
                "samples": settings.samples,
                **(measured if whole else {}),
                "fraction": net.density if net.stochastic else 0.0,
                "active": net.count,
                "stored_bytes": stored,
                "stored_ratio": stored / stored_bytes(twin),
            },
        )
        outside = {n: _outputs(net, data.outside[n], settings) for n in data.outside}
        endings = ("", ", temperature") if settings.scaled else ("",)
        for row, ending in zip(rows, endings, strict=False):
            scale = row.settings["temperature"]
            shifted = {n: likelihood.mixture(x, scale) for n, x in outside.items()}
            methods.append(replace(row, label=words + ending, shifted=shifted))
    results = score_methods(methods, data.test.labels)
    for entry in results["methods"]:
        # The first of the other data sets gives a score of its own.
        for detected in list(entry.get("detection", {}).values())[:1]:
            entry["scores"]["ood_auroc"] = detected
    return {**results, "data": data.sizes}


def _median_scale(network: SparseNetwork, scale: float) -> float | None:
    """The median of σ over the first σ, of all active weights; None of points."""
    ratios = [
        part.scales.detach() / (scale * network.priors[name])
        for name, part in network.layers.items()
        if part.log_scales is not None
    ]
    return float(torch.cat(ratios).median()) if ratios else None


def name_method(settings: Settings) -> tuple[str, str]:
    """The name of a method in records, and for readers."""
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
