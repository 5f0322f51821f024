"""The variance table: what every choice on held-out data is made from (DESIGN 4.4).

A predictive covariance is a sum over operators, so one pass that keeps the terms apart
gives every prior precision, scalar or by group, every set of modules and every size of
block by addition alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from smidgen.errors import DataError, StructureError
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.posterior.output_covariance import (
    CovarianceTerm,
    Moments,
    output_moments,
)
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock, find_blocks

Level = TypeVar("Level", bound=Hashable)


@dataclass(frozen=True, eq=False)
class VarianceTable:
    """Outputs (N, C), targets (N, ...) and covariances (P, N, K, K) by label.

    `precisions` (P,) are for unit noise, ascending.
    """

    outputs: Tensor
    targets: Tensor
    precisions: Tensor
    covariance: Mapping[Hashable, Tensor]

    def at(self, label: Hashable, precision: float) -> Tensor:
        """Covariance (N, K, K) of one label at any precision within the grid.

        τ/(h + τ) is smooth in log τ whatever h is, so τ·covariance is interpolated by
        the cubic through four grid points; on the grid it is exact.

        Args:
            label: The label.
            precision: The precision for unit noise.

        Returns:
            The covariance, in fp64.
        """
        logs, wanted = self.precisions.log(), torch.tensor(precision).double().log()
        count = min(4, len(logs))
        place = int(torch.searchsorted(logs, wanted))
        start = max(0, min(place - 2, len(logs) - count))
        near = logs[start : start + count]
        total = torch.zeros_like(self.covariance[label][0], dtype=torch.float64)
        for index in range(count):
            others = torch.cat([near[:index], near[index + 1 :]])
            weight = ((wanted - others) / (near[index] - others)).prod()
            scale = self.precisions[start + index] * weight / precision
            total += scale * self.covariance[label][start + index].double()
        return total

    def total(self, labels: Iterable[Hashable]) -> Tensor:
        """Sum over some labels, in fp64: (P, N, K, K)."""
        shape = next(iter(self.covariance.values())).shape
        found = torch.zeros(shape, dtype=torch.float64)
        for label in labels:
            found += self.covariance[label]
        return found


def variance_table(
    problem: Problem,
    batches: Iterable[Batch],
    posteriors: Mapping[Level, Posterior],
    precisions: Tensor | None,
    link: str,
    *,
    label: Callable[[Level, str], Hashable | None] = lambda level, name: (level, name),
    top: int | None = None,
) -> VarianceTable:
    """Make the table of some posteriors in one pass.

    Args:
        problem: The problem; the posteriors say its likelihood.
        batches: Labelled batches, read once.
        posteriors: The posteriors by level, all of one model.
        precisions: Prior precisions for unit noise, (P,); each operator's own if None.
        link: A resolved link, which says what of the outputs to follow.
        label: From a level and an operator's name to the label that its share is
            summed under, or None to leave it out.
        top: How many classes of each example are followed; None for all.

    Returns:
        The table of all examples that have a target.

    Raises:
        DataError: If a batch has no targets, or no example has one.
    """
    chosen = {
        level: find_blocks(problem.model, p.subset) for level, p in posteriors.items()
    }
    around = hulls(list(chosen.values()))
    shares = [
        placed
        for level, posterior in posteriors.items()
        for placed in _placed(posterior, chosen[level], around, precisions, level, label)
    ]
    likelihood = next(iter(posteriors.values())).likelihood
    followed = likelihood.followed(link, top)
    rows = []
    settled = problem.with_likelihood(likelihood)
    for each in output_moments(settled, batches, around, shares, followed):
        if each.targets is None:
            raise DataError(
                "calibration needs labels, and a batch has none. Pass labelled data."
            )
        rows.append(_kept(each))
    if not sum(len(outputs) for outputs, _, _ in rows):
        raise DataError(
            "the validation loader yielded no labelled example. Check its length."
        )
    outputs, covariances, targets = zip(*rows, strict=True)
    return VarianceTable(
        torch.cat(outputs),
        torch.cat(targets),
        shares[0].precisions if precisions is None else precisions,
        {key: torch.cat([c[key] for c in covariances], 1) for key in covariances[0]},
    )


def hulls(choices: Sequence[Sequence[LayerBlock]]) -> list[LayerBlock]:
    """The smallest block around each layer's blocks, over several choices.

    Args:
        choices: The blocks of each choice.

    Returns:
        One block for each layer, in the order the layers first appear.

    Raises:
        StructureError: If several choices hold single entries.
    """
    found: dict[str, list[LayerBlock]] = {}
    for chosen in choices:
        for block in chosen:
            found.setdefault(block.layer.name, []).append(block)
            if len(choices) > 1 and block.entries is not None:
                raise StructureError(
                    f"several posteriors at once need rows × columns of each layer, but "
                    f"{block.layer.name!r} has {block.size} scattered entries. Take them one "
                    "by one."
                )
    return [each[0] if len(each) == 1 else _hull(each) for each in found.values()]


def positions_in(
    around: LayerBlock, own: LayerBlock
) -> tuple[Tensor | None, Tensor | None]:
    """Where a block's rows and columns are in a block around it; None for all of them.

    Args:
        around: The larger block.
        own: A block of the same layer within it.

    Returns:
        Positions of rows, and of columns with the bias's first.
    """
    rows = torch.searchsorted(around.rows, own.rows)
    columns = torch.searchsorted(around.columns, own.columns)
    if around.bias:
        first = torch.zeros(int(own.bias), dtype=torch.int64)
        columns = torch.cat([first, columns + 1])
    all_rows = len(rows) == around.row_count
    all_columns = len(columns) == around.column_count
    return None if all_rows else rows, None if all_columns else columns


def _hull(blocks: Sequence[LayerBlock]) -> LayerBlock:
    rows = torch.cat([each.rows for each in blocks]).unique()
    columns = torch.cat([each.columns for each in blocks]).unique()
    return LayerBlock(blocks[0].layer, rows, columns, any(each.bias for each in blocks))


def _placed(
    posterior: Posterior,
    own: Sequence[LayerBlock],
    around: Sequence[LayerBlock],
    precisions: Tensor | None,
    level: Level,
    label: Callable[[Level, str], Hashable | None],
) -> list[CovarianceTerm]:
    """A posterior's shares, each with its place in the blocks that are tapped."""
    mine = {block.layer.name: block for block in own}
    tapped = {block.layer.name: block for block in around}
    placed = []
    for share in posterior.covariance_terms(own, precisions, label=lambda name: name):
        joins = label(level, str(share.label))
        if joins is None:
            continue
        rows, columns = None, None
        if len(share.layers) == 1 and mine[share.layers[0]] is not tapped[share.layers[0]]:
            name = share.layers[0]
            rows, columns = positions_in(tapped[name], mine[name])
        placed.append(
            CovarianceTerm(
                joins, share.layers, share.operator, share.precisions, rows, columns
            )
        )
    return placed


def _kept(each: Moments) -> tuple[Tensor, dict[Hashable, Tensor], Tensor]:
    kept, targets = each.kept, each.targets
    assert targets is not None
    covariance = {key: value[:, kept] for key, value in each.covariance.items()}
    return each.outputs[kept], covariance, targets[kept]
