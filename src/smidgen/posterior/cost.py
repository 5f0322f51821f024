"""What a posterior costs, from shapes alone: bytes stored, peak bytes, passes, work.

Stored bytes are exact: those of the tensors in `posterior.safetensors`. Peak bytes are what
a fit, a tuning or a prediction takes beyond the model and the batch. With e bytes a number
(4, or 8 for an fp64 model), B examples, and for each layer T positions, n chosen rows, m
chosen columns (the bias's among them) and D chosen weights, a pass holds

    graph     what autograd keeps above the lowest chosen layer, from a rehearsal
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
of each entry of the largest parameter; and malloc gives activations back late, so that 0.4
of graph, inputs and swing stay taken throughout (glibc, MiniLM; without it the sum above is
within 6 % of what the process holds).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from smidgen.curvature.dry_run import ActivationTrace
from smidgen.curvature.operators import STRUCTURES
from smidgen.errors import ResourceError
from smidgen.outputs.problem import SettledProblem
from smidgen.posterior.candidates import Candidate, compared_subsets
from smidgen.posterior.output_covariance import KEPT_BYTES
from smidgen.runtime.memory import LIMIT, available_bytes, format_bytes
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock, find_blocks
from smidgen.weights.subset import Subset

GRID_SIZE = 41
"""Prior precisions that a tuning tries by default."""
_DOUBLE = 8
# LAPACK's divide and conquer: scaled factor, symmetric copy, vectors, and 2n² of its own.
_EIGH_MATRICES = 5
# Copies of all outputs, in fp64, on their way through a link; measured as 4.7.
_LINK_COPIES = 5
# Share of the activations that malloc holds back.
SLACK = 0.4
# Multiplications of a decomposition of side n, in units of n³, fp64 counted twice.
_EIGH_WORK = 18


@dataclass(frozen=True)
class Setting:
    """What of a problem costs depend on.

    Args:
        itemsize: Bytes of a number in the working type.
        columns: Backward passes for each batch of a fit.
        directions: Backward passes for each batch of a prediction.
        checked_bytes: What the look for NaN takes.
    """

    itemsize: int
    columns: int
    directions: int
    checked_bytes: int

    @classmethod
    def of(
        cls, problem: SettledProblem, draws: int | None = None, top: int | None = None
    ) -> Setting:
        """Read a problem whose likelihood is settled, as `laplace` and `predict` would."""
        likelihood = problem.likelihood
        link = likelihood.resolved_link("auto", top)
        directions = likelihood.direction_count(link, top)
        checked = (p.numel() * (p.itemsize + 3) for p in problem.model.parameters())
        size = problem.working_type.itemsize
        return cls(
            size, draws or likelihood.root_count, directions, max(checked, default=0)
        )


@dataclass(frozen=True)
class Cost:
    """What one posterior costs.

    Args:
        weights: How many weights are stochastic.
        stored_bytes: Bytes of the tensors that are saved: factors and indices.
        fit_peak_bytes: Most bytes a fit takes at once, beyond the model.
        tune_peak_bytes: The same of a tuning over 41 precisions.
        predict_peak_bytes: The same of a prediction.
        activation_bytes: The part of those that grows with the batch, not the subset.
        passes: Passes over the training data.
        pass_work: Multiplications for each batch of a pass, beyond the model's own.
        final_work: Multiplications after the passes.
    """

    weights: int
    stored_bytes: int
    fit_peak_bytes: int
    tune_peak_bytes: int
    predict_peak_bytes: int
    activation_bytes: int
    passes: int
    pass_work: int
    final_work: int


def cost(
    chosen: Sequence[LayerBlock],
    subset: Subset,
    structure: str,
    seen: ActivationTrace,
    setting: Setting,
) -> Cost:
    """Count what a posterior costs.

    Args:
        chosen: The blocks of the subset.
        subset: The subset, for the bytes of its indices.
        structure: How the curvature is kept.
        seen: What a pass keeps; without runs, activations are left out.
        setting: What of the problem matters.

    Returns:
        The cost.
    """
    shapes = _Shapes(chosen, seen, setting.itemsize, structure)
    indices, _ = subset.to_tensors()
    stored = sum(each.numel() * each.itemsize for each in indices.values())
    operators = shapes.operator_bytes()
    fit = shapes.fit_peak(setting.columns, operators)
    return Cost(
        weights=shapes.size,
        stored_bytes=stored + operators,
        fit_peak_bytes=max(fit + shapes.slack, setting.checked_bytes),
        tune_peak_bytes=shapes.predict_peak(setting.directions, GRID_SIZE) + shapes.slack,
        predict_peak_bytes=shapes.predict_peak(setting.directions, 1) + shapes.slack,
        activation_bytes=shapes.activations + shapes.slack,
        passes=2 if structure == "ekfac" else 1,
        pass_work=shapes.pass_work(setting.columns),
        final_work=shapes.final_work(),
    )


class _Shapes:
    """The terms of the module's docstring for some blocks."""

    def __init__(
        self,
        chosen: Sequence[LayerBlock],
        seen: ActivationTrace,
        itemsize: int,
        structure: str,
    ) -> None:
        self.chosen, self.seen, self.e, self.structure = chosen, seen, itemsize, structure
        self.size = sum(block.size for block in chosen)
        self.factors = sum(b.row_count**2 + b.column_count**2 for b in chosen)
        pieces = seen.graph({block.layer.name for block in chosen})
        self.graph = sum(pieces.values())
        # Of all pieces: what is below the lowest layer passes by as well.
        self.swing = 2 * max((each.bytes for each in seen.kept), default=0)
        self.inputs = self._input_bytes(pieces)
        self.deltas = sum(self.side(b, b.row_count) for b in chosen)
        self.activations = self.graph + self.inputs + self.swing
        self.slack = int(SLACK * self.activations)

    def side(self, block: LayerBlock, width: int) -> int:
        """Bytes of B·T vectors of a width."""
        positions = self.seen.positions(block.layer.name)
        return self.seen.examples * positions * width * self.e

    def operator_bytes(self) -> int:
        """Bytes of the operators as they are kept."""
        kind = STRUCTURES[self.structure]
        if kind.joint:
            shapes = list(kind.shapes(0, 0, self.size))
        else:
            sides = ((b.row_count, b.column_count, b.size) for b in self.chosen)
            shapes = [shape for each in sides for shape in kind.shapes(*each)]
        return self.e * sum(prod(shape) for shape in shapes)

    def fit_peak(self, columns: int, operators: int) -> int:
        """Peak of a fit: of its passes, or of what comes after them."""
        factors, size = _DOUBLE * self.factors, _DOUBLE * self.size
        if self.structure == "full":
            square = self.size**2
            running = _DOUBLE * square + self._pass(columns, self._joint_work())
            return max(running, _DOUBLE * (1 + _EIGH_MATRICES) * square)
        if self.structure == "diag":
            running = self.e * self.size + size + self._pass(columns, self._moment_work())
            return max(running, self.e * self.size + 2 * size + operators)
        first = factors + self._pass(columns, self._factor_work())
        largest = max(max(b.row_count, b.column_count) for b in self.chosen)
        decomposing = 2 * factors + _DOUBLE * _EIGH_MATRICES * largest**2
        if self.structure == "kron":
            return max(first, decomposing, 2 * factors + operators)
        second = factors + size + self._pass(columns, self._moment_work())
        return max(first, decomposing, second, factors + 2 * size + operators)

    def predict_peak(self, directions: int, precisions: int) -> int:
        """Peak of a pass that follows some directions under some precisions."""
        weights = [self.e * b.size * precisions for b in self.chosen]
        if STRUCTURES[self.structure].joint:
            weights = [sum(weights)]
        kept, passing = 0, 0
        for each in weights:
            if kept + each <= KEPT_BYTES:
                kept += each
            else:
                passing = max(passing, each)
        back = self.graph + (directions - 1) * self.deltas + self.swing
        work = 2 * directions * self.deltas + self._contraction_work(directions) + passing
        followed = (_DOUBLE + self.e) * (1 + directions) * self.seen.output_numbers
        scored = _LINK_COPIES * _DOUBLE * self.seen.output_numbers
        return max(kept + self.inputs + followed + max(back, work), scored)

    def pass_work(self, columns: int) -> int:
        """Multiplications on a batch, with positions reduced where they can be."""
        batch = self.seen.examples
        spread = sum(self.side(b, b.size) for b in self.chosen) // self.e
        if self.structure == "kron":
            return batch * self.factors * columns
        if self.structure == "diag":
            return spread * columns
        if self.structure == "full":
            return (spread + batch * self.size**2) * columns
        rotated = sum(self.side(b, b.row_count**2 + b.column_count**2) for b in self.chosen)
        # The second pass works in fp64; both together are two passes.
        return (batch * self.factors + 2 * (rotated // self.e + spread)) * columns // 2

    def final_work(self) -> int:
        """Multiplications of the decompositions."""
        if self.structure == "diag":
            return 0
        if self.structure == "full":
            return _EIGH_WORK * self.size**3
        return _EIGH_WORK * sum(b.row_count**3 + b.column_count**3 for b in self.chosen)

    def _pass(self, columns: int, work: int) -> int:
        """Bytes of a fit's pass besides its sums; the last column frees the graph."""
        if columns == 1:
            return self.inputs + max(self.graph + self.swing, self.deltas + work)
        held = self.inputs + self.graph + self.deltas
        return held + max(self.deltas + self.swing, work)

    def _input_bytes(self, graph: Mapping[int, int]) -> int:
        """What taps keep of inputs: copies of columns, or the activation itself."""
        whole: dict[int, int] = {}
        copies = 0
        for block in self.chosen:
            own = self.seen.inputs(block.layer.name)
            copy = self.side(block, block.columns.numel())
            if block.columns.numel() == block.layer.inputs and sum(own.values()) >= copy:
                whole.update(own)
            else:
                copies += copy
        return copies + sum(whole[memory] for memory in whole.keys() - graph.keys())

    def _factor_work(self) -> int:
        """Two copies of a layer's inputs (ones in, padding out) and a product of sides."""
        return max(
            2 * self.side(b, b.column_count)
            + (self.e + _DOUBLE) * max(b.row_count, b.column_count) ** 2
            for b in self.chosen
        )

    def _moment_work(self) -> int:
        """A layer's Jacobians and their squares; ekfac rotates both sides first, in fp64."""
        wide = _DOUBLE if self.structure == "ekfac" else self.e
        rotates = 2 * wide // self.e if self.structure == "ekfac" else 0
        return max(
            self.side(b, b.column_count)
            + rotates * self.side(b, b.row_count + b.column_count)
            + 2 * self.seen.examples * b.size * wide
            for b in self.chosen
        )

    def _joint_work(self) -> int:
        """All layers' Jacobians, side by side too, and their product in both types."""
        rows = 2 * self.seen.examples * self.size * self.e
        return rows + (self.e + _DOUBLE) * self.size**2

    def _contraction_work(self, directions: int) -> int:
        """Inputs joined and rotated, δ rotated, Jacobians, and one product of two."""
        jacobian = self.seen.examples * self.e
        if self.structure == "full":
            return (3 * directions + 1) * jacobian * self.size
        return max(
            2 * self.side(b, b.column_count)
            + directions * self.side(b, b.row_count)
            + (directions + 1) * jacobian * b.size
            for b in self.chosen
        )


def candidates(
    model: nn.Module, name: str, subset: Subset, structure: str
) -> Iterator[Candidate]:
    """List a choice and what could be taken in its place.

    Args:
        model: The model; it is only looked at.
        name: What to call the choice.
        subset: The chosen weights.
        structure: The chosen structure.

    Yields:
        The choice; its structure on other subsets; its subset in other structures.
    """
    yield Candidate(name, structure, subset, True)
    for other, weights in compared_subsets(model).items():
        if other != name:
            yield Candidate(other, structure, weights)
    scattered = any(block.entries is not None for block in find_blocks(model, subset))
    for other, kind in STRUCTURES.items():
        if other != structure and (kind.scattered or not scattered):
            yield Candidate(name, other, subset)


def refuse_too_large(
    problem: SettledProblem,
    chosen: Sequence[LayerBlock],
    subset: Subset,
    structure: str,
    batch: Batch,
    draws: int | None = None,
) -> None:
    """Refuse a fit whose own memory is more than there is, and say what would fit.

    Activations are left out: they are the model's, and would need a pass to be told.

    Args:
        problem: The problem.
        chosen: The blocks of the subset.
        subset: The weights.
        structure: How the curvature is to be kept.
        batch: The first batch.
        draws: Labels drawn for each output, if they are.

    Raises:
        ResourceError: If it would not fit.
    """
    available = available_bytes(problem.device)
    seen = ActivationTrace(_examples(batch), 0)
    setting = Setting.of(problem, draws)

    def peak(each: Candidate, own: Sequence[LayerBlock]) -> int:
        return cost(own, each.subset, each.structure, seen, setting).fit_peak_bytes

    listed = candidates(problem.model, "this subset", subset, structure)
    needed = peak(next(listed), chosen)
    if available is None or needed <= available:
        return
    peaks = ((peak(each, find_blocks(problem.model, each.subset)), each) for each in listed)
    fitting = sorted(peaks, key=lambda pair: -pair[0])
    advice = [
        f"{each.name} with structure={each.structure!r} ({format_bytes(size)})"
        for size, each in fitting
        if size <= available
    ]
    raise ResourceError(
        f"structure {structure!r} on {subset.size:,} weights needs {format_bytes(needed)} of "
        f"memory, and {format_bytes(available)} are available. "
        + (f"What fits: {'; '.join(advice[:4])}." if advice else "Nothing would fit.")
        + f" smidgen.plan shows all; {LIMIT}=BYTES overrules what is available."
    )


def _examples(batch: Batch) -> int:
    """How many examples a batch has, by its first tensor."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(batch, (Mapping, tuple, list)):
        return next((_examples(each) for each in parts if isinstance(each, Tensor)), 1)
    return 1
