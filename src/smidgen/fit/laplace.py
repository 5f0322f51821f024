"""Laplace: a Gaussian at the trained weights whose precision is the curvature plus τ.

With the exact generalised Gauss–Newton matrix, one block per affine layer, restricted to the
subset before anything is multiplied: Kronecker-factored that is Sparse-KFAC (DESIGN 4.2,
4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from smidgen.curvature.accumulate import (
    Accumulator,
    BackwardVectors,
    Curvatures,
    ResidualAccumulator,
    accumulate,
    drop_mixing_layers,
    exact_ggn,
    require_finite_sums,
    sampled_fisher,
)
from smidgen.curvature.base import Operator
from smidgen.curvature.dense import DenseAccumulator
from smidgen.curvature.factors.low_rank import check_rank
from smidgen.curvature.factors.operator import Kronecker
from smidgen.curvature.kronecker import (
    APPROXIMATIONS,
    Approximation,
    KroneckerAccumulator,
)
from smidgen.curvature.moments import MomentAccumulator, weight_basis
from smidgen.curvature.operators import (
    STRUCTURES,
    Dense,
    Diagonal,
    Eigenbasis,
    Isotropic,
)
from smidgen.curvature.output_layers import check_last_layer
from smidgen.curvature.taps import Tapped, tapped
from smidgen.errors import (
    ArgumentError,
    DataError,
    StructureError,
    fill_settings,
    is_number,
    warn,
)
from smidgen.outputs.batches import as_batches
from smidgen.outputs.likelihood import Gaussian, Likelihood
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.outputs.residuals import fit_relative_noise
from smidgen.posterior.cost.laplace import LAPLACE_COSTS
from smidgen.posterior.cost.model import Setting, refuse_too_large
from smidgen.posterior.laplace import LaplacePosterior, make_isotropic
from smidgen.runtime.guard import fingerprint, preserve_random_state
from smidgen.runtime.memory import available_bytes
from smidgen.runtime.processes.sharded_rows import read_each_once
from smidgen.runtime.progress import track
from smidgen.runtime.storage.offload import (
    read_parameter,
    refuse_empty_weights,
    refuse_hidden_tie,
)
from smidgen.types import Batch, Reduce
from smidgen.weights.affine.share import warn_of_little_covered
from smidgen.weights.blocks import LayerBlock, find_blocks, restrict_subset
from smidgen.weights.subset import Subset, check_subset

Noise = Literal["scalar", "per-output"]


@dataclass(frozen=True)
class LaplaceSettings:
    """How the curvature is measured.

    Args:
        approximation: How positions that share weights are treated: "reduce" or "expand".
        fisher_draws: Draw this many labels for each output in place of the exact GGN,
            whose cost grows with the number of classes; or "exact". By default exact up to
            50 classes, and a few draws above.
        noise: Of a regression, fitted to the residuals: "scalar", or "per-output", which
            reads the batches once more.
        num_data: Size of the whole data set if the batches are a sample of it.
        seed: Seed of the drawn labels.
        rank: The most eigenvectors of a factor to keep, for "kron". By default only sides
            much wider than the other are cut, as those of LoRA: to a few floats a weight.

    Raises:
        ArgumentError: If approximation or noise is not one of its choices.
    """

    approximation: Approximation = "reduce"
    fisher_draws: int | Literal["exact"] | None = None
    noise: Noise = "scalar"
    num_data: int | None = None
    seed: int = 0
    rank: int | None = None

    def __post_init__(self) -> None:
        choices = {"approximation": APPROXIMATIONS, "noise": get_args(Noise)}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ArgumentError(
                    f"{name} must be one of {allowed}, got {getattr(self, name)!r}."
                )
        check_rank(self.rank)

    def backward_vectors(self, likelihood: Likelihood) -> BackwardVectors:
        """Make what a pass sends back from the outputs."""
        draws = likelihood.settle_draws(self.fisher_draws, tell=True)
        if draws is None:
            return exact_ggn(likelihood)
        # What was not asked for must not be refused: see `KroneckerAccumulator`.
        together = self.fisher_draws is not None or self.approximation == "expand"
        return sampled_fisher(likelihood, draws, self.seed, together=together)


def laplace(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    subset: Subset,
    *,
    structure: str = "kron",
    precision: float = 1.0,
    settings: LaplaceSettings | None = None,
    reduce: Reduce | None = None,
    progress: bool = True,
) -> LaplacePosterior:
    """Fit a Laplace posterior over a subset of the weights.

    Args:
        model: The trained model, or a `Problem` that says how to read its batches.
        batches: Training batches, any iterable, read once ("ekfac": twice).
            Classification needs no labels: the curvature does not depend on them.
        subset: The weights to make stochastic.
        structure: How the curvature is stored: "kron" (factors), "ekfac" (their basis,
            measured in a second pass), "diag", "full" (one matrix over all layers, for a
            few thousand weights), or "isotropic" (no curvature: of the batches only the
            first is read, and all for the noise of a regression).
        precision: Prior precision τ, to be calibrated afterwards.
        settings: How the curvature is measured.
        reduce: Adds a tensor up over all processes, where each has a shard of the data:
            `accelerator.reduce`. Every process must have a batch, and gets the posterior.
            Where there are several it must be given; rows that a sampler repeats count once.
        progress: Show a progress bar.

    Returns:
        The posterior; for regression, the noise is that of the training residuals,
        whatever the likelihood came with.
    """
    settings = fill_settings(settings, LaplaceSettings)
    _check_arguments(structure, settings, batches, subset)
    batches = read_each_once(as_batches(batches), reduce)
    problem = as_problem(model)
    blocks = find_blocks(problem.model, subset)
    warn_of_little_covered(problem.model, subset)
    check_fit(problem.model, structure, precision, blocks)
    with preserve_random_state(problem.model):
        if settings.noise == "per-output":
            # Before the pass begins: a loader with lasting workers has but one iterator.
            problem = fit_relative_noise(problem, batches, reduce)
        first, data = problem.read_first(track(batches, "fitting", show=progress))
        if subset.claims_last:
            check_last_layer(problem, first, subset)
        with tapped(problem, blocks) as taps:
            blocks = keep_separable_layers(taps, problem, first)
            problem = problem.with_likelihood(taps.likelihood)
            subset = restrict_subset(subset, blocks)
            vectors = settings.backward_vectors(problem.likelihood)
            examples = _count_examples(first)
            if not _surely_fits(problem, blocks, structure, examples, settings.rank):
                setting = replace(
                    Setting.of(problem, settings.fisher_draws), most_vectors=settings.rank
                )
                refuse_too_large(
                    LAPLACE_COSTS, problem, subset, structure, setting, examples
                )
            if structure == Isotropic.structure and not isinstance(
                problem.likelihood, Gaussian
            ):
                return make_isotropic(problem, subset, blocks, precision)
            inputs = _PassInputs(problem, blocks, vectors, settings, {})
            make_sums, *further = _PASSES[structure]
            sums = accumulate(make_sums(inputs), taps, data, reduce)
        curvatures = sums.finish(settings.num_data)
        for make_sums in further:
            inputs = replace(inputs, operators=curvatures.operators)
            data = track(batches, "measuring", show=progress)
            with tapped(problem, blocks) as taps:
                sums = accumulate(make_sums(inputs), taps, data, reduce)
            curvatures = sums.finish(settings.num_data)
    return make_posterior(problem, subset, curvatures, precision, settings)


def _check_arguments(
    structure: str, settings: LaplaceSettings, batches: Iterable[Batch], subset: Subset
) -> None:
    if not isinstance(structure, str) or structure not in STRUCTURES:
        names = ", ".join(STRUCTURES)
        raise StructureError(
            f"structure must be one of {names}, got {structure!r}. Leave it out for 'kron'."
        )
    if settings.rank is not None and structure != Kronecker.structure:
        raise ArgumentError(
            f"rank is for structure 'kron', whose factors it cuts, got {settings.rank} with "
            f"{structure!r}. Leave it out."
        )
    reads_twice = {
        f"structure {structure!r}": len(_PASSES[structure]) > 1,
        "noise": settings.noise == "per-output",
    }
    for option, twice in reads_twice.items():
        if twice and isinstance(batches, Iterator):
            raise ArgumentError(
                f"batches must be readable twice for {option}, got an iterator. Pass a list "
                "or a data loader."
            )
    check_subset(subset)


@dataclass(frozen=True, eq=False)
class _PassInputs:
    """What a pass works on; `operators` are those of the pass before it."""

    problem: SettledProblem
    blocks: Sequence[LayerBlock]
    vectors: BackwardVectors
    settings: LaplaceSettings
    operators: Mapping[str, Operator]

    def sum_factors(self) -> Accumulator:
        """Sum the two Kronecker factors of each layer."""
        return self._sum_factors(rank=self.settings.rank)

    def sum_whole_factors(self) -> Accumulator:
        """Sum them with all their eigenvectors, for a basis."""
        return self._sum_factors(whole=True)

    def _sum_factors(self, *, rank: int | None = None, whole: bool = False) -> Accumulator:
        return KroneckerAccumulator(
            self.problem,
            self.blocks,
            self.settings.approximation,
            self.vectors,
            rank=rank,
            whole=whole,
        )

    def sum_moments_in_basis(self) -> Accumulator:
        """Sum second moments in the factors' eigenbasis."""
        return MomentAccumulator(self.problem, self.blocks, self.operators, self.vectors)

    def sum_moments_of_weights(self) -> Accumulator:
        """Sum second moments weight by weight."""
        kind, device = self.problem.working_type, self.problem.device
        basis = weight_basis(self.blocks, torch.empty(0, dtype=kind, device=device))
        return MomentAccumulator(self.problem, self.blocks, basis, self.vectors)

    def sum_whole_matrix(self) -> Accumulator:
        """Sum one matrix over all layers."""
        return DenseAccumulator(self.problem, self.blocks, self.vectors)

    def sum_residuals(self) -> Accumulator:
        """Sum nothing but what tells the noise."""
        return ResidualAccumulator(self.problem, self.blocks, self.vectors)


