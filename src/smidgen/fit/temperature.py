"""Temperature scaling: divide the logits by the one number that minimises the NLL.

The baseline that is always shown (Guo et al., 2017, arXiv:1706.04599), fitted by LBFGS in
log T. The same search finds the temperature that goes with a prior precision.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import log

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError, SmidgenWarning
from smidgen.likelihood import Categorical

# Outside this range a temperature says that the validation set is too small.
_LARGEST = log(100.0)
_EXTREME = log(10.0)


def temperature(logits: Tensor, targets: Tensor) -> float:
    """Fit the temperature of a classifier on held-out logits.

    Args:
        logits: Logits of held-out examples, (N, C).
        targets: Their class numbers, (N,).

    Returns:
        The temperature that minimises the NLL of softmax(logits / T).

    Raises:
        ArgumentError: If they are not tensors.
        DataError: If there is no example, or logits and targets do not fit.
    """
    if not isinstance(logits, Tensor) or not isinstance(targets, Tensor):
        raise ArgumentError(
            f"logits and targets must be tensors, got {type(logits).__name__} and "
            f"{type(targets).__name__}. Get them from smidgen.point_outputs(model, loader)."
        )
    if logits.dim() != 2 or not len(logits):
        raise DataError(
            f"logits must have shape (examples, classes), got {tuple(logits.shape)}."
        )
    likelihood = Categorical(logits.shape[1])
    likelihood.check_outputs(logits)
    targets = likelihood.checked_targets(logits, targets)
    logits = logits.detach().double()

    def nll(divisor: Tensor) -> Tensor:
        return -likelihood.log_prob(logits / divisor, targets).mean()

    found = best_temperature(nll)
    mention_edge(found)
    return found


def best_temperature(nll: Callable[[Tensor], Tensor]) -> float:
    """Minimise a differentiable function of the temperature, within [1/100, 100].

    Args:
        nll: The mean negative log-likelihood at a temperature.

    Returns:
        The best temperature.
    """
    free = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def bounded() -> Tensor:
        return (_LARGEST * (free / _LARGEST).tanh()).exp()

    optimiser = torch.optim.LBFGS(
        [free],
        max_iter=50,
        tolerance_grad=1e-9,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        optimiser.zero_grad()
        with torch.enable_grad():
            value = nll(bounded())
        value.backward()
        return float(value.detach())

    optimiser.step(closure)
    return float(bounded().detach())


def mention_edge(found: float) -> None:
    """Warn about a temperature that no well-sized validation set would ask for."""
    if abs(log(found)) > _EXTREME:
        warnings.warn(
            f"the best temperature {found:.3g} is extreme: the held-out data are too few, "
            "or the model knows little of them. Pass more, or what='precision'.",
            SmidgenWarning,
            stacklevel=4,
        )
