"""BayesTune's first stage: a Langevin chain that finds the weights worth tuning.

θ_i ~ Laplace(θ̄_i, λ_i) around the pretrained value, λ_i ~ Gamma(α, rate β). The scales are
integrated out (`scale_prior`), so the chain runs over θ alone, and E[λ_i | θ_i] is averaged
along it. A `step` rounds the prior's spike off below its own length, so what is sampled is
less sparse than the model above. The model is that of Kim and Hospedales (NeurIPS 2023);
their joint update of θ and λ is `update="published"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from smidgen.curvature.output_layers import name_head
from smidgen.errors import ArgumentError, fill_settings
from smidgen.fit.bayestune.chain import Chain, ChainSchedule, Scales, WeightUpdate
from smidgen.fit.bayestune.published import Published
from smidgen.fit.bayestune.scale_prior import ScalePrior
from smidgen.fit.bayestune.step import Langevin, StepSettings
from smidgen.fit.data_size import count_training_data
from smidgen.fit.training_run import TrainingRun, check_save_every
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.runtime.guard import fingerprint, preserve_random_state
from smidgen.runtime.loader import ResumableLoader
from smidgen.runtime.progress import count_batches
from smidgen.runtime.storage.offload import require_loaded
from smidgen.types import Batch
from smidgen.weights.affine import ceil_fraction, require_coverage
from smidgen.weights.head import Head, find_head
from smidgen.weights.subset import Subset, Whole, check_subset
from smidgen.weights.top_k import top_k_overlap
from smidgen.weights.vector import SubsetVector

Update = Literal["langevin", "published"]

TEMPERATURE, NOISE_DISCOUNT = 1e-5, 1.0
"""Defaults of the chain; `docs/methods/bayestune.md` says why."""


@dataclass(frozen=True)
class LangevinSettings:
    """How the chain runs.

    Args:
        head: Whole parameters that are new, so they move without a prior and are not
            ranked: a subset, names of modules, "last" for the last affine layer if it makes
            the outputs, or "none".
        prior: Of the other weights; default: scales Gamma(0.01, rate 100).
        steps: Length of the chain.
        burn_in: Steps before the first sample; the preconditioner is fixed after them.
        thin: Steps from one sample to the next.
        learning_rate: η, the length of a step in units of the preconditioned gradient.
        temperature: T of the likelihood, which counts as N/T examples; the prior stays
            unchanged. Default: 1e-5.
        noise_discount: γ, a factor on the noise; the posterior is sampled to the power
            of 1/γ². Default: 1, the posterior itself.
        preconditioned: Divide by the root mean square of the gradients; the default.
        clip: Largest norm of the likelihood's gradient, before the prior is added; default:
            no limit.
        num_data: N; default: the length of the loader's data set, or its labelled tokens.
            Pass it if a sampler reads only a part of the data.
        update: "langevin", or "published": Adam with noise on θ and λ, with its own
            temperature, noise, clipping, preconditioner and N, which must be left out.
        displacement: Average |θ − θ̄| too, one more vector.
        checkpoint_every: Steps between checkpoints.

    Raises:
        ArgumentError: If a setting is out of its range, or not for this update.
    """

    head: Head = "last"
    prior: ScalePrior = ScalePrior()  # noqa: RUF009
    steps: int = 1000
    burn_in: int = 500
    thin: int = 10
    learning_rate: float = 1e-4
    temperature: float | None = None
    noise_discount: float | None = None
    preconditioned: bool | None = None
    clip: float | None = None
    num_data: int | None = None
    update: Update = "langevin"
    displacement: bool = False
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        if self.update not in get_args(Update):
            raise ArgumentError(
                f"update must be one of {get_args(Update)}, got {self.update!r}. Leave it "
                "out for 'langevin'."
            )
        for name in ("temperature", "noise_discount", "preconditioned", "clip", "num_data"):
            value = getattr(self, name)
            if self.update == "published" and value is not None:
                raise ArgumentError(
                    f"{name} must be left out for update='published', which has its own, "
                    f"got {value}. Leave it out, or use update='langevin'."
                )
        check_save_every(self.checkpoint_every)
        schedule = self.schedule
        if schedule.burn_in < 1 or schedule.thin < 1 or schedule.samples < 2:
            raise ArgumentError(
                "burn_in and thin must be 1 or more and steps leave two samples after "
                f"burn-in, got steps={self.steps}, burn_in={self.burn_in}, "
                f"thin={self.thin}."
            )
        for name in ("learning_rate", "temperature", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ArgumentError(f"{name} must be > 0, got {value}.")
        if self.noise_discount is not None and not self.noise_discount >= 0:
            raise ArgumentError(
                f"noise_discount must be 0 or more, got {self.noise_discount}."
            )

    @property
    def schedule(self) -> ChainSchedule:
        """How long the chain is."""
        return ChainSchedule(self.steps, self.burn_in, self.thin)

    @property
    def step(self) -> StepSettings:
        """How far and how noisily a step moves, with defaults filled in."""
        return StepSettings(
            self.learning_rate,
            TEMPERATURE if self.temperature is None else self.temperature,
            NOISE_DISCOUNT if self.noise_discount is None else self.noise_discount,
            self.preconditioned is None or self.preconditioned,
            self.clip,
        )


def schedule_chain(steps: float, samples: int = 20) -> ChainSchedule:
    """Make half the chain burn-in and spread the samples evenly over the other half."""
    length = max(2 * samples, round(steps))
    burn_in = length // 2
    return ChainSchedule(length, burn_in, (length - burn_in) // samples)


def langevin(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    subset: Subset | None = None,
    *,
    settings: LangevinSettings | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> Scales:
    """Average the scale of every weight's prior along a chain from the pretrained weights.

    The model runs in evaluation mode and is never changed. Beside the moving weights and
    their gradients the chain keeps three vectors of their size.

    Args:
        model: The pretrained model, or its `Problem`.
        batches: Training batches; a loader that can be read again.
        subset: The whole parameters that move; default: all affine layers.
        settings: How the chain runs.
        seed: Seed of the noise and of the loader's generator, which is restored afterwards.
        checkpoint: A file to save to and to resume from.
        progress: Show a progress bar.

    Returns:
        Mean scales of all weights of `subset` outside the head, with diagnostics.

    Raises:
        DataError: If there is no label, or loss or weights are not finite.
    """  # noqa: DOC502
    settings = fill_settings(settings, LangevinSettings)
    if subset is not None:
        check_subset(subset)
    problem = as_problem(model)
    moving, free = None, frozenset[str]()
    if settings.head != "last":
        # What can be refused without data is refused before any is read.
        moving, free = _find_moving(problem.model, subset, settings.head)
    loader = ResumableLoader(batches)
    with (
        loader.seeded(seed),
        preserve_random_state(problem.model, seeding=True),
        torch.enable_grad(),
    ):
        problem, first, _ = problem.on_shadow().settle(batches)
        problem.require_labels(first)
        if moving is None:
            head = name_head(problem, first, settings.head)
            moving, free = _find_moving(problem.model, subset, head)
        num_data = _count_data(problem, batches, settings)
        torch.manual_seed(seed)
        tensors = SubsetVector(problem.model, moving).tensors
        base = {
            name: parameter.detach()
            for name, parameter in problem.model.named_parameters()
            if name in tensors and name not in free
        }
        prior, schedule = settings.prior, settings.schedule
        update = _make_update(settings, tensors, base, num_data, seed)
        keep = settings.displacement
        chain = Chain(
            problem, tensors, base, prior, schedule, update, keep_displacement=keep
        )
        description = {
            "what": f"scales by {settings.update}",
            "model": fingerprint(problem.model),
            "num_data": num_data,
            "batches": count_batches(batches),
            "subset": sorted(moving.parts),
            "head": sorted(free),
            "displacement": keep,
            "seed": seed,
            **asdict(schedule),
            **asdict(settings.step),
            "prior": asdict(prior),
        }
        size = 5 * sum(tensor.nbytes for tensor in tensors.values())  # five such vectors
        run = TrainingRun(chain, loader, lambda: description, checkpoint, size)
        run.resume()
        return chain.run(run, settings.checkpoint_every, progress)


def _make_update(
    settings: LangevinSettings,
    tensors: Mapping[str, Tensor],
    base: Mapping[str, Tensor],
    num_data: int,
    seed: int,
) -> WeightUpdate:
    prior, burn_in = settings.prior, settings.schedule.burn_in
    if settings.update == "published":
        return Published(tensors, base, prior, burn_in, settings.learning_rate, seed)
    return Langevin(tensors, base, prior, settings.step, num_data, burn_in, seed)


def _count_data(
    problem: SettledProblem, batches: Iterable[Batch], settings: LangevinSettings
) -> int:
    """Count N; 0 where the published update, which has none, cannot count it."""
    # Counting reads the loader, and both updates shall see one order of batches.
    sized = isinstance(getattr(batches, "dataset", None), Sized)
    counted = sized or settings.update == "langevin"
    return count_training_data(problem, batches, settings.num_data) if counted else 0


def _find_moving(
    model: nn.Module, subset: Subset | None, head: Head
) -> tuple[Subset, frozenset[str]]:
    """Find what moves, and the names of what moves without a prior."""
    require_loaded(model, "BayesTune")
    if subset is None:
        universe = require_coverage(model).universe
        subset = Subset(universe, {name: Whole() for name in universe})
    parts = find_head(model, head)
    ranked = subset.parts.keys() - parts.keys()
    if parts:
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        universe = {**subset.universe, **{name: shapes[name] for name in parts}}
        subset = Subset(universe, {**subset.parts, **parts})
    for name, part in subset.parts.items():
        if not isinstance(part, Whole):
            raise ArgumentError(
                f"subset and head must hold whole parameters, got a part of {name!r}. Make "
                "them with smidgen.select.named."
            )
    for name, parameter in model.named_parameters():
        if name in subset.parts and parameter.dtype.itemsize < 4:
            raise ArgumentError(
                f"model must be fp32 or fp64 where the chain moves it, got {name!r} in "
                f"{parameter.dtype}: its steps would round to nothing. Use model.float()."
            )
    if not ranked:
        raise ArgumentError("subset must hold more than the head. Pass head='none'.")
    return subset, frozenset(parts)


@dataclass(frozen=True, eq=False)
class Agreement:
    """How much of their choice two chains on disjoint halves of the data share.

    Args:
        overlap: The share of the top fraction that both choose.
        chance: The overlap of two independent choices.
        fraction: The share of the weights that each chooses.
        scales: The scales of each chain.
    """

    overlap: float
    chance: float
    fraction: float
    scales: tuple[Scales, Scales]

    def to_dict(self) -> dict[str, float]:
        """The numbers as JSON values."""
        return {"fraction": self.fraction, "overlap": self.overlap, "chance": self.chance}


def agreement(
    model: nn.Module | Problem,
    first: Iterable[Batch],
    second: Iterable[Batch],
    *,
    subset: Subset | None = None,
    fraction: float = 0.005,
    settings: LangevinSettings | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Agreement:
    """Run a chain on each half of the data and compare what they choose.

    Halves of one chain, or chains with other noise on the same data, agree the more the
    less noise there is, even on random labels. Chains on disjoint halves share neither
    trajectory nor examples, so what both choose is due to the task, or to the network:
    weights with large gradients whatever the labels. Shuffled labels tell which.

    Args:
        model: The pretrained model, or its `Problem`; it is not changed.
        first: Batches of one half of the training data.
        second: Batches of the other half.
        subset: The whole parameters that move, as in `fit.langevin`.
        fraction: The share of the weights whose choice is compared, in (0, 1].
        settings: How both chains run.
        seed: Seed of the first chain; the second has the next.
        progress: Show progress bars.

    Returns:
        The overlap, its chance level, and both chains' scales.

    Raises:
        ArgumentError: If the fraction is outside (0, 1].
    """
    if not 0 < fraction <= 1:
        raise ArgumentError(f"fraction must be in (0, 1], got {fraction}.")

    scales, others = (
        langevin(model, half, subset, settings=settings, seed=chain_seed, progress=progress)
        for half, chain_seed in ((first, seed), (second, seed + 1))
    )
    count = ceil_fraction(scales.size, fraction)
    overlap = top_k_overlap(scales.means, others.means, count)
    return Agreement(overlap, scales.chance(fraction), fraction, (scales, others))
