"""One pass over the data: what every structure sums of it.

A structure says what to add of a map's inputs and of its δ for each square-root column of
the likelihood's Hessian, and how to make operators of the sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from smidgen.affine import MapBlock
from smidgen.curvature.taps import Trace, tapped
from smidgen.errors import ArgumentError, DataError
from smidgen.likelihood import Gaussian, Likelihood
from smidgen.operators import Operator
from smidgen.problem import Problem
from smidgen.types import Batch


@dataclass(frozen=True, eq=False)
class Curvatures:
    """What passes over the data give: the curvature of each map, and counts.

    `squared_residual` is the mean over examples and outputs, for regression; `idle` are
    the chosen maps that never ran.
    """

    operators: dict[str, Operator]
    num_data: int
    squared_residual: float
    idle: tuple[str, ...]


class Sums(ABC):
    """Running sums over traces: `add` them, then `finish`."""

    def __init__(self, problem: Problem, blocks: Sequence[MapBlock]) -> None:
        assert problem.likelihood is not None
        self.likelihood: Likelihood = problem.likelihood
        self.names = tuple(block.map.name for block in blocks)
        self.ran: set[str] = set()
        self.seen, self.squares = 0, 0.0

    @abstractmethod
    def add_inputs(self, trace: Trace, name: str) -> None:
        """Add one map's inputs of a batch."""

    @abstractmethod
    def add_deltas(self, trace: Trace, name: str, deltas: Tensor) -> None:
        """Add one map's δ (B, T, n) of a batch, for one square-root column."""

    @abstractmethod
    def operator(self, name: str, scale: float) -> Operator:
        """Make the operator of one map, its curvature multiplied by a number."""

    def add(self, trace: Trace) -> None:
        """Add one batch: its inputs once, its δ for every square-root column."""
        for name in self.names:
            if trace.runs(name):
                self.ran.add(name)
                self.add_inputs(trace, name)
        columns = self.likelihood.root_columns(trace.outputs.detach())
        columns = columns * trace.kept[:, None]
        for k, column in enumerate(columns):
            deltas = trace.deltas(column, more=k + 1 < len(columns))
            for name, delta in deltas.items():
                self.add_deltas(trace, name, delta)
        self.seen += int(trace.kept.sum())
        if isinstance(self.likelihood, Gaussian):
            self.squares += _squared_residual(trace)

    def finish(self, num_data: int | None = None) -> Curvatures:
        """Make the operators.

        Args:
            num_data: Size of the whole data set if the traces are of a sample of it.

        Returns:
            The curvature of each map, for unit noise.

        Raises:
            ArgumentError: If num_data is below 1.
            DataError: If no example had a target.
        """
        if num_data is not None and num_data < 1:
            raise ArgumentError(f"num_data must be 1 or more, got {num_data}.")
        if not self.seen:
            raise DataError("no example has a label (all are -100). Pass labelled data.")
        total = num_data or self.seen
        return Curvatures(
            {name: self.operator(name, total / self.seen) for name in self.names},
            total,
            self.squares / (self.seen * self.likelihood.outputs),
            tuple(name for name in self.names if name not in self.ran),
        )


def accumulate(
    sums: Sums, problem: Problem, batches: Iterable[Batch], blocks: Sequence[MapBlock]
) -> Sums:
    """Run one pass over the data into some sums.

    Args:
        sums: What to add to.
        problem: The problem, with its likelihood settled.
        batches: Any iterable of batches, read once.
        blocks: The chosen rows and columns of each map.

    Returns:
        The same sums.
    """
    with tapped(problem, blocks) as taps:
        for batch in batches:
            # Not kept in a name: the next pass must not find these activations alive.
            sums.add(taps.run(batch))
    return sums


def _squared_residual(trace: Trace) -> float:
    if trace.targets is None:
        return 0.0
    residuals = (trace.targets - trace.outputs.detach())[trace.kept]
    return float(residuals.double().square().sum())
