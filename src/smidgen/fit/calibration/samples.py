"""What goes with prediction by weight samples: a temperature, or a regression's noise.

The samples' outputs are computed once; a candidate then costs an average over them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import log, pi

import torch
from torch import Tensor, nn

from smidgen.errors import DataError, SmidgenWarning
from smidgen.fit.calibration.golden_section import minimize
from smidgen.fit.calibration.objective import best_temperatures
from smidgen.fit.calibration.temperature import mention_edge
from smidgen.outputs.likelihood import Bernoulli, Gaussian, Likelihood
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.posterior.laplace import Posterior
from smidgen.posterior.sampling import SAMPLES, sampled_outputs
from smidgen.posterior.swag import SampleTuning, SwagPosterior
from smidgen.runtime.guard import preserve_model
from smidgen.runtime.progress import track
from smidgen.types import Batch

# How far in nats a noise variance may be from the mean squared residual.
_WIDEST = 5.0
# Nats for each example by which samples may do worse than the trained weights unmentioned.
_WORSE = 0.1


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Outputs of held-out examples under samples (S, N, C) and of the point (1, N, C)."""

    likelihood: Likelihood
    outputs: Tensor
    point: Tensor
    targets: Tensor

    def nll(self, outputs: Tensor, scale: float) -> float:
        """Mean NLL of the samples' mixture, its temperature or noise being `scale`."""
        return float(_curve(self.likelihood, outputs, self.targets)(scale))

    def best(self, outputs: Tensor) -> tuple[float, float]:
        """The best scale and its NLL."""
        curve = _curve(self.likelihood, outputs, self.targets)

        def score(scales: Tensor) -> Tensor:
            return torch.stack([curve(float(each)) for each in scales])

        if not isinstance(self.likelihood, Gaussian):
            temperature, nll = best_temperatures(score, 1).flatten().tolist()
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
    generator: torch.Generator | None = None,
) -> HeldOut:
    """Run held-out data under samples of the weights and under the trained ones.

    Args:
        problem: The problem, its likelihood settled.
        posterior: Any posterior of its model.
        validation: Labelled batches, read once.
        samples: How many samples.
        generator: Source of the samples; a fixed seed if left out.

    Returns:
        The outputs of the examples that have a label.

    Raises:
        DataError: If there is no labelled example.
    """
    outputs, points, targets = [], [], []
    runs = sampled_outputs(
        problem, posterior, validation, samples=samples, generator=generator
    )
    for batch, found in runs:
        with preserve_model(problem.model), torch.no_grad():
            point = problem.outputs(batch).flatten(0, -2).double().cpu()
        wanted, kept = problem.read(batch, point)
        if wanted is None:
            raise DataError("validation needs labels, and a batch has none.")
        outputs.append(found[:, kept])
        points.append(point[None, kept])
        targets.append(wanted[kept])
    if not sum(map(len, targets)):
        raise DataError("the validation loader yielded no labelled example.")
    likelihood = posterior.likelihood
    return HeldOut(
        likelihood, torch.cat(outputs, 1), torch.cat(points, 1), torch.cat(targets)
    )


def tune_samples(
    posterior: SwagPosterior,
    model: nn.Module | Problem,
    validation: Iterable[Batch],
    *,
    samples: int = SAMPLES,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> SwagPosterior:
    """Choose the temperature, or a regression's noise, that goes with weight samples.

    Args:
        posterior: The posterior.
        model: The model, or its `Problem`. It is left as it was.
        validation: Labelled batches that neither trained the model nor will test it.
        samples: Samples of the weights.
        generator: Source of the samples; a fixed seed if left out.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        The posterior with its best temperature or noise, and how it was chosen.
    """
    problem = as_problem(model).with_likelihood(posterior.likelihood)
    followed = track(validation, "tuning", show=progress)
    found = held_out(problem, posterior, followed, samples=samples, generator=generator)
    return tuned_by(posterior, found)


def tuned_by(posterior: SwagPosterior, found: HeldOut) -> SwagPosterior:
    """Choose by outputs that are there already."""
    likelihood = posterior.likelihood
    scale, nll = found.best(found.outputs)
    map_scale, map_scaled_nll = found.best(found.point)
    before = map_scale if isinstance(likelihood, Gaussian) else 1.0
    tuning = SampleTuning(
        nll=found.nll(found.outputs, before),
        chosen_nll=nll,
        map_nll=found.nll(found.point, before),
        map_scale=map_scale,
        map_scaled_nll=map_scaled_nll,
        examples=len(found.targets),
        samples=len(found.outputs),
    )
    _mention_worse(tuning)
    if isinstance(likelihood, Gaussian):
        likelihood = replace(likelihood, noise=scale)
        return replace(posterior, likelihood=likelihood, tuning=tuning)
    mention_edge(scale)
    return replace(posterior, temperature=scale, tuning=tuning)


def _mention_worse(tuning: SampleTuning) -> None:
    """Warn that SGD has left what was learned."""
    if tuning.chosen_nll > tuning.map_scaled_nll + _WORSE:
        warnings.warn(
            f"SWAG's NLL on the validation data is {tuning.chosen_nll:.3f}, that of the "
            f"trained weights {tuning.map_scaled_nll:.3f}, both rescaled: SGD has left "
            "them. Pass smaller learning rates, or fewer steps.",
            SmidgenWarning,
            stacklevel=4,
        )


def _curve(
    likelihood: Likelihood, outputs: Tensor, targets: Tensor
) -> Callable[[float], Tensor]:
    """Mean NLL as a function of the scale; what it does not change is done once."""
    if isinstance(likelihood, Gaussian):
        # The predictive is N(mean, variance of the samples + noise).
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

    def mixture(temperature: float) -> Tensor:
        each = torch.stack([likelihood.log_prob(o / temperature, targets) for o in outputs])
        return labels * (log(len(outputs)) - each.logsumexp(0).mean())

    return mixture
