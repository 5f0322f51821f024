"""The marginal likelihood of a Laplace posterior, in closed form, and its best precision.

log p(D) ≈ log p(D | θ*) − ½ Σ_d log((h_d/σ² + τ)/τ) − ½ τ‖θ*‖²

with θ* the chosen trained weights, whose prior is N(0, 1/τ). Operators are independent, so
each precision has a sum of its own. The posterior holds the eigenvalues, so this needs
neither held-out data nor a pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from smidgen.curvature.factors.low_rank import MORE_VECTORS
from smidgen.curvature.operators import JOINT, Isotropic
from smidgen.curvature.output_layers import find_output_layers
from smidgen.errors import ArgumentError, SmidgenWarning
from smidgen.fit.calibration.brent import minimize
from smidgen.fit.calibration.groups import Scope, group_labels
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.runtime.processes.whole_weights import gather_tensor
from smidgen.types import Batch
from smidgen.weights.blocks import find_blocks

# Natural logs of the precisions that are searched: 1e-6 to 1e10.
_RANGE = (-14.0, 23.0)
_POINTS = 149


def log_evidence(posterior: LaplacePosterior, model: nn.Module | Problem) -> float:
    """Compute the log marginal likelihood of the training data under a posterior's precision.

    Args:
        posterior: A posterior fitted to labelled data.
        model: The model it was fitted to.

    Returns:
        The log marginal likelihood in nats, summed over the training data.

    Raises:
        ArgumentError: If the posterior was fitted without labels.
    """
    _require_eigenvalues(posterior)
    if posterior.log_likelihood is None:
        raise ArgumentError(
            "posterior must be fitted to labelled data to have an evidence; its training "
            "batches had no labels. Fit it again with them."
        )
    problem = as_problem(model)
    posterior.require(problem.model)
    norms = _squared_norms(posterior, problem)
    total = posterior.log_likelihood
    for name in posterior.operators:
        precision = torch.tensor([posterior.precision_of(name)], dtype=torch.float64)
        total += float(_gain(posterior, name, norms[name], precision))
    return total


def calibrate_by_evidence(
    posterior: LaplacePosterior,
    model: nn.Module | Problem,
    batches: Iterable[Batch] | None = None,
    *,
    scope: Scope = "scalar",
) -> LaplacePosterior:
    """Choose the prior precision that makes the training data likeliest.

    Args:
        posterior: The posterior; it may be fitted without labels.
        model: The model it was fitted to.
        batches: A list or a data loader; the first batch shows which layer is the head, for
            scope "group". Without them it is guessed as `select.last_layer` does.
        scope: One precision, one for each group, or one for each layer.

    Returns:
        The posterior with that precision and the same temperature.
    """
    _require_eigenvalues(posterior)
    problem = as_problem(model)
    posterior.require(problem.model)
    labels = group_labels(scope, posterior, lambda: find_output_layers(problem, batches))
    norms = _squared_norms(posterior, problem)
    chosen = {
        label: _search(posterior, [n for n in labels if labels[n] == label], norms)
        for label in dict.fromkeys(labels.values())
    }
    if len(chosen) == 1:
        return replace(posterior, precision=next(iter(chosen.values())), calibration=None)
    precisions = {name: chosen[label] for name, label in labels.items()}
    return replace(posterior, precision=precisions, calibration=None)


def _require_eigenvalues(posterior: LaplacePosterior) -> None:
    """Refuse a posterior that does not have all the eigenvalues of its curvature."""
    for name, operator in posterior.operators.items():
        if isinstance(operator, Isotropic):
            raise ArgumentError(
                f"posterior must have curvature in all its layers to have an evidence, got "
                f"{name!r} without. Calibrate it on held-out data with smidgen.calibrate."
            )
        if operator.bound_error(posterior.precision_of(name)) > 0:
            raise ArgumentError(
                "posterior must have all eigenvalues of its factors to have an evidence, got "
                f"{name!r} with some of them. {MORE_VECTORS}"
            )


def _search(
    posterior: LaplacePosterior, names: list[str], norms: dict[str, float]
) -> float:
    """Scan, then search between the neighbours: more than one peak is possible."""

    def loss(logs: Tensor) -> Tensor:
        gains = [_gain(posterior, name, norms[name], logs.exp()) for name in names]
        return -torch.stack(gains).sum(0)

    logs = torch.linspace(*_RANGE, _POINTS, dtype=torch.float64)
    place = int(loss(logs).argmin())
    if place in (0, _POINTS - 1):
        warnings.warn(
            f"the evidence of {', '.join(names[:3])} is best at the edge of the precisions "
            f"searched, {float(logs[place].exp()):.1g}: its weights are almost zero, or "
            "the data say nothing about them.",
            SmidgenWarning,
            stacklevel=3,
        )
    low, high = max(0, place - 1), min(_POINTS - 1, place + 1)
    return float(minimize(loss, logs[low : low + 1], logs[high : high + 1]).exp())


def _gain(
    posterior: LaplacePosterior, name: str, norm: float, precisions: Tensor
) -> Tensor:
    """What one operator adds to the log evidence, for precisions (P,): (P,)."""
    values = posterior.operators[name].values.double().cpu() / posterior.likelihood.scale
    logs = torch.stack([(values / precision).log1p().sum() for precision in precisions])
    return -0.5 * (logs + precisions * norm)


def _squared_norms(posterior: LaplacePosterior, problem: Problem) -> dict[str, float]:
    """Sum θ² over the chosen weights of each operator."""
    subset, norms = posterior.subset, {}
    for block in find_blocks(problem.model, subset):
        norm = 0.0
        for name in [n for n in block.layer.shapes if n in subset.parts]:
            indices = subset.indices(name).to(problem.device)
            whole = gather_tensor(problem.model.get_parameter(name)).detach()
            weights = whole.flatten()[indices]
            norm += float(weights.double().square().sum())
        norms[block.layer.name] = norm
    return {JOINT: sum(norms.values())} if JOINT in posterior.operators else norms
