"""From rows to a trained network and its posterior, whatever a row is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import nn

import smidgen.fit as fit
import smidgen.select as select
from smidgen.errors import ArgumentError, is_number, warn
from smidgen.integrations.reading.splitting import (
    LEAST_TO_HOLD_OUT,
    choose_held_out,
    deal_rows,
)
from smidgen.integrations.reading.task_note import TaskKind
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.types import Batch
from smidgen.workflows.bayesify.one_call import bayesify
from smidgen.workflows.bayesify.settings import BayesifySettings
from smidgen.workflows.run.training import plan_training

MakeBatches: TypeAlias = Callable[[Sequence[int], bool], Iterable[Batch]]
"""Makes batches of these rows; shuffled anew each time they are read, if asked."""
RowParts: TypeAlias = Mapping[str, Sequence[int]]
"""Rows by what they are for: "train", "validation", "calibration" and "decision"."""


@dataclass(frozen=True)
class FitPlan:
    """How an estimator fits.

    Args:
        kind: What a row is.
        batch_size: Rows of a batch.
        epochs: The largest number of epochs; by default what suits the rows.
        learning_rate: Peak learning rate; by default what suits the kind.
        trained: The network is trained already, by other rows.
        settings: What `bayesify` tries.
        seed: Seed of everything random.
        progress: Show progress bars.
    """

    kind: TaskKind
    batch_size: int
    epochs: int | None = None
    learning_rate: float | None = None
    trained: bool = False
    settings: BayesifySettings | None = None
    seed: int = 0
    progress: bool = False


@dataclass(frozen=True, eq=False)
class FittedNetwork:
    """A trained network in evaluation mode, its posterior, and how many epochs it took."""

    module: nn.Module
    posterior: Posterior
    epochs: int


def divide_rows_for_fit(
    count: int,
    groups: Sequence[int],
    classes: Sequence[int] | None,
    rule_fraction: float,
    plan: FitPlan,
) -> dict[str, Sequence[int]]:
    """Divide rows into those that train, stop training, calibrate and make rules.

    Args:
        count: How many rows there are.
        groups: The number of each row's group, which stays together.
        classes: The class of each row; each class is divided by itself.
        rule_fraction: The share of rows that make rules, in [0, 1).
        plan: Of it, whether the network is trained, and the seed.

    Returns:
        The rows of each part. Fewer than 80 rows all train, and none calibrates.

    Raises:
        ArgumentError: If `rule_fraction` is out of its range.
    """
    if not is_number(rule_fraction) or not 0 <= rule_fraction < 1:
        raise ArgumentError(
            f"rule_fraction must be in [0, 1), got {rule_fraction!r}. Try 0.2, or 0 for none."
        )
    left = count - round(rule_fraction * count)
    if left < LEAST_TO_HOLD_OUT and rule_fraction:
        raise ArgumentError(
            f"rule_fraction must leave {LEAST_TO_HOLD_OUT} rows or more, got {rule_fraction} "
            f"of {count}. Pass more rows, or 0 to make no rules."
        )
    if left < LEAST_TO_HOLD_OUT:
        return {"train": range(count)}
    shares = choose_held_out(left)
    if plan.trained:
        shares = {"train": 0.5, "calibration": 0.5}
    shares = {part: share * (1 - rule_fraction) for part, share in shares.items()}
    if rule_fraction:
        shares["decision"] = float(rule_fraction)
    dealt = deal_rows(range(count), groups, shares, classes=classes, seed=plan.seed)
    return dict(dealt)


def fit_network(
    problem: Problem, batch: MakeBatches, parts: RowParts, plan: FitPlan
) -> FittedNetwork:
    """Train a network unless it is trained, and make it Bayesian as far as that pays.

    Args:
        problem: The network with what its outputs mean. It is not changed.
        batch: Makes batches of rows.
        parts: Which rows do what.
        plan: How.

    Returns:
        The network, its posterior and the number of epochs.
    """
    train, epochs = parts["train"], 0
    if not plan.trained:
        result = fit.finetune(
            problem,
            batch(train, True),
            validation=batch(parts["validation"], False) if "validation" in parts else None,
            settings=plan_training(
                plan.kind,
                len(train),
                batch_size=plan.batch_size,
                epochs=plan.epochs,
                learning_rate=plan.learning_rate,
            ),
            seed=plan.seed,
            progress=plan.progress,
        )
        problem, epochs = replace(problem, model=result.model), len(result.history)
    problem.model.eval()
    posterior: Posterior
    if "calibration" in parts:
        posterior = bayesify(
            problem,
            batch(train, False),
            batch(parts["calibration"], False),
            settings=plan.settings,
            seed=plan.seed,
            progress=plan.progress,
        )
    else:
        posterior = _fit_by_evidence(problem, batch(train, False), len(train))
    return FittedNetwork(problem.model, posterior, epochs)


def _fit_by_evidence(problem: Problem, batches: Iterable[Batch], rows: int) -> Posterior:
    """Fit the last layer where no row can be spared to calibrate with."""
    warn(
        f"X has {rows} rows, too few to hold any out: the last layer is made Bayesian by the "
        "evidence of its training rows, and nothing is calibrated on others. Fit on "
        f"{LEAST_TO_HOLD_OUT} rows or more."
    )
    batches = list(batches)
    subset = select.last_layer(problem, batches)
    posterior = fit.laplace(problem, batches, subset, progress=False)
    return fit.calibrate_by_evidence(posterior, problem)
