"""What `--method swag` adds to commands: its options."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from smidgen.cli.options.lists import numbers
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
