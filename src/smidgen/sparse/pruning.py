"""Dropping weights after training: the baseline of SSVI, and its last step."""

from __future__ import annotations

from copy import deepcopy

import torch

from smidgen.sparse.alternation import moved
from smidgen.sparse.budgets import Budget, shares
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.removal import Removal, log_score


def pruned(
    network: SparseNetwork,
    density: float,
    *,
    by: Removal = "magnitude",
    budget: Budget = "global",
) -> SparseNetwork:
    """Keep the best weights of a trained network, without training it further.

    Args:
        network: A network, dense or sparse; never changed.
        density: Share of all weights of the maps to keep, active now, in (0, 1].
        by: The score that decides.
        budget: "global" ranks all maps together; "uniform" and "erk" keep a share of
            each, or what is active if that is less.

    Returns:
        A copy on fewer weights; means and scales are as they were.
    """
    copy = deepcopy(network)
    scores = {
        name: log_score(part.means, part.log_scales, by) for name, part in copy.maps.items()
    }
    if budget == "global":
        wanted = min(copy.count, max(1, round(density * copy.total)))
        everything = torch.cat(list(scores.values()))
        stays = torch.zeros_like(everything, dtype=torch.bool)
        stays[everything.argsort(descending=True, stable=True)[:wanted]] = True
        parts = stays.split([each.numel() for each in scores.values()])
        masks = dict(zip(scores, parts, strict=True))
    else:
        shapes = {name: part.shape for name, part in copy.maps.items()}
        masks = {}
        for name, count in shares(shapes, density, budget).items():
            masks[name] = torch.zeros_like(scores[name], dtype=torch.bool)
            order = scores[name].argsort(descending=True, stable=True)
            masks[name][order[:count]] = True
    for name, part in copy.maps.items():
        if not masks[name].any():
            masks[name][scores[name].argmax()] = True
        moved(part, part.pattern.listed()[masks[name]])
    return copy
