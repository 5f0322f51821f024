"""Schemes of a ramping study: which shares of the variance table make up each point.

A *share* is a (percent, layer) pair: one layer's block at one percentage. A scheme is a
sequence of ever larger sets of shares (the paper's figures 2–5); what a point costs is the
sum of its shares' floats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from smidgen.fit.calibration.objective import Objective
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.variance_table import VarianceTable
from smidgen.weights.affine import AffineLayer
from smidgen.weights.subset import Subset

Scheme = Literal[
    "sparse-kfac",
    "max-mlp",
    "min-mlp",
    "max-attention",
    "min-attention",
    "random",
    "last-layer",
    "full",
    "best-budget",
]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
BlockKey = tuple[float, str]
WHOLE = 100.0
"""The percentage of whole layers."""
# How many further percentages of a layer the allocation looks at in each step.
_AHEAD = 3


@dataclass(frozen=True)
class Candidate:
    """One point of a scheme before it is scored.

    `level` is its size in the scheme's own terms: a percentage, a number of layers or a
    budget of floats.
    """

    scheme: Scheme
    level: float
    shares: tuple[BlockKey, ...]
    repeat: int = 0


def candidates(
    schemes: Sequence[Scheme],
    layers: Sequence[AffineLayer],
    norms: Mapping[str, float],
    percents: Sequence[float],
    *,
    repeats: int,
    generator: torch.Generator,
) -> list[Candidate]:
    """List the points of all schemes but the allocation, which needs the table.

    Args:
        schemes: The schemes.
        layers: The affine layers, the head last.
        norms: Operator norm of each layer.
        percents: The percentages of Sparse-KFAC, ascending.
        repeats: How often modules are drawn at random.
        generator: Source of those draws.

    Returns:
        The points, scheme by scheme, small to large.
    """
    found: list[Candidate] = []
    names = [each.name for each in layers]
    for scheme in schemes:
        if scheme == "sparse-kfac":
            found += [
                Candidate(scheme, p, tuple((p, name) for name in names)) for p in percents
            ]
        elif scheme == "last-layer":
            found.append(Candidate(scheme, 1, ((WHOLE, names[-1]),)))
        elif scheme == "full":
            found.append(Candidate(scheme, len(names), tuple((WHOLE, n) for n in names)))
        elif scheme == "random":
            for repeat in range(repeats):
                order = torch.randperm(len(names), generator=generator).tolist()
                found += _growing(scheme, [names[i] for i in order], repeat)
        elif scheme != "best-budget":
            order_, group = scheme.split("-")
            own = [each.name for each in layers if each.group == group]
            own.sort(key=lambda name: norms[name], reverse=order_ == "max")
            found += _growing(scheme, own)
    return found


def _growing(scheme: Scheme, names: Sequence[str], repeat: int = 0) -> list[Candidate]:
    return [
        Candidate(scheme, count, tuple((WHOLE, n) for n in names[:count]), repeat)
        for count in range(1, len(names) + 1)
    ]


def allocations(
    table: VarianceTable,
    objective: Objective,
    floats: Mapping[BlockKey, int],
    budgets: Sequence[int],
    *,
    precision: int,
    temperature: float,
) -> list[Candidate]:
    """Choose a percentage for each layer under budgets of floats: the greedy path.

    From nothing, whichever layer's larger block lowers the held-out NLL most for each
    further float is taken, until none lowers it or the largest budget is spent. Every
    smaller budget has the longest part of that path it can pay for.

    Args:
        table: The variance table, by share.
        objective: The held-out data.
        floats: What each share costs.
        budgets: Budgets of floats, ascending.
        precision: Which of the table's precisions to choose under.
        temperature: The temperature to choose under.

    Returns:
        A point for each budget that can pay for something new.
    """
    ladders: dict[str, list[BlockKey]] = {}
    for share in sorted(floats, key=floats.__getitem__):
        ladder = ladders.setdefault(share[1], [])
        # Several percentages of a small layer are the same block.
        if not ladder or floats[ladder[-1]] < floats[share]:
            ladder.append(share)
    steps = dict.fromkeys(ladders, 0)
    total = torch.zeros_like(table.covariance[next(iter(floats))][precision]).double()
    best = float(objective.nll(total[None], temperature))
    spent, path = 0, [(0, dict(steps))]
    while True:
        options = _upgrades(ladders, steps, floats, budgets[-1] - spent)
        if not options:
            break
        changed = torch.stack(
            [total + _difference(table, precision, *option[2:]) for option in options]
        )
        nlls = objective.nll(changed, temperature)
        costs = torch.tensor([option[1] for option in options], dtype=torch.float64)
        gains = (best - nlls) / costs
        pick = int(gains.argmax())
        if float(gains[pick]) <= 0:
            break
        name, cost, _, after = options[pick]
        steps[name] = ladders[name].index(after) + 1
        total, best, spent = changed[pick], float(nlls[pick]), spent + cost
        path.append((spent, dict(steps)))
    return _affordable(path, ladders, budgets)


def _upgrades(
    ladders: Mapping[str, Sequence[BlockKey]],
    steps: Mapping[str, int],
    floats: Mapping[BlockKey, int],
    left: int,
) -> list[tuple[str, int, BlockKey | None, BlockKey]]:
    """Every affordable next block of every layer: its name, cost, and from what to what."""
    found = []
    for name, ladder in ladders.items():
        now = ladder[steps[name] - 1] if steps[name] else None
        for after in ladder[steps[name] : steps[name] + _AHEAD]:
            cost = floats[after] - (floats[now] if now else 0)
            if 0 < cost <= left:
                found.append((name, cost, now, after))
    return found


def _difference(
    table: VarianceTable, precision: int, before: BlockKey | None, after: BlockKey
) -> Tensor:
    gained = table.covariance[after][precision].double()
    return gained if before is None else gained - table.covariance[before][precision]


def _affordable(
    path: Sequence[tuple[int, Mapping[str, int]]],
    ladders: Mapping[str, Sequence[BlockKey]],
    budgets: Sequence[int],
) -> list[Candidate]:
    found: list[Candidate] = []
    for budget in budgets:
        _, steps = max((each for each in path if each[0] <= budget), key=lambda e: e[0])
        shares = tuple(ladders[name][k - 1] for name, k in steps.items() if k)
        if shares and (not found or shares != found[-1].shares):
            found.append(Candidate("best-budget", budget, shares))
    return found


def assembled(
    candidate: Candidate,
    posteriors: Mapping[float, LaplacePosterior],
    layers: Sequence[AffineLayer],
    *,
    precision: float,
    temperature: float,
) -> LaplacePosterior:
    """Put a point's shares together into the posterior they are.

    Args:
        candidate: The point.
        posteriors: The nested posteriors by percentage.
        layers: The affine layers.
        precision: The prior precision.
        temperature: The temperature.

    Returns:
        The posterior, equal to one fitted to its subset alone.
    """
    shapes = {each.name: each.shapes for each in layers}
    parts = {
        name: posteriors[percent].subset.parts[name]
        for percent, own in candidate.shares
        for name in shapes[own]
        if name in posteriors[percent].subset.parts
    }
    base = posteriors[candidate.shares[0][0]]
    return replace(
        base,
        subset=Subset(base.subset.universe, parts),
        operators={name: posteriors[p].operators[name] for p, name in candidate.shares},
        precision=precision,
        temperature=temperature,
    )
