"""Choose the prior precision and a temperature on validation data, in one pass.

One pass gives the output covariances under every precision of a grid; all that follows
takes milliseconds. By default precision and temperature are chosen together, which did
better than either alone (DESIGN 5). In a regression the noise variance takes the place of
the temperature, and its best value is closed-form.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Literal, get_args

import torch
from torch import Tensor

from smidgen.curvature.factors.low_rank import MORE_VECTORS
from smidgen.curvature.output_layers import see_output_layers
from smidgen.errors import ArgumentError, warn
from smidgen.fit.calibration.brent import minimize
from smidgen.fit.calibration.grid_search import GridSearch
from smidgen.fit.calibration.groups import Scope, group_labels
from smidgen.fit.calibration.objective import Objective, require_scores
from smidgen.fit.calibration.temperature import warn_if_extreme
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.likelihood.gaussian import nll_of_squares, squares_of_nll
from smidgen.outputs.links import Link
from smidgen.outputs.problem import SettledProblem
from smidgen.posterior.base import Calibration
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.variance_table import VarianceTable, variance_table
from smidgen.runtime.guard import preserve_random_state
from smidgen.types import Batch

What = Literal["joint", "precision", "temperature"]
GRID: tuple[float, ...] = tuple(10 ** (k / 4) for k in range(-16, 25))
"""Prior precisions from 1e-4 to 1e6, four to a decade."""
# Three points to a decade: there the cubic of `VarianceTable.at` errs by 3h⁴/128 < 1 %.
_DENSE = 1.01 * log(10) / 3
# The largest relative error of variances, by its bound, that precisions are compared with.
_MOST_ERROR = 0.5


@dataclass(frozen=True)
class CalibrationSettings:
    """What to choose on held-out data, and from what.

    Args:
        what: "joint" for both, or "precision" or "temperature" alone.
        scope: One precision ("scalar"), one for the layers that make the outputs and one
            for all others ("head"), one for each "group" (attention, MLPs, head; each with
            curvature or without) or one for each "layer"; a prior keeps several near the
            common one. "auto" chooses by group, or one precision where one matrix spans all
            layers.
        precisions: The grid of prior precisions τ; of τσ² when a regression's noise σ²
            is chosen too.
        refine: Search between the neighbours of the best grid point, where there is one
            precision and the grid has three points to a decade or more.
    """

    what: What = "joint"
    scope: Scope = "auto"
    precisions: Sequence[float] = GRID
    refine: bool = True


@dataclass(frozen=True)
class ScaledPrecisions:
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
    seed: int = 0,
) -> LaplacePosterior:
    """Choose precision and temperature (or noise); `calibration` keeps the whole curve."""
    posterior.require(problem.model)
    what = settings.what
    _check_choices(posterior, what)
    likelihood, given = posterior.likelihood, link
    link = likelihood.settle_link(link, tell=True)
    name, top = link.name, link.followed
    grid, is_cut = None, False
    if what != "temperature":
        # Curvature is kept for unit noise: the grid is of τσ² when the noise is free too.
        # Only regressions have a scale other than one.
        grid = checked_grid(settings.precisions)
        grid = grid * likelihood.scale if what == "precision" else grid
        asked, grid = grid, leave_out_unknown(posterior, grid)
        is_cut = len(grid) < len(asked)
    # Around the loader too, which may draw from torch's own generator.
    with preserve_random_state(problem.model):
        problem, first, read_once = problem.settle(batches)
        labels = group_labels(
            settings.scope, posterior, lambda: see_output_layers(problem, first)
        )
        table = variance_table(
            problem,
            read_once,
            {"": posterior},
            grid,
            name,
            label=lambda _, operator: labels[operator],
            top=top,
        )
    objective = Objective(
        likelihood,
        table.outputs,
        table.targets,
        name,
        posterior.temperature,
        top,
        link.draws,
        seed,
    )
    jointly = what != "precision"
    curve, choice = choose_precisions(
        objective, table, jointly=jointly, refine=settings.refine, is_cut=is_cut
    )
    # Predictions take it, unless they are told another.
    remembered = None if given == Link() else given
    curve = replace(curve, scope=settings.scope, link=remembered)
    return apply_choice(posterior, curve, choice, labels, what)


def choose_precisions(
    objective: Objective,
    table: VarianceTable,
    *,
    jointly: bool = True,
    refine: bool = True,
    is_cut: bool = False,
) -> tuple[Calibration, ScaledPrecisions]:
    """Choose a precision for each label, with its scale if `jointly`; curve and choice."""
    # `is_cut` if smaller precisions were left out since too few eigenvectors are there.
    curve = score_precisions(objective, table, table.covariance)
    choice = search_precisions(objective, table, curve, jointly=jointly, refine=refine)
    at_edge = _warn_at_edges(choice, table.precisions, is_cut)
    return replace(curve, chosen_nll=choice.nll, at_edge=at_edge), choice


def search_precisions(
    objective: Objective,
    table: VarianceTable,
    curve: Calibration,
    *,
    jointly: bool = True,
    refine: bool = True,
) -> ScaledPrecisions:
    """Search a precision for each label; `curve` is that of one common to all."""
    nlls = torch.tensor(curve.joint_nll if jointly else curve.nll, dtype=torch.float64)
    require_scores(nlls)
    scales = curve.scales if jointly else [curve.fixed_scale] * len(nlls)
    scores = nlls + objective.penalty(torch.tensor(scales, dtype=torch.float64))
    winner = int(scores.argmin())
    choice = ScaledPrecisions(
        dict.fromkeys(table.covariance, float(table.precisions[winner])),
        scales[winner],
        float(nlls[winner]),
    )
    if len(table.covariance) > 1:
        search = GridSearch(objective, table, curve.scales, winner, jointly)
        places, scale, nll = search.run()
        # The prior may prefer the common one, but never something worse.
        if nll + objective.penalty(scale) < scores[winner]:
            chosen = table.precisions[list(places)].tolist()
            choice = ScaledPrecisions(
                dict(zip(table.covariance, chosen, strict=True)), float(scale), float(nll)
            )
    elif refine and _is_dense_around(winner, table.precisions):
        choice = _refine(objective, table, choice, winner, jointly=jointly)
    return choice


def checked_grid(precisions: Sequence[float]) -> Tensor:
    """Sort a grid of prior precisions: ascending and distinct, in fp64."""
    grid = torch.as_tensor(list(precisions), dtype=torch.float64)
    if not grid.numel() or not (grid > 0).all() or not torch.isfinite(grid).all():
        raise ArgumentError(
            f"precisions must be one or more finite numbers > 0, got {list(precisions)}. "
            "Leave them out for the usual grid."
        )
    return grid.unique()


def leave_out_unknown(posterior: LaplacePosterior, grid: Tensor) -> Tensor:
    """Leave out precisions at which too few eigenvectors are there to tell the variances."""
    known = [tau for tau in grid.tolist() if posterior.bound_error(tau) <= _MOST_ERROR]
    if not known:
        raise ArgumentError(
            f"precisions must be large enough for factors of so few eigenvectors, got "
            f"{float(grid[0]):.3g} to {float(grid[-1]):.3g}: variances may be off by more than "
            f"{_MOST_ERROR:.0%} at all of them. {MORE_VECTORS}"
        )
    return torch.tensor(known, dtype=grid.dtype)


def _check_choices(posterior: LaplacePosterior, what: What) -> None:
    if what not in get_args(What):
        raise ArgumentError(
            f"what must be one of {get_args(What)}, got {what!r}. Leave it out for 'joint'."
        )
    if isinstance(posterior.likelihood, Gaussian) and what == "temperature":
        raise ArgumentError(
            "what='temperature' is for classification, and this posterior is of a "
            "regression. Use 'joint', which fits the noise, or 'precision'."
        )


def score_precisions(
    objective: Objective, table: VarianceTable, labels: Iterable[Hashable]
) -> Calibration:
    """Score the point estimate, and one precision for some labels at every grid point."""
    total = table.total(labels)
    alone, scales, joint = objective.profile(total)
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


def _score(
    objective: Objective, covariance: Tensor, near: float | None, *, jointly: bool
) -> tuple[Tensor, Tensor]:
    """Find scales, near a guess if there is one, and NLLs under some covariances, (P,) each."""
    if jointly:
        guess = None if near is None else covariance.new_full((len(covariance),), near)
        return objective.best(covariance, near=guess)
    fixed = covariance.new_full((len(covariance),), objective.own_scale)
    return fixed, objective.nll(covariance)


def _is_dense_around(winner: int, grid: Tensor) -> bool:
    """Whether the neighbours of a grid point are so near that `at` is exact enough."""
    if not 0 < winner < len(grid) - 1:
        return False
    return bool((grid[winner - 1 : winner + 2].log().diff() < _DENSE).all())


def _refine(
    objective: Objective,
    table: VarianceTable,
    choice: ScaledPrecisions,
    winner: int,
    *,
    jointly: bool,
) -> ScaledPrecisions:
    """Search for one precision between the neighbours of the best grid point."""
    logs = table.precisions.log()
    # Where slopes lead exactly to the best scale, that of the grid point is a good start.
    near = choice.scale if objective.link == "sampling" else None

    def score(place: Tensor) -> tuple[Tensor, Tensor]:
        covariance = sum(table.at(label, float(place.exp())) for label in table.covariance)
        assert isinstance(covariance, Tensor)
        return _score(objective, covariance[None], near, jointly=jointly)

    low, high = logs[winner - 1 : winner], logs[winner + 1 : winner + 2]

    def penalised(place: Tensor) -> Tensor:
        scale, nll = score(place)
        return nll + objective.penalty(scale)

    place = minimize(penalised, low, high, steps=20)
    scale, nll = score(place)
    before = choice.nll + objective.penalty(scale.new_full((1,), choice.scale))
    if not float(nll + objective.penalty(scale)) < float(before):
        return choice
    precision = float(place.exp())
    return ScaledPrecisions(
        dict.fromkeys(choice.precisions, precision), float(scale), float(nll)
    )


def apply_choice(
    posterior: LaplacePosterior,
    curve: Calibration,
    choice: ScaledPrecisions,
    labels: Mapping[str, str],
    what: What,
) -> LaplacePosterior:
    """Give the posterior its chosen precision and scale; a regression's τσ² becomes τ."""
    likelihood = posterior.likelihood
    if isinstance(likelihood, Gaussian):
        noise = choice.scale
        chosen = {label: tau / noise for label, tau in choice.precisions.items()}
        noises = curve.scales if what == "joint" else [noise] * len(curve.scales)
        grid = zip(curve.precisions, noises, strict=True)
        curve = replace(curve, precisions=tuple(tau / scale for tau, scale in grid))
        posterior = _with_noise(posterior, likelihood, noise)
    else:
        chosen = dict(choice.precisions)
        warn_if_extreme(choice.scale)
        posterior = replace(posterior, temperature=choice.scale)
    if what == "temperature":
        return replace(posterior, calibration=curve)
    values = {name: chosen[label] for name, label in labels.items()}
    one = len(set(labels.values())) == 1
    precision = next(iter(values.values())) if one else values
    return replace(posterior, precision=precision, calibration=curve)


