"""Calibrate prediction by draws: choose a temperature, or a regression's noise.

The outputs of the draws are computed once; each candidate then costs an average over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import log, pi
from typing import TypeVar

import torch
from torch import Tensor

from smidgen.errors import DataError, DivergedError, warn
from smidgen.fit.calibration.brent import minimize
from smidgen.fit.calibration.objective import best_temperatures
from smidgen.fit.calibration.temperature import warn_if_extreme
from smidgen.outputs.batches import as_batches, in_batch
from smidgen.outputs.likelihood import Bernoulli, Gaussian, Likelihood
from smidgen.outputs.problem import SettledProblem
from smidgen.outputs.temperature_curve import NllCurve
from smidgen.posterior.base import SAMPLES, Posterior, SampleCalibration
from smidgen.posterior.sampling import sampled_outputs
from smidgen.runtime.guard import preserve_random_state
from smidgen.types import Batch

_Kind = TypeVar("_Kind", bound=Posterior)

# How many nats a noise variance may differ from the mean squared residual.
_WIDEST = 5.0
# Draws that do worse than the point estimate by more nats an example get a warning.
_WORSE = 0.1


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Outputs of held-out examples under draws (S, N, C) and of the point (1, N, C)."""

    likelihood: Likelihood
    outputs: Tensor
    point: Tensor
    targets: Tensor

    def nll(self, outputs: Tensor, scale: float) -> float:
        """Compute the mean NLL of the draws' mixture at a temperature or noise."""
        return float(_curve(self.likelihood, outputs, self.targets)(scale))

    def best(self, outputs: Tensor) -> tuple[float, float]:
        """Find the best temperature or noise, and its NLL."""
        curve = _curve(self.likelihood, outputs, self.targets)

        def score(scales: Tensor) -> Tensor:
            return torch.stack([curve(float(scale)) for scale in scales])

        if not isinstance(self.likelihood, Gaussian):
            found = best_temperatures(NllCurve(score), 1, len(self.targets))
            temperature, nll = found.flatten().tolist()
            return temperature, nll
        residuals = self.likelihood.squares(outputs.mean(0), self.targets).mean()
        if not residuals > 0:
            raise DataError("all residuals are zero: there is no noise to fit.")
        middle = residuals.log().double().reshape(1)
        ends = (middle - _WIDEST, middle + _WIDEST)
        noise = float(minimize(lambda logs: score(logs.exp()), *ends).exp())
        return noise, float(curve(noise))


def held_out(
    problem: SettledProblem,
    posterior: Posterior,
    validation: Iterable[Batch],
    *,
    samples: int = SAMPLES,
    seed: int = 0,
) -> HeldOut:
    """Run the labelled examples under draws of the weights and under the point estimate."""
    outputs, points, targets = [], [], []
    base = replace(problem, model=posterior.point_model(problem.model)).on_shadow()
    batches = as_batches(validation)
    runs = sampled_outputs(problem, posterior, batches, samples=samples, seed=seed)
    for number, (batch, drawn) in enumerate(runs, 1):
        with in_batch(number):
            base.require_labels(batch, "validation")
            with preserve_random_state(base.model), torch.no_grad():
                point = base.outputs(batch).flatten(0, -2).double().cpu()
            labels, labelled = base.read(batch, point)
            if not torch.isfinite(drawn).all():
                raise DivergedError(
                    f"the outputs of {posterior.method}'s draws contain NaN or infinity. Fit "
                    "it with a smaller learning rate, or fewer steps."
                )
        assert labels is not None
        outputs.append(drawn[:, labelled])
        points.append(point[None, labelled])
        targets.append(labels[labelled])
    if not sum(map(len, targets)):
        raise DataError(
            "the validation loader yielded no labelled example. Check its length and labels."
        )
    tensors = torch.cat(outputs, 1), torch.cat(points, 1), torch.cat(targets)
    return HeldOut(posterior.likelihood, *tensors)


def calibrate_from_outputs(posterior: _Kind, held: HeldOut) -> _Kind:
    """Choose the temperature or noise of a posterior from its outputs on held-out data."""
    likelihood = posterior.likelihood
    scale, nll = held.best(held.outputs)
    map_scale, map_scaled_nll = held.best(held.point)
    before = map_scale if isinstance(likelihood, Gaussian) else 1.0
    calibration = SampleCalibration(
        nll=held.nll(held.outputs, before),
        chosen_nll=nll,
        map_nll=held.nll(held.point, before),
        map_scale=map_scale,
        map_scaled_nll=map_scaled_nll,
        examples=len(held.targets),
        samples=len(held.outputs),
    )
    if nll > map_scaled_nll + _WORSE:
        warn(
            f"the NLL of {posterior.method}'s draws on the validation data is {nll:.3f}, "
            f"that of the point estimate {map_scaled_nll:.3f}, both rescaled: the draws have "
            "left what was learned. Fit it with a smaller learning rate, or fewer steps."
        )
    if isinstance(likelihood, Gaussian):
        likelihood = replace(likelihood, noise=scale)
        return replace(posterior, likelihood=likelihood, calibration=calibration)
    warn_if_extreme(scale)
    return replace(posterior, temperature=scale, calibration=calibration)


def _curve(
    likelihood: Likelihood, outputs: Tensor, targets: Tensor
) -> Callable[[float], Tensor]:
    """Prepare the mean NLL as a function of the scale: what that leaves alone is done once."""
    if isinstance(likelihood, Gaussian):
        # The predictive is N(mean, variance of the draws + noise).
        ratios = likelihood.ratios(outputs[0])
        spread = outputs.var(0, correction=1) if len(outputs) > 1 else outputs[0] * 0
        squares = likelihood.squares(outputs.mean(0), targets)

        def gaussian(noise: float) -> Tensor:
            variance = spread + noise * ratios
            terms = squares * ratios / variance + variance.log() + log(2 * pi)
            return 0.5 * terms.sum(-1).mean()

        return gaussian

    labels = 1
    if isinstance(likelihood, Bernoulli):
        # Probabilities are averaged label by label, so each counts as an example.
        labels = likelihood.outputs
        outputs, targets = outputs.flatten(1)[..., None], targets.flatten()[:, None]

    mean = outputs.mean(0)

    def mixture(temperature: float) -> Tensor:
        # As `divide_mean` does, one draw at a time.
        shift = mean * (1 / temperature - 1)
        logs = torch.stack([likelihood.log_prob(o + shift, targets) for o in outputs])
        return labels * (log(len(outputs)) - logs.logsumexp(0).mean())

    return mixture
