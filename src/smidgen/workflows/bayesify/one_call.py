"""`bayesify`: from a trained model to a calibrated posterior, and an account of the choice.

Candidates are tried in the order of cost, that of predicting with them and then of storing
them: temperature scaling, the last layer, all layers without curvature, the last layer with
all others without curvature, and Sparse-KFAC with the last layer at a few sizes. One pass
over the training data fits them all; one over the held-out data makes the variance table, from
which every candidate is calibrated and scored in folds. The cheapest that is not clearly worse
than the best is kept, and calibrated on all held-out rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from smidgen.curvature.output_layers import peek, see_output_layers
from smidgen.errors import fill_settings
from smidgen.evaluate import paired_difference
from smidgen.fit.calibration.precision import (
    GRID,
    apply_choice,
    checked_grid,
    choose_precisions,
)
from smidgen.fit.calibration.samples import HeldOut, calibrate_from_outputs
from smidgen.outputs.batches import as_batches
from smidgen.outputs.likelihood import Likelihood
from smidgen.outputs.links import Link
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.posterior.base import Posterior
from smidgen.posterior.choice import Choice, LeftOutCandidate, TriedCandidate
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.point import PointPosterior
from smidgen.posterior.variance_table import VarianceTable
from smidgen.runtime.guard import fingerprint, preserve_random_state
from smidgen.runtime.processes.sharded_rows import refuse_shard
from smidgen.runtime.progress import track
from smidgen.types import Batch
from smidgen.weights.affine import Coverage, coverage
from smidgen.workflows.bayesify.candidates import (
    TEMPERATURE,
    Field,
    find_too_large,
    list_contenders,
)
from smidgen.workflows.bayesify.crossfit import (
    CrossFitter,
    join_labels,
    make_objective,
    number_groups,
    split_rows,
)
from smidgen.workflows.bayesify.rule import find_clearly_worse, keep_cheapest
from smidgen.workflows.bayesify.settings import BayesifySettings
from smidgen.workflows.bayesify.sources import (
    Fitted,
    assemble,
    fit_sources,
    fit_whole,
    read_table,
    restrict_last,
)
from smidgen.workflows.bayesify.timing import find_too_slow, time_predictions


def bayesify(
    model: nn.Module | Problem,
    train: Iterable[Batch],
    validation: Iterable[Batch],
    *,
    groups: Sequence[Hashable] | None = None,
    settings: BayesifySettings | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Posterior:
    """Make a trained model Bayesian as far as that pays, and no further.

    Tries temperature scaling, the last layer, all layers without curvature, both together, and
    Sparse-KFAC with the last layer, and keeps the cheapest that is not clearly worse than the
    best on held-out rows. For classes, labels and numbers alike.

    Args:
        model: The trained model, or its `Problem`. It is not changed.
        train: The batches it was trained on, read once.
        validation: Labelled batches that neither trained the model nor will test it, read
            once. They choose the candidate and calibrate it.
        groups: Which held-out examples belong together, such as those of one patient: a value
            for each, in the order in which `validation` yields them. Folds do not divide
            them. Tokens of one text are together anyway.
        settings: What to try, and what it may cost.
        seed: Of the folds that the held-out rows are scored in.
        progress: Show progress bars.

    Returns:
        The calibrated posterior. `posterior.choice` is the account: print it. If temperature
        scaling is kept, it is a `PointPosterior`, without stochastic weights.
    """
    settings = fill_settings(settings, BayesifySettings)
    train, validation = as_batches(train), as_batches(validation)
    refuse_shard(validation)
    # Around the loaders too, which may draw from torch's own generator.
    with preserve_random_state(as_problem(model).model):
        work = _prepare(as_problem(model), train, validation, settings)
        posteriors, likelihood, rows = fit_sources(
            work.problem, train, work.field, work.whole, progress=progress
        )
        problem = work.problem.with_likelihood(likelihood)
        precisions = checked_grid(GRID)
        fitted = assemble(work.field, posteriors, work.covered, precisions)
        link = likelihood.settle_link(Link(), tell=bool(fitted))
        table = read_table(
            problem,
            track(work.validation, "validating", show=progress),
            posteriors,
            fitted,
            work.covered,
            precisions,
            link,
        )
        folds = split_rows(number_groups(table, groups), settings.folds, seed)
        fitter = CrossFitter.make(likelihood, table, link, folds)
        nlls = {TEMPERATURE: fitter.score_point()}
        for each in track(fitted, "choosing", show=progress):
            nlls[each.contender.name] = fitter.score(each.sums, each.known)
        kept = keep_cheapest(nlls)
        costs = time_predictions(
            {each.contender.name: each.posterior for each in fitted}, problem, work.first
        )
    choice = _account(work.field, fitted, nlls, costs, kept, len(fitter.folds.rows))
    posterior: Posterior
    if kept == TEMPERATURE:
        posterior = _calibrate_point(problem, table, rows)
    else:
        (winner,) = (each for each in fitted if each.contender.name == kept)
        posterior = _calibrate(winner, likelihood, table, link)
    return replace(posterior, choice=choice)


@dataclass(frozen=True, eq=False)
class _Work:
    """What is known before the training data are read."""

    problem: SettledProblem
    validation: Iterable[Batch]
    first: Batch  # of the held-out batches
    whole: LaplacePosterior | None  # all layers, without curvature
    covered: Coverage
    field: Field


def _prepare(
    problem: Problem,
    train: Iterable[Batch],
    validation: Iterable[Batch],
    settings: BayesifySettings,
) -> _Work:
    """See what the model is made of, and which candidates there are for it."""
    first, held_out = peek(validation)
    settled, _, _ = problem.settle([first])
    settled.require_labels(first, "validation")
    whole = fit_whole(settled, first)
    if isinstance(whole, str):
        nothing = LeftOutCandidate("others", "All other candidates", whole)
        field = replace(list_contenders(settled, None, None, settings), left_out=(nothing,))
        return _Work(settled, held_out, first, None, coverage(problem.model), field)
    covered = see_output_layers(settled, first)
    last = restrict_last(covered, whole.subset)
    field = list_contenders(settled, whole.subset, last, settings)
    field = field.without(find_too_large(settled, field, settings.memory))
    if settings.seconds is not None:
        loaders = train, validation
        slow = find_too_slow(settled, field, whole, loaders, first, settings.seconds)
        field = field.without(slow)
    return _Work(settled, held_out, first, whole, covered, field)


def _calibrate_point(
    problem: SettledProblem, table: VarianceTable, rows: int
) -> PointPosterior:
    """Choose the temperature of the model itself, or its noise, on all held-out rows."""
    posterior = PointPosterior(
        universe=coverage(problem.model).universe,
        likelihood=problem.likelihood,
        num_data=rows,
        fingerprint=fingerprint(problem.model),
    )
    outputs = table.outputs[None]
    held_out = HeldOut(problem.likelihood, outputs, outputs, table.targets)
    calibrated = calibrate_from_outputs(posterior, held_out)
    assert calibrated.calibration is not None
    return replace(calibrated, calibration=replace(calibrated.calibration, samples=0))


def _calibrate(
    fitted: Fitted, likelihood: Likelihood, table: VarianceTable, link: Link
) -> LaplacePosterior:
    """Choose precisions and temperature on all held-out rows, as `smidgen.calibrate` does."""
    is_cut = len(fitted.known) < len(table.precisions)
    objective = make_objective(likelihood, table, link)
    own = join_labels(table, fitted.sums, fitted.known)
    curve, choice = choose_precisions(objective, own, is_cut=is_cut)
    curve = replace(curve, scope="head")
    return apply_choice(fitted.posterior, curve, choice, fitted.labels, "joint")


def _account(
    field: Field,
    fitted: Sequence[Fitted],
    nlls: Mapping[str, Tensor],
    costs: Mapping[str, float],
    kept: str,
    folds: int,
) -> Choice:
    """Write down what was tried, what it scored and what was kept."""
    floats = {each.contender.name: each.posterior.floats for each in fitted}
    worse, base = find_clearly_worse(nlls), nlls[TEMPERATURE]
    tried = []
    for contender in field.contenders:
        name, nll = contender.name, nlls[contender.name]
        difference = paired_difference(nll, base)
        tried.append(
            TriedCandidate(
                name=name,
                label=contender.label,
                floats=floats.get(name, 0),
                relative_seconds=costs.get(name, 1.0),
                nll=float(nll.mean()),
                difference=difference.value,
                low=difference.low,
                high=difference.high,
                clearly_worse=name in worse,
            )
        )
    return Choice(kept, tuple(tried), field.left_out, len(base), folds)
