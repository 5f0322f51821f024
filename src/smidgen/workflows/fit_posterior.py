"""From a subset to a saved, calibrated posterior, whichever method fits it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

from torch import nn

from smidgen import fit
from smidgen.fit.calibration.calibrate import calibrate
from smidgen.posterior.base import Posterior
from smidgen.posterior.store import save
from smidgen.types import Batch
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
    overwrite: bool = False


def takes(method: str, argument: str) -> bool:
    """Return whether the fit of a method takes an argument; one that trains, validation."""
    return argument in signature(getattr(fit, method)).parameters


def fit_posterior(
    model: nn.Module,
    train: Iterable[Batch],
    validation: Iterable[Batch],
    subset: Subset,
    choices: FitChoices,
    *,
    say: Callable[[str], None],
    progress: bool = True,
) -> Posterior:
    """Fit a posterior over a subset, calibrate it on held-out data, and save it."""
    function = getattr(fit, choices.method)
    folder = choices.folder.resolve()
    arguments = {**choices.arguments, "progress": progress}
    # A method that trains resumes from the checkpoint beside its folder.
    checkpoint = folder.with_name(f"{folder.name}.checkpoint")
    offered = {"validation": validation, "checkpoint": checkpoint}
    arguments |= {n: value for n, value in offered.items() if takes(choices.method, n)}
    if "checkpoint" in arguments and checkpoint.exists():
        say(f"Resuming from {checkpoint}")
    posterior: Posterior = function(model, train, subset, **arguments)
    say("Calibrating on held-out data")
    posterior = calibrate(
        posterior, model, validation, **choices.calibration, progress=progress
    )
    save(posterior, choices.folder, overwrite=choices.overwrite)
    checkpoint.unlink(missing_ok=True)
    say(f"Saved the posterior to {choices.folder}")
    return posterior
