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
    """Which method fits a posterior, how, and where it goes.

    Args:
        method: A method of the registry of posteriors.
        folder: Where the posterior is saved. A method that trains keeps its checkpoint
            beside it, and resumes from there after an interruption.
        arguments: What `smidgen.fit.<method>` takes; arguments it lacks are ignored.
        calibration: What `smidgen.calibrate` takes.
        overwrite: Whether to replace a posterior that is there.
    """

    method: str
    folder: Path
    arguments: Mapping[str, Any] = field(default_factory=dict)
    calibration: Mapping[str, Any] = field(default_factory=dict)
    overwrite: bool = False


def trains(method: str) -> bool:
    """Say whether the fit of a method trains, and so wants shuffled batches."""
    return "validation" in signature(getattr(fit, method)).parameters


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
    """Fit a posterior over a subset, calibrate it on held-out data, and save it.

    Args:
        model: The trained model.
        train: Training batches, shuffled where the method trains.
        validation: Held-out batches.
        subset: The stochastic weights.
        choices: The method, its settings and the folder.
        say: Called with a description of each step.
        progress: Show progress bars.

    Returns:
        The calibrated posterior.
    """
    function = getattr(fit, choices.method)
    checkpoint = _checkpoint_beside(choices.folder)
    available = {
        "validation": validation,
        "checkpoint": checkpoint,
        "progress": progress,
        **choices.arguments,
    }
    known = signature(function).parameters
    if "checkpoint" in known and checkpoint.exists():
        say(f"Resuming from {checkpoint}")
    arguments = {name: value for name, value in available.items() if name in known}
    # A method that trains may choose its subset itself, and then takes none.
    taken = [subset] if "subset" in known else []
    posterior: Posterior = function(model, train, *taken, **arguments)
    say("Calibrating on held-out data")
    posterior = calibrate(
        posterior, model, validation, **choices.calibration, progress=progress
    )
    save(posterior, choices.folder, overwrite=choices.overwrite)
    checkpoint.unlink(missing_ok=True)
    say(f"Saved the posterior to {choices.folder}")
    return posterior


def _checkpoint_beside(folder: Path) -> Path:
    folder = folder.resolve()
    return folder.with_name(f"{folder.name}.checkpoint")
