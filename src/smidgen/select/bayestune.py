"""BayesTune's choice: the weights whose prior must be widest, and the head.

The scores are mean scales as `smidgen.fit.langevin` finds them. The threshold is found by
counting, so that no vector of all scores is sorted or copied; ties go to the lower index.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.select.ranking import check_fraction
from smidgen.types import Json, Shape
from smidgen.weights.affine import ceil_fraction, coverage
from smidgen.weights.head import Head, find_head
from smidgen.weights.origin import Origin
from smidgen.weights.subset import Entries, Part, Subset, Whole
from smidgen.weights.top_k import top_k

DEFAULT_FRACTION = 0.005
"""The paper's: half a percent."""

_BINS = 4096


def bayestune(
    model: nn.Module,
    scores: Mapping[str, Tensor],
    *,
    fraction: float | None = None,
    threshold: float | None = None,
    elbow: bool = False,
    head: Head = "last",
) -> Subset:
    """Choose the weights with the largest scales, over the whole model.

    Args:
        model: The pretrained model; it is only looked at.
        scores: Scales by parameter name: `fit.langevin(...).means`.
        fraction: Fraction of the scored weights; 0.005 if no rule is given.
        threshold: Choose all scales above this instead.
        elbow: Choose up to the elbow of the sorted scales instead.
        head: New weights, chosen besides; they do not count towards the fraction: a
            subset, names of modules, "last" for the last affine layer, or "none".

    Returns:
        Single entries, and the head whole.

    Raises:
        ArgumentError: If scores do not fit the model, or more than one rule is given.
    """
    refuse_several_rules(fraction, threshold, elbow)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    free = find_head(model, head)
    ranked = {name: score for name, score in scores.items() if name not in free}
    _check_scores(ranked, shapes)
    settings: dict[str, Json]
    if threshold is not None:
        count = sum(int((score > threshold).sum()) for score in ranked.values())
        settings = {"threshold": threshold}
    elif elbow:
        count = _count_before_elbow(ranked)
        settings = {"elbow": True}
    else:
        fraction = DEFAULT_FRACTION if fraction is None else fraction
        check_fraction(fraction)
        count = ceil_fraction(sum(score.numel() for score in ranked.values()), fraction)
        settings = {"fraction": fraction}
    if count < 1:
        raise ArgumentError(f"threshold must leave a weight, got {threshold}. Lower it.")
    parts: dict[str, Part] = {n: Entries(i) for n, i in top_k(ranked, count).items()}
    parts.update({name: Whole() for name in free})
    universe = {
        **coverage(model).universe,
        **{name: shapes[name] for name in (*ranked, *free)},
    }
    if free:
        settings["head"] = list(free)
    return Subset(universe, parts, Origin("bayestune", settings))


def refuse_several_rules(
    fraction: float | None, threshold: float | None, elbow: bool
) -> None:
    """Refuse more than one rule for how many weights to choose."""
    rules = {"fraction": fraction, "threshold": threshold, "elbow": elbow or None}
    names = [name for name, value in rules.items() if value is not None]
    if len(names) > 1:
        raise ArgumentError(
            f"give one of fraction, threshold and elbow, got {' and '.join(names)}. Leave "
            "out all but one."
        )


def _check_scores(scores: Mapping[str, Tensor], shapes: Mapping[str, Shape]) -> None:
    if not scores:
        raise ArgumentError(
            "scores must hold at least one parameter outside the head, got none. Make "
            "them with smidgen.fit.langevin(...).means."
        )
    for name, score in scores.items():
        if shapes.get(name) != tuple(score.shape):
            raise ArgumentError(
                f"scores must map parameter names to scores of their shape, got {name!r} "
                f"of shape {tuple(score.shape)}. Score this model's weights."
            )
        if score.isnan().any():
            raise ArgumentError(
                f"scores must hold numbers, got NaN for {name!r}. Score the weights again."
            )


def _count_before_elbow(scores: Mapping[str, Tensor]) -> int:
    """Count the scales before the elbow of their sorted curve."""
    high = max(float(score.max()) for score in scores.values())
    low = max(min(float(score.min()) for score in scores.values()), high * 1e-12)
    if not 0 < low < high:
        raise ArgumentError("elbow needs positive scores that differ. Give a fraction.")
    counts = torch.zeros(_BINS, dtype=torch.float64)
    ends = torch.tensor([low, high], dtype=torch.float64).log()
    for score in scores.values():
        logs = score.detach().flatten().double().clamp(min=low).log()
        counts += torch.histc(logs, _BINS, min=float(ends[0]), max=float(ends[1])).cpu()
    ranks = counts.flip(0).cumsum(0)
    # The lower edge of each bin, largest first, and how many scales lie above it.
    first, last = ends.tolist()
    edges = torch.linspace(last, first, _BINS + 1, dtype=torch.float64)[1:].exp()
    across = ranks / ranks[-1]
    down = (edges - edges[-1]) / (edges[0] - edges[-1])
    return max(1, int(ranks[(across + down).argmin()]))
