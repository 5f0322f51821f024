"""What `--method swag` adds to commands: its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import typer

from smidgen.cli.lists import numbers
from smidgen.errors import ArgumentError
from smidgen.fit.swag import SwagOptions

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
# Options that one method has and the other has not, with their defaults.
_OF_LAPLACE = {
    "structure": None,
    "tune": "joint",
    "scope": "auto",
    "approximation": "reduce",
    "percents": None,
    "repeats": 5,
    "most_stochastic": 0.1,
    "save": None,
}
_OF_SWAG = {
    "steps": 2000,
    "every": 5,
    "rank": 20,
    "rates": None,
    "trial_steps": 400,
    "samples": 32,
    "fractions": None,
}


def refuse_unused(method: str, given: Mapping[str, object]) -> None:
    """Refuse options that the method would not look at.

    Args:
        method: The method.
        given: All options of a command by their names in Python.

    Raises:
        ArgumentError: If one of the other method's is not at its default.
    """
    others = _OF_SWAG if method == "laplace" else _OF_LAPLACE
    for name, default in others.items():
        if given.get(name, default) != default:
            option = {"rates": "rate"}.get(name, name.replace("_", "-"))
            raise ArgumentError(
                f"--{option} is not for --method {method}, got {given[name]}. Leave it out."
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
