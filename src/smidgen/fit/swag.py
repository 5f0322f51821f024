"""SWAG on a subset: SGD from the trained weights, and a Gaussian through its iterates.

Only the chosen weights move (DESIGN 4.7; Maddox et al., 2019, arXiv:1902.02476). The rate
is constant; it can be chosen among several by the validation NLL of short runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from math import inf, isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, DataError, DivergedError
from smidgen.fit.calibration.samples import held_out
from smidgen.fit.preparation import squared_residuals
from smidgen.fit.sgd import Sgd, SgdSettings
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.posterior.base import SAMPLES
from smidgen.posterior.cost_swag import refuse_too_large
from smidgen.posterior.swag import CovarianceKind, SwagPosterior
from smidgen.runtime.checkpoint import read_checkpoint, write_checkpoint
from smidgen.runtime.fingerprint import fingerprint, quick_fingerprint
from smidgen.runtime.guard import preserve_model
from smidgen.runtime.loader import ResumableLoader
from smidgen.runtime.progress import track
from smidgen.types import Batch
from smidgen.weights.subset import Subset
from smidgen.weights.vector import find_parameters

RATES = (1e-3, 1e-2, 2e-2, 5e-2, 1e-1)
"""Learning rates that are tried when validation data are there to choose by."""
# Slow steps are kept oftener than every so many: at most half a minute is lost.
_SECONDS = 30.0
_RATE = 1e-2


@dataclass(frozen=True)
class SwagOptions:
    """What commands and studies tell `swag`, by the names of its arguments."""

    rates: tuple[float, ...] | None = None
    steps: int = 2000
    every: int = 5
    rank: int = 20
    trial_steps: int = 400
    samples: int = 32

    def __post_init__(self) -> None:
        # Refused where it is told, not where it is used, which may be hours later. All who
        # tell it have validation data, and score samples on them.
        if self.samples < 2:
            raise ArgumentError(f"samples must be 2 or more, got {self.samples}.")
        _Settings(
            steps=self.steps,
            every=self.every,
            rank=self.rank,
            trial_steps=min(self.trial_steps, self.steps),
            rates=_rates(self.rates, True),
            samples=self.samples,
        )

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `swag`."""
        names = [each.name for each in fields(SwagOptions) if each.name != "rates"]
        found = {name: getattr(self, name) for name in names}
        return {"learning_rate": self.rates, **found}


@dataclass(frozen=True, kw_only=True)
class _Settings(SgdSettings):
    """All that shapes a collection; checked before any work."""

    trial_steps: int
    rates: tuple[float, ...]
    samples: int
    dropout: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trial_steps < 1:
            raise ArgumentError(f"trial_steps must be 1 or more, got {self.trial_steps}.")
        if not all(0 < rate < inf for rate in self.rates):
            raise ArgumentError(f"learning_rate must be > 0, got {list(self.rates)}.")
        self.require_snapshots("steps", self.steps)
        if len(self.rates) > 1:
            self.require_snapshots("trial_steps", self.trial_steps)
            if self.samples < 2:
                raise ArgumentError(f"samples must be 2 or more, got {self.samples}.")


