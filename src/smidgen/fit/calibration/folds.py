"""Choose precisions and a scale on all held-out rows but those of a fold, for every fold.

To search anew for each fold would take as many searches as there are folds. But a mean NLL is
the mean of those of the folds: one search over all rows finds the places of the grid that
matter, each fold's rows are scored there once, and sums over all folds but one tell where that
fold's best places are. From the few best it moves to neighbours until none is better, each at
its own best scale on these rows; so what is chosen is what a search of its own would choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch
from torch import Tensor

from smidgen.fit.calibration.grid_search import (
    SPREAD,
    GridSearch,
    Places,
    sum_at_places,
)
from smidgen.fit.calibration.objective import Objective
from smidgen.fit.calibration.precision import ScaledPrecisions, score_precisions
from smidgen.posterior.variance_table import VarianceTable

# So many of the best places are scored with all care before neighbours are.
_FINALISTS = 4
# A scale that moves from one neighbour to the next settles long before.
_MOST_MOVES = 40


@dataclass(frozen=True, eq=False)
class Folds:
    """Row numbers of each fold, and what scores all rows, a fold's own, and all others.

    `proposing` scores all rows too, by fewer draws of the logits where the link samples: it
    finds the places of the grid that matter, and each fold scores those with all draws.
    """

    rows: Sequence[Tensor]
    everything: Objective
    proposing: Objective
    inside: Sequence[Objective]
    outside: Sequence[Objective]

    @cached_property
    def others(self) -> list[Tensor]:
        """The row numbers of all but each fold."""
        every = torch.arange(len(self.everything))
        return [every[~torch.isin(every, rows)] for rows in self.rows]


def choose_in_folds(table: VarianceTable, folds: Folds) -> list[ScaledPrecisions]:
    """Choose a precision for each label and the scale, on all rows but each fold's."""
    known = _find_places(table, folds.proposing)
    places, scales = list(known), torch.tensor(list(known.values()), dtype=torch.float64)
    means = _score_folds(table, folds, places, scales)  # (F, places)
    sizes = torch.tensor([len(rows) for rows in folds.rows], dtype=torch.float64)
    sums = means * sizes[:, None]
    choices = []
    for number, (rest, objective) in enumerate(
        zip(folds.others, folds.outside, strict=True)
    ):
        left = (sums.sum(0) - sums[number]) / (sizes.sum() - sizes[number])
        scores = left + objective.penalty(scales)
        guesses = {
            place: (score, scale)
            for place, score, scale in zip(
                places, scores.tolist(), scales.tolist(), strict=True
            )
        }
        choices.append(_FoldSearch(table.take(rest), objective, guesses).run())
    return choices


def _find_places(table: VarianceTable, objective: Objective) -> dict[Places, float]:
    """Search on all rows; return every place that was scored, with its best scale."""
    curve = score_precisions(objective, table, table.covariance)
    labels = len(table.covariance)
    known = {(place,) * labels: scale for place, scale in enumerate(curve.scales)}
    if labels > 1:
        scales = torch.tensor(curve.scales, dtype=torch.float64)
        nlls = torch.tensor(curve.joint_nll, dtype=torch.float64)
        winner = int((nlls + objective.penalty(scales)).argmin())
        search = GridSearch(objective, table, curve.scales, winner, jointly=True)
        search.run()
        known = search.known_scales | known
    return known


def _score_folds(
    table: VarianceTable, folds: Folds, places: Sequence[Places], scales: Tensor
) -> Tensor:
    """Score every place at its scale on the rows of each fold, (F, places)."""
    count, means = len(table.precisions), []
    for rows, objective in zip(folds.rows, folds.inside, strict=True):
        covariances = [c[:, rows] for c in table.covariance.values()]
        # No more at once than the grid has points.
        pieces = [
            objective.nll_at(
                sum_at_places(covariances, places[first : first + count]),
                scales[first : first + count],
            )
            for first in range(0, len(places), count)
        ]
        means.append(torch.cat(pieces))
    return torch.stack(means)


