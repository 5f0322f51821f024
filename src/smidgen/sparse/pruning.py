"""Dropping weights after training: the baseline of SSVI, and its last step."""

from __future__ import annotations

from copy import deepcopy

from smidgen.errors import ArgumentError
from smidgen.sparse.budgets import Budget, share_out
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.prune import PRUNING_SCORES, Removal, log_score, mark_survivors
from smidgen.sparse.rewire import change_active_set


def prune_network(
    network: SparseNetwork,
    density: float,
    *,
    by: Removal = "magnitude",
    budget: Budget = "global",
    deterministic: bool = False,
) -> SparseNetwork:
    """Keep the best weights of a trained network, without training it further.

    Args:
        network: A network, dense or sparse; never changed.
        density: Share of all weights of the layers to keep, active now, in (0, 1].
        by: The score that decides.
        budget: "global" ranks all layers together; "uniform" and "erk" keep a share of
            each, or what is active if that is less.
        deterministic: Leave the scales behind: a sparse model of points.

    Returns:
        A copy on fewer weights; their values are as they were.

    Raises:
        ArgumentError: If an argument is outside what it may be.
    """
    if not 0 < density <= 1:
        raise ArgumentError(
            f"density must be in (0, 1], got {density}. It is a share: try 0.1."
        )
    if round(density * network.total) > network.count:
        raise ArgumentError(
            f"density must be at most the network's own, {network.density:.4g}, got "
            f"{density}. Lower it."
        )
    if by not in PRUNING_SCORES:
        allowed = ", ".join(repr(each) for each in PRUNING_SCORES)
        raise ArgumentError(f"by must be one of {allowed}, got {by!r}.")
    copy = deepcopy(network)
    scores = {
        name: log_score(part.means, part.log_scales, by)
        for name, part in copy.layers.items()
    }
    stay: int | dict[str, int] = max(1, round(density * copy.total))
    if budget != "global":
        shapes = {name: part.shape for name, part in copy.layers.items()}
        stay = share_out(shapes, density, budget)
    for name, mask in mark_survivors(scores, stay).items():
        change_active_set(
            copy.layers[name], copy.layers[name].pattern.list_indices(mask.device)[mask]
        )
    if deterministic:
        for part in copy.layers.values():
            part.log_scales = None
        copy.set_noise("none")
    return copy
