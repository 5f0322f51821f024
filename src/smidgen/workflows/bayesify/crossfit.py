"""Score candidates on held-out rows that did not calibrate them, from one variance table.

The rows are split into folds. For each fold, precisions and temperature are chosen on all
others, as `smidgen.calibrate` would, and its rows are scored with those. So every row has an
NLL that nothing chose it for, and no model runs: folds are rows of the table.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import smidgen.evaluate as evaluate
from smidgen.errors import ArgumentError, DataError
from smidgen.fit.calibration.folds import Folds, choose_in_folds
from smidgen.fit.calibration.objective import Objective
from smidgen.fit.calibration.precision import ScaledPrecisions
from smidgen.outputs.likelihood import Gaussian, Likelihood
from smidgen.outputs.links import Link
from smidgen.outputs.predictive import Predictive
from smidgen.posterior.variance_table import VarianceTable
from smidgen.workflows.bayesify.settings import LEAST_ROWS
from smidgen.workflows.method import predict_from_outputs

STRIDE = 2
"""Of the grid of precisions every second is tried in the folds: two to a decade."""
# By so much fewer draws of the logits propose places of the grid.
_FEWER = 8
LabelledSums = Mapping[Hashable, Sequence[Hashable]]
"""The sums of the table that share a precision, by its label."""


def number_groups(table: VarianceTable, groups: Sequence[Hashable] | None = None) -> Tensor:
    """Number what stays together in the folds, (N,): rows of one example, or of one group.

    Args:
        table: The held-out rows.
        groups: The group of each held-out example, in their order, labelled or not.

    Returns:
        The number of each row's group, in the order in which they come first.

    Raises:
        ArgumentError: If there are fewer groups than examples.
    """
    examples = table.examples
    if examples is None:
        examples = torch.arange(len(table.outputs))
    together: list[Hashable] = examples.tolist()
    if groups is not None:
        if len(groups) <= int(examples.max()):
            raise ArgumentError(
                f"groups must be one for each held-out example, got {len(groups)} of "
                f"{int(examples.max()) + 1} or more. Give them in the order of validation."
            )
        together = [groups[example] for example in examples.tolist()]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(together))}
    return torch.tensor([numbers[group] for group in together])


def split_rows(groups: Tensor, folds: int, seed: int) -> list[Tensor]:
    """Split row numbers into folds at random, by the number of each row's group, (N,).

    Args:
        groups: Rows of one group stay together.
        folds: How many there are; fewer where one would have too few rows.
        seed: Fixes which group goes where.

    Returns:
        The row numbers of each fold, sorted.

    Raises:
        DataError: If the rows are too few, or of one group.
    """
    rows, sizes = len(groups), groups.bincount()
    folds = min(folds, rows // LEAST_ROWS, len(sizes))
    if folds < 2 <= rows // LEAST_ROWS:
        raise DataError(
            f"validation must have examples of 2 groups or more, got {len(sizes)}. Hold out "
            "others, or fit one posterior with smidgen.fit and calibrate it."
        )
    if folds < 2:
        raise DataError(
            f"validation must have {2 * LEAST_ROWS} labelled rows or more, got {rows}. Hold "
            "out more, or fit one posterior with smidgen.fit and calibrate it."
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(sizes), generator=generator)
    if len(sizes) == rows:
        return [fold.sort().values for fold in order.tensor_split(folds)]
    # Large groups first, each to the fold with the fewest rows; small ones even them out.
    order = order[sizes[order].argsort(descending=True, stable=True)]
    owner, taken = torch.empty_like(sizes), [0] * folds
    for group in order.tolist():
        fold = taken.index(min(taken))
        owner[group] = fold
        taken[fold] += int(sizes[group])
    return [(owner[groups] == fold).nonzero()[:, 0] for fold in range(folds)]


@dataclass(frozen=True, eq=False)
class CrossFitter:
    """Scores candidates on the rows of one table, in the same folds."""

    likelihood: Likelihood
    table: VarianceTable
    folds: Folds

    @classmethod
    def make(
        cls,
        likelihood: Likelihood,
        table: VarianceTable,
        link: Link,
        rows: Sequence[Tensor],
    ) -> CrossFitter:
        """Prepare the folds of a table, by their row numbers."""
        every = torch.arange(len(table.outputs))
        plain = replace(table, covariance={})
        objectives = [
            [make_objective(likelihood, plain.take(some), link) for some in taken]
            for taken in (rows, [every[~torch.isin(every, fold)] for fold in rows])
        ]
        everything = make_objective(likelihood, plain, link)
        few = replace(link, draws=max(1, link.draws // _FEWER))
        proposing = make_objective(likelihood, plain, few)
        return cls(likelihood, table, Folds(rows, everything, proposing, *objectives))

    def score_point(self) -> Tensor:
        """Score the model with its temperature or noise, (N,)."""
        nll = torch.empty(len(self.table.outputs), dtype=torch.float64)
        for rows, objective in zip(self.folds.rows, self.folds.outside, strict=True):
            scale = float(objective.best(None)[0])
            outputs = self.table.outputs[rows]
            predictive = predict_from_outputs(self.likelihood, outputs, scale)
            nll[rows] = evaluate.nll(predictive, self.table.targets[rows])
        return nll

    def score(self, sums: LabelledSums, known: Tensor) -> Tensor:
        """Score a candidate by some sums of the table, at the `known` precisions of it: (N,)."""
        nll = torch.empty(len(self.table.outputs), dtype=torch.float64)
        table = join_labels(self.table, sums, known[::STRIDE])
        choices = choose_in_folds(table, self.folds)
        for rows, choice in zip(self.folds.rows, choices, strict=True):
            held = table.take(rows)
            predictive = predict_rows(self.likelihood, held, choice, self.folds.everything)
            nll[rows] = evaluate.nll(predictive, held.targets)
        return nll


def make_objective(likelihood: Likelihood, table: VarianceTable, link: Link) -> Objective:
    """Make what scores precisions on the rows of a table, as a calibration does."""
    return Objective(
        likelihood,
        table.outputs,
        table.targets,
        link.name,
        top=link.followed,
        draws=link.draws,
    )


def join_labels(table: VarianceTable, sums: LabelledSums, known: Tensor) -> VarianceTable:
    """Make the table of one candidate: its labels, at the precisions it can tell."""
    places = torch.searchsorted(table.precisions, known.contiguous())
    covariance = {}
    for label, keys in sums.items():
        first, *others = (table.covariance[key][places] for key in keys)
        covariance[label] = sum(others, start=first)
    return replace(table, precisions=known, covariance=covariance)


def predict_rows(
    likelihood: Likelihood,
    table: VarianceTable,
    choice: ScaledPrecisions,
    objective: Objective,
) -> Predictive:
    """Predict the rows of a table with chosen precisions and their scale."""
    parts = [table.at(label, tau) for label, tau in choice.precisions.items()]
    covariance, temperature = torch.stack(parts).sum(0), choice.scale
    if isinstance(likelihood, Gaussian):
        likelihood, temperature = replace(likelihood, noise=choice.scale), 1.0
    return likelihood.predictive(
        table.outputs,
        covariance * likelihood.scale,
        link=objective.link,
        temperature=temperature,
        normals=objective.normals,
        top=objective.top,
    )