class _FoldSearch:
    """Finds the best places on the rows of a table, from guesses: a score and a scale each."""

    def __init__(
        self,
        table: VarianceTable,
        objective: Objective,
        guesses: dict[Places, tuple[float, float]],
    ) -> None:
        self.table, self.objective, self.guesses = table, objective, guesses
        self.covariances = list(table.covariance.values())
        self.labels, self.count = len(self.covariances), len(table.precisions)
        # Best scales on these rows, and NLLs with what the prior on the scale adds.
        self.exact: dict[Places, tuple[float, float]] = {}

    def run(self) -> ScaledPrecisions:
        """Search, and return what was chosen."""
        common = self._find_common()
        best = common
        if self.labels > 1:
            centre = common[0]
            best = self._descend(self._shortlist(list(self.guesses), centre), centre)
        # As a calibration does: the prior may prefer the common one, but never what is worse.
        finalists = list(dict.fromkeys([common, best]))
        scales, nlls = self.objective.best(sum_at_places(self.covariances, finalists))
        scores = nlls + self.objective.penalty(scales)
        pick = int(scores.argmin())
        taus = self.table.precisions[list(finalists[pick])].tolist()
        return ScaledPrecisions(
            dict(zip(self.table.covariance, taus, strict=True)),
            float(scales[pick]),
            float(nlls[pick]),
        )

    def _find_common(self) -> Places:
        """Find the best precision that all labels share."""
        shared = [(place,) * self.labels for place in range(self.count)]
        best = self._shortlist(shared, None)
        while True:
            around = [best[0] + step for step in (-1, 0, 1)]
            near = [(at,) * self.labels for at in around if 0 <= at < self.count]
            self._score(near)
            lowest = min(near, key=lambda places: self.exact[places][1])
            if lowest == best:
                return best
            best = lowest

    def _shortlist(self, places: list[Places], centre: int | None) -> Places:
        """Score the best guesses with all care, and take the lowest."""

        def guess(place: Places) -> float:
            return self.guesses[place][0] + self._prior(place, centre)

        few = sorted(places, key=guess)[:_FINALISTS]
        self._score(few)
        return min(few, key=lambda place: self._total(place, centre))

    def _descend(self, best: Places, centre: int) -> Places:
        """Move to the best neighbour until none is better."""
        for _ in range(_MOST_MOVES):
            steps = product((0, -1, 1), repeat=self.labels)
            near = [tuple(a + b for a, b in zip(best, s, strict=True)) for s in steps]
            near = [place for place in near if all(0 <= at < self.count for at in place)]
            self._score(near, self.exact[best][0])
            lowest = min(near, key=lambda place: self._total(place, centre))
            if lowest == best:
                break
            best = lowest
        return best

    def _score(self, places: Sequence[Places], near: float | None = None) -> None:
        """Find the best scales of places that are new, from guesses of them."""
        new = [place for place in places if place not in self.exact]
        if not new:
            return
        usual = self.guesses[new[0]][1] if near is None else near
        guess = [
            self.guesses[place][1] if place in self.guesses else usual for place in new
        ]
        scales, nlls = self.objective.best(
            sum_at_places(self.covariances, new),
            near=torch.tensor(guess, dtype=torch.float64),
        )
        scores = nlls + self.objective.penalty(scales)
        pairs = zip(scales.tolist(), scores.tolist(), strict=True)
        self.exact.update(zip(new, pairs, strict=True))

    def _total(self, places: Places, centre: int | None) -> float:
        return self.exact[places][1] + self._prior(places, centre)

    def _prior(self, places: Places, centre: int | None) -> float:
        """What the prior about the common precision adds, as in `GridSearch`."""
        return 0.0 if centre is None else float(self.prior[centre][list(places)].sum())

    @cached_property
    def prior(self) -> Tensor:
        """What a label at each place adds for each common precision, (P, P)."""
        logs = self.table.precisions.log()
        distances = (logs - logs[:, None]).square()
        return distances / (2 * SPREAD**2 * len(self.objective))
