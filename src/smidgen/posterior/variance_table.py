"""The variance table: what every choice on held-out data is made from (DESIGN 4.4).

A predictive covariance is a sum over operators. One pass that keeps the terms apart gives
every prior precision, scalar or by group, every set of modules and every size of block by
addition alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from smidgen.curvature.accumulate import drop_mixing_layers
from smidgen.curvature.operators import Isotropic
from smidgen.curvature.taps import Tapped, tapped
from smidgen.errors import DataError, StructureError
from smidgen.outputs.batches import count_examples, in_batch, number_examples
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.posterior.output_covariance import CovarianceTerm, map_moments
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock, find_blocks

_Level = TypeVar("_Level", bound=Hashable)


@dataclass(frozen=True, eq=False)
class VarianceTable:
    """Outputs (N, C), targets (N, ...) and covariances (P, N, K, K) by label.

    `precisions` (P,) are for unit noise, ascending. `examples` (N,) number the example of each
    row, from 0 through all batches, where they are known: tokens of one text share theirs.
    """

    outputs: Tensor
    targets: Tensor
    precisions: Tensor
    covariance: Mapping[Hashable, Tensor]
    examples: Tensor | None = None

    def at(self, label: Hashable, precision: float) -> Tensor:
        """Interpolate the covariance (N, K, K) of one label, in fp64; exact on the grid."""
        # τ/(h + τ) is smooth in log τ whatever h is, so τ·covariance is interpolated by
        # the cubic through four grid points.
        logs, target = self.precisions.log(), torch.tensor(precision).double().log()
        count = min(4, len(logs))
        place = int(torch.searchsorted(logs, target))
        start = max(0, min(place - 2, len(logs) - count))
        near = logs[start : start + count]
        total = torch.zeros_like(self.covariance[label][0], dtype=torch.float64)
        for index in range(count):
            others = torch.cat([near[:index], near[index + 1 :]])
            weight = ((target - others) / (near[index] - others)).prod()
            scale = self.precisions[start + index] * weight / precision
            total += scale * self.covariance[label][start + index].double()
        return total

    def take(self, rows: Tensor) -> VarianceTable:
        """Take some rows, by number."""
        covariance = {label: c[:, rows] for label, c in self.covariance.items()}
        return replace(
            self,
            outputs=self.outputs[rows],
            targets=self.targets[rows],
            covariance=covariance,
            examples=None if self.examples is None else self.examples[rows],
        )

    def total(self, labels: Iterable[Hashable]) -> Tensor:
        """Sum over some labels, in fp64: (P, N, K, K)."""
        shape = next(iter(self.covariance.values())).shape
        total = torch.zeros(shape, dtype=torch.float64)
        for label in labels:
            total += self.covariance[label]
        return total


def variance_table(
    problem: Problem,
    batches: Iterable[Batch],
    posteriors: Mapping[_Level, Posterior],
    precisions: Tensor | None,
    link: str,
    *,
    label: Callable[[_Level, str], Hashable | None] = lambda level, name: (level, name),
    top: int | None = None,
) -> VarianceTable:
    """Make the table of all examples with a target, for some posteriors, in one pass."""
    # The posteriors are those of one model, by level. `label` maps a level and the name of
    # an operator to the sum that its term joins; None leaves it out.
    blocks = {
        level: find_blocks(problem.model, p.subset) for level, p in posteriors.items()
    }
    around = hulls(list(blocks.values()))
    terms = [
        term
        for level, posterior in posteriors.items()
        for term in _place_terms(posterior, blocks[level], around, precisions, level, label)
    ]
    likelihood = next(iter(posteriors.values())).likelihood
    directions = likelihood.choose_directions(link, top)
    rows: list[tuple[Tensor, Tensor, Tensor, dict[Hashable, Tensor]]] = []
    sizes: list[int | None] = []
    settled = problem.with_likelihood(likelihood)
    with tapped(settled, around) as taps:
        if any(isinstance(term.operator, Isotropic) for term in terms):
            first, batches = settled.read_first(batches)
            _refuse_mixing_layers(taps, settled, first)
        counted = _count(batches, sizes)
        tables = map_moments(taps, counted, terms, directions, lambda moments: moments)
    seen = 0
    for number, moments in enumerate(tables, 1):
        labelled = moments.kept
        with in_batch(number):
            if moments.targets is None:
                raise DataError(
                    "calibration needs labels, and this batch has none. Pass labelled data."
                )
        covariance = {key: c[:, labelled] for key, c in moments.covariance.items()}
        own = seen + number_examples(len(moments.outputs), sizes[number - 1])
        seen = int(own[-1]) + 1
        here = moments.outputs[labelled], moments.targets[labelled], own[labelled]
        rows.append((*here, covariance))
    if not sum(len(outputs) for outputs, *_ in rows):
        raise DataError(
            "the validation loader yielded no labelled example. Check its length and labels."
        )
    outputs, targets, examples, covariances = zip(*rows, strict=True)
    return VarianceTable(
        torch.cat(outputs),
        torch.cat(targets),
        terms[0].precisions if precisions is None else precisions,
        {key: torch.cat([c[key] for c in covariances], 1) for key in covariances[0]},
        torch.cat(examples),
    )


def _count(batches: Iterable[Batch], sizes: list[int | None]) -> Iterator[Batch]:
    """Note how many examples each batch has, as it passes by."""
    for batch in batches:
        sizes.append(count_examples(batch))
        yield batch


def _refuse_mixing_layers(taps: Tapped, problem: Problem, batch: Batch) -> None:
    """Refuse what a fit would have found, where no fit has seen any data of some layers."""
    reasons = drop_mixing_layers(taps, problem, batch)
    if reasons:
        raise StructureError(
            f"no chosen layer may mix the examples of a batch, got {', '.join(reasons)}: "
            f"{next(iter(reasons.values()))}. Leave these layers out of the subset."
        )


def hulls(choices: Sequence[Sequence[LayerBlock]]) -> list[LayerBlock]:
    """Find the smallest block around each layer's blocks, over several choices."""
    by_layer: dict[str, list[LayerBlock]] = {}
    for blocks in choices:
        for block in blocks:
            by_layer.setdefault(block.layer.name, []).append(block)
            if len(choices) > 1 and block.entries is not None:
                raise StructureError(
                    f"several posteriors at once need rows × columns of each layer, but "
                    f"{block.layer.name!r} has {block.size} scattered entries. Use them one "
                    "by one."
                )
    return [b[0] if len(b) == 1 else _hull(b) for b in by_layer.values()]


