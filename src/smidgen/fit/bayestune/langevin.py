"""BayesTune's first stage: a Langevin chain that tells which weights are worth tuning.

θ_i ~ Laplace(θ̄_i, λ_i) around the pretrained value, λ_i ~ Gamma(α, rate β). The scales are
integrated out (`scale_prior`), so the chain runs over θ alone, and E[λ_i | θ_i] is
averaged along it. The step is in `step`; it rounds the prior's spike
off below its own length, so what is sampled is less sparse than the model above. Kim and
Hospedales (NeurIPS 2023) have the model; their own joint update of θ and λ is
`update="published"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import asdict
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import nn

from smidgen.errors import ArgumentError
from smidgen.fit.bayestune.chain import Chain, ChainSchedule, Scales, WeightUpdate
from smidgen.fit.bayestune.published import Published
from smidgen.fit.bayestune.scale_prior import ScalePrior
from smidgen.fit.bayestune.step import Langevin, LangevinSettings
from smidgen.fit.preparation import training_size
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.runtime.fingerprint import fingerprint
from smidgen.runtime.guard import preserve_model
from smidgen.runtime.loader import ResumableLoader
from smidgen.runtime.progress import count_batches
from smidgen.types import Batch
from smidgen.weights.affine import require_coverage
from smidgen.weights.head import Head, check_width, find_head
from smidgen.weights.subset import Subset, Whole
from smidgen.weights.vector import SubsetVector

Update = Literal["langevin", "published"]

TEMPERATURE, NOISE_DISCOUNT = 1e-5, 1.0
"""What the chain takes if nothing is given; `docs/methods/bayestune.md` says why."""


def chain_course(steps: float, samples: int = 20) -> ChainSchedule:
    """Lay out a chain: half of it is burn-in, the samples are evenly over the other half.

    Args:
        steps: Its length; few steps become one for each sample, and as many before them.
        samples: How many samples are wanted; there are more where they do not divide.

    Returns:
        Steps, burn-in and thinning, as `langevin` takes them.
    """
    length = max(2 * samples, round(steps))
    burn_in = length // 2
    return ChainSchedule(length, burn_in, (length - burn_in) // samples)


def langevin(
    model: nn.Module | Problem,
    train: Iterable[Batch],
    *,
    among: Subset | None = None,
    head: Head = "last",
    prior: ScalePrior | None = None,
    steps: int = 1000,
    burn_in: int = 500,
    thin: int = 10,
    learning_rate: float = 1e-4,
    temperature: float | None = None,
    noise_discount: float | None = None,
    preconditioned: bool | None = None,
    clip: float | None = None,
    num_data: int | None = None,
    update: Update = "langevin",
    displacement: bool = False,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    progress: bool = True,
) -> Scales:
    """Average the scale of every weight's prior along a chain from the pretrained weights.

    The model runs in evaluation mode and is never changed. Beside the moving weights and
    their gradients the chain keeps three vectors of their size.

    Args:
        model: The pretrained model, or its `Problem`.
        train: Training batches; a loader that can be read again.
        among: The whole parameters that move; all affine layers if left out.
        head: Whole parameters that move without a prior, being new, and are not ranked:
            a subset, names of modules, "last" for the last affine layer if it makes the
            outputs, or "none".
        prior: Of the other weights; Gamma(0.01, rate 100) scales if left out.
        steps: Length of the chain.
        burn_in: Steps before the first sample; the preconditioner is fixed after them.
        thin: Steps from one sample to the next.
        learning_rate: η, the length of a step in units of the preconditioned gradient.
        temperature: T of the likelihood, which counts as N/T examples; the prior stays
            as it is. 1e-5 if left out: all weights together say more than each alone.
        noise_discount: γ, a factor on the noise; the posterior is sampled to the power
            of 1/γ². 1 if left out, which is the posterior itself.
        preconditioned: Divide by the root mean square of the gradients; so it does if
            left out.
        clip: Largest norm of the likelihood's gradient; none if left out. The prior is
            added after clipping.
        num_data: N; the length of the loader's data set, or its labelled tokens, if left
            out. Give it where a sampler reads a part of the data only.
        update: "langevin", or "published": Adam with noise on θ and λ. It has its own
            temperature, noise, clipping, preconditioner and N, so none may be given.
        displacement: Average |θ − θ̄| too, one more vector.
        seed: Of the noise, and of the order of batches where the loader has a generator
            of its own; that is put back.
        checkpoint: A file to go on from after an interruption.
        checkpoint_every: Steps between writing it.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        Mean scales of all weights of `among` outside `head`, with diagnostics.

    Raises:
        ArgumentError: If an argument is outside what it may be.
        DataError: If there is no label, or loss or weights are not finite.
    """  # noqa: DOC502
    given = as_problem(model)
    prior = prior or ScalePrior()
    course = ChainSchedule(steps, burn_in, thin)
    own = temperature, noise_discount, preconditioned, clip
    settings = _settings(update, learning_rate, *own, num_data)
    _check(course, settings, update, checkpoint_every)
    moving, free = _parts(given.model, among, head)
    batches = ResumableLoader(train)
    with batches.seeded(seed), preserve_model(given.model), torch.enable_grad():
        settled = _settled(given, train, head)
        size = _size(settled, train, num_data, update)
        about = {
            "what": f"scales by {update}",
            "model": fingerprint(given.model),
            "num_data": size,
            "batches": count_batches(train),
            "among": sorted(moving.parts),
            "head": sorted(free),
            "displacement": displacement,
            "seed": seed,
            **{"course": asdict(course), "settings": asdict(settings)},
            "prior": asdict(prior),
        }
        torch.manual_seed(seed)
        tensors = SubsetVector(given.model, moving).tensors
        ranked = [name for name in tensors if name not in free]
        base = {n: p.detach() for n, p in given.model.named_parameters() if n in ranked}
        mover: WeightUpdate
        if update == "published":
            mover = Published(tensors, base, prior, course.burn_in, learning_rate, seed)
        else:
            mover = Langevin(tensors, base, prior, settings, size, course.burn_in, seed)
        chain = Chain(
            settled, tensors, ranked, prior, course, mover, keep_displacement=displacement
        )
        return chain.run(batches, about, checkpoint, checkpoint_every, progress=progress)


def _settled(given: Problem, train: Iterable[Batch], head: Head) -> SettledProblem:
    found, _, _ = given.settle(train)
    check_width(given.model, head, found.likelihood.outputs)
    return found


def _size(
    problem: SettledProblem, train: Iterable[Batch], num_data: int | None, update: Update
) -> int:
    """N; 0 where the published update, which has none, cannot be told it."""
    # It is counted where it can be all the same: that reads the loader, and both updates
    # shall see one order of batches.
    sized = isinstance(getattr(train, "dataset", None), Sized)
    counted = sized or update == "langevin"
    return training_size(problem, train, num_data) if counted else 0


def _settings(
    update: str,
    learning_rate: float,
    temperature: float | None,
    noise_discount: float | None,
    preconditioned: bool | None,
    clip: float | None,
    num_data: int | None,
) -> LangevinSettings:
    """Fill in the defaults, and refuse what the published update would not look at."""
    given = {
        "temperature": temperature,
        "noise_discount": noise_discount,
        "preconditioned": preconditioned,
        "clip": clip,
        "num_data": num_data,
    }
    for name, value in given.items():
        if update == "published" and value is not None:
            raise ArgumentError(
                f"{name} must be left out for update='published', which has its own, got "
                f"{value}. Leave it out, or use update='langevin'."
            )
    return LangevinSettings(
        learning_rate,
        TEMPERATURE if temperature is None else temperature,
        NOISE_DISCOUNT if noise_discount is None else noise_discount,
        preconditioned is None or preconditioned,
        clip,
    )


def _check(
    course: ChainSchedule, settings: LangevinSettings, update: str, every: int
) -> None:
    if update not in get_args(Update):
        raise ArgumentError(f"update must be one of {get_args(Update)}, got {update!r}.")
    if every < 1:
        raise ArgumentError(f"checkpoint_every must be 1 or more, got {every}.")
    if course.burn_in < 1 or course.thin < 1 or course.samples < 2:
        raise ArgumentError(
            "burn_in and thin must be 1 or more and steps leave two samples after "
            f"burn-in, got steps={course.steps}, burn_in={course.burn_in}, "
            f"thin={course.thin}."
        )
    positive = {
        "learning_rate": settings.learning_rate,
        "temperature": settings.temperature,
    }
    if settings.clip is not None:
        positive["clip"] = settings.clip
    for name, value in positive.items():
        if not value > 0:
            raise ArgumentError(f"{name} must be > 0, got {value}.")
    if not settings.noise_discount >= 0:
        raise ArgumentError(
            f"noise_discount must be 0 or more, got {settings.noise_discount}."
        )


def _parts(
    model: nn.Module, among: Subset | None, head: Head
) -> tuple[Subset, frozenset[str]]:
    """Settle what moves, and the names of what moves without a prior."""
    if among is None:
        universe = require_coverage(model).universe
        among = Subset(universe, {name: Whole() for name in universe})
    parts = find_head(model, head)
    ranked = among.parts.keys() - parts.keys()
    if parts:
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        universe = {**among.universe, **{name: shapes[name] for name in parts}}
        among = Subset(universe, {**among.parts, **parts})
    for name, part in among.parts.items():
        if not isinstance(part, Whole):
            raise ArgumentError(
                f"among and head must hold whole parameters, got a part of {name!r}. Make "
                "them with smidgen.select.named."
            )
    for name, parameter in model.named_parameters():
        if name in among.parts and parameter.dtype.itemsize < 4:
            raise ArgumentError(
                f"model must be fp32 or fp64 where the chain moves it, got {name!r} in "
                f"{parameter.dtype}: its steps would round to nothing. Use model.float()."
            )
    if not ranked:
        raise ArgumentError("among must hold more than the head. Pass head='none'.")
    return among, frozenset(parts)
