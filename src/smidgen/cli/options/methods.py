"""Which posterior to fit, and the options that only one method has."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from smidgen.cli.completion.table import offer
from smidgen.cli.options.lists import read_numbers, require_one_of
from smidgen.errors import ArgumentError
from smidgen.posterior.registry import POSTERIORS
from smidgen.workflows.ramp.swag import SwagOptions

Method = Annotated[
    str,
    Option(
        metavar="NAME",
        callback=require_one_of(POSTERIORS),
        autocompletion=offer(POSTERIORS),
        help=f"How to fit the posterior: {', '.join(POSTERIORS)}.",
    ),
]
Steps = Annotated[int, Option(min=1, help="SWAG: number of SGD steps.")]
Every = Annotated[int, Option(min=1, help="SWAG: steps from one snapshot to the next.")]
Rank = Annotated[
    int,
    Option(
        min=2, help="SWAG: rank of the covariance, which is the number of snapshots kept."
    ),
]
Rates = Annotated[
    list[str] | None,
    Option("--rate", help="SWAG: learning rates to try, such as 0.01,0.05."),
]
TrialSteps = Annotated[
    int, Option(min=1, help="SWAG: SGD steps to try each learning rate with.")
]
Samples = Annotated[int, Option(min=2, help="SWAG: weight samples to predict with.")]
Density = Annotated[
    float | None,
    Option(
        help="SSVI: fraction of every layer's weights that are active, the largest first; "
        "in place of --select and a size.",
    ),
]
# The options that only one method has, by their names in Python.
_OPTIONS = {
    "laplace": (
        "structure",
        "isotropic_body",
        "calibrate",
        "scope",
        "approximation",
        "exact",
        "percents",
        "repeats",
        "most_stochastic",
        "save",
    ),
    "swag": ("steps", "every", "rank", "rates", "trial_steps", "samples", "fractions"),
    "ssvi": ("density",),
}


def refuse_unused(method: str, context: typer.Context) -> None:
    """Refuse options that the method would ignore."""
    for other, names in _OPTIONS.items():
        for name in names if other != method else ():
            source = context.get_parameter_source(name)
            if source is not None and source.name != "DEFAULT":
                option = {"rates": "rate"}.get(name, name.replace("_", "-"))
                raise ArgumentError(
                    f"--{option} is not for --method {method}, got "
                    f"{context.params[name]}. Leave it out."
                )


def check_density(density: float | None, context: typer.Context) -> None:
    """Refuse a density that makes no sense, or beside another choice of weights."""
    if density is None:
        return
    if not 0 < density <= 1:
        raise ArgumentError(f"--density must be in (0, 1], got {density:g}. Try 0.05.")
    for name in ("select", "size", "percent", "fraction", "count", "pattern"):
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise ArgumentError(
                f"--{name} must be left out beside --density, got {context.params[name]}. "
                "Say in one way which weights are active."
            )


def read_swag_options(
    steps: int,
    every: int,
    rank: int,
    rates: list[str] | None,
    trial_steps: int,
    samples: int,
) -> SwagOptions:
    """Put the options of SWAG together; learning rates may be separated by commas."""
    numbers = read_numbers("--rate", rates, float("inf"), "0.01,0.05") or None
    return SwagOptions(numbers, steps, every, rank, trial_steps, samples)
