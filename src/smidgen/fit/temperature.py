"""Temperature scaling: divide the logits by the one number that minimises the NLL.

The baseline that is always shown (Guo et al., 2017, arXiv:1706.04599), fitted by LBFGS in
log T. The same search finds the temperature that goes with a prior precision.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log

import torch
from torch import Tensor

from smidgen.errors import DataError

# Outside this range a temperature says that the validation set is too small.
_LARGEST = log(100.0)


def temperature(logits: Tensor, targets: Tensor) -> float:
    """Fit the temperature of a classifier on held-out logits.

    Args:
        logits: Logits of held-out examples, (N, C).
        targets: Their class numbers, (N,).

    Returns:
        The temperature that minimises the NLL of softmax(logits / T).

    Raises:
        DataError: If there is no example, or not one target for each.
    """
    if not len(logits) or len(logits) != len(targets):
        raise DataError(
            f"temperature needs one target for each of one or more logits, got "
            f"{len(logits)} logits and {len(targets)} targets."
        )
    logits = logits.detach().double()

    def nll(divisor: Tensor) -> Tensor:
        scores = (logits / divisor).log_softmax(-1)
        return -scores.gather(-1, targets[:, None]).mean()

    return best_temperature(nll)


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
    found = float(bounded().detach())
    return min(max(found, exp(-_LARGEST)), exp(_LARGEST))
