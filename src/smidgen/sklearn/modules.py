"""The module of an estimator on tables: made, copied or taken as it is, and looked at."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.arrays import Arrays, measure_moments
from smidgen.outputs.problem import Problem, SettledProblem
from smidgen.sparse.architectures import PlainNetwork, Standardise

ModuleSource: TypeAlias = nn.Module | Callable[[int, int], nn.Module] | None
"""A module; what makes one for so many features and outputs; or None, for an MLP."""
_LEAST_GROUPS = 50


def make_module(
    source: ModuleSource,
    inputs: Tensor,
    outputs: int,
    *,
    hidden: Any,
    seed: int,
    trained: bool,
) -> nn.Module:
    """Make the module to train, or copy the one that was given.

    Args:
        source: What the estimator was given.
        inputs: The training rows, (N, F).
        outputs: How many outputs it must have.
        hidden: The hidden units of an MLP.
        seed: Fixes new weights.
        trained: It is not to be trained any more, so it must be one.

    Returns:
        A module that the caller does not have; an MLP is of float64, and standardises.

    Raises:
        ArgumentError: If there is no such module.
    """
    features = inputs.shape[1]
    if isinstance(source, nn.Module):
        return deepcopy(source)
    if trained:
        got = "none" if source is None else f"a {type(source).__name__}"
        raise ArgumentError(
            f"module must be a trained torch.nn.Module with prefit=True, got {got}. Pass the "
            "module that was trained, or leave prefit out to train one."
        )
    if source is None:
        network = PlainNetwork("mlp", (features,), outputs, hidden=tuple(hidden))
        model = network.build(seed).double()
        standardise = model[0]
        assert isinstance(standardise, Standardise)
        standardise.measure(*measure_moments(Arrays(inputs, torch.zeros(len(inputs)))))
        return model
    if not callable(source):
        raise ArgumentError(
            "module must be a torch.nn.Module, or a function of the numbers of features and "
            f"outputs that makes one, got {type(source).__name__}. Leave it out for an MLP."
        )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = source(features, outputs)
    if not isinstance(made, nn.Module):
        raise ArgumentError(
            f"module must make a torch.nn.Module, got {type(made).__name__}. Return the module."
        )
    return made


def find_input_type(module: nn.Module) -> torch.dtype:
    """Find the floating type that a module computes in."""
    types = (p.dtype for p in module.parameters() if p.is_floating_point())
    return next(types, torch.float32)


def require_outputs(problem: SettledProblem, inputs: Tensor) -> None:
    """Refuse a module that has not one output for each class, or one for a number.

    Args:
        problem: The module with what its outputs mean.
        inputs: A few rows, (N, F).

    Raises:
        ArgumentError: If it has other outputs.
    """
    shaped = problem.on_shadow()
    with torch.no_grad():
        shape = tuple(shaped.outputs(inputs).shape)
    wanted = (len(inputs), problem.likelihood.outputs)
    if shape != wanted:
        raise ArgumentError(
            f"module must have outputs of shape {wanted} for {len(inputs)} rows, one for each "
            f"class or one number, got {shape}. Pass a function of features and outputs that "
            "makes it."
        )


def as_inputs(problem: Problem, X: NDArray[np.float64]) -> Tensor:
    """Turn checked rows into inputs of a module, (N, F)."""
    inputs = torch.tensor(X).to(find_input_type(problem.model))
    if not torch.isfinite(inputs).all():
        raise DataError(
            "X must be finite in the module's floating type, got a number that is too large "
            "for it. Scale the columns, or use a module of float64."
        )
    return inputs


def group_equal_rows(X: NDArray[np.float64]) -> list[int]:
    """Number rows so that equal ones have one number, unless only a few differ."""
    _, groups = np.unique(X, axis=0, return_inverse=True)
    numbers = groups.reshape(-1).tolist()
    few = len(set(numbers)) < min(_LEAST_GROUPS, len(X))
    return list(range(len(X))) if few else numbers
