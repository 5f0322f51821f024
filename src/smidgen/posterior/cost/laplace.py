"""What a Laplace posterior costs, from shapes alone: bytes stored, peak bytes, passes, work.

Stored bytes are exact: those of the tensors in `posterior.safetensors`. Peak bytes are what
a fit, calibration or prediction takes beyond the model and the batch. With e bytes a number
(4, or 8 for an fp64 model), B examples, and for each layer T positions, n chosen rows, m
chosen columns (the bias's among them) and D chosen weights, a pass holds

    graph     what autograd keeps above the lowest chosen layer, from a dry run
    inputs    Σ B·T·m·e, what the taps keep; at full width only what the graph does not
    deltas    Σ B·T·n·e, gradients of the layers' outputs, for each direction sent back
    swing     twice the largest piece of the graph: activations and gradients on their way
    work      of one layer at a time: copies, products of sides, Jacobians
    followed  (8 + e)(1 + K) for each output, of a prediction: the outputs and K directions
              as combinations of them, made in fp64

and the sums of its structure in fp64: Σ 8(n² + m²), Σ 8D or 8D². The graph is gone by the
time of the last direction's work. After the pass come the eigenvectors in fp64 beside the
sums, the decomposition of the largest factor, and the copy in the working type. Two terms
more were found by measuring: a fit first looks for NaN, which takes three bytes and a copy
of each entry of the largest chosen layer; and malloc gives activations back late, so that 0.4
of graph, inputs and swing stay taken throughout (glibc, MiniLM; without it the sum above is
within 6 % of what the process holds).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import nn

from smidgen.curvature.base import Operator
from smidgen.curvature.dry_run import ActivationTrace
from smidgen.curvature.factors.factor_sum import count_rows
from smidgen.curvature.factors.low_rank import cap_ranks
from smidgen.curvature.factors.operator import Kronecker
from smidgen.curvature.operators import (
    STRUCTURES,
    Dense,
    Diagonal,
    Eigenbasis,
    Isotropic,
)
from smidgen.posterior.cost.model import SLACK, Cost, CostModel, Setting
from smidgen.posterior.output_covariance import KEPT_BYTES
from smidgen.weights.blocks import LayerBlock, find_blocks
from smidgen.weights.subset import Subset

# Prior precisions that a calibration tries by default.
_GRID_SIZE = 41
_DOUBLE = 8
# LAPACK's divide and conquer: scaled factor, symmetric copy, vectors, and 2n² of workspace.
_EIGH_MATRICES = 5
# Copies of all outputs, in fp64, on their way through a link; measured as 4.7.
_LINK_COPIES = 5
# Multiplications of a decomposition of side n, in units of n³, fp64 counted twice.
_EIGH_WORK = 18


def laplace_cost(
    model: nn.Module,
    subset: Subset,
    structure: str,
    trace: ActivationTrace,
    setting: Setting,
) -> Cost:
    """Count what a Laplace posterior costs; without runs in the trace, no activations."""
    kind = _STRUCTURES[structure](find_blocks(model, subset), trace, setting)
    operators = kind.e * kind.operator.count_stored(kind.blocks, setting.most_vectors)
    fit = kind.fit_peak(setting.columns, operators) + kind.slack
    if setting.body is not None:
        subset |= setting.body
        kind = _JoinedStructure(kind, find_blocks(model, setting.body), trace, setting)
    indices, _ = subset.to_tensors()
    return Cost(
        weights=kind.size,
        stored_bytes=operators + sum(tensor.nbytes for tensor in indices.values()),
        fit_peak_bytes=max(fit, _search_peak(model, kind.blocks)),
        tune_peak_bytes=kind.predict_peak(setting.directions, _GRID_SIZE) + kind.slack,
        predict_peak_bytes=kind.predict_peak(setting.directions, 1) + kind.slack,
        activation_bytes=kind.activations + kind.slack,
        passes=kind.passes,
        pass_work=kind.pass_work(setting.columns),
        final_work=kind.final_work(),
    )


def _search_peak(model: nn.Module, blocks: Sequence[LayerBlock]) -> int:
    """Bytes that the search for NaN in the chosen layers takes."""
    names = (name for block in blocks for name in block.layer.shapes)
    searched = map(model.get_parameter, names)
    return max((p.numel() * (p.itemsize + 3) for p in searched), default=0)


class _Structure(ABC):
    """The terms of the module's docstring for some blocks; subclasses know their sums."""

    operator: ClassVar[type[Operator]]
    passes: int = 1

    def __init__(
        self, blocks: Sequence[LayerBlock], trace: ActivationTrace, setting: Setting
    ) -> None:
        self.blocks, self.trace, self.e = blocks, trace, setting.itemsize
        self.size = sum(block.size for block in blocks)
        self.factors = sum(b.row_count**2 + b.column_count**2 for b in blocks)
        pieces = trace.graph({block.layer.name for block in blocks})
        self.graph = sum(pieces.values())
        # Of all pieces: what is below the lowest layer passes by as well.
        self.swing = 2 * max((piece.bytes for piece in trace.kept), default=0)
        self.inputs = self._input_bytes(pieces)
        self.deltas = sum(self.side(b, b.row_count) for b in blocks)
        self.activations = self.graph + self.inputs + self.swing
        self.slack = int(SLACK * self.activations)

    def side(self, block: LayerBlock, width: int) -> int:
        """Bytes of B·T vectors of a width."""
        positions = self.trace.positions(block.layer.name)
        return self.trace.examples * positions * width * self.e

    @abstractmethod
    def fit_peak(self, columns: int, operators: int) -> int:
        """Peak of a fit: of its passes, or of what comes after them."""

    @abstractmethod
    def pass_work(self, columns: int) -> int:
        """Multiplications on a batch, with positions summed where possible."""

    @abstractmethod
    def final_work(self) -> int:
        """Multiplications of the decompositions."""

    def predict_peak(self, directions: int, precisions: int) -> int:
        """Peak of a pass that follows some directions under some precisions."""
        cached, passing = 0, 0
        for size in self.inverse_bytes(precisions):
            if cached + size <= KEPT_BYTES:
                cached += size
            else:
                passing = max(passing, size)
        back = self.graph + (directions - 1) * self.deltas + self.swing
        # Those of several directions are joined, which takes a copy.
        joined = directions * (1 + (directions > 1)) * self.deltas
        work = joined + self.contraction_work(directions) + passing
        followed = (_DOUBLE + self.e) * (1 + directions) * self.trace.output_numbers
        scored = _LINK_COPIES * _DOUBLE * self.trace.output_numbers
        return max(cached + self.inputs + followed + max(back, work), scored)

    def inverse_bytes(self, precisions: int) -> list[int]:
        """Bytes of each operator's 1/(h + τ) under some precisions."""
        sizes = [self.e * b.size * precisions for b in self.blocks]
        return [sum(sizes)] if self.operator.joint else sizes

    def jacobian_work(self) -> int:
        """Multiplications of all Jacobians of a batch, summed over positions."""
        return sum(self.side(b, b.size) for b in self.blocks) // self.e

    def _pass(self, columns: int, work: int) -> int:
        """Bytes of a fit's pass besides its sums; the last column frees the graph."""
        if columns == 1:
            return self.inputs + max(self.graph + self.swing, self.deltas + work)
        held = self.inputs + self.graph + self.deltas
        return held + max(self.deltas + self.swing, work)

    def _input_bytes(self, graph: Mapping[int, int]) -> int:
        """Bytes of inputs that taps keep: copies of columns, or the activation itself."""
        whole: dict[int, int] = {}
        copies = 0
        for block in self.blocks:
            activation = self.trace.inputs(block.layer.name)
            copy = self.side(block, block.columns.numel())
            full_width = block.columns.numel() == block.layer.inputs
            if full_width and sum(activation.values()) >= copy:
                whole.update(activation)
            else:
                copies += copy
        return copies + sum(whole[memory] for memory in whole.keys() - graph.keys())

    def _moment_work(self, itemsize: int, *, rotate: bool = False) -> int:
        """A layer's Jacobians and their squares; both sides may be rotated first."""
        rotated = 2 * itemsize // self.e if rotate else 0
        return max(
            self.side(b, b.column_count)
            + rotated * self.side(b, b.row_count + b.column_count)
            + 2 * self.trace.examples * b.size * itemsize
            for b in self.blocks
        )

    def contraction_work(self, directions: int) -> int:
        """Inputs joined and rotated, δ rotated, Jacobians, and one product of two."""
        # One Jacobian alone is squared in place.
        products = directions + (directions > 1)
        return max(
            2 * self.side(b, b.column_count)
            + directions * self.side(b, b.row_count)
            + products * self.trace.examples * self.e * b.size
            for b in self.blocks
        )


