"""Temperature scaling: divide the logits by the one number that minimises the NLL.

The baseline that is always shown (Guo et al., 2017, arXiv:1706.04599). The same search
finds the temperature that goes with a prior precision.
"""

from __future__ import annotations

import warnings

from torch import Tensor

from smidgen.errors import ArgumentError, DataError, SmidgenWarning
from smidgen.fit.calibration.objective import Objective
from smidgen.outputs.likelihood import Categorical, is_extreme
from smidgen.outputs.targets import has_target


def temperature(logits: Tensor, targets: Tensor) -> float:
    """Fit the temperature of a classifier on held-out logits.

    Args:
        logits: Logits of held-out examples, (N, C).
        targets: Their class numbers, (N,); rows labelled −100 are left out.

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
    if targets.shape == logits.shape[:1]:
        kept = has_target(targets)
        logits, targets = logits[kept.to(logits.device)], targets[kept]
    if not len(logits):
        raise DataError("no example has a label (all are -100). Pass labelled data.")
    likelihood = Categorical(logits.shape[1])
    likelihood.check_outputs(logits)
    targets = likelihood.checked_targets(logits, targets)
    logits = logits.detach().double()

    objective = Objective(likelihood, logits, targets, likelihood.resolved_link("auto"))
    found = float(objective.best(None)[0])
    mention_edge(found)
    return found


def mention_edge(found: float) -> None:
    """Warn about a temperature that no well-sized validation set would ask for."""
    if is_extreme(found):
        warnings.warn(
            f"the best temperature {found:.3g} is extreme: the held-out data are too few, "
            "or the model knows little of them. Pass more, or choose the precision alone.",
            SmidgenWarning,
            stacklevel=4,
        )
