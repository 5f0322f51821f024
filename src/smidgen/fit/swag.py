"""SWAG on a subset: SGD from the trained weights, and a Gaussian through its iterates.

Only the chosen weights move (DESIGN 4.7; Maddox et al., 2019, arXiv:1902.02476). The rate
is constant; it can be chosen among several by the validation NLL of short runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from itertools import islice
from math import inf, isfinite, isnan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smidgen.curvature.output_layers import check_last_layer
from smidgen.errors import DataError, DivergedError, StoreError, fill_settings
from smidgen.fit.calibration.samples import held_out
from smidgen.fit.epochs import require_labelled
from smidgen.fit.sgd import Sgd, SwagSettings
from smidgen.fit.training_run import TrainingRun
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.outputs.residuals import sum_squared_residuals
from smidgen.posterior.cost.model import Setting, refuse_too_large
from smidgen.posterior.cost.swag import SWAG_COSTS
from smidgen.posterior.swag import SwagPosterior
from smidgen.runtime.checkpoint import of_prefix, with_prefix
from smidgen.runtime.guard import fingerprint, preserve_random_state, quick_fingerprint
from smidgen.runtime.loader import ResumableLoader
from smidgen.types import Batch
from smidgen.weights.affine.share import warn_of_little_covered
from smidgen.weights.subset import Subset, check_subset
from smidgen.weights.vector import SubsetIndex, find_parameters


def swag(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    subset: Subset,
    *,
    validation: Iterable[Batch] | None = None,
    settings: SwagSettings | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> SwagPosterior:
    """Collect a SWAG posterior over a subset of the weights.

    Args:
        model: The trained model, or its `Problem`; it is not changed.
        batches: Training batches; a loader that can be read again and again.
        subset: The weights that move: any entries of any parameters.
        validation: Labelled batches that choose among several rates, read once for each,
            and fit a regression's noise, read once more.
        settings: How SGD runs.
        seed: Seed of dropout and of the loader's generators, which are restored afterwards.
        checkpoint: A file to save to and to resume from, with the same result. It stays at
            the end: delete it once the posterior is saved.
        progress: Show a progress bar.

    Returns:
        The posterior, at temperature 1; `calibrate` chooses another. A regression's noise
        is fitted to the validation data, or without them to the training residuals at
        the posterior's mean.
    """
    settings = fill_settings(settings, SwagSettings)
    rates = settings.rates(choosing=validation is not None)
    check_subset(subset)
    problem = as_problem(model)
    find_parameters(problem.model, subset)
    warn_of_little_covered(problem.model, subset)
    loader = ResumableLoader(batches)
    with (
        loader.seeded(seed),
        preserve_random_state(problem.model, seeding=True),
        torch.enable_grad(),
    ):
        problem, first, _ = problem.on_shadow(dropout=settings.dropout).settle(batches)
        problem.require_labels(first)
        if subset.claims_last:
            check_last_layer(problem, first, subset)
        setting = Setting.of(problem, rank=settings.rank)
        refuse_too_large(SWAG_COSTS, problem, subset, settings.covariance, setting)
        collecting = _Collecting(problem, subset, settings, rates)
        # Values, velocity, two moments and the deviations, in fp32 or more.
        size = 4 * subset.size * (4 + settings.rank)
        run = TrainingRun(
            collecting, loader, lambda: collecting.describe(seed), checkpoint, size
        )
        torch.manual_seed(seed)
        run.resume()
        while collecting.trying:
            assert validation is not None
            collecting.try_rate(run, validation, progress)
        posterior = collecting.descend(run, settings.steps, progress)
        run.save()
        return collecting.fit_noise(posterior, batches, validation, seed)


class _Collecting:
    """The trials and the run after them, as one sequence that can be resumed."""

    def __init__(
        self,
        problem: SettledProblem,
        subset: Subset,
        settings: SwagSettings,
        rates: tuple[float, ...],
    ) -> None:
        self.problem, self.subset, self.settings = problem, subset, settings
        self.rates = rates
        self.scores: list[float] = []
        self.examples = 0
        self.sgd: Sgd | None = None

    @property
    def trying(self) -> bool:
        """Whether some rates have not been tried yet."""
        return len(self.rates) > 1 and len(self.scores) < len(self.rates)

    @property
    def rate(self) -> float:
        """The next rate to try, or the best one."""
        if self.trying:
            return self.rates[len(self.scores)]
        if len(self.rates) == 1:
            return self.rates[0]
        best = min(range(len(self.rates)), key=self.scores.__getitem__)
        if not isfinite(self.scores[best]):
            raise DataError(
                f"SGD diverged with every learning rate of {list(self.rates)}. Pass smaller "
                "ones."
            )
        return self.rates[best]

    def try_rate(
        self, run: TrainingRun, validation: Iterable[Batch], progress: bool
    ) -> None:
        """Record the validation NLL of a short run; infinite if it diverged."""
        settings, nll = self.settings, inf
        try:
            steps = min(settings.trial_steps, settings.steps)
            posterior = self.descend(run, steps, progress)
            held = held_out(self.problem, posterior, validation, samples=settings.samples)
            nll = held.nll(held.outputs, posterior.likelihood.scale)
            if isinstance(held.likelihood, Gaussian) and isfinite(nll):
                # Each rate under the noise that suits it: that is fitted in the end too.
                _, nll = held.best(held.outputs)
        except DivergedError:
            pass
        self.scores.append(nll if isfinite(nll) else inf)
        self.sgd = None
        run.save()

    def descend(self, run: TrainingRun, steps: int, progress: bool) -> SwagPosterior:
        """Run SGD from the trained weights, or continue it; fit a Gaussian to its snapshots."""
        if self.sgd is None:
            self.sgd = Sgd(self.problem, self.subset, self.settings, self.rate, steps)
        sgd = self.sgd
        label = f"trying rate {self.rate:g}" if self.trying else "collecting"
        every = self.settings.checkpoint_every
        for _, batch in run.steps(range(sgd.step, steps), label, every, progress):
            with self.problem.reading(batch, run.batches.position):
                count = sgd.take(batch)
            if run.batches.epoch == 0:
                self.examples += count
            else:
                require_labelled(self.examples)
        require_labelled(self.examples)
        mean, variance, deviations = sgd.snapshots.moments()
        return SwagPosterior(
            subset=self.subset,
            likelihood=self.problem.likelihood,
            mean=mean,
            variance=variance,
            deviations=deviations,
            fingerprint=fingerprint(self.problem.model),
            num_data=self.examples,
            snapshots=sgd.snapshots.count,
            learning_rate=self.rate,
            rates=tuple(zip(self.rates, self.scores, strict=False)),
        )

    def fit_noise(
        self,
        posterior: SwagPosterior,
        batches: Iterable[Batch],
        validation: Iterable[Batch] | None,
        seed: int,
    ) -> SwagPosterior:
        """Fit a regression's noise to validation data, or to the mean's training residuals."""
        likelihood, settings = posterior.likelihood, self.settings
        if not isinstance(likelihood, Gaussian):
            return posterior
        if validation is not None:
            held = held_out(self.problem, posterior, validation, samples=settings.samples)
            noise, _ = held.best(held.outputs)
        else:
            with ResumableLoader(batches).seeded(seed):
                torch.manual_seed(seed)
                # No more batches than SGD took: a stream may have no end.
                read = islice(batches, settings.steps)
                # At the mean: SGD may have gone far from where it started.
                parameters = find_parameters(self.problem.model, self.subset)
                index = SubsetIndex(self.subset, parameters)
                mean = index.replaced(parameters, posterior.mean)
                squares, rows = sum_squared_residuals(self.problem, read, mean)
            noise = float(squares.mean()) / max(rows, 1)
            if not noise > 0:
                raise DataError("all residuals are zero: there is no noise to fit.")
        return replace(posterior, likelihood=replace(likelihood, noise=noise))

    def describe(self, seed: int) -> dict[str, Any]:
        """What a checkpoint must match."""
        settings = asdict(self.settings)
        del settings["checkpoint_every"]
        return {
            **settings,
            "trial_steps": min(self.settings.trial_steps, self.settings.steps),
            "learning_rate": self.rates,
            "seed": seed,
            "model": quick_fingerprint(self.problem.model),
            "weights": self.subset.digest(),
            "likelihood": repr(self.problem.likelihood),
        }

    def state(self) -> dict[str, Tensor]:
        """All that the next step depends on."""
        return {
            "scores": torch.tensor(self.scores, dtype=torch.float64),
            "examples": torch.tensor(self.examples),
            **with_prefix("sgd", {} if self.sgd is None else self.sgd.state()),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from an earlier state."""
        self.scores = state["scores"].tolist()
        self.examples = int(state["examples"])
        if len(self.scores) > len(self.rates) or any(map(isnan, self.scores)):
            raise StoreError(f"{len(self.rates)} rates cannot have these scores")
        interrupted = of_prefix("sgd", state)
        if interrupted:
            settings = self.settings
            steps = min(settings.trial_steps, settings.steps)
            steps = steps if self.trying else settings.steps
            self.sgd = Sgd(self.problem, self.subset, settings, self.rate, steps)
            self.sgd.restore(interrupted)
