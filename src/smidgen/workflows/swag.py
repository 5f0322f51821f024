"""SWAG over chosen weights; its state is kept beside the folder of its posterior."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from torch import nn

from smidgen import fit
from smidgen.fit.calibration.calibrate import calibrate
from smidgen.fit.swag import SwagOptions
from smidgen.posterior.base import Posterior
from smidgen.posterior.store import save
from smidgen.posterior.swag import SwagPosterior
from smidgen.types import Batch
from smidgen.weights.subset import Subset

CHECKPOINT_EVERY = 50
"""Steps between checkpoints."""


def collect(
    network: nn.Module,
    train: Iterable[Batch],
    validation: Iterable[Batch],
    subset: Subset,
    *,
    options: SwagOptions,
    seed: int,
    folder: Path,
    say: Callable[[str], None],
    progress: bool = True,
) -> SwagPosterior:
    """Collect a posterior and tune what goes with its samples.

    Args:
        network: The trained model.
        train: Shuffled training batches.
        validation: Held-out batches that choose rate and temperature.
        subset: The weights that move.
        options: How it is collected.
        seed: Seed of dropout and order.
        folder: Where the posterior will go; the state of the run is kept beside it, and
            an interrupted one is taken up from there.
        say: Told each step in a few words.
        progress: Draw progress bars; in a log, a line a minute.

    Returns:
        The tuned posterior.
    """
    checkpoint = _checkpoint(folder)
    if checkpoint.exists():
        say(f"Going on from {checkpoint}")
    posterior = fit.swag(
        network,
        train,
        subset,
        validation=validation,
        **options.arguments(),
        seed=seed,
        checkpoint=checkpoint,
        checkpoint_every=CHECKPOINT_EVERY,
        progress=progress,
    )
    say("Calibrating the temperature on held-out texts")
    return calibrate(
        posterior, network, validation, samples=options.samples, progress=progress
    )


def keep(
    posterior: Posterior,
    folder: Path,
    say: Callable[[str], None],
    *,
    overwrite: bool,
) -> None:
    """Save a posterior, and drop the state that would have gone on with it.

    Args:
        posterior: Of any kind.
        folder: Where it goes.
        say: Told where it is.
        overwrite: Replace a posterior that is there.
    """
    save(posterior, folder, overwrite=overwrite)
    _checkpoint(folder).unlink(missing_ok=True)
    say(f"Saved the posterior to {folder}")


def _checkpoint(folder: Path) -> Path:
    whole = folder.resolve()
    return whole.with_name(f"{whole.name}.checkpoint")
