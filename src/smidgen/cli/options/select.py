"""Which weights a command is to treat: options, what they may be together, the subset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer
from torch import Tensor, nn

import smidgen
from smidgen.curvature.kronecker import Approximation
from smidgen.curvature.operators import STRUCTURES
from smidgen.errors import ArgumentError
from smidgen.fit.bayestune.langevin import chain_course
from smidgen.select import SELECTORS, Selector
from smidgen.types import Batch

_DEFAULT_SIZES = {"percent": 10, "fraction": 0.01, "count": 1}
_STAND_INS = {"percent": "sparse-kfac-random", "fraction": "random-weights"}


def _known(name: str) -> str:
    if name not in SELECTORS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(SELECTORS)}.")
    return name


Structure = Literal["kron", "ekfac", "diag", "full"]
SelectorName = Annotated[
    str,
    typer.Option(
        metavar="NAME", callback=_known, help=f"Which weights: {', '.join(SELECTORS)}."
    ),
]
Size = Annotated[
    float | None, typer.Option(help="Percent, fraction or count, as the selector has it.")
]
Percent = Annotated[
    float | None, typer.Option(help="Percent of rows and of columns; 10 if left out.")
]
Fraction = Annotated[
    float | None, typer.Option(help="Share of single weights; 0.01 if left out.")
]
Count = Annotated[int | None, typer.Option(help="How many modules; 1 if left out.")]
Patterns = Annotated[
    list[str] | None,
    typer.Option("--pattern", help="Parameter names for 'named'; may be repeated."),
]
Seed = Annotated[int, typer.Option(help="Seed of a random choice.")]
GivenStructure = Annotated[
    Structure | None,
    typer.Option(help="How the curvature is kept; kron, or diag for single weights."),
]
GivenApproximation = Annotated[
    Approximation, typer.Option(help="How positions share weights.")
]


@dataclass(frozen=True)
class Wanted:
    """A selector with its size and what else it needs."""

    selector: Selector
    size: float | None
    patterns: tuple[str, ...]
    seed: int

    def subset(
        self, network: nn.Module, batches: Iterable[Batch], say: Callable[[str], None]
    ) -> smidgen.Subset:
        """Choose the weights of a model.

        Args:
            network: The trained model.
            batches: Its training batches, for selectors that score by data.
            say: Prints a step.

        Returns:
            The subset.
        """
        needs = self.selector.needs
        if needs & {"batches", "scores"}:
            say(f"Scoring the weights for {self.selector.name}")
        return smidgen.select.choose(
            self.selector.name,
            network,
            size=self.size,
            batches=batches,
            seed=self.seed,
            scores=self._scores(network, batches) if "scores" in needs else None,
            patterns=self.patterns,
        )

    def planned(self, network: nn.Module) -> smidgen.Subset:
        """Choose as many weights, for a plan: without data, if need be without values.

        Args:
            network: The model, or one without values from its config.

        Returns:
            The subset; random rows and columns, or random weights, stand in for those
            that only data would tell.

        Raises:
            ArgumentError: If the selector compares values that are not there.
        """
        name, size = self.selector.name, self.selector.size
        bare = any(each.is_meta for each in network.parameters())
        if bare and size == "count":
            raise ArgumentError(
                f"--select {name} looks at the weights, got a model without them. Give a "
                "model folder that has them and leave out --no-time."
            )
        if size in _STAND_INS and (bare or self.selector.needs & {"batches", "scores"}):
            name = _STAND_INS[size]
        return smidgen.select.choose(
            name,
            network,
            size=self.size,
            seed=self.seed,
            patterns=self.patterns,
        )

    def _scores(self, network: nn.Module, batches: Iterable[Batch]) -> dict[str, Tensor]:
        """Make the scores that a selector takes as values."""
        if self.selector.name == "variance":
            from smidgen.workflows.variances import marginal_variances

            return marginal_variances(network, batches, progress=True)
        # A short chain will do from weights that are trained already.
        course = asdict(chain_course(steps=100, samples=10))
        return smidgen.fit.langevin(
            network, batches, head="none", **course, seed=self.seed
        ).means

    def structure(self, given: Structure | None) -> str:
        """Settle how the curvature is kept.

        Args:
            given: What was asked for, if anything.

        Returns:
            That; or "kron", and "diag" for single weights.

        Raises:
            ArgumentError: If a structure that needs rows × columns is asked for.
        """
        if given is None:
            return "diag" if self.selector.scattered else "kron"
        if self.selector.scattered and not STRUCTURES[given].scattered:
            able = [name for name, kind in STRUCTURES.items() if kind.scattered]
            raise ArgumentError(
                f"--structure must be {' or '.join(able)} for --select "
                f"{self.selector.name}, which chooses single weights, got {given}. Leave "
                f"it out for {self.structure(None)}."
            )
        return given


def wanted(
    name: str,
    *,
    sizes: dict[str, float | None],
    patterns: list[str] | None,
    seed: int,
) -> Wanted:
    """Check that options fit a selector, before any work is done.

    Args:
        name: The selector.
        sizes: The options that set its size, by name, those left out as None.
        patterns: Patterns of parameter names.
        seed: Seed of a random choice.

    Returns:
        What is wanted.

    Raises:
        ArgumentError: If an option is missing or not for this selector.
    """
    selector = SELECTORS[name]
    if bool(patterns) != ("patterns" in selector.needs):
        raise ArgumentError(
            f"--pattern is for --select named, got {patterns} with {name}. Leave one out."
            if patterns
            else "--select named needs --pattern, got none. Give one: 'classifier.*'."
        )
    given = {option: value for option, value in sizes.items() if value is not None}
    for option, value in given.items():
        fitting = [
            n
            for n, each in SELECTORS.items()
            if each.size and option in ("size", each.size)
        ]
        if name not in fitting:
            raise ArgumentError(
                f"--{option} is for --select {', '.join(fitting)}, got {value:g} with "
                f"{name}. Leave one of them out."
            )
    if len(given) > 1:
        words = " and ".join(f"--{option}" for option in given)
        raise ArgumentError(f"{words} both set the size, got both. Leave one of them out.")
    size = next(iter(given.values()), _DEFAULT_SIZES.get(selector.size or ""))
    if selector.size == "count" and isinstance(size, float) and size.is_integer():
        size = int(size)
    selector.check_size(size)
    return Wanted(selector, size, tuple(patterns or ()), seed)


def share(subset: smidgen.Subset) -> str:
    """Say how many weights are chosen."""
    return f"{subset.size:,} of {subset.total:,} weights ({subset.fraction:.2%})"