def positions_in(
    around: LayerBlock, block: LayerBlock
) -> tuple[Tensor | None, Tensor | None]:
    """Find a block's rows and columns, the bias's first, in a block around it; None for all."""
    rows = torch.searchsorted(around.rows, block.rows)
    columns = torch.searchsorted(around.columns, block.columns)
    if around.bias:
        first = torch.zeros(int(block.bias), dtype=torch.int64)
        columns = torch.cat([first, columns + 1])
    all_rows = len(rows) == around.row_count
    all_columns = len(columns) == around.column_count
    return None if all_rows else rows, None if all_columns else columns


def _hull(blocks: Sequence[LayerBlock]) -> LayerBlock:
    rows = torch.cat([block.rows for block in blocks]).unique()
    columns = torch.cat([block.columns for block in blocks]).unique()
    return LayerBlock(blocks[0].layer, rows, columns, any(block.bias for block in blocks))


def _place_terms(
    posterior: Posterior,
    blocks: Sequence[LayerBlock],
    around: Sequence[LayerBlock],
    precisions: Tensor | None,
    level: _Level,
    label: Callable[[_Level, str], Hashable | None],
) -> list[CovarianceTerm]:
    """List a posterior's terms, each with its place in the blocks that are tapped."""
    inner = {block.layer.name: block for block in blocks}
    outer = {block.layer.name: block for block in around}
    terms = []
    for term in posterior.covariance_terms(blocks, precisions, label=lambda name: name):
        joins = label(level, str(term.label))
        if joins is None:
            continue
        rows, columns, name = None, None, term.layers[0]
        if len(term.layers) == 1 and inner[name] is not outer[name]:
            rows, columns = positions_in(outer[name], inner[name])
        terms.append(replace(term, label=joins, rows=rows, columns=columns))
    return terms