# The passes over the data that make each structure, in their order.
_PASSES: dict[str, tuple[Callable[[_PassInputs], Accumulator], ...]] = {
    Kronecker.structure: (_PassInputs.sum_factors,),
    Eigenbasis.structure: (_PassInputs.sum_whole_factors, _PassInputs.sum_moments_in_basis),
    Diagonal.structure: (_PassInputs.sum_moments_of_weights,),
    Dense.structure: (_PassInputs.sum_whole_matrix,),
    Isotropic.structure: (_PassInputs.sum_residuals,),
}


def check_fit(
    model: nn.Module, structure: str, precision: float, blocks: Sequence[LayerBlock]
) -> None:
    """Refuse before any pass what no pass could fit."""
    if not is_number(precision) or not 0 < precision < float("inf"):
        raise ArgumentError(
            f"precision must be > 0 and finite, got {precision!r}. Leave it out, and "
            "calibrate afterwards."
        )
    scattered = [block for block in blocks if block.entries is not None]
    if scattered and not STRUCTURES[structure].scattered:
        able = [name for name, kind in STRUCTURES.items() if kind.scattered]
        first = scattered[0]
        raise StructureError(
            f"structure {structure!r} needs rows × columns of each layer and the bias "
            f"of those rows, but {first.layer.name!r} has {first.size} scattered "
            f"entries. Use structure={' or '.join(map(repr, able))}, or choose with "
            "smidgen.select.sparse_kfac."
        )
    refuse_empty_weights(model)
    refuse_hidden_tie(model, [path for block in blocks for path in block.layer.modules])
    for name in (name for block in blocks for name in block.layer.shapes):
        if not torch.isfinite(read_parameter(model, name)).all():
            raise DataError(
                f"the model's weights must be finite, got NaN or infinity in {name!r}. "
                "Train or load it again."
            )


