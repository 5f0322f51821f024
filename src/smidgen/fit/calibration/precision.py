"""Choose the prior precision and a temperature on validation data, in one pass.

One pass gives the output covariances under every precision of a grid; all that follows
costs milliseconds. By default precision and temperature are chosen together, which did
better than either alone (DESIGN 5). For regression the noise variance takes the place
of the temperature, and its best value is closed-form.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Literal, get_args

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, SmidgenWarning
from smidgen.fit.calibration.golden_section import minimize
from smidgen.fit.calibration.groups import Scope, distinct, group_labels
from smidgen.fit.calibration.objective import Objective
from smidgen.fit.calibration.temperature import mention_edge
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.likelihood.gaussian import nll_of_squares, squares_of_nll
from smidgen.outputs.link_choice import Link
from smidgen.outputs.problem import SettledProblem
from smidgen.posterior.base import Calibration
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.variance_table import VarianceTable, variance_table
from smidgen.types import Batch

What = Literal["joint", "precision", "temperature"]
GRID: tuple[float, ...] = tuple(10 ** (k / 4) for k in range(-16, 25))
"""Prior precisions from 1e-4 to 1e6, four to a decade."""
_SPREAD = 8.0
"""How far, in nats, the precision of a group strays from the common one beforehand."""
_SWEEPS = 10
# Three points to a decade: there the cubic of `VarianceTable.at` errs by 3h⁴/128 < 1 %.
_DENSE = 1.01 * log(10) / 3


@dataclass(frozen=True)
class CalibrationSettings:
    """What to choose on held-out data, and from what.

    Args:
        what: "joint", or "precision" or "temperature" alone.
        scope: One precision ("scalar"), one for each "group" (attention, MLPs, head; what
            "auto" takes where layers have operators of their own) or one for each "layer";
            several are kept near the common one by a prior.
        precisions: The grid of prior precisions τ; of τσ² when a regression's noise σ²
            is chosen too.
        refine: Search between the best grid point's neighbours, for one precision and
            a grid of three to a decade or more.
    """

    what: What = "joint"
    scope: Scope = "auto"
    precisions: Sequence[float] = GRID
    refine: bool = True


@dataclass(frozen=True)
class Choice:
    """Precisions for unit noise by label, their scale, and the held-out NLL they give."""

    precisions: Mapping[Hashable, float]
    scale: float
    nll: float


def calibrate_precision(
    posterior: LaplacePosterior,
    problem: SettledProblem,
    batches: Iterable[Batch],
    settings: CalibrationSettings,
    link: Link,
) -> LaplacePosterior:
    """Choose the prior precision and the temperature of a linearised posterior.

    Args:
        posterior: The posterior to calibrate.
        problem: The model it was fitted to, with the posterior's likelihood.
        batches: Labelled validation batches, read once.
        settings: What to choose, and from what.
        link: How logits become probabilities.

    Returns:
        The posterior with the chosen precision and temperature (for regression:
        precision and noise), and the whole curve in `calibration`.
    """
    posterior.require(problem.model)
    what = settings.what
    _check_choices(posterior, what)
    joins = group_labels(settings.scope, posterior, problem)
    likelihood = posterior.likelihood
    name = likelihood.resolved_link(link.name, link.top)
    grid = None
    if what != "temperature":
        # Curvature is kept for unit noise: the grid is of τσ² when the noise is free too.
        fixed = isinstance(likelihood, Gaussian) and what == "precision"
        grid = checked_grid(settings.precisions) * (likelihood.scale if fixed else 1.0)
    table = variance_table(
        problem,
        batches,
        {"": posterior},
        grid,
        name,
        label=lambda _, operator: joins[operator],
        top=link.top,
    )
    objective = Objective(
        likelihood, table.outputs, table.targets, name, posterior.temperature, link.top
    )
    jointly = what != "precision"
    curve, choice = choose(objective, table, jointly=jointly, refine=settings.refine)
    return _calibrated(posterior, replace(curve, scope=settings.scope), choice, joins, what)


def choose(
    objective: Objective, table: VarianceTable, *, jointly: bool = True, refine: bool = True
) -> tuple[Calibration, Choice]:
    """Choose a precision for each label of a table, and the scale that goes with them.

    Args:
        objective: The held-out data.
        table: Their variance table.
        jointly: Choose the scale too.
        refine: With one label, search between the best grid point's neighbours.

    Returns:
        The curve of one common precision, and what was chosen.
    """
    curve = score_precisions(objective, table, table.covariance)
    scores = curve.joint_nll if jointly else curve.nll
    winner = min(range(len(scores)), key=scores.__getitem__)
    choice = Choice(
        dict.fromkeys(table.covariance, float(table.precisions[winner])),
        curve.scales[winner] if jointly else curve.fixed_scale,
        scores[winner],
    )
    if len(table.covariance) > 1:
        choice = _descended(objective, table, choice, winner, jointly=jointly)
    elif refine and _dense_around(winner, table.precisions):
        choice = _refined(objective, table, choice, winner, jointly=jointly)
    at_edge = _mention_edges(choice, table.precisions)
    return replace(curve, chosen_nll=choice.nll, at_edge=at_edge), choice


def checked_grid(precisions: Sequence[float]) -> Tensor:
    """Sort a grid of prior precisions.

    Args:
        precisions: The precisions.

    Returns:
        Them, ascending and distinct, in fp64.

    Raises:
        ArgumentError: If there is none, or one is not a finite number above zero.
    """
    grid = torch.as_tensor(list(precisions), dtype=torch.float64)
    if not grid.numel() or not (grid > 0).all() or not torch.isfinite(grid).all():
        raise ArgumentError(
            f"precisions must be one or more finite numbers > 0, got {list(precisions)}."
        )
    return grid.unique()


def _check_choices(posterior: LaplacePosterior, what: What) -> None:
    if what not in get_args(What):
        raise ArgumentError(f"what must be one of {get_args(What)}, got {what!r}.")
    if isinstance(posterior.likelihood, Gaussian) and what == "temperature":
        raise ArgumentError(
            "what='temperature' is for classification, and this posterior is of a "
            "regression. Use 'joint', which fits the noise, or 'precision'."
        )


def score_precisions(
    objective: Objective, table: VarianceTable, labels: Iterable[Hashable]
) -> Calibration:
    """Score one common precision at every grid point, and the point estimate.

    Args:
        objective: The held-out data.
        table: Their variance table.
        labels: The labels that are stochastic.

    Returns:
        The curve; what is chosen from it, and whether at its edge, is not yet said.
    """
    total = table.total(labels)
    alone = objective.nll(total)
    scales, joint = objective.best(total)
    base, scaled = objective.best(None)
    return Calibration(
        precisions=tuple(table.precisions.tolist()),
        nll=tuple(alone.tolist()),
        joint_nll=tuple(joint.tolist()),
        scales=tuple(scales.tolist()),
        map_nll=float(objective.nll(None)),
        map_scale=float(base),
        map_scaled_nll=float(scaled),
        examples=len(objective),
        at_edge=False,
        fixed_scale=objective.own_scale,
    )


def _scored(
    objective: Objective, covariance: Tensor, *, jointly: bool
) -> tuple[Tensor, Tensor]:
    """Scales and NLLs under some covariances, (P,) each."""
    if jointly:
        return objective.best(covariance)
    fixed = covariance.new_full((len(covariance),), objective.own_scale)
    return fixed, objective.nll(covariance)


def _dense_around(winner: int, grid: Tensor) -> bool:
    """Whether a point of the grid has neighbours so near that `at` is exact enough."""
    if not 0 < winner < len(grid) - 1:
        return False
    return bool((grid[winner - 1 : winner + 2].log().diff() < _DENSE).all())


def _refined(
    objective: Objective,
    table: VarianceTable,
    choice: Choice,
    winner: int,
    *,
    jointly: bool,
) -> Choice:
    """Search for one precision between the neighbours of the best grid point."""
    logs = table.precisions.log()

    def scored(place: Tensor) -> tuple[Tensor, Tensor]:
        covariance = sum(table.at(label, float(place.exp())) for label in table.covariance)
        assert isinstance(covariance, Tensor)
        return _scored(objective, covariance[None], jointly=jointly)

    low, high = logs[winner - 1 : winner], logs[winner + 1 : winner + 2]
    found = minimize(lambda place: scored(place)[1], low, high, steps=20)
    scale, nll = scored(found)
    if not float(nll) < choice.nll:
        return choice
    precision = float(found.exp())
    return Choice(dict.fromkeys(choice.precisions, precision), float(scale), float(nll))


def _descended(
    objective: Objective,
    table: VarianceTable,
    choice: Choice,
    winner: int,
    *,
    jointly: bool,
) -> Choice:
    """Let each label have a precision of its own, one after another, until none moves.

    A normal prior on its log keeps each near the common one: few held-out examples say
    little about many numbers.

    Returns:
        The precisions by label, or the common one if they do no better.
    """
    logs = table.precisions.log()
    penalty = (logs - logs[winner]).square() / (2 * _SPREAD**2 * len(objective))
    places = dict.fromkeys(table.covariance, winner)
    total = table.total(table.covariance)[winner]
    scale = choice.scale
    for _ in range(_SWEEPS):
        before = dict(places)
        for label, covariance in table.covariance.items():
            rest = total - covariance[places[label]]
            candidates = rest + covariance.double()
            if isinstance(objective.likelihood, Gaussian) and jointly:
                nll = objective.best(candidates)[1]
            else:
                nll = objective.nll(candidates, scale)
            places[label] = int((nll + penalty).argmin())
            total = candidates[places[label]]
        scales, nlls = _scored(objective, total[None], jointly=jointly)
        scale, lowest_nll = float(scales), float(nlls)
        if places == before:
            break
    found = {label: float(table.precisions[i]) for label, i in places.items()}
    return Choice(found, scale, lowest_nll) if lowest_nll < choice.nll else choice


def _calibrated(
    posterior: LaplacePosterior,
    curve: Calibration,
    choice: Choice,
    joins: Mapping[str, str],
    what: What,
) -> LaplacePosterior:
    """Put what was chosen into the posterior."""
    likelihood = posterior.likelihood
    if isinstance(likelihood, Gaussian):
        noise = choice.scale
        chosen = {label: each / noise for label, each in choice.precisions.items()}
        divisors = curve.scales if what == "joint" else [noise] * len(curve.scales)
        taus = zip(curve.precisions, divisors, strict=True)
        curve = replace(curve, precisions=tuple(tau / each for tau, each in taus))
        posterior = _with_noise(posterior, likelihood, noise)
    else:
        chosen = dict(choice.precisions)
        mention_edge(choice.scale)
        posterior = replace(posterior, temperature=choice.scale)
    if what == "temperature":
        return replace(posterior, calibration=curve)
    values = {name: chosen[label] for name, label in joins.items()}
    one = len(distinct(list(joins.values()))) == 1
    precision = next(iter(values.values())) if one else values
    return replace(posterior, precision=precision, calibration=curve)


def _with_noise(
    posterior: LaplacePosterior, likelihood: Gaussian, noise: float
) -> LaplacePosterior:
    """Give a regression another noise, and the likelihood of its training data under it."""
    fitted = posterior.log_likelihood
    if fitted is not None:
        count = posterior.num_data * likelihood.outputs
        squares = squares_of_nll(-fitted / count, likelihood.noise)
        fitted = -count * nll_of_squares(squares, noise)
    return replace(
        posterior, likelihood=replace(likelihood, noise=noise), log_likelihood=fitted
    )


def _mention_edges(choice: Choice, grid: Tensor) -> bool:
    """Warn of chosen precisions at an end of their grid; whether there is one."""
    if len(grid) < 2:
        return False
    at_edge = False
    for side, meaning, end in (
        ("lower", "the prior hardly matters", float(grid[0])),
        ("upper", "the posterior adds nothing", float(grid[-1])),
    ):
        labels = [str(label) for label, each in choice.precisions.items() if each == end]
        if labels:
            at_edge = True
            whose = f" of {', '.join(labels)}" if len(choice.precisions) > 1 else ""
            warnings.warn(
                f"the best precision{whose}, {end:.3g}, is at the {side} edge of its "
                f"grid: {meaning} on this validation set. More held-out data would tell.",
                SmidgenWarning,
                stacklevel=4,
            )
    return at_edge
