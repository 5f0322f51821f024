"""One pass over the data: the sums that every structure is made from.

A structure says what to add for a layer's inputs and for its δ of each column that is
back-propagated from the outputs, and how to make operators of the sums.

The exact GGN sends back the square-root columns s_k (K, R, C) of the likelihood's Hessian.
With many classes they are many, and drawn labels take their place: E[s sᵀ] over
y ~ p(y | f) of the gradient s = −∂log p(y | f)/∂f is that Hessian (the Monte-Carlo
Fisher). Draws of two outputs are independent, so their products vanish on average and all
outputs of an example may go back at once. With the true labels the same gradient gives the
squared gradients of the loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smidgen.curvature.base import Operator
from smidgen.curvature.operators import Isotropic
from smidgen.curvature.taps import Tapped, Trace
from smidgen.errors import ArgumentError, DataError, is_whole
from smidgen.outputs.batches import in_batch
from smidgen.outputs.likelihood import Gaussian, Likelihood
from smidgen.outputs.likelihood.gaussian import nll_of_squares
from smidgen.outputs.other_uses import find_other_uses
from smidgen.outputs.problem import Problem, SettledProblem
from smidgen.types import Batch, Reduce
from smidgen.weights.blocks import LayerBlock


def require_finite_sums(sums: Iterable[Tensor]) -> None:
    """Refuse a batch that made a sum NaN or infinite: it would stay so."""
    if not torch.isfinite(torch.stack([total.sum() for total in sums])).all():
        raise DataError(
            "the sums of squares must be finite, got NaN or infinity: what the layers are "
            "given, or the outputs' gradients, are not finite or too large to be squared. "
            "Check this batch's inputs and scale them, or use model.double()."
        )


@dataclass(frozen=True)
class BackwardVectors:
    """How to make columns of a trace; `together` if outputs may go back at once."""

    make: Callable[[Trace], Tensor]
    together: bool

    def of(self, trace: Trace) -> tuple[int, Iterator[Tensor]]:
        """Columns of a batch in so many parts, zero in rows without a target."""
        columns = self.make(trace) * trace.kept[:, None]
        return (1, iter([columns])) if self.together else trace.by_slot(columns)


def exact_ggn(likelihood: Likelihood) -> BackwardVectors:
    """Square-root columns of the Hessian."""
    return BackwardVectors(
        lambda trace: likelihood.root_columns(trace.outputs.detach()), False
    )


def sampled_fisher(
    likelihood: Likelihood, draws: int, seed: int, *, together: bool = True
) -> BackwardVectors:
    """Gradients at drawn labels, scaled so that their squares average over the draws."""
    if not is_whole(draws) or draws < 1:
        raise ArgumentError(
            f"fisher_draws must be a whole number, 1 or more, got {draws!r}. Try 1, or leave "
            "it out for the exact curvature."
        )
    generator = torch.Generator().manual_seed(seed)

    def make(trace: Trace) -> Tensor:
        outputs = trace.outputs.detach()
        labels = [likelihood.draw_targets(outputs, generator) for _ in range(draws)]
        roots = torch.stack([likelihood.gradient(outputs, label) for label in labels])
        return roots / draws**0.5

    return BackwardVectors(make, together)


def gradients(likelihood: Likelihood) -> BackwardVectors:
    """Gradient of the loss at the true labels, one column."""

    def make(trace: Trace) -> Tensor:
        if trace.targets is None:
            raise DataError(
                "squared gradients need labels, and this batch has none. Pass labelled data."
            )
        return likelihood.gradient(trace.outputs.detach(), trace.targets)[None]

    return BackwardVectors(make, True)


@dataclass(frozen=True, eq=False)
class Curvatures:
    """The result of passes over the data: operators by name, and counts.

    `squared_residual` is the mean over examples and outputs, for regression;
    `log_likelihood` is that of all data at the trained weights, if all had targets; `idle`
    are the chosen layers that never ran.
    """

    operators: dict[str, Operator]
    num_data: int
    squared_residual: float
    log_likelihood: float | None
    idle: tuple[str, ...]

    def log_likelihood_under(self, likelihood: Likelihood) -> float | None:
        """Log-likelihood of the data; of a regression under the noise just fitted."""
        if not isinstance(likelihood, Gaussian):
            return self.log_likelihood
        # Relative noises multiply to one, so their log determinant is zero.
        count = self.num_data * likelihood.outputs
        return -count * nll_of_squares(self.squared_residual, likelihood.noise)


class Accumulator(ABC):
    """Running sums over traces: `add` them, then `finish`."""

    def __init__(
        self,
        problem: SettledProblem,
        blocks: Sequence[LayerBlock],
        columns: BackwardVectors | None = None,
    ) -> None:
        self.likelihood: Likelihood = problem.likelihood
        self.columns = columns or exact_ggn(problem.likelihood)
        self.names = tuple(block.layer.name for block in blocks)
        self.ran: set[str] = set()
        self.seen, self.squares = 0, 0.0
        self.log_likelihood: float | None = 0.0

    def add_inputs(self, trace: Trace, name: str) -> None:  # noqa: B027
        """Add one layer's inputs of a part of a batch, after the backward passes of its columns."""

    @abstractmethod
    def add_deltas(self, trace: Trace, deltas: dict[str, Tensor]) -> None:
        """Add δ (B, T, n) of every layer that ran, for one column."""

    @abstractmethod
    def operators(self, scale: float) -> dict[str, Operator]:
        """Make the operators, their curvature multiplied by a number."""

    @abstractmethod
    def running(self) -> list[Tensor]:
        """List the running sums themselves, not copies."""

    def all_reduce(self, reduce: Reduce) -> None:
        """Add up the sums of all processes, so that each has those of all their data."""
        sums = self.running()
        fit, ran = self.log_likelihood, [float(name in self.ran) for name in self.names]
        counts = [self.seen, self.squares, fit or 0.0, float(fit is None), *ran]
        for tensor in sums:
            tensor.copy_(reduce(tensor))
        device = sums[0].device
        totals = reduce(torch.tensor(counts, dtype=torch.float64, device=device)).tolist()
        self.seen, self.squares = round(totals[0]), totals[1]
        self.log_likelihood = None if totals[3] else totals[2]
        self.ran = {n for n, runs in zip(self.names, totals[4:], strict=True) if runs}

    def add(self, trace: Trace) -> None:
        """Add one batch: its inputs once, its δ for every column."""
        # The caller's autocast is for the model's forward pass, not for our sums.
        with torch.autocast(trace.outputs.device.type, enabled=False):
            self._add_columns(trace)
            self.seen += int(trace.kept.sum())
            self._add_fit(trace)
            require_finite_sums(self.witnesses())

    def witnesses(self) -> list[Tensor]:
        """List sums that cannot all be finite unless all of `running` are."""
        return self.running()

    def _add_columns(self, trace: Trace) -> None:
        ran = [name for name in self.names if trace.runs(name)]
        self.ran.update(ran)
        count, parts = self.columns.of(trace)  # columns (K, R, C) in each part
        for number, part in enumerate(parts):
            further = number + 1 < count
            for k, column in enumerate(part):
                more = further or k + 1 < len(part)
                self.add_deltas(trace, trace.deltas(column, more=more, joined=k > 0))
            # After all columns: each may reach layers and positions that the others do not.
            for name in ran:
                self.add_inputs(trace, name)

    def finish(self, num_data: int | None = None, *, decompose: bool = True) -> Curvatures:
        """Make the operators, for unit noise; without `decompose` there are only the counts."""
        # num_data: size of the whole data set if the traces are of a sample of it, in labelled
        # tokens where each has an output.
        if num_data is not None and num_data < 1:
            raise ArgumentError(f"num_data must be 1 or more, got {num_data}.")
        if not self.seen:
            raise DataError("no example has a label (all are -100). Pass labelled data.")
        if num_data is not None and num_data < self.seen:
            raise ArgumentError(
                f"num_data must be at least the {self.seen} examples (or labelled tokens) "
                f"that the batches have, got {num_data}. Leave it out if they are all."
            )
        total = num_data or self.seen
        scale = total / self.seen
        return Curvatures(
            self.operators(scale) if decompose else {},
            total,
            self.squares / (self.seen * self.likelihood.outputs),
            None if self.log_likelihood is None else self.log_likelihood * scale,
            tuple(name for name in self.names if name not in self.ran),
        )

    def _add_fit(self, trace: Trace) -> None:
        """Add how well the trained weights fit: squared residuals and log-likelihood."""
        if trace.targets is None:
            self.log_likelihood = None
            return
        outputs, targets = trace.outputs.detach()[trace.kept], trace.targets[trace.kept]
        if isinstance(self.likelihood, Gaussian):
            self.squares += float(self.likelihood.squares(outputs, targets).sum())
        if self.log_likelihood is not None:
            log_probs = self.likelihood.log_prob(outputs.double(), targets)
            self.log_likelihood += float(log_probs.sum())


