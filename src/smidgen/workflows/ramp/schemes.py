"""Schemes of a ramping study: which blocks of the variance table make up each point.

A *block key* is a (level, layer) pair: the block of one layer at one percentage, with its
curvature or without. A scheme is a sequence of ever larger sets of blocks (the paper's
figures 2–5); a point costs the sum of its blocks' floats.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from smidgen.curvature.factors.operator import Kronecker
from smidgen.curvature.operators import Isotropic
from smidgen.fit.calibration.objective import Objective
from smidgen.posterior.variance_table import VarianceTable
from smidgen.weights.affine import AffineLayer

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
    "isotropic",
    "head-isotropic",
]
# Those without curvature are tried by default too. At a percentage their variance takes no
# more than the product of δ and x, which the factors need as well before they weigh it by
# every precision; and the table keeps two sums over layers of it, not one for each layer.
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
CURVED, ISOTROPIC = Kronecker.structure, Isotropic.structure


class Level(NamedTuple):
    """How a posterior of the study takes every layer: how much of it, and with what curvature."""

    percent: float
    structure: str = CURVED


BlockKey = tuple[Level, str]
WHOLE = Level(100.0)
"""Whole layers, with curvature."""
WHOLE_ISOTROPIC = Level(100.0, ISOTROPIC)
# The sums of the table that blocks without curvature join.
_LAST, _OTHERS = "last layer", "other layers"
# How many larger blocks of a layer the allocation considers in each step.
_AHEAD = 3


@dataclass(frozen=True)
class UnscoredPoint:
    """One point of a scheme before it is scored; `level` is as in `Point`."""

    scheme: str
    level: float
    blocks: tuple[BlockKey, ...]
    repeat: int = 0


def label_block(level: Level, name: str, last: Collection[str]) -> BlockKey:
    """Name the sum of the variance table that a block joins; `last` names the last layers."""
    # No scheme takes a few layers without curvature: all of them, or all but the last.
    if level.structure == CURVED:
        return level, name
    return level, _LAST if name in last else _OTHERS


def order_layers(
    scheme: str,
    layers: Sequence[AffineLayer],
    norms: Mapping[str, float],
    generator: torch.Generator,
) -> list[AffineLayer]:
    """Order a scheme's whole layers, the one taken first in front."""
    if scheme == "random":
        order = torch.randperm(len(layers), generator=generator).tolist()
        return [layers[index] for index in order]
    direction, group = scheme.split("-")
    return sorted(
        (layer for layer in layers if layer.group == group),
        key=lambda layer: norms[layer.name],
        reverse=direction == "max",
    )


def list_points(
    schemes: Sequence[str],
    layers: Sequence[AffineLayer],
    norms: Mapping[str, float],
    percents: Sequence[float],
    *,
    last: Sequence[str],
    repeats: int,
    seed: int,
) -> list[UnscoredPoint]:
    """List the points of all schemes but the allocation, which needs the table, small to large."""
    generator = torch.Generator().manual_seed(seed)
    candidates: list[UnscoredPoint] = []
    names = [layer.name for layer in layers]
    for scheme in schemes:
        if scheme in ("sparse-kfac", "isotropic"):
            structure = ISOTROPIC if scheme == "isotropic" else CURVED
            candidates += [
                UnscoredPoint(scheme, p, take_layers(Level(p, structure), names))
                for p in percents
            ]
        elif scheme == "last-layer":
            blocks = take_layers(WHOLE, last)
            candidates.append(UnscoredPoint(scheme, len(last), blocks))
        elif scheme == "head-isotropic":
            body = take_layers(WHOLE_ISOTROPIC, [n for n in names if n not in last])
            blocks = take_layers(WHOLE, last) + body
            candidates += [UnscoredPoint(scheme, len(blocks), blocks)] if body else []
        elif scheme == "full":
            candidates.append(UnscoredPoint(scheme, len(names), take_layers(WHOLE, names)))
        elif scheme != "best-budget":
            for repeat in range(repeats if scheme == "random" else 1):
                order = order_layers(scheme, layers, norms, generator)
                blocks = take_layers(WHOLE, [layer.name for layer in order])
                candidates += [
                    UnscoredPoint(scheme, count, blocks[:count], repeat)
                    for count in range(1, len(blocks) + 1)
                ]
    return candidates


def take_layers(level: Level, names: Sequence[str]) -> tuple[BlockKey, ...]:
    """List the blocks of some layers at one level."""
    return tuple((level, name) for name in names)


def allocate(
    table: VarianceTable,
    objective: Objective,
    floats: Mapping[BlockKey, int],
    budgets: Sequence[int],
    *,
    precision: int,
    temperature: float,
) -> list[UnscoredPoint]:
    """Choose each layer's percentage under ascending budgets of floats, greedily."""
    # Starting from nothing, each step enlarges the block that lowers the held-out NLL most
    # per additional float, until none lowers it or the largest budget is spent. A smaller
    # budget gets the longest part of that path it can afford. `precision` is an index.
    ladders: dict[str, list[BlockKey]] = {}
    for key in sorted(floats, key=floats.__getitem__):
        ladder = ladders.setdefault(key[1], [])
        # Several percentages of a small layer are the same block.
        if not ladder or floats[ladder[-1]] < floats[key]:
            ladder.append(key)
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
    """List every affordable larger block: its layer, cost, the block now and the larger."""
    upgrades = []
    for name, ladder in ladders.items():
        now = ladder[steps[name] - 1] if steps[name] else None
        for after in ladder[steps[name] : steps[name] + _AHEAD]:
            cost = floats[after] - (floats[now] if now else 0)
            if 0 < cost <= left:
                upgrades.append((name, cost, now, after))
    return upgrades


def _difference(
    table: VarianceTable, precision: int, before: BlockKey | None, after: BlockKey
) -> Tensor:
    gained = table.covariance[after][precision].double()
    return gained if before is None else gained - table.covariance[before][precision]


def _affordable(
    path: Sequence[tuple[int, Mapping[str, int]]],
    ladders: Mapping[str, Sequence[BlockKey]],
    budgets: Sequence[int],
) -> list[UnscoredPoint]:
    """Take the longest affordable part of the path for each budget."""
    candidates: list[UnscoredPoint] = []
    for budget in budgets:
        _, steps = max((stop for stop in path if stop[0] <= budget), key=lambda s: s[0])
        blocks = tuple(ladders[name][k - 1] for name, k in steps.items() if k)
        if blocks and (not candidates or blocks != candidates[-1].blocks):
            candidates.append(UnscoredPoint("best-budget", budget, blocks))
    return candidates
