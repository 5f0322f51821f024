"""BayesTune's choice: the weights whose prior must be widest, and the head.

The scores are mean scales as `smidgen.fit.langevin` finds them. Ties go to the lower index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from smidgen.curvature.output_layers import find_output_layers
from smidgen.errors import ArgumentError
from smidgen.outputs.problem import as_problem
from smidgen.runtime.keeping.structure import unwrap
from smidgen.select.ranking import check_fraction, check_scores
from smidgen.types import Batch, Json
from smidgen.weights.affine import ceil_fraction, coverage
from smidgen.weights.head import Head, find_head
from smidgen.weights.origin import LAST_LAYER_ORIGIN, Origin
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
    batches: Iterable[Batch] | None = None,
) -> Subset:
    """Choose the weights with the largest scales, over the whole model.

    Args:
        model: The pretrained model.
        scores: Scales by parameter name: `fit.langevin(...).means`.
        fraction: Fraction of the scored weights; 0.005 if no rule is given.
        threshold: Choose all scales above this instead.
        elbow: Choose up to the elbow of the sorted scales instead.
        head: New weights that are chosen too, without counting towards the fraction: a
            subset, names of modules, "last" for the layers that make the outputs, or "none".
        batches: A list or a data loader; the first batch shows which layers "last" means.
            Without them they are found as `select.last_layer` finds them.

    Returns:
        Single entries, and the head whole.

    Raises:
        ArgumentError: If scores do not fit the model, or more than one rule is given.
    """
    refuse_several_rules(fraction, threshold, elbow)
    model = unwrap(model)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    covered = find_output_layers(as_problem(model), batches) if head == "last" else None
    free = find_head(model, head, covered)
    ranked = {name: score for name, score in scores.items() if name not in free}
    if not ranked:
        raise ArgumentError(
            "scores must hold at least one parameter outside the head, got none. Make "
            "them with smidgen.fit.langevin(...).means."
        )
    check_scores("scores", ranked, shapes)
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
    chosen_shapes = {name: shapes[name] for name in (*ranked, *free)}
    universe = {**coverage(model).universe, **chosen_shapes}
    if free:
        settings["head"] = list(free)
        # To be checked where data are first seen.
        settings |= {LAST_LAYER_ORIGIN: True} if head == "last" else {}
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


def _count_before_elbow(scores: Mapping[str, Tensor]) -> int:
    """Count the scales before the elbow of their sorted curve."""
    # The elbow is furthest below the chord of scale against rank; a histogram with bins
    # of equal ratio finds it without sorting.
    high = max(float(score.max()) for score in scores.values())
    low = max(min(float(score.min()) for score in scores.values()), high * 1e-12)
    if not 0 < low < high:
        raise ArgumentError("elbow needs positive scores that differ. Give a fraction.")
    counts = torch.zeros(_BINS, dtype=torch.float64)
    first, last = torch.tensor([low, high], dtype=torch.float64).log().tolist()
    for score in scores.values():
        logs = score.detach().flatten().double().clamp(min=low).log()
        counts += torch.histc(logs, _BINS, min=first, max=last).cpu()
    # The lower edge of each bin, largest first, and how many scales lie above it.
    ranks = counts.flip(0).cumsum(0)
    edges = torch.linspace(last, first, _BINS + 1, dtype=torch.float64)[1:].exp()
    across = ranks / ranks[-1]
    down = (edges - edges[-1]) / (edges[0] - edges[-1])
    return max(1, int(ranks[(across + down).argmin()]))