class ResidualAccumulator(Accumulator):
    """Only how well the trained weights fit, without a backward pass: there is no curvature."""

    def __init__(
        self,
        problem: SettledProblem,
        blocks: Sequence[LayerBlock],
        columns: BackwardVectors | None = None,
    ) -> None:
        super().__init__(problem, blocks, columns)
        self.isotropic = Isotropic.of_blocks(problem, blocks)
        self.nothing = torch.zeros((), dtype=torch.float64, device=problem.device)

    def _add_columns(self, trace: Trace) -> None:
        self.ran.update(name for name in self.names if trace.runs(name))

    def add_deltas(self, trace: Trace, deltas: dict[str, Tensor]) -> None:
        """There is nothing to add."""

    def running(self) -> list[Tensor]:
        """One number that stays zero, for its device."""
        return [self.nothing]

    def operators(self, scale: float) -> dict[str, Operator]:
        """Make operators without curvature."""
        return self.isotropic


def accumulate(
    sums: Accumulator,
    taps: Tapped,
    batches: Iterable[Batch],
    reduce: Reduce | None = None,
) -> Accumulator:
    """Run one pass over the data into `sums`, and return them."""
    for number, batch in enumerate(batches, 1):
        with taps.problem.reading(batch, number):
            # Not kept in a name: the next pass must not find these activations alive.
            sums.add(taps.run(batch))
    if reduce is not None:
        sums.all_reduce(reduce)
    return sums


