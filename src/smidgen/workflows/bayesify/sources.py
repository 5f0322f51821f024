"""From the sources of all candidates to their posteriors: one pass over the training data."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

import smidgen.fit as fit
import smidgen.select as select
from smidgen.curvature.operators import Isotropic
from smidgen.errors import DataError, StructureError
from smidgen.fit.calibration.groups import BODY, HEAD, group_labels
from smidgen.fit.calibration.precision import leave_out_unknown
from smidgen.outputs.likelihood import Gaussian, Likelihood
from smidgen.outputs.links import Link
from smidgen.outputs.problem import SettledProblem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.variance_table import VarianceTable, variance_table
from smidgen.types import Batch
from smidgen.weights.affine import Coverage
from smidgen.weights.origin import combine_origins
from smidgen.weights.subset import Subset
from smidgen.workflows.bayesify.candidates import (
    HEAD_SOURCE,
    ISOTROPIC_SOURCE,
    Contender,
    Field,
    Source,
)
from smidgen.workflows.bayesify.crossfit import LabelledSums
from smidgen.workflows.method import read_examples


@dataclass(frozen=True, eq=False)
class Fitted:
    """A contender with its posterior, before that is calibrated."""

    contender: Contender
    posterior: LaplacePosterior
    labels: Mapping[str, str]  # by operator, who shares a precision
    known: Tensor  # the precisions at which its variances can be told, (P,)

    @property
    def sums(self) -> LabelledSums:
        """The sums of the variance table that it is made of, by the precision they share."""
        sources = {HEAD: self.contender.head, BODY: self.contender.body}
        return {
            label: [(sources[label], label)]
            for label in dict.fromkeys(self.labels.values())
        }


def fit_whole(problem: SettledProblem, first: Batch) -> LaplacePosterior | str:
    """Take all layers that keep examples apart, without curvature, or say why there is none."""
    try:
        whole = select.sparse_kfac(problem.model, percent=100)
        return fit.laplace(
            problem, [first], whole, structure=Isotropic.structure, progress=False
        )
    except StructureError as error:
        return str(error).rstrip(".")


def restrict_last(covered: Coverage, whole: Subset) -> Subset | None:
    """Take the layers that make the outputs, as far as they can be treated."""
    last = covered.last()
    if last is None:
        return None
    parts = {name: part for name, part in last.parts.items() if name in whole.parts}
    return Subset(last.universe, parts, last.origin) if parts else None


def fit_sources(
    problem: SettledProblem,
    train: Iterable[Batch],
    field: Field,
    whole: LaplacePosterior | None,
    *,
    progress: bool,
) -> tuple[dict[Source, LaplacePosterior], Likelihood, int]:
    """Fit all sources in one pass; return them, the likelihood, and how many rows were read."""
    curved = {s: subset for s, subset in field.subsets.items() if s != ISOTROPIC_SOURCE}
    posteriors: dict[Source, LaplacePosterior] = {}
    likelihood, rows = problem.likelihood, 0
    if curved:
        posteriors |= fit.laplace_many(problem, train, curved, progress=progress)
        first = next(iter(posteriors.values()))
        likelihood, rows = first.likelihood, first.num_data
    elif isinstance(likelihood, Gaussian):
        # The noise of the training residuals is all that there is to fit.
        point = fit.point(problem, train, progress=progress)
        likelihood, rows = point.likelihood, point.num_data
    if ISOTROPIC_SOURCE in field.subsets:
        assert whole is not None
        posteriors[ISOTROPIC_SOURCE] = replace(whole, likelihood=likelihood, num_data=rows)
    return posteriors, likelihood, rows


def assemble(
    field: Field,
    posteriors: Mapping[Source, LaplacePosterior],
    covered: Coverage,
    precisions: Tensor,
) -> list[Fitted]:
    """Put the posteriors of all contenders together, but for temperature scaling."""
    fitted = []
    for contender in field.contenders:
        if not contender.sources:
            continue
        posterior = _join(contender, posteriors)
        labels = group_labels("head", posterior, lambda: covered)
        known = leave_out_unknown(posterior, precisions)
        fitted.append(Fitted(contender, posterior, labels, known))
    return fitted


def _join(
    contender: Contender, posteriors: Mapping[Source, LaplacePosterior]
) -> LaplacePosterior:
    """Take one source, or the last layer's with the body of that without curvature."""
    head, body = contender.head, contender.body
    if body != ISOTROPIC_SOURCE or head != HEAD_SOURCE:
        source = head if body is None else body
        assert source is not None
        return posteriors[source]
    top, whole = posteriors[HEAD_SOURCE], posteriors[ISOTROPIC_SOURCE]
    universe, parts = whole.subset.universe, whole.subset.parts
    below = {name: part for name, part in parts.items() if name not in top.subset.parts}
    origin = combine_origins("complement", top.subset.origin)
    operators = {n: op for n, op in whole.operators.items() if n not in top.operators}
    return top | replace(whole, subset=Subset(universe, below, origin), operators=operators)


def read_table(
    problem: SettledProblem,
    validation: Iterable[Batch],
    posteriors: Mapping[Source, LaplacePosterior],
    fitted: Iterable[Fitted],
    covered: Coverage,
    precisions: Tensor,
    link: Link,
) -> VarianceTable:
    """Read the held-out rows once: outputs, and the covariances that any candidate needs."""
    needed = {key for each in fitted for keys in each.sums.values() for key in keys}
    if not needed:
        return _read_outputs(problem, validation, precisions)
    top = {layer.name for layer in covered.output_layers}

    def label(source: Source, name: str) -> Hashable | None:
        key = source, HEAD if name in top else BODY
        return key if key in needed else None

    return variance_table(
        problem,
        validation,
        posteriors,
        precisions,
        link.name,
        label=label,
        top=link.followed,
    )


def _read_outputs(
    problem: SettledProblem, validation: Iterable[Batch], precisions: Tensor
) -> VarianceTable:
    """Read the held-out rows where nothing is stochastic."""
    examples = read_examples(problem, validation, progress=False)
    outputs = examples.outputs
    if examples.targets is None:
        raise DataError(
            "validation must be labelled, got a batch without labels, or with -100 alone. "
            "Pass labelled data."
        )
    targets = problem.likelihood.check_targets(outputs, examples.targets)
    return VarianceTable(outputs, targets, precisions, {})