def swag(
    model: nn.Module | Problem,
    train: Iterable[Batch],
    subset: Subset,
    *,
    validation: Iterable[Batch] | None = None,
    learning_rate: float | Sequence[float] | None = None,
    steps: int = 2000,
    every: int = 5,
    rank: int = 20,
    covariance: CovarianceKind = "low-rank",
    burn_in: int = 0,
    trial_steps: int = 400,
    momentum: float = 0.9,
    weight_decay: float = 3e-4,
    dropout: bool = True,
    samples: int = SAMPLES,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 100,
    progress: bool = True,
) -> SwagPosterior:
    """Collect a SWAG posterior over a subset of the weights.

    Args:
        model: The trained model, or its `Problem`; it is left as it was.
        train: Training batches; a loader that can be read again and again.
        subset: The weights that move: any of any parameter.
        validation: Labelled batches that choose among several rates, read once for each,
            and fit a regression's noise, read once more.
        learning_rate: One rate, or several to choose from. Left out: `RATES` if there are
            validation data, else 0.01.
        steps: Steps of SGD, however long an epoch is.
        every: Steps between snapshots.
        rank: Deviations kept, K.
        covariance: "low-rank" ((K + 2) floats a weight), "diagonal" (2) or "none" (1: the
            mean alone, stochastic weight averaging).
        burn_in: Steps before the first snapshot counts.
        trial_steps: Steps for each rate that is tried; never more than `steps`.
        momentum: Of SGD.
        weight_decay: Of SGD, towards zero, on the chosen weights only.
        dropout: Whether dropout is on; running statistics never change.
        samples: Samples of the weights that score a rate.
        seed: Seed of dropout and of the loader's order: its generators draw from this
            seed meanwhile, and are put back.
        checkpoint: A file to keep the state in. A run that finds it goes on from there,
            to the same moments. It stays at the end: delete it once the posterior is saved.
        checkpoint_every: Steps between checkpoints.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        The posterior, at temperature 1; `calibrate` chooses another. A regression has
        the noise that suits its samples on the validation data, or, without any, that of
        the training residuals, whatever the likelihood came with.

    Raises:
        ArgumentError: If an argument is outside what it may be.
    """
    given = as_problem(model)
    settings = _Settings(
        steps=steps,
        every=every,
        rank=rank,
        covariance=covariance,
        burn_in=burn_in,
        momentum=momentum,
        weight_decay=weight_decay,
        dropout=dropout,
        trial_steps=min(trial_steps, steps),
        rates=_rates(learning_rate, validation is not None),
        samples=samples,
        seed=seed,
    )
    if checkpoint_every < 1:
        raise ArgumentError(f"checkpoint_every must be 1 or more, got {checkpoint_every}.")
    find_parameters(given.model, subset)
    batches = ResumableLoader(train)
    with (
        batches.seeded(seed),
        preserve_model(given.model, dropout=dropout),
        torch.enable_grad(),
    ):
        with preserve_model(given.model):
            problem, _, _ = given.settle(train)
        refuse_too_large(problem, subset, covariance, rank)
        work = _Work(problem, batches, subset, settings, progress)
        work.keep(checkpoint, checkpoint_every)
        torch.manual_seed(seed)
        work.resume()
        while work.trying:
            work.try_rate(validation)
        return work.with_noise(work.descend(settings.steps), validation)


def _rates(learning_rate: object, choosing: bool) -> tuple[float, ...]:
    if learning_rate is None:
        return RATES if choosing else (_RATE,)
    try:
        several = isinstance(learning_rate, Sequence) and not isinstance(learning_rate, str)
        listed = learning_rate if several else [learning_rate]
        rates = tuple(float(rate) for rate in listed if not isinstance(rate, str))  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"learning_rate must be a number or several, got {learning_rate!r}."
        ) from error
    if not rates or (len(rates) > 1 and not choosing):
        raise ArgumentError(
            f"learning_rate must be one rate, or several with validation= to choose by, "
            f"got {learning_rate!r}. Pass validation batches, or one rate."
        )
    return rates


