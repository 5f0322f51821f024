"""From a subset to a saved, calibrated posterior, whichever method fits it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

from torch import nn

import smidgen.fit as fit
from smidgen.curvature.dry_run import ActivationTrace
from smidgen.curvature.factors.low_rank import TOLERANCE
from smidgen.curvature.operators import Isotropic
from smidgen.curvature.output_layers import peek
from smidgen.fit.calibration.calibrate import calibrate
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.base import Posterior
from smidgen.posterior.cost.model import Setting
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.registry import POSTERIORS
from smidgen.posterior.store import save
from smidgen.runtime.guard import preserve_random_state
from smidgen.types import Batch
from smidgen.weights.blocks import find_body
from smidgen.weights.subset import Subset

CHECKPOINT_EVERY = 50
"""Steps between checkpoints."""


@dataclass(frozen=True)
class FitChoices:
    """Which method fits a posterior, how, and where it is saved."""

    method: str
    folder: Path
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of `smidgen.fit.<method>`
    calibration: Mapping[str, Any] = field(default_factory=dict)  # of `smidgen.calibrate`
    tolerance: float | None = TOLERANCE  # of Laplace's variances when saved; None for exact
    checkpoint: Path | None = None  # where a method that trains resumes; it stays there
    overwrite: bool = False
    isotropic_body: bool = False  # whether the layers left out join, without curvature


def takes(method: str, argument: str) -> bool:
    """Return whether the fit of a method takes an argument; one that trains, validation."""
    return argument in signature(getattr(fit, method)).parameters


def estimate_size(model: nn.Module, subset: Subset, choices: FitChoices) -> int:
    """Estimate what the saved posterior will take, as `smidgen.plan` does; 0 if unknown."""
    costs = POSTERIORS[choices.method].costs
    if costs is None:
        return 0
    settings = choices.arguments.get("settings")
    # Neither the outputs nor the batches matter to what is stored.
    setting = Setting.of(
        as_problem(model).with_likelihood(Categorical(2)),
        rank=getattr(settings, "rank", 0) or 0,
    )
    usual = getattr(settings, costs.option, costs.forms[0])
    form = str(choices.arguments.get(costs.option, usual))
    return costs.cost(model, subset, form, ActivationTrace(1, 0), setting).stored_bytes


def fit_posterior(
    model: nn.Module | Problem,
    train: Iterable[Batch],
    validation: Iterable[Batch],
    subset: Subset | None,
    choices: FitChoices,
    *,
    say: Callable[[str], None],
    progress: bool = True,
) -> Posterior:
    """Fit a posterior over a subset, calibrate it on held-out data, and save it."""
    # Without a subset the method chooses the weights itself, by its settings.
    network = as_problem(model).model
    body = None
    if choices.isotropic_body:
        assert subset is not None
        body = find_body(network, subset)
    if body is not None:
        with preserve_random_state(network):
            first, train = peek(train)
    function = getattr(fit, choices.method)
    arguments = {**choices.arguments, "progress": progress}
    offered = {"validation": validation, "checkpoint": choices.checkpoint}
    arguments |= {n: value for n, value in offered.items() if takes(choices.method, n)}
    state = arguments.get("checkpoint")
    if state is not None and state.exists():
        say(f"Resuming from {state}")
    posterior: Posterior = function(model, train, subset, **arguments)
    if body is not None:
        assert isinstance(posterior, LaplacePosterior)
        # A batch shows which layers mix examples; and what was fitted knows the likelihood.
        settled = as_problem(model).with_likelihood(posterior.likelihood)
        posterior |= fit.laplace(
            settled, [first], body, structure=Isotropic.structure, progress=False
        )
    say("Calibrating on held-out data")
    posterior = calibrate(
        posterior, model, validation, **choices.calibration, progress=progress
    )
    if isinstance(posterior, LaplacePosterior) and choices.tolerance is not None:
        # At the precision just chosen, few eigenvectors matter.
        posterior = posterior.compress(choices.tolerance)
    save(posterior, choices.folder, overwrite=choices.overwrite)
    say(f"Saved the posterior to {choices.folder}")
    return posterior