def drop_mixing_layers(taps: Tapped, problem: Problem, batch: Batch) -> dict[str, str]:
    """Drop the layers that no tap sees as they are in the first batch, with the reason."""
    # Those whose weights are used past their calls, and those that do not keep examples apart.
    # A Jacobian per example is a sum over that example's positions of a layer, so the layer
    # must see its examples one after another. Back-propagating the outputs of the first
    # example alone must leave δ = 0 in the rows of all others; where it does not, rows are
    # in another order or shared. A batch of one example is checked by shape alone.
    with in_batch(1):
        layers = {name: block.layer for name, block in taps.blocks.items()}
        held = {name: (layer.modules, layer.shapes) for name, layer in layers.items()}
        reasons = find_other_uses(problem, batch, held)
        taps.drop(reasons)
        # The graph is kept for the pass, which need not run this batch again.
        trace = taps.run_ahead(batch)
        for name in taps.blocks:
            try:
                if trace.runs(name):
                    trace.inputs(name)
            except DataError as error:
                reasons[name] = str(error)
        trace = trace.without(reasons)
        first = torch.zeros_like(trace.outputs)
        # A random direction: the plain sum of centred logits is constant.
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(trace.slots, first.shape[1], generator=generator)
        first[: trace.slots] = drawn.to(first)
        for name, delta in trace.deltas(first, more=True).items():
            elsewhere = delta[1:].abs().amax() if delta[1:].numel() else delta.new_zeros(())
            # Rounding of a batched product may leave a trace, a mistake is of δ's size.
            if elsewhere > 1e-3 * delta.abs().amax():
                reasons[name] = f"the layer {name!r} mixes the examples of a batch"
    taps.drop(reasons.keys() & taps.blocks.keys())
    return reasons