class _KroneckerStructure(_Structure):
    operator: ClassVar[type[Operator]] = Kronecker

    def __init__(
        self, blocks: Sequence[LayerBlock], trace: ActivationTrace, setting: Setting
    ) -> None:
        super().__init__(blocks, trace, setting)
        self.widest = max(max(b.row_count, b.column_count) for b in blocks)
        if self.passes == 1:
            self._count_sketches(setting.most_vectors)

    def _count_sketches(self, rank: int | None) -> None:
        """Of sides whose rank is capped, count the rows of their sketches, and no square."""
        sides = [(block.row_count, block.column_count) for block in self.blocks]
        pairs = [
            (side, most)
            for pair, ranks in zip(sides, cap_ranks(sides, rank), strict=True)
            for side, most in zip(pair, ranks, strict=True)
        ]
        self.factors = sum(side * count_rows(side, most) for side, most in pairs)
        self.widest = max(count_rows(side, most) for side, most in pairs)

    def fit_peak(self, columns: int, operators: int) -> int:
        factors = _DOUBLE * self.factors
        return max(self._factor_peak(columns), 2 * factors + operators)

    def _factor_peak(self, columns: int) -> int:
        """Peak of the pass that sums the factors, and of their decomposition."""
        factors = _DOUBLE * self.factors
        decomposing = 2 * factors + _DOUBLE * _EIGH_MATRICES * self.widest**2
        # Two copies of a layer's inputs (ones in, padding out) and a product of sides.
        inputs = max(2 * self.side(b, b.column_count) for b in self.blocks)
        work = inputs + (self.e + _DOUBLE) * self.widest**2
        return max(factors + self._pass(columns, work), decomposing)

    def pass_work(self, columns: int) -> int:
        return self.trace.examples * self.factors * columns

    def final_work(self) -> int:
        return _EIGH_WORK * sum(b.row_count**3 + b.column_count**3 for b in self.blocks)