def _surely_fits(
    problem: SettledProblem,
    blocks: Sequence[LayerBlock],
    structure: str,
    examples: int,
    rank: int | None,
) -> bool:
    """Whether the memory is so plentiful that the cost need not be counted."""
    available = available_bytes(problem.device)
    if available is None:
        return True
    # An upper bound on the peak of `laplace_cost` without activations, so that nothing passes
    # here that `refuse_too_large` would refuse. A number has at most 8 bytes. Sums, copies and
    # the workspace of a decomposition are at most 7 times what is stored (2 of factors and 5
    # of `eigh`), and the Jacobians of B examples with their squares 2B times. The search for
    # NaN takes at most 11 bytes for each entry of the largest chosen layer.
    stored = STRUCTURES[structure].count_stored(blocks, rank)
    largest = max(block.layer.outputs * block.layer.inputs for block in blocks)
    return max(8 * (7 + 2 * examples) * stored, 11 * largest) <= available


def _count_examples(batch: Batch) -> int:
    """Count the examples of a batch, by its first tensor."""
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if not isinstance(batch, (Mapping, tuple, list)):
        parts = [batch]
    tensors = (part for part in parts if isinstance(part, Tensor))
    return next((len(part) if part.dim() else 1 for part in tensors), 1)


def keep_separable_layers(
    taps: Tapped, problem: Problem, batch: Batch
) -> tuple[LayerBlock, ...]:
    """Drop layers that mix the examples of the first batch, and warn of them; return the rest."""
    reasons = drop_mixing_layers(taps, problem, batch)
    separable = tuple(taps.blocks.values())
    if reasons:
        first_reason = next(iter(reasons.values()))
        if not separable:
            raise StructureError(f"no chosen layer can be treated: {first_reason}.")
        warn(
            f"{len(reasons)} chosen layers stay deterministic: "
            f"{', '.join(list(reasons)[:3])}. {first_reason}"
        )
    return separable


def cast_operators(
    operators: Mapping[str, Operator], problem: SettledProblem
) -> dict[str, Operator]:
    """Cast what was summed and decomposed in fp64 to the type that the problem works in."""
    kind, device = problem.working_type, problem.device
    cast = {name: operator.to(kind, device) for name, operator in operators.items()}
    # A number that fp64 holds may be infinite now.
    for operator in cast.values():
        require_finite_sums(operator.tensors())
    return cast


def make_posterior(
    problem: SettledProblem,
    subset: Subset,
    curvatures: Curvatures,
    precision: float,
    settings: LaplaceSettings,
) -> LaplacePosterior:
    """Make the posterior, and warn about chosen layers that never ran."""
    if curvatures.idle:
        warn(
            f"{len(curvatures.idle)} chosen layers never ran, so their weights keep the "
            f"prior: {', '.join(curvatures.idle[:3])}."
        )
    likelihood = problem.likelihood.fit_noise(curvatures.squared_residual)
    return LaplacePosterior(
        subset=subset,
        likelihood=likelihood,
        operators=cast_operators(curvatures.operators, problem),
        precision=precision,
        fingerprint=fingerprint(problem.model),
        num_data=curvatures.num_data,
        approximation=settings.approximation,
        log_likelihood=curvatures.log_likelihood_under(likelihood),
    )
