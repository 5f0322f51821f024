"""`acquire`: which rows of a pool are most worth labelling.

- "information": the mutual information of label and weights (BALD, Houlsby et al., 2011,
  arXiv:1112.5745), from the linearised predictive: one pass, no draws of weights.
- "entropy": of the predicted probabilities.
- "random": each row with the same chance, the baseline.

The most informative rows of a pool are often copies of one doubt. With `diverse` a batch is drawn
instead of ranked: rows one after the other without replacement, each with a chance in proportion
to its score, which is what adding Gumbel noise to the log-scores and taking the largest
does (stochastic acquisition, "power" with β = 1, Kirsch et al., 2023, arXiv:2106.12059). It costs a
sort, and in their trials does as well as BatchBALD, whose cost grows with the pool and the batch.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from smidgen.decide.uncertainty import uncertainty
from smidgen.errors import ArgumentError, is_whole, require_kind
from smidgen.outputs.predictive import GaussianPredictive, Predictive

Acquisition = Literal["information", "entropy", "random"]
_SCORES = {"information": "mutual_information", "entropy": "entropy"}
_LEAST = 1e-300


def acquire(
    predictive: Predictive,
    count: int,
    *,
    diverse: bool = False,
    by: Acquisition = "information",
    seed: int = 0,
) -> Tensor:
    """Choose the rows of a pool that are most worth labelling.

    Args:
        predictive: Of the pool, which needs no labels.
        count: How many rows to choose.
        diverse: Draw rows in proportion to their scores, so that a batch is not many copies of
            one doubt.
        by: "information", "entropy" or "random".
        seed: Of what is random.

    Returns:
        Numbers of rows, (count,), the most worth first.

    Raises:
        ArgumentError: If count or by is not allowed, or the predictive has no such score.
    """
    require_kind("predictive", predictive, Predictive, "Use smidgen.predict_batches")
    if not is_whole(count) or not 1 <= count <= len(predictive):
        raise ArgumentError(
            f"count must be a whole number from 1 to {len(predictive):,}, the rows of the "
            f"pool, got {count!r}. Ask for fewer, or pass a larger pool."
        )
    if by not in (*_SCORES, "random"):
        raise ArgumentError(
            f"by must be 'information', 'entropy' or 'random', got {by!r}. Choose one."
        )
    generator = torch.Generator().manual_seed(seed)
    if by == "random":
        return torch.randperm(len(predictive), generator=generator)[:count]
    values = uncertainty(predictive, _SCORES[by])
    if diverse:
        if by == "entropy" and isinstance(predictive, GaussianPredictive):
            raise ArgumentError(
                "by must be 'information' for a diverse batch of a regression, got 'entropy', "
                "which may be below zero there. Use by='information'."
            )
        uniform = torch.rand(len(values), generator=generator, dtype=torch.float64)
        gumbel = -(-uniform.clamp_min(_LEAST).log()).log()
        values = values.clamp_min(_LEAST).log() + gumbel
    return values.sort(descending=True, stable=True).indices[:count]