class _Work:
    """The trials and the run after them, as one sequence that can be taken up again."""

    def __init__(
        self,
        problem: SettledProblem,
        batches: ResumableLoader,
        subset: Subset,
        settings: _Settings,
        progress: bool,
    ) -> None:
        self.problem, self.subset, self.settings = problem, subset, settings
        self.batches = batches
        self.progress = progress
        self.scores: list[float] = []
        self.examples = 0
        self.path: Path | None = None
        self.every = 1
        self.due = monotonic() + _SECONDS
        self.state: dict[str, Tensor] | None = None

    def keep(self, path: str | Path | None, every: int) -> None:
        self.path, self.every = None if path is None else Path(path), every

    @property
    def trying(self) -> bool:
        """Whether rates are still to be tried."""
        count = len(self.settings.rates)
        return count > 1 and len(self.scores) < count

    @property
    def rate(self) -> float:
        """The rate that is tried next, or the one that did best."""
        rates = self.settings.rates
        if self.trying:
            return rates[len(self.scores)]
        if len(rates) == 1:
            return rates[0]
        best = min(range(len(rates)), key=self.scores.__getitem__)
        if not isfinite(self.scores[best]):
            raise DataError(
                f"SGD ran off with every learning rate of {list(rates)}. Pass smaller ones."
            )
        return rates[best]

    def try_rate(self, validation: Iterable[Batch] | None) -> None:
        """Note the validation NLL of a short run; infinite if it ran off."""
        assert validation is not None
        settings, nll = self.settings, inf
        try:
            posterior = self.descend(settings.trial_steps)
            found = held_out(self.problem, posterior, validation, samples=settings.samples)
            nll = found.nll(found.outputs, posterior.likelihood.scale)
            if isinstance(found.likelihood, Gaussian) and isfinite(nll):
                # Each rate under the noise that suits it: that is fitted in the end too.
                _, nll = found.best(found.outputs)
        except DivergedError:
            pass
        self.scores.append(nll if isfinite(nll) else inf)
        self.save({})

    def descend(self, steps: int) -> SwagPosterior:
        """Run SGD from the trained weights, or go on with it."""
        run = Sgd(self.problem, self.subset, self.settings, self.rate, steps)
        if self.state is not None:
            run.restore(self.state)
            self.state = None
        label = f"trying rate {self.rate:g}" if self.trying else "collecting"
        left = range(run.step, steps)
        for step in track(left, label, total=len(left), show=self.progress):
            count = run.take(next(self.batches))
            if self.batches.epoch == 0:
                self.examples += count
            if (step + 1) % self.every == 0 or monotonic() > self.due:
                self.save(run.state())
        if not self.trying:
            self.save(run.state())
        return self.posterior(run)

    def posterior(self, run: Sgd) -> SwagPosterior:
        likelihood = self.problem.likelihood
        mean, variance, deviations = run.snapshots.moments()
        tried = zip(self.settings.rates, self.scores, strict=False)
        return SwagPosterior(
            subset=self.subset,
            likelihood=likelihood,
            mean=mean,
            variance=variance,
            deviations=deviations,
            fingerprint=fingerprint(self.problem.model),
            num_data=self.examples,
            snapshots=run.snapshots.count,
            learning_rate=self.rate,
            rates=tuple(tried),
        )

    def with_noise(
        self, posterior: SwagPosterior, validation: Iterable[Batch] | None
    ) -> SwagPosterior:
        """Fit a regression's noise to held-out data, else to the training residuals."""
        likelihood, settings = posterior.likelihood, self.settings
        if not isinstance(likelihood, Gaussian):
            return posterior
        if validation is not None:
            found = held_out(self.problem, posterior, validation, samples=settings.samples)
            noise, _ = found.best(found.outputs)
        else:
            train = self.batches.loader
            with ResumableLoader(train).seeded(settings.seed):
                torch.manual_seed(settings.seed)
                # No more batches than SGD took: a stream may have no end.
                squares, rows = squared_residuals(
                    self.problem, islice(train, settings.steps)
                )
            noise = float(squares.mean()) / max(rows, 1)
            if not noise > 0:
                raise DataError("all residuals are zero: there is no noise to fit.")
        return replace(posterior, likelihood=replace(likelihood, noise=noise))

    def about(self) -> dict[str, Any]:
        """What a checkpoint must be of."""
        return {
            **asdict(self.settings),
            "model": quick_fingerprint(self.problem.model),
            "weights": self.subset.digest(),
            "likelihood": repr(self.problem.likelihood),
        }

    def save(self, run: dict[str, Tensor]) -> None:
        """Write all that `resume` needs."""
        if self.path is None:
            return
        loader = {f"loader/{name}": each for name, each in self.batches.state().items()}
        own = {
            "scores": torch.tensor(self.scores, dtype=torch.float64),
            "examples": torch.tensor(self.examples),
            "rng": torch.get_rng_state(),
        }
        write_checkpoint(self.path, {**own, **loader, **run}, self.about())
        self.due = monotonic() + _SECONDS

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        found = None if self.path is None else read_checkpoint(self.path, self.about())
        if found is None:
            return
        self.scores = found.pop("scores").tolist()
        self.examples = int(found.pop("examples"))
        names = [name for name in found if name.startswith("loader/")]
        self.batches.resume({n.removeprefix("loader/"): found.pop(n) for n in names})
        torch.set_rng_state(found.pop("rng"))
        self.state = found or None
