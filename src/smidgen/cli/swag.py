"""What `--method swag` adds to commands: its options and its fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer
from torch import nn

import smidgen
from smidgen.cli.lists import numbers
from smidgen.errors import ArgumentError
from smidgen.fit.swag import SwagOptions
from smidgen.types import Batch

Method = Annotated[
    Literal["laplace", "swag"], typer.Option(help="Which posterior over the subset.")
]
Steps = Annotated[int, typer.Option(min=1, help="SWAG: steps of SGD.")]
Every = Annotated[int, typer.Option(min=1, help="SWAG: steps between snapshots.")]
Rank = Annotated[int, typer.Option(min=2, help="SWAG: deviations kept.")]
Rates = Annotated[
    list[str] | None,
    typer.Option("--rate", help="SWAG: learning rates to choose from, 0.01,0.05."),
]
TrialSteps = Annotated[int, typer.Option(min=1, help="SWAG: steps for each rate tried.")]
Samples = Annotated[int, typer.Option(min=2, help="SWAG: samples of the weights.")]
# Options that one method has and the other has not, by their names in Python.
_OF_LAPLACE = (
    "structure",
    "tune",
    "scope",
    "approximation",
    "percents",
    "repeats",
    "most_stochastic",
    "save",
)
_OF_SWAG = ("steps", "every", "rank", "rates", "trial_steps", "samples", "fractions")
CHECKPOINT_EVERY = 50
"""Steps between checkpoints."""


def refuse_unused(method: str, context: typer.Context) -> None:
    """Refuse options that the method would not look at.

    Args:
        method: The method.
        context: The command as it was given.

    Raises:
        ArgumentError: If one of the other method's was given.
    """
    others = _OF_SWAG if method == "laplace" else _OF_LAPLACE
    for name in others:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            option = {"rates": "rate"}.get(name, name.replace("_", "-"))
            raise ArgumentError(
                f"--{option} is not for --method {method}, got {context.params[name]}. "
                "Leave it out."
            )


def options(
    steps: int,
    every: int,
    rank: int,
    rates: list[str] | None,
    trial_steps: int,
    samples: int,
) -> SwagOptions:
    """Read the options.

    Args:
        steps: Steps of SGD.
        every: Steps between snapshots.
        rank: Deviations kept.
        rates: Learning rates, repeated or with commas between.
        trial_steps: Steps for each rate tried.
        samples: Samples of the weights.

    Returns:
        The options.
    """
    found = numbers("--rate", rates, float("inf"), "0.01,0.05") or None
    return SwagOptions(found, steps, every, rank, trial_steps, samples)


def collect(
    network: nn.Module,
    train: Iterable[Batch],
    validation: Iterable[Batch],
    subset: smidgen.Subset,
    given: SwagOptions,
    seed: int,
    folder: Path,
    say: Callable[[str], None],
) -> smidgen.SwagPosterior:
    """Collect a posterior and tune what goes with its samples.

    Args:
        network: The trained model.
        train: Shuffled training batches.
        validation: Held-out batches that choose rate and temperature.
        subset: The weights that move.
        given: The options.
        seed: Seed of dropout and order.
        folder: Where the posterior will go; the state of the run is kept beside it, and
            an interrupted one is taken up from there.
        say: Prints a step.

    Returns:
        The tuned posterior.
    """
    checkpoint = _checkpoint(folder)
    if checkpoint.exists():
        say(f"Going on from {checkpoint}")
    posterior = smidgen.fit.swag(
        network,
        train,
        subset,
        validation=validation,
        **given.arguments(),
        seed=seed,
        checkpoint=checkpoint,
        checkpoint_every=CHECKPOINT_EVERY,
    )
    say("Tuning the temperature on held-out texts")
    return smidgen.fit.tune_samples(posterior, network, validation, samples=given.samples)


def forget(folder: Path, method: str, say: Callable[[str], None]) -> None:
    """Drop the state of a run whose posterior is saved, and say where that is."""
    if method == "swag":
        _checkpoint(folder).unlink(missing_ok=True)
    say(f"Saved the posterior to {folder}")


def _checkpoint(folder: Path) -> Path:
    whole = folder.resolve()
    return whole.with_name(f"{whole.name}.checkpoint")
