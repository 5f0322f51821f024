"""What every fit does before its pass over the data and after it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence, Sized
from dataclasses import replace

import torch
from torch import Tensor, nn

from smidgen.curvature.accumulate import Curvatures
from smidgen.curvature.batch_check import find_mixing_layers
from smidgen.curvature.kronecker import APPROXIMATIONS
from smidgen.curvature.operators import STRUCTURES, Operator
from smidgen.errors import ArgumentError, DataError, SmidgenWarning, StructureError
from smidgen.outputs.likelihood import Categorical, Gaussian, Likelihood
from smidgen.outputs.likelihood.gaussian import nll_of_squares
from smidgen.outputs.problem import SettledProblem
from smidgen.outputs.targets import has_target
from smidgen.runtime.guard import preserve_model
from smidgen.runtime.progress import count_batches
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock
from smidgen.weights.subset import Subset


def log_likelihood(likelihood: Likelihood, found: Curvatures) -> float | None:
    """That of the training data; for regression under the noise just fitted."""
    if not isinstance(likelihood, Gaussian):
        return found.log_likelihood
    # Relative noises multiply to one, so they leave no trace in the log determinant.
    count = found.num_data * likelihood.outputs
    return -count * nll_of_squares(found.squared_residual, likelihood.noise)


def training_length(train: Iterable[Batch]) -> int:
    """Count the batches of an epoch.

    Args:
        train: The loader.

    Returns:
        How many there are.

    Raises:
        DataError: If it has no length, or none.
    """
    found = count_batches(train)
    if not found:
        raise DataError(
            "the training loader must have a length of 1 or more batches, got "
            f"{'none' if found is None else found}. Pass a loader over a data set that has "
            "a length, or a list of batches."
        )
    return found


def training_size(
    problem: SettledProblem, train: Iterable[Batch], given: int | None
) -> int:
    """N, what a prior counts against: as many terms as the likelihood has.

    Args:
        problem: The problem.
        train: The loader; it is read once where its first batch has labels of tokens, or
            rows without one.
        given: N if the caller knows it.

    Returns:
        Examples; labelled tokens or rows where not every one has a label.

    Raises:
        ArgumentError: If it is not given and cannot be told.
    """
    dataset = getattr(train, "dataset", None)
    if given is None and isinstance(dataset, Sized):
        given = _labelled(problem, train) if _partly(problem, train) else len(dataset)
    if given is None:
        raise ArgumentError(
            "num_data must be given for a loader whose data set has no length: the prior "
            "counts against so many examples."
        )
    if given < 1:
        raise ArgumentError(f"num_data must be 1 or more, got {given}.")
    return given


def _partly(problem: SettledProblem, train: Iterable[Batch]) -> bool:
    """Whether classes are of tokens, or of some rows only."""
    targets = problem.targets(next(iter(train)))
    if targets is None or not isinstance(problem.likelihood, Categorical):
        return False
    return targets.dim() > 1 or not bool(has_target(targets).all())


def _labelled(problem: SettledProblem, train: Iterable[Batch]) -> int:
    labels = (problem.targets(batch) for batch in train)
    return sum(int(has_target(each.flatten()).sum()) for each in labels if each is not None)


def squared_residuals(
    problem: SettledProblem, batches: Iterable[Batch]
) -> tuple[Tensor, int]:
    """Sum up the squared residuals of a regression at the trained weights.

    Args:
        problem: The problem, its likelihood Gaussian.
        batches: Batches; rows without a target do not count.

    Returns:
        Sums for relative noise one, (C,), in fp64 on the CPU, and the number of rows.
    """
    likelihood = problem.likelihood
    assert isinstance(likelihood, Gaussian)
    sums, rows = torch.zeros(likelihood.outputs, dtype=torch.float64), 0
    with preserve_model(problem.model), torch.no_grad():
        for batch in batches:
            outputs = problem.outputs(batch).flatten(0, -2)
            targets, kept = problem.read(batch, outputs)
            if targets is not None:
                sums += likelihood.squares(outputs[kept], targets[kept]).sum(0).cpu()
                rows += int(kept.sum())
    return sums, rows


def without_mixing(
    problem: SettledProblem, first: Batch, chosen: Sequence[LayerBlock]
) -> tuple[LayerBlock, ...]:
    """Leave layers out whose rows cannot be told apart by example, and say so.

    Args:
        problem: The problem, with its likelihood settled.
        first: A batch to look at.
        chosen: The blocks.

    Returns:
        The blocks of all other layers.

    Raises:
        StructureError: If none is left.
    """
    reasons = find_mixing_layers(problem, first, chosen)
    kept = tuple(block for block in chosen if block.layer.name not in reasons)
    if reasons:
        first_reason = next(iter(reasons.values()))
        if not kept:
            raise StructureError(f"no chosen layer can be treated: {first_reason}.")
        warnings.warn(
            f"{len(reasons)} chosen layers stay deterministic: "
            f"{', '.join(list(reasons)[:3])}. {first_reason}",
            SmidgenWarning,
            stacklevel=4,
        )
    return kept


def restricted(subset: Subset, kept: Sequence[LayerBlock]) -> Subset:
    """Keep of a subset what is of the layers that are kept.

    Args:
        subset: The subset.
        kept: The blocks that stay stochastic.

    Returns:
        The subset of their parameters.

    Raises:
        StructureError: If nothing is left.
    """
    names = {name for block in kept for name in block.layer.shapes}
    parts = {name: part for name, part in subset.parts.items() if name in names}
    if not parts:
        raise StructureError(
            f"{subset!r} has only layers that mix the examples of a batch. Choose others; "
            "smidgen.coverage(model) lists the layers."
        )
    return Subset(subset.universe, parts, subset.origin)


def refuse_scattered(kind: type[Operator], chosen: Sequence[LayerBlock]) -> None:
    """Refuse single entries where a structure needs rows × columns.

    Args:
        kind: The structure.
        chosen: The blocks it would hold.

    Raises:
        StructureError: If it cannot.
    """
    wrong = [block for block in chosen if block.entries is not None]
    if not kind.scattered and wrong:
        able = [name for name, each in STRUCTURES.items() if each.scattered]
        raise StructureError(
            f"structure {kind.structure!r} needs rows × columns of each layer and the bias "
            f"of those rows, but {wrong[0].layer.name!r} has {wrong[0].size} scattered "
            f"entries. Use structure={' or '.join(map(repr, able))}, or choose with "
            "smidgen.select.sparse_kfac."
        )


def check_numbers(approximation: str, precision: float) -> None:
    """Refuse an approximation or a precision before any pass.

    Args:
        approximation: How positions that share weights are treated.
        precision: The prior precision.

    Raises:
        ArgumentError: If one is outside what it may be.
    """
    if approximation not in APPROXIMATIONS:
        raise ArgumentError(
            f"approximation must be one of {APPROXIMATIONS}, got {approximation!r}."
        )
    if not 0 < precision < float("inf"):
        raise ArgumentError(f"precision must be > 0 and finite, got {precision}.")


def with_noise(likelihood: Likelihood, found: Curvatures) -> Likelihood:
    """Give a regression the noise of its training residuals.

    Args:
        likelihood: The likelihood of the pass.
        found: What the pass found.

    Returns:
        The likelihood, with that noise if it has one.

    Raises:
        DataError: If there is no residual to fit the noise to.
    """
    if not isinstance(likelihood, Gaussian):
        return likelihood
    if not found.squared_residual:
        raise DataError(
            "regression needs targets that differ from the outputs to fit its noise. "
            "Pass labelled data."
        )
    return replace(likelihood, noise=found.squared_residual)


def refuse_bad_weights(model: nn.Module) -> None:
    """Refuse a model whose weights are not finite numbers.

    Args:
        model: The model; it is only read.

    Raises:
        DataError: If a weight is NaN or infinite.
    """
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter.detach()).all():
            raise DataError(
                f"the model's weights must be finite, got NaN or infinity in {name!r}. "
                "Train or load it again."
            )


def mention_idle(found: Curvatures) -> None:
    """Warn about chosen layers that never ran."""
    if found.idle:
        warnings.warn(
            f"{len(found.idle)} chosen layers never ran, so their weights keep the "
            f"prior: {', '.join(found.idle[:3])}.",
            SmidgenWarning,
            stacklevel=3,
        )
