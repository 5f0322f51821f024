"""What records of kind `tuning` come to: one method less others, by task and over tasks.

A task's difference is the mean over seeds, on the same test rows. Two things make it
uncertain, and their variances add up: the rows (redrawn by a bootstrap, the same for both
methods and for all seeds) and the seeds (the variance of their differences over their
number). The degrees of freedom are Satterthwaite's, so that three seeds are not taken for
many. The mean of the tasks has the same two errors: it is of these tasks and says nothing
of others. With the task as the unit it would, and a handful of tasks bear little of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any, get_args

import torch
from torch import Tensor

from smidgen.errors import DataError
from smidgen.report.formats import format_signed
from smidgen.report.many_records.aggregate import SeedMean, average_seeds, find_interval
from smidgen.report.names import label_method
from smidgen.runtime.record import Record
from smidgen_studies.methods.task_scores import METRICS, Metric
from smidgen_studies.methods.tuning_methods import TuningMethod

OURS = "bayestune"
_DRAWS = 1000


@dataclass(frozen=True, kw_only=True)
class TaskGap(SeedMean):
    """A difference on one task, and the variances that its rows and its seeds bring."""

    of_rows: float = 0.0
    of_seeds: float = 0.0


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Results by task, method and seed, tasks in the order of the records."""

    results: Mapping[str, Mapping[str, Mapping[int, Mapping[str, Any]]]]

    @property
    def tasks(self) -> list[str]:
        """The tasks that have a result."""
        return list(self.results)

    @property
    def methods(self) -> list[str]:
        """The methods that have a result, in the order of `TuningMethod`."""
        known = {method for task in self.results.values() for method in task}
        return [method for method in get_args(TuningMethod) if method in known]

    def of(self, task: str, method: str) -> Mapping[int, Mapping[str, Any]]:
        """The results of a method on a task, by seed."""
        return self.results[task].get(method, {})

    def gap(self, task: str, other: str, method: str = OURS) -> TaskGap | None:
        """A method's score less another's on one task, over the seeds that both have."""
        ours, theirs = self.of(task, method), self.of(task, other)
        seeds = sorted(ours.keys() & theirs.keys())
        if not seeds:
            return None
        stacked = [
            torch.stack([_tensor(some[seed], part) for seed in seeds])
            for some, part in ((ours, "outputs"), (theirs, "outputs"), (ours, "targets"))
        ]
        if any(ours[seed]["targets"] != theirs[seed]["targets"] for seed in seeds):
            raise DataError(
                f"{method} and {other} must be scored on the same rows of {task}, got "
                "others. Make the records again with one study."
            )
        return paired_gap(ours[seeds[0]]["metric"], *stacked)

    def gaps(self, other: str, method: str = OURS) -> dict[str, TaskGap]:
        """A method's score less another's, for each task that has both."""
        gaps = {task: self.gap(task, other, method) for task in self.tasks}
        return {task: gap for task, gap in gaps.items() if gap is not None}


def collect_outcomes(records: Iterable[Record]) -> Outcomes:
    """Sort records of scored tunings; trials and all other kinds are passed over."""
    found: dict[str, dict[str, dict[int, Mapping[str, Any]]]] = {}
    for record in records:
        if record.config.get("kind") != "tuning" or "outputs" not in record.results:
            continue
        task = str(record.config["data"]["name"])
        (entry,) = record.results["methods"]
        seeds = found.setdefault(task, {}).setdefault(entry["name"], {})
        seeds[int(record.seed or 0)] = record.results
    return Outcomes(found)


def paired_gap(
    metric: Metric, ours: Tensor, theirs: Tensor, targets: Tensor, *, draws: int = _DRAWS
) -> TaskGap:
    """One method's score less another's, values (seeds, rows): the mean over seeds."""
    score = METRICS[metric]
    by_seed = (score(ours, targets) - score(theirs, targets)).tolist()
    middle, count = fmean(by_seed), len(by_seed)
    if count < 2:
        return TaskGap(middle, None, None, count)
    # The same rows are redrawn for all seeds: where seeds share rows they are in one place.
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(targets.shape[1], (draws, targets.shape[1]), generator=generator)
    drawn = torch.zeros(draws, dtype=torch.float64)
    for values, others, true in zip(ours, theirs, targets, strict=True):
        redrawn = true[rows]
        drawn += score(values[rows], redrawn) - score(others[rows], redrawn)
    of_rows = float((drawn / count).var())
    of_seeds = variance(by_seed) / count
    ends = find_interval(middle, [(of_seeds, count - 1)], known=of_rows)
    return TaskGap(middle, *ends, count, of_rows=of_rows, of_seeds=of_seeds)


