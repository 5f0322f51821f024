"""Temperature scaling: divide the logits by one number that suits held-out data.

The baseline of every comparison (Guo et al., 2017, arXiv:1706.04599). The same search finds
the temperature that goes with a prior precision.
"""

from __future__ import annotations

from torch import Tensor

from smidgen.errors import ArgumentError, DataError, warn
from smidgen.fit.calibration.objective import Objective
from smidgen.outputs.likelihood import Categorical, is_extreme
from smidgen.outputs.likelihood.base import has_target


def temperature(logits: Tensor, targets: Tensor) -> float:
    """Fit the temperature of a classifier on held-out logits.

    Args:
        logits: Logits of held-out examples, (N, C).
        targets: Their class numbers, (N,); rows labelled −100 are left out.

    Returns:
        The temperature that minimises the mean NLL of softmax(logits / T) + (log T)²/(2N):
        a weak prior, lest a few rows that are all right have T → 0.

    Raises:
        ArgumentError: If one of them is not a tensor.
        DataError: If no example is labelled, or the shapes do not match.
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
        labelled = has_target(targets)
        logits, targets = logits[labelled.to(logits.device)], targets[labelled]
    if not len(logits):
        raise DataError("no example has a label (all are -100). Pass labelled data.")
    likelihood = Categorical(logits.shape[1])
    likelihood.check_outputs(logits)
    targets = likelihood.check_targets(logits, targets)
    link = likelihood.resolve_link("auto")
    objective = Objective(likelihood, logits.detach().double(), targets, link)
    best = float(objective.best(None)[0])
    warn_if_extreme(best)
    return best


def warn_if_extreme(temperature: float) -> None:
    """Warn about a temperature that no validation set of a fair size would choose."""
    if is_extreme(temperature):
        warn(
            f"the best temperature {temperature:.3g} is extreme: there are too few held-out "
            "data, or the model predicts them badly. Pass more, or choose the precision "
            "alone."
        )
