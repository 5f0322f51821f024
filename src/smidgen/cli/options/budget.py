"""What the choice among posteriors may cost: options of `smidgen fit`, where it chooses."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from smidgen.errors import ArgumentError
from smidgen.runtime.memory import read_bytes
from smidgen.workflows.bayesify.settings import BayesifySettings

PANEL = "What the choice may cost"
Memory = Annotated[
    str | None,
    Option(
        metavar="BYTES",
        help="Leave out posteriors that would take more to store, such as 50MB or 200kB.",
        rich_help_panel=PANEL,
    ),
]
Seconds = Annotated[
    float | None,
    Option(
        help="Leave out posteriors with which both passes over the data would take longer, by "
        "the time of a first batch.",
        rich_help_panel=PANEL,
    ),
]


def read_budget(
    memory: str | None, seconds: float | None, *, by_hand: bool
) -> BayesifySettings:
    """Read both limits; where one posterior is fitted by hand, nothing is left out.

    Args:
        memory: The most bytes, as they were typed.
        seconds: About how long it may take.
        by_hand: Whether other options say which posterior to fit.

    Returns:
        The settings of the choice.

    Raises:
        ArgumentError: If a limit makes no sense, or nothing is chosen.
    """
    for option, value in (("--memory", memory), ("--seconds", seconds)):
        if by_hand and value is not None:
            raise ArgumentError(
                f"{option} must be left out where options say which posterior to fit, got "
                f"{value}. It is for the choice among several."
            )
    most = None if memory is None else read_bytes("--memory", memory)
    if seconds is not None and not 0 < seconds < float("inf"):
        raise ArgumentError(f"--seconds must be above 0, got {seconds:g}. Try 60.")
    return BayesifySettings(memory=most, seconds=seconds)