def on_these_tasks(gaps: Mapping[str, TaskGap]) -> SeedMean:
    """The mean of the tasks' differences, uncertain by their rows and seeds."""
    tasks, share = gaps.values(), len(gaps) ** -2
    middle, count = fmean(task.value for task in tasks), sum(task.count for task in tasks)
    if any(task.low is None for task in tasks):
        return SeedMean(middle, None, None, count)
    ends = find_interval(
        middle,
        [(share * task.of_seeds, task.count - 1) for task in tasks],
        known=share * sum(task.of_rows for task in tasks),
    )
    return SeedMean(middle, *ends, count)


def on_tasks_like_these(gaps: Mapping[str, SeedMean]) -> SeedMean:
    """The mean of the tasks' differences, as if the tasks had been drawn at random."""
    return average_seeds([gap.value for gap in gaps.values()])


def describe_verdicts(outcomes: Outcomes, method: str = OURS) -> list[str]:
    """Say whether a method is better or worse than each other, and how to read that."""
    if method not in outcomes.methods:
        return []
    gaps = {m: outcomes.gaps(m, method) for m in outcomes.methods if m != method}
    lines = [_verdict(by_task, other, method) for other, by_task in gaps.items() if by_task]
    # Each task, and their mean where there are several.
    count = sum(len(by_task) + (len(by_task) > 1) for by_task in gaps.values())
    return [*lines, _reading(outcomes, count)] if lines else []


def _verdict(gaps: Mapping[str, TaskGap], other: str, method: str) -> str:
    whole = on_these_tasks(gaps)
    verb = "not told apart from"
    if whole.above_zero:
        verb = "better than"
    elif whole.below_zero:
        verb = "worse than"
    single = len(gaps) == 1
    where = f"on {next(iter(gaps))} alone" if single else f"on average of {_list(gaps)}"
    ours, theirs = (label_method(name, "tuning") for name in (method, other))
    opening = f"{ours} is {verb} “{theirs}” {where}: {describe_gap(whole)}"
    return f"{opening}; {_by_task(gaps)}."


def _by_task(gaps: Mapping[str, SeedMean]) -> str:
    better = [f"{t} ({describe_gap(g)})" for t, g in gaps.items() if g.above_zero]
    worse = [f"{t} ({describe_gap(g)})" for t, g in gaps.items() if g.below_zero]
    parts = []
    if better:
        parts.append(f"task by task, clearly better on {_list(better)}")
    if worse:
        parts.append(f"{'' if better else 'task by task, '}clearly worse on {_list(worse)}")
    return " and ".join(parts) or "no single task tells them apart"


def _reading(outcomes: Outcomes, count: int) -> str:
    tasks = len(outcomes.tasks)
    seeds = sorted({len(s) for task in outcomes.results.values() for s in task.values()})
    shown = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return (
        "Differences of the tasks' own scores, higher is better, with 95\u202f% intervals "
        f"that hold the error of test rows and of {shown} seed{'s' * (shown != '1')}, on "
        f"{'these' if tasks > 1 else 'this'} {tasks} task{'s' * (tasks > 1)}; nothing is "
        f"said of others. Of {count} such comparisons one in twenty would be clear by "
        "chance."
    )


def describe_gap(gap: SeedMean) -> str:
    """A difference and its interval, in words."""
    if gap.low is None or gap.high is None:
        return f"{format_signed(gap.value, 3)}, without an interval"
    low, high = format_signed(gap.low, 3), format_signed(gap.high, 3)
    return f"{format_signed(gap.value, 3)}, {low} to {high}"


def _list(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _tensor(results: Mapping[str, Any], part: str) -> Tensor:
    return torch.tensor(results[part], dtype=torch.float64)
