"""`sets`: the classes that a row may have, with the coverage that was asked for.

Split-conformal sets {c : s_c ≤ q} of a score s_c of each class, where q is the conformal quantile
of the true classes' scores (`calibration_rows.conformal_quantile`):

- "lac": s_c = 1 − p_c. The smallest sets on average (Sadinle et al., 2019, arXiv:1609.00451).
- "aps": s_c = the probability of all classes at least as likely as c, itself included, without
  randomisation (Romano et al., 2020, arXiv:2006.02544). Larger sets, which follow the difficulty
  of a row better. Of equally likely classes the first counts first.

A new row's class is in its set with a probability of at least `coverage`, and of less than
coverage + 1/(n + 1) if no two scores are equal. By class, the same holds for the rows of each
class, with a quantile of its own. A set that would be empty gets the likeliest class, which only
adds coverage; with `allow_empty` it stays empty, and the coverage is near what was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from smidgen.decide.calibration_rows import (
    as_written,
    conformal_quantile,
    read_classes,
    refuse_kind,
    require_open_fraction,
)
from smidgen.decide.rule import DecisionRule, as_percent
from smidgen.errors import ArgumentError, TooFewRowsError, require_kind
from smidgen.outputs.followed_predictive import FollowedPredictive
from smidgen.outputs.predictive import CategoricalPredictive, Predictive

SetKind = Literal["lac", "aps"]
_KINDS = ("lac", "aps")


@dataclass(frozen=True, kw_only=True)
class SetRule(DecisionRule):
    """Sets of the classes whose score is at most a threshold, one, or one for each class.

    `mean_size` is that of the sets of the rows that made the rule.
    """

    name: ClassVar[str] = "sets"
    kind: SetKind
    coverage: float
    thresholds: tuple[float, ...]
    classes: int
    by_class: bool = False
    allow_empty: bool = False
    mean_size: float

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = self.classes if self.by_class else 1
        if len(self.thresholds) != wanted or self.classes < 1:
            raise ArgumentError(
                f"thresholds must be {wanted}, got {len(self.thresholds)}. Make the rule again."
            )

    def apply(self, predictive: Predictive) -> Tensor:
        """Find the set of each row.

        Args:
            predictive: Of new rows, made as those were that made the rule.

        Returns:
            True for each class in the set, (B, C).

        Raises:
            ArgumentError: If it has another number of classes.
        """
        categorical = _require_all_classes(predictive)
        if categorical.class_count != self.classes:
            raise ArgumentError(
                f"predictive must have {self.classes} classes, as the rule has, got "
                f"{categorical.class_count}. Make the rule anew for this model."
            )
        return _find_members(categorical, self.kind, self.thresholds, self.allow_empty)

    def __str__(self) -> str:
        of_class = " for each class" if self.by_class else ""
        empty = " A set may be empty." if self.allow_empty else ""
        return (
            f"Sets ({self.kind.upper()}) hold the true class with a probability of at least "
            f"{as_percent(self.coverage)}{of_class}. Of {self._about_rows()} they hold "
            f"{self.mean_size:.3g} of {self.classes} classes on average.{empty}"
        )


def sets(
    predictive: Predictive,
    targets: Tensor,
    *,
    coverage: float = 0.9,
    kind: SetKind = "lac",
    by_class: bool = False,
    allow_empty: bool = False,
) -> SetRule:
    """Find how likely a class must be to stand in a set, so that sets hold the true class.

    Args:
        predictive: Categorical, of rows that chose nothing else; a point prediction will do.
        targets: Their classes, (B,); rows labelled −100 are left out.
        coverage: The probability that a set holds the true class, in (0, 1).
        kind: "lac" for the smallest sets, "aps" for sets that follow a row's difficulty.
        by_class: Promise the coverage for the rows of each class.
        allow_empty: Leave sets empty if no class is likely enough, in place of giving them
            the likeliest. Then the coverage is near what was asked for, and not above.

    Returns:
        The rule. Print it for what it promises and how large the sets are.

    Raises:
        ArgumentError: If kind is none of these.
        TooFewRowsError: If there are none of a class, for by_class.
    """
    require_open_fraction("coverage", coverage, 0.9)
    if kind not in _KINDS:
        raise ArgumentError(f"kind must be 'lac' or 'aps', got {kind!r}. Choose one.")
    classes, labels, left_out = read_classes("sets", predictive, targets)
    categorical = _require_all_classes(classes)
    scores = _score_classes(categorical, kind).gather(1, labels[:, None]).squeeze(1)
    share, asked = as_written(coverage), f"coverage={coverage:g}"
    if by_class:
        thresholds = []
        for number in range(categorical.class_count):
            mine = scores[labels == number]
            if not len(mine):
                raise TooFewRowsError(
                    f"targets must have rows of every class for by_class=True, got none of "
                    f"class {number}. Pass rows of it, or leave by_class out."
                )
            what = f"rows of class {number}"
            thresholds.append(float(conformal_quantile(mine, share, what, asked)))
    else:
        thresholds = [float(conformal_quantile(scores, share, "labelled rows", asked))]
    members = _find_members(categorical, kind, tuple(thresholds), allow_empty)
    return SetRule(
        rows=len(labels),
        left_out=left_out,
        kind=kind,
        coverage=coverage,
        thresholds=tuple(thresholds),
        classes=categorical.class_count,
        by_class=by_class,
        allow_empty=allow_empty,
        mean_size=float(members.sum(-1).double().mean()),
    )


def _require_all_classes(predictive: Predictive) -> CategoricalPredictive:
    require_kind("predictive", predictive, Predictive, "Use smidgen.predict_batches")
    if isinstance(predictive, FollowedPredictive):
        raise ArgumentError(
            "predictive must have the probabilities of all classes for sets, got those of "
            f"{predictive.classes.shape[1]} of {predictive.outputs:,}. Predict with "
            "Link(keep='all')."
        )
    if not isinstance(predictive, CategoricalPredictive):
        refuse_kind("sets", predictive, "categorical")
    return predictive


def _score_classes(predictive: CategoricalPredictive, kind: SetKind) -> Tensor:
    """Score every class of every row, (B, C); the likeliest have the lowest scores."""
    probs = predictive.probs.double()
    if kind == "lac":
        return 1 - probs
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    together = ordered.cumsum(-1).clamp_max(1)
    # All classes together have a probability of one, whatever rounding says: else the rows of
    # which the least likely class is true would differ in the last digit, and so would sets.
    together[:, -1] = 1
    return torch.empty_like(probs).scatter(-1, order, together)


def _find_members(
    predictive: CategoricalPredictive,
    kind: SetKind,
    thresholds: tuple[float, ...],
    allow_empty: bool,
) -> Tensor:
    members = _score_classes(predictive, kind) <= torch.tensor(
        thresholds, dtype=torch.float64
    )
    if not allow_empty:
        empty = ~members.any(-1, keepdim=True)
        members |= empty & torch.zeros_like(members).scatter(
            -1, predictive.predicted[:, None], True
        )
    return members
