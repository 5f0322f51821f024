"""`strange`: which rows are unlike those that the model knows, at a rate of false alarms.

The threshold is the conformal quantile of the familiar rows' scores at 1 − rate: a new familiar
row, exchangeable with them, is flagged with a probability of at most `rate`. How many strange
rows it finds depends on the score, and no promise is made about that.

The score is the summed variance of the logits unless shifted rows are given. Then one random half
of the familiar and of the shifted rows chooses the score with the highest AUROC; the other half,
which has chosen nothing, gives the threshold and the AUROC that is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from smidgen.decide.calibration_rows import (
    as_written,
    conformal_quantile,
    require_known,
    require_open_fraction,
)
from smidgen.decide.rule import DecisionRule, as_percent
from smidgen.decide.uncertainty import (
    SCORE_WORDS,
    UNCERTAINTY_SCORES,
    list_scores,
    require_score,
    uncertainty,
)
from smidgen.errors import ArgumentError, DataError, require_kind
from smidgen.outputs.predictive import Predictive

DISTANCE = "distance"
STRANGE_SCORES = ("logit_variance", "mutual_information", "energy")
"""What tells strange rows by default: the first that a predictive has and that differs in rows."""


@dataclass(frozen=True, kw_only=True)
class StrangeRule(DecisionRule):
    """Flags rows whose score is above `threshold`.

    `auroc` is that of the score on shifted rows which chose nothing, if such were given.
    """

    name: ClassVar[str] = "strange"
    score: str
    threshold: float
    rate: float
    auroc: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_score(self.score, (*UNCERTAINTY_SCORES, DISTANCE))

    def apply(self, predictive: Predictive, distances: Tensor | None = None) -> Tensor:
        """Decide which rows are strange.

        Args:
            predictive: Of new rows, made as those were that made the rule.
            distances: For a rule with the score "distance": what the same `FeatureDistance`
                says of these rows, (B,).

        Returns:
            True where the row is strange, (B,).
        """
        return self.values_of(predictive, distances) > self.threshold

    def values_of(self, predictive: Predictive, distances: Tensor | None = None) -> Tensor:
        """Score rows as the rule does, (B,): higher is stranger."""
        return _find_values(self.score, predictive, distances, "distances")

    def __str__(self) -> str:
        found = (
            ""
            if self.auroc is None
            else (
                f" On shifted rows that chose nothing its AUROC is {self.auroc:.3f}, and it was "
                "the best score on the others."
            )
        )
        return (
            f"Calls a row strange where the {SCORE_WORDS[self.score]} is above "
            f"{self.threshold:.4g}: of rows like the {self._about_rows()} that made the rule, "
            f"at most {as_percent(self.rate)} are, on average.{found}"
        )


def strange(
    predictive: Predictive,
    *,
    rate: float = 0.05,
    score: str = "logit_variance",
    shifted: Predictive | None = None,
    distances: Tensor | None = None,
    shifted_distances: Tensor | None = None,
) -> StrangeRule:
    """Find from which score on a row is strange, at a rate of false alarms.

    Args:
        predictive: Of familiar rows that chose nothing else; they need no labels.
        rate: The largest fraction of familiar rows that is flagged, in (0, 1).
        score: "logit_variance", "mutual_information", "entropy", "confidence", "energy", or
            "distance", for which distances are given.
        shifted: The prediction of shifted rows. If given, they choose the score.
        distances: What a `FeatureDistance` says of the familiar rows, (B,).
        shifted_distances: What it says of the shifted rows, (B',).

    Returns:
        The rule. Print it for what it promises.
    """
    require_open_fraction("rate", rate, 0.05)
    require_kind("predictive", predictive, Predictive, "Use smidgen.predict_batches")
    if shifted is None:
        values = _find_values(score, predictive, distances, "distances")
        return _make_rule(score, values, rate, None)
    require_kind("shifted", shifted, Predictive, "Use smidgen.predict_batches")
    names = [n for n in list_scores(predictive) if n in list_scores(shifted)]
    pairs = {
        name: (uncertainty(predictive, name), uncertainty(shifted, name)) for name in names
    }
    if distances is not None or shifted_distances is not None:
        pairs[DISTANCE] = (
            _find_values(DISTANCE, predictive, distances, "distances"),
            _find_values(DISTANCE, shifted, shifted_distances, "shifted_distances"),
        )
    # A score that is the same for all familiar rows, such as the mutual information of a point
    # posterior, makes no rule.
    pairs = {n: pair for n, pair in pairs.items() if (pair[0] != pair[0][0]).any()} or pairs
    halves = [_split(len(predictive), "predictive"), _split(len(shifted), "shifted")]
    areas = {
        name: _find_auroc(*(side[h[0]] for side, h in zip(pair, halves, strict=True)))
        for name, pair in pairs.items()
    }
    best = max(areas, key=lambda name: areas[name])
    inside, outside = (side[h[1]] for side, h in zip(pairs[best], halves, strict=True))
    return _make_rule(best, inside, rate, _find_auroc(inside, outside))


def _make_rule(score: str, values: Tensor, rate: float, auroc: float | None) -> StrangeRule:
    if (values == values[0]).all():
        raise DataError(
            f"score must differ between rows, got {len(values)} times {float(values[0]):g} of "
            f"{score!r}. Choose another score."
        )
    quantile = conformal_quantile(
        values, 1 - as_written(rate), "familiar rows", f"rate={rate:g}"
    )
    return StrangeRule(
        rows=len(values), score=score, threshold=float(quantile), rate=rate, auroc=auroc
    )


def _find_values(
    score: str, predictive: Predictive, distances: Tensor | None, name: str
) -> Tensor:
    if score != DISTANCE:
        require_score(score, (*UNCERTAINTY_SCORES, DISTANCE))
        return uncertainty(predictive, score)
    if distances is None:
        raise ArgumentError(
            f"{name} must be given for the score 'distance'. Pass those of a FeatureDistance, "
            "one for each row."
        )
    require_kind(name, distances, Tensor, "Pass those of a FeatureDistance")
    values = distances.detach().cpu().double()
    if values.shape != (len(predictive),):
        raise DataError(
            f"{name} must be of shape ({len(predictive)},), one for each row, got "
            f"{tuple(values.shape)}. Pass those of the same rows."
        )
    require_known(name, values, finite=True)
    return values


def _split(rows: int, name: str) -> tuple[Tensor, Tensor]:
    """Split row numbers into two random halves, the same for as many rows."""
    if rows < 2:
        raise DataError(
            f"{name} must hold two rows or more to choose a score, got {rows}. Pass more."
        )
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    return order[: rows // 2], order[rows // 2 :]


def _find_auroc(inside: Tensor, outside: Tensor) -> float:
    """Compute how often a shifted row has the higher score; ties count half."""
    ordered = inside.sort().values
    below = torch.searchsorted(ordered, outside)
    at_most = torch.searchsorted(ordered, outside, right=True)
    return float((below + at_most).double().mean()) / (2 * len(inside))
