"""Does uncertainty tell shifted or foreign examples from familiar ones?"""

from __future__ import annotations

import torch
from torch import Tensor

from smidgen.evaluate import checks


def auroc(inside_scores: Tensor, outside_scores: Tensor) -> float:
    """Probability that an outside example is the more uncertain; ties count half.

    Args:
        inside_scores: Uncertainty of familiar examples, (B,).
        outside_scores: Uncertainty of shifted or foreign examples, (B',).

    Returns:
        The area under the ROC curve: 0.5 is chance, 1 tells all apart.
    """
    inside = checks.vector("inside_scores", inside_scores).sort().values
    outside = checks.vector("outside_scores", outside_scores)
    # Twice the wins, in whole numbers: one for each inside score below, half for ties.
    below = torch.searchsorted(inside, outside)
    below_or_tied = torch.searchsorted(inside, outside, right=True)
    wins = int((below + below_or_tied).sum())
    return wins / (2 * len(inside) * len(outside))
