"""Which weights a command works on: its options, which of them go together, the subset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Annotated

from torch import Tensor, nn
from typer import Option

import smidgen
from smidgen.cli.completion.table import offer
from smidgen.cli.options.lists import require_one_of
from smidgen.curvature.kronecker import Approximation
from smidgen.curvature.operators import STRUCTURES
from smidgen.errors import ArgumentError
from smidgen.fit.bayestune.langevin import schedule_chain
from smidgen.select import SELECTORS, Selector
from smidgen.types import Batch
from smidgen.workflows.naming import usual_structure

_DEFAULT_SIZES = {"percent": 10, "fraction": 0.01, "count": 1}
_STAND_INS = {"percent": "sparse-kfac-random", "fraction": "random-weights"}

SelectorName = Annotated[
    str,
    Option(
        metavar="NAME",
        callback=require_one_of(SELECTORS),
        autocompletion=offer(SELECTORS),
        help=f"How to choose the weights: {', '.join(SELECTORS)}.",
    ),
]
Size = Annotated[
    float | None, Option(help="Any of the next three, whichever the selector takes.")
]
Percent = Annotated[
    float | None,
    Option(
        help="For sparse-kfac…: percent of each layer's rows and columns; by default 10."
    ),
]
Fraction = Annotated[
    float | None,
    Option(help="For single weights: fraction of all weights; by default 0.01."),
]
Count = Annotated[
    int | None,
    Option(help="For max-…, min-… and random-modules: number of layers; by default 1."),
]
Patterns = Annotated[
    list[str] | None,
    Option(
        "--pattern",
        help="Names of parameters for --select named, such as 'classifier.*'; may be repeated.",
    ),
]
Structure = Annotated[
    str | None,
    Option(
        metavar="NAME",
        callback=require_one_of(STRUCTURES),
        autocompletion=offer(STRUCTURES),
        help=f"Laplace: structure of the curvature, one of {', '.join(STRUCTURES)}; by "
        "default kron, or diag for single weights.",
    ),
]
IsotropicBody = Annotated[
    bool,
    Option(
        "--isotropic-body",
        help="Laplace: every layer of which nothing is chosen joins whole, without curvature, "
        "with a prior precision of its own.",
    ),
]
Exact = Annotated[
    bool,
    Option(
        help="Laplace: save all eigenvectors of the factors. By default only those are saved "
        "that change a variance by more than 1 % at the chosen precision."
    ),
]
CurvatureApproximation = Annotated[
    Approximation,
    Option(help="Laplace: how to treat weights shared by many positions, such as tokens."),
]


@dataclass(frozen=True)
class Selection:
    """A selector with its size and everything else it needs."""

    selector: Selector
    size: float | None
    patterns: tuple[str, ...]
    seed: int

    def choose(
        self,
        network: nn.Module | smidgen.Problem,
        batches: Iterable[Batch],
        say: Callable[[str], None],
    ) -> smidgen.Subset:
        """Choose the weights of a model."""
        needs = self.selector.needs
        if needs & {"batches", "scores"}:
            say(f"Scoring the weights for --select {self.selector.name}")
        return smidgen.select.choose(
            self.selector.name,
            network,
            size=self.size,
            batches=batches,
            seed=self.seed,
            scores=self._scores(network, batches) if "scores" in needs else None,
            patterns=self.patterns,
        )

    def choose_for_plan(self, network: nn.Module) -> smidgen.Subset:
        """Choose as many weights for a plan, without data and perhaps without their values."""
        name, size = self.selector.name, self.selector.size
        bare = any(parameter.is_meta for parameter in network.parameters())
        if bare and size == "count":
            raise ArgumentError(
                f"--select {name} compares weights, got a model without any. Give a model "
                "folder that has weights, and leave out --no-time."
            )
        if size in _STAND_INS and (bare or self.selector.needs & {"batches", "scores"}):
            name = _STAND_INS[size]
        return smidgen.select.choose(
            name, network, size=self.size, seed=self.seed, patterns=self.patterns
        )

    def _scores(
        self, network: nn.Module | smidgen.Problem, batches: Iterable[Batch]
    ) -> dict[str, Tensor]:
        """Compute the scores that the selector compares."""
        if self.selector.name == "variance":
            from smidgen.workflows.variances import marginal_variances

            return marginal_variances(network, batches, progress=True)
        # The weights are trained already: a short chain is enough.
        course = asdict(schedule_chain(steps=100, samples=10))
        settings = smidgen.fit.LangevinSettings(head="none", **course)
        return smidgen.fit.langevin(
            network, batches, settings=settings, seed=self.seed
        ).means

    def choose_structure(self, name: str | None, isotropic_body: bool = False) -> str:
        """Return the requested structure, or the usual one for the selector's kind of subset."""
        scattered = self.selector.scattered
        usual = usual_structure(scattered=scattered)
        if name is None:
            return usual
        if isotropic_body and STRUCTURES[name].joint:
            raise ArgumentError(
                f"--structure must keep layers apart for --isotropic-body, got {name}, one "
                f"matrix over all of them. Leave it out for {usual}."
            )
        if scattered and not STRUCTURES[name].scattered:
            able = [name for name, kind in STRUCTURES.items() if kind.scattered]
            raise ArgumentError(
                f"--structure must be {' or '.join(able)} for --select "
                f"{self.selector.name}, which chooses single weights, got {name}. Leave "
                f"it out for {usual}."
            )
        return name


def read_selection(
    name: str,
    *,
    sizes: dict[str, float | None],
    patterns: list[str] | None = None,
    seed: int = 0,
) -> Selection:
    """Check that the options suit the selector, before any work is done."""
    selector = SELECTORS[name]
    if bool(patterns) != ("patterns" in selector.needs):
        raise ArgumentError(
            f"--pattern is for --select named, got {patterns} with {name}. Leave one out."
            if patterns
            else "--select named needs --pattern, got none. Try --pattern 'classifier.*'."
        )
    typed = {option: value for option, value in sizes.items() if value is not None}
    for option, value in typed.items():
        fitting = [
            other.name
            for other in SELECTORS.values()
            if other.size and option in ("size", other.size)
        ]
        if name not in fitting:
            raise ArgumentError(
                f"--{option} is for --select {', '.join(fitting)}, got {value:g} with "
                f"{name}. Leave one of them out."
            )
    if len(typed) > 1:
        options = " and ".join(f"--{option}" for option in typed)
        raise ArgumentError(f"{options} both set the size. Leave one of them out.")
    size = next(iter(typed.values()), _DEFAULT_SIZES.get(selector.size or ""))
    if selector.size == "count" and isinstance(size, float) and size.is_integer():
        size = int(size)
    selector.check_size(size)
    return Selection(selector, size, tuple(patterns or ()), seed)


def describe_subset(subset: smidgen.Subset) -> str:
    """Say how many weights were chosen."""
    return f"{subset.size:,} of {subset.total:,} weights ({subset.fraction:.2%})"