def _with_noise(
    posterior: LaplacePosterior, likelihood: Gaussian, noise: float
) -> LaplacePosterior:
    """Give a regression another noise, and the likelihood of its training data under it."""
    log_likelihood = posterior.log_likelihood
    if log_likelihood is not None:
        count = posterior.num_data * likelihood.outputs
        squares = squares_of_nll(-log_likelihood / count, likelihood.noise)
        log_likelihood = -count * nll_of_squares(squares, noise)
    likelihood = replace(likelihood, noise=noise)
    return replace(posterior, likelihood=likelihood, log_likelihood=log_likelihood)


def _warn_at_edges(choice: ScaledPrecisions, grid: Tensor, is_cut: bool) -> bool:
    """Warn of chosen precisions at an end of the grid; return whether there are any."""
    if len(grid) < 2:
        return False
    on_these = "on this validation set. More held-out data would tell."
    lower = f"the prior hardly matters {on_these}"
    if is_cut:
        lower = (
            f"below it variances may be off by more than {_MOST_ERROR:.0%}, since factors "
            f"were cut to few eigenvectors. {MORE_VECTORS}"
        )
    at_edge = False
    for side, meaning, end in (
        ("lower", lower, float(grid[0])),
        ("upper", f"the posterior adds nothing {on_these}", float(grid[-1])),
    ):
        labels = [str(label) for label, tau in choice.precisions.items() if tau == end]
        if labels:
            at_edge = True
            whose = f" of {', '.join(labels)}" if len(choice.precisions) > 1 else ""
            warn(
                f"the best precision{whose}, {end:.3g}, is at the {side} edge of its "
                f"grid: {meaning}"
            )
    return at_edge
