"""Choose a place on the table's grid for each of several labels, each choice at its best scale.

Variances of different labels can stand in for each other and for the scale, so the NLL has
valleys across the axes and more than one lowest point. Every candidate is therefore scored
at its own scale, moves may change several labels at once, and a few labels are searched from
several starts. A normal prior on the log of each precision keeps it near the common one: few
held-out examples say little about many numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import torch
from torch import Tensor

from smidgen.fit.calibration.objective import Objective
from smidgen.posterior.variance_table import VarianceTable

Places = tuple[int, ...]
# Standard deviation, in nats, of the prior on a label's precision about the common one.
SPREAD = 8.0
# So many labels at most are moved together, and from several starts: the best of a coarse
# grid with about as many points as this.
_FEW, _STARTS, _COARSE = 3, 3, 64
_SWEEPS = 10
# How far around its place a label is moved after a first sweep.
_AROUND = 3
# Labels that do not change any output have no variance, and no logarithm of it.
_LEAST = 1e-300
# So many of the best candidates are scored again with all care.
_FINALISTS = 4


def sum_at_places(covariances: Sequence[Tensor], candidates: Sequence[Places]) -> Tensor:
    """Add covariances of all labels up, (P, N, K, K) each, at the places of each candidate."""
    places = torch.tensor(candidates)  # (candidates, labels)
    return sum(
        (c[at].double() for c, at in zip(covariances, places.T, strict=True)),
        start=torch.zeros((), dtype=torch.float64),
    )


class GridSearch:
    """Finds the best place of each label, from that of a precision common to all.

    `scales` are the best ones of common precisions, and `winner` the best of those.
    """

    def __init__(
        self,
        objective: Objective,
        table: VarianceTable,
        scales: Sequence[float],
        winner: int,
        jointly: bool,
    ) -> None:
        self.objective, self.jointly = objective, jointly
        self.covariances = list(table.covariance.values())  # (P, N, K, K) each
        self.count = len(table.precisions)
        self.start: Places = (winner,) * len(self.covariances)
        logs = table.precisions.log()
        distances = (logs - logs[winner]).square()
        self.penalty = distances / (2 * SPREAD**2 * len(objective))  # (P,)
        # A candidate's scale is near that of the common precision with as much variance.
        sizes = [
            c.diagonal(dim1=-2, dim2=-1).double().mean((1, 2)) for c in self.covariances
        ]
        self.sizes = torch.stack(sizes)  # (labels, P)
        self.scales = torch.tensor(scales, dtype=torch.float64)
        self.known: dict[Places, float] = {}
        self.known_scales: dict[Places, float] = {}

    def run(self) -> tuple[Places, Tensor, Tensor]:
        """Search, and return the best places with their scale and NLL."""
        starts = [self.start]
        if len(self.start) <= _FEW:
            starts += self._coarse_starts()
        for places in starts:
            self._descend(places, stride=2)
        if len(self.start) <= _FEW:
            self._descend(min(self.known, key=self.known.__getitem__), stride=1)
        finalists = sorted(self.known, key=self.known.__getitem__)[:_FINALISTS]
        scales, nlls = self._exact(finalists)
        scores = nlls + self.objective.penalty(scales) + self._prior(finalists)
        best = int(scores.argmin())
        return finalists[best], scales[best], nlls[best]

    def _coarse_starts(self) -> list[Places]:
        axis_points = round(_COARSE ** (1 / len(self.start)))
        axis = torch.linspace(0, self.count - 1, min(axis_points, self.count))
        candidates = list(product(axis.round().int().tolist(), repeat=len(self.start)))
        self._score(candidates)
        return sorted(candidates, key=self.known.__getitem__)[:_STARTS]

    def _descend(self, places: Places, stride: int) -> None:
        """Move one label at a time, then a few together, until none moves."""
        # A first sweep looks at every so many places, later ones at the places around.
        for sweep in range(_SWEEPS):
            before = places
            for label, place in enumerate(places):
                line = range(0, self.count, stride)
                if sweep:
                    line = range(
                        max(0, place - _AROUND), min(self.count, place + _AROUND + 1)
                    )
                ahead, behind = places[:label], places[label + 1 :]
                places = self._best([places, *((*ahead, at, *behind) for at in line)])
            if places == before and sweep and len(places) <= _FEW:
                for width in (2, 1):
                    places = self._best(self._neighbours(places, width))
            if places == before and sweep:
                return

    def _neighbours(self, places: Places, width: int) -> list[Places]:
        moves = product((0, -width, width), repeat=len(places))
        moved = (tuple(a + b for a, b in zip(places, m, strict=True)) for m in moves)
        return [each for each in moved if all(0 <= at < self.count for at in each)]

    def _best(self, candidates: list[Places]) -> Places:
        """The lowest candidate; of equals the first."""
        self._score(candidates)
        return min(candidates, key=self.known.__getitem__)

    def _score(self, candidates: Iterable[Places]) -> None:
        """Score those that are new, no more at once than the grid has points."""
        new = [each for each in dict.fromkeys(candidates) if each not in self.known]
        for first in range(0, len(new), self.count):
            some = new[first : first + self.count]
            covariance = self._covariance(some)
            if self.jointly:
                scales, nlls = self.objective.best(covariance, near=self._guess(some))
                nlls = nlls + self.objective.penalty(scales)
                self.known_scales.update(zip(some, scales.tolist(), strict=True))
            else:
                nlls = self.objective.nll(covariance)
            scores = (nlls + self._prior(some)).tolist()
            self.known.update(zip(some, scores, strict=True))

    def _exact(self, candidates: list[Places]) -> tuple[Tensor, Tensor]:
        """Scales and NLLs, (P,) each."""
        covariance = self._covariance(candidates)
        if self.jointly:
            return self.objective.best(covariance)
        nlls = self.objective.nll(covariance)
        return torch.full_like(nlls, self.objective.own_scale), nlls

    def _covariance(self, candidates: list[Places]) -> Tensor:
        return sum_at_places(self.covariances, candidates)

    def _prior(self, candidates: list[Places]) -> Tensor:
        return self.penalty[torch.tensor(candidates)].sum(-1)

    def _guess(self, candidates: list[Places]) -> Tensor:
        """Interpolate, in logs, the scale of the common precision with as much variance."""
        if self.count == 1:
            return self.scales.expand(len(candidates))
        sizes = self.sizes.gather(1, torch.tensor(candidates).T).sum(0)
        sizes = sizes.clamp_min(_LEAST).log()
        common = self.sizes.sum(0).clamp_min(_LEAST).log().flip(0)  # (P,), ascending
        scales = self.scales.log().flip(0)
        above = torch.searchsorted(common, sizes).clamp(1, self.count - 1)
        low, high = common[above - 1], common[above]
        part = ((sizes - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
        return torch.lerp(scales[above - 1], scales[above], part).exp()