class _EigenbasisStructure(_KroneckerStructure):
    operator = Eigenbasis
    passes = 2

    def fit_peak(self, columns: int, operators: int) -> int:
        factors, size = _DOUBLE * self.factors, _DOUBLE * self.size
        moments = self._pass(columns, self._moment_work(_DOUBLE, rotate=True))
        after = factors + 2 * size + operators
        return max(self._factor_peak(columns), factors + size + moments, after)

    def pass_work(self, columns: int) -> int:
        rotated = sum(self.side(b, b.row_count**2 + b.column_count**2) for b in self.blocks)
        # The second pass works in fp64; this is the mean of both.
        second = 2 * (rotated // self.e + self.jacobian_work())
        return (self.trace.examples * self.factors + second) * columns // 2


class _DiagonalStructure(_Structure):
    operator = Diagonal

    def fit_peak(self, columns: int, operators: int) -> int:
        basis, sums = self.e * self.size, _DOUBLE * self.size
        running = basis + sums + self._pass(columns, self._moment_work(self.e))
        return max(running, basis + 2 * sums + operators)

    def pass_work(self, columns: int) -> int:
        return self.jacobian_work() * columns

    def final_work(self) -> int:
        return 0


class _DenseStructure(_Structure):
    operator = Dense

    def fit_peak(self, columns: int, operators: int) -> int:
        square = self.size**2
        # All layers' Jacobians, side by side too, those in fp64, and their product.
        jacobians = self.trace.examples * self.size
        work = (2 * self.e + _DOUBLE) * jacobians + _DOUBLE * square
        running = _DOUBLE * square + self._pass(columns, work)
        return max(running, _DOUBLE * (1 + _EIGH_MATRICES) * square)

    def pass_work(self, columns: int) -> int:
        return (self.jacobian_work() + self.trace.examples * self.size**2) * columns

    def final_work(self) -> int:
        return _EIGH_WORK * self.size**3

    def contraction_work(self, directions: int) -> int:
        products = 3 * directions + (directions > 1)
        return products * self.trace.examples * self.e * self.size


class _IsotropicStructure(_Structure):
    operator = Isotropic

    def fit_peak(self, columns: int, operators: int) -> int:
        return 0

    def pass_work(self, columns: int) -> int:
        return 0

    def final_work(self) -> int:
        return 0

    def inverse_bytes(self, precisions: int) -> list[int]:
        return []

    def contraction_work(self, directions: int) -> int:
        """Two T × T matrices, or the Jacobians where those are smaller."""
        return max(
            min(
                2 * self.side(b, self.trace.positions(b.layer.name)),
                directions * self.trace.examples * self.e * b.size,
            )
            for b in self.blocks
        )


class _JoinedStructure(_Structure):
    """Layers with curvature, which are fitted alone, beside others without."""

    def __init__(
        self,
        curved: _Structure,
        others: Sequence[LayerBlock],
        trace: ActivationTrace,
        setting: Setting,
    ) -> None:
        super().__init__((*curved.blocks, *others), trace, setting)
        self.curved, self.body = curved, _IsotropicStructure(others, trace, setting)
        self.passes = curved.passes

    def fit_peak(self, columns: int, operators: int) -> int:
        return self.curved.fit_peak(columns, operators)

    def pass_work(self, columns: int) -> int:
        return self.curved.pass_work(columns)

    def final_work(self) -> int:
        return self.curved.final_work()

    def inverse_bytes(self, precisions: int) -> list[int]:
        return self.curved.inverse_bytes(precisions)

    def contraction_work(self, directions: int) -> int:
        parts = (self.curved, self.body)
        return max(part.contraction_work(directions) for part in parts)


_KINDS = (
    _KroneckerStructure,
    _EigenbasisStructure,
    _DiagonalStructure,
    _DenseStructure,
    _IsotropicStructure,
)
_STRUCTURES: Mapping[str, type[_Structure]] = {k.operator.structure: k for k in _KINDS}
LAPLACE_COSTS = CostModel(
    cost=laplace_cost,
    forms=tuple(STRUCTURES),
    option="structure",
    label="{}",
    scattered=tuple(name for name, kind in STRUCTURES.items() if kind.scattered),
)
"""How the cost of a Laplace posterior is counted, by structure."""
