"""Single weights of affine maps by a score, over the whole model or in each parameter.

The score is the weight's magnitude, a random number, or given: marginal variances,
squared gradients, BayesTune's scales, SSVI's signal-to-noise. Ties go to the lower index.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from smidgen.affine import affine_coverage
from smidgen.errors import ArgumentError
from smidgen.select.top import top
from smidgen.subset import Entries, Part, Subset


def weights(
    model: nn.Module,
    *,
    fraction: float,
    by: str | Mapping[str, Tensor] = "magnitude",
    per_layer: bool = False,
    generator: torch.Generator | None = None,
) -> Subset:
    """Choose the weights with the largest scores.

    Args:
        model: The trained model; it is only read.
        fraction: Share of the weights to choose, in (0, 1]: of all affine maps, or of
            those that scores are given for.
        by: "magnitude", "random", or scores for each parameter by name.
        per_layer: Choose that share in each parameter rather than over all.
        generator: Source of a random choice; required for it.

    Returns:
        Single entries; at least one, or one of each parameter.

    Raises:
        ArgumentError: If an argument is outside what it may be.
    """
    if not 0 < fraction <= 1:
        raise ArgumentError(f"fraction must be in (0, 1], got {fraction}. Try 0.01.")
    universe = affine_coverage(model).universe
    scores = _scores(model, list(universe), by, generator)
    if per_layer:
        parts: dict[str, Part] = {
            name: Entries(top(values, fraction)) for name, values in scores.items()
        }
        return Subset(universe, parts)
    chosen = top(torch.cat(list(scores.values())), fraction)
    parts, start = {}, 0
    for name, values in scores.items():
        own = chosen[(chosen >= start) & (chosen < start + len(values))] - start
        if own.numel():
            parts[name] = Entries(own)
        start += len(values)
    return Subset(universe, parts)


def _scores(
    model: nn.Module,
    names: list[str],
    by: str | Mapping[str, Tensor],
    generator: torch.Generator | None,
) -> dict[str, Tensor]:
    """One flat vector of scores for each parameter, in fp64 on the CPU."""
    found = {name: model.get_parameter(name).detach() for name in names}
    if by == "magnitude":
        scores = {name: value.abs() for name, value in found.items()}
    elif by == "random":
        if generator is None:
            raise ArgumentError("generator must be a torch.Generator for by='random'.")
        scores = {n: torch.rand(v.numel(), generator=generator) for n, v in found.items()}
    elif isinstance(by, Mapping):
        shapes = {name: found[name].shape if name in found else None for name in by}
        wrong = [name for name, shape in shapes.items() if by[name].shape != shape]
        if wrong or not by:
            got = f"{wrong[0]!r} of shape {tuple(by[wrong[0]].shape)}" if wrong else "none"
            raise ArgumentError(
                "by must map names of affine parameters to scores of their shape, got "
                f"{got}. Print smidgen.coverage(model).universe to see them."
            )
        scores = {name: by[name] for name in names if name in by}
    else:
        raise ArgumentError(
            f"by must be 'magnitude', 'random' or scores by parameter name, got {by!r}."
        )
    flat = {name: value.flatten().double().cpu() for name, value in scores.items()}
    bad = [name for name, value in flat.items() if value.isnan().any()]
    if bad:
        raise ArgumentError(f"scores must be numbers, got NaN in {bad[0]!r}.")
    return flat
