"""Differences between ways of tuning: by hand where that can be done."""

from __future__ import annotations

import math

import pytest
import torch
from markupsafe import escape
from scipy.stats import t as student
from sklearn.metrics import matthews_corrcoef

from smidgen.errors import DataError
from smidgen.report import About, render_many
from smidgen.report.many_records.aggregate import SeedMean
from smidgen.runtime.record import Record
from smidgen_studies.methods.task_scores import accuracy, matthews, pearson, score_task
from smidgen_studies.statistics import (
    Outcomes,
    TaskGap,
    collect_outcomes,
    describe_verdicts,
    on_tasks_like_these,
    on_these_tasks,
    paired_gap,
)
from tests.support.tolerances import EXACT, Z

TASKS = ("STS-B", "MRPC", "CoLA", "RTE")


def made(task, seed, method, outputs, targets, metric="accuracy"):
    values = [torch.tensor(each, dtype=torch.float64) for each in (outputs, targets)]
    scores = score_task(metric, *values, None)
    entry = {
        "name": method,
        "label": method,
        "scores": {name: {"value": each} for name, each in scores.items()},
    }
    results = {
        "methods": [entry],
        "metric": metric,
        "outputs": outputs,
        "targets": targets,
        "trained": 5,
    }
    return Record("cell", {"kind": "tuning", "data": {"name": task}}, results, seed=seed)


def hits(share, count=20):
    """Outputs that are right for the first rows, up to a share, of alternating targets."""
    targets = [float(i % 2) for i in range(count)]
    right = round(share * count)
    signs = [1 if i < right else -1 for i in range(count)]
    return [s * (2 * y - 1) for s, y in zip(signs, targets, strict=True)], targets


def records_of(shares):
    found = []
    for method, by_task in shares.items():
        for task, by_seed in by_task.items():
            for seed, share in enumerate(by_seed, 1):
                found.append(made(task, seed, method, *hits(share)))
    return found


def test_scores_are_the_usual_ones():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(50, generator=generator, dtype=torch.float64)
    targets = torch.randint(2, (50,), generator=generator).double()
    said = (values > 0).long()
    assert float(matthews(values, targets)) == pytest.approx(
        matthews_corrcoef(targets.long(), said), rel=EXACT["rtol"]
    )
    assert float(accuracy(values, targets)) == float((said == targets).double().mean())
    assert float(pearson(torch.ones(4), torch.arange(4.0))) == 0
    many = torch.stack([values, -values])
    torch.testing.assert_close(
        pearson(many, targets.expand(2, -1)),
        torch.stack([pearson(values, targets), pearson(-values, targets)]),
        **EXACT,
    )
    found = score_task("accuracy", values, targets)
    probs = torch.sigmoid(values)
    nll = -(targets * probs.log() + (1 - targets) * (1 - probs).log()).mean()
    assert found["nll"] == pytest.approx(float(nll), rel=EXACT["rtol"])
    numbers = score_task("pearson", values, targets, noise=0.5)
    normal = torch.distributions.Normal(values, math.sqrt(0.5))
    assert numbers["nll"] == pytest.approx(
        -float(normal.log_prob(targets).mean()), rel=EXACT["rtol"]
    )


def test_a_tasks_interval_holds_rows_and_seeds():
    """Accuracies have a variance over rows that is known without a bootstrap."""
    count = 400
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(2, (count,), generator=generator).double().expand(3, -1)
    flips = torch.rand(2, 3, count, generator=generator) < torch.tensor([0.2, 0.3]).view(
        2, 1, 1
    )
    ours, theirs = ((1 - 2 * f.double()) * (2 * targets - 1) for f in flips)
    gaps = flips[1].double() - flips[0].double()
    by_seed = gaps.mean(1)
    of_rows = float(gaps.mean(0).var()) / count
    of_seeds = float(by_seed.var()) / 3
    total = of_rows + of_seeds
    freedom = 2 * (total / of_seeds) ** 2
    half = student.ppf(0.975, freedom) * math.sqrt(total)
    found = paired_gap("accuracy", ours, theirs, targets, draws=4000)
    assert found.value == pytest.approx(float(by_seed.mean()), rel=EXACT["rtol"])
    # A variance of 4,000 draws has a relative error of √(2/4000).
    wide = Z * math.sqrt(2 / 4000)
    assert found.high - found.value == pytest.approx(half, rel=wide)
    assert found.value - found.low == pytest.approx(half, rel=wide)


def test_seeds_that_agree_leave_the_rows_and_one_seed_leaves_nothing():
    values, targets = (torch.tensor([each] * 2) for each in hits(0.5))
    worse = torch.tensor([hits(0.25)[0]] * 2)
    two = paired_gap("accuracy", values, worse, targets)
    assert two.value == pytest.approx(0.25)
    # A quarter of 20 rows differs: the variance of such a share over its rows.
    spread = 1.96 * math.sqrt(0.25 * 0.75 / 20)
    assert two.high - two.value == pytest.approx(spread, rel=Z * math.sqrt(2 / 1000))
    one = paired_gap("accuracy", values[:1], worse[:1], targets[:1])
    assert (one.low, one.high, one.count) == (None, None, 1)
    same = paired_gap("accuracy", values, values, targets)
    assert (same.low, same.value, same.high) == (0, 0, 0)


def test_as_if_drawn_the_task_is_the_unit():
    """Differences 0.1, 0.2, 0.3, 0.2: mean 0.2, variance 0.02/3, three degrees."""
    values = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.2}
    gaps = {task: SeedMean(value, None, None, 3) for task, value in values.items()}
    found = on_tasks_like_these(gaps)
    half = 3.182446305284263 * math.sqrt(0.02 / 3 / 4)
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.2 - half, 0.2 + half))


def test_on_these_tasks_rows_and_seeds_are_the_errors():
    """Two tasks, variances of seeds 4 and 1 with 2 and 1 degrees, of rows 3 and 4."""
    gaps = {
        "a": TaskGap(1.0, 0.0, 2.0, 3, of_rows=3.0, of_seeds=4.0),
        "b": TaskGap(3.0, 0.0, 6.0, 2, of_rows=4.0, of_seeds=1.0),
    }
    found = on_these_tasks(gaps)
    # (4 + 1 + 3 + 4)/4 in all; 3²/((4/4)²/2 + (1/4)²/1) degrees.
    half = student.ppf(0.975, 9 / (1 / 2 + 1 / 16)) * math.sqrt(3)
    assert (found.value, found.count) == (2.0, 5)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half))
    alone = on_these_tasks({"a": gaps["a"], "b": TaskGap(3.0, None, None, 1)})
    assert (alone.value, alone.low) == (2.0, None)


def test_verdicts_say_better_worse_and_not_told_apart():
    shares = {
        "bayestune": dict.fromkeys(TASKS, (0.7, 0.75)),
        "random": dict.fromkeys(TASKS, (0.45, 0.55)),
        "full": dict.fromkeys(TASKS, (0.9, 0.95)),
        "lora": {
            "STS-B": (0.9, 0.9),
            "MRPC": (0.5, 0.5),
            "CoLA": (0.8, 0.8),
            "RTE": (0.6, 0.7),
        },
        "head": {"MRPC": (0.45, 0.55)},
    }
    lines = describe_verdicts(collect_outcomes(records_of(shares)))
    assert len(lines) == 5
    text = {name: next(line for line in lines if f"“{name}”" in line) for name in LABELLED}
    assert "is better than" in text["Random weights"]
    assert "RTE: +0.225, +0.1" in text["Random weights"]
    assert "is worse than" in text["All weights"]
    assert "is not told apart from" in text["LoRA"]
    assert "STS-B, MRPC, CoLA and RTE" in text["LoRA"]
    # Two seeds of one task bear no verdict, wherever their interval lies.
    assert "not told apart" in text["Head only"]
    assert "on MRPC alone: +0.225, +0.05" in text["Head only"]
    assert "Of 16 such comparisons" in lines[-1]
    del shares["bayestune"]
    assert describe_verdicts(collect_outcomes(records_of(shares))) == []


LABELLED = ("Random weights", "All weights", "LoRA", "Head only")


def test_only_seeds_that_both_have_are_compared():
    shares = {"bayestune": {"RTE": (0.7, 0.8)}, "random": {"RTE": (0.5, 0.5, 0.9)}}
    found = collect_outcomes(records_of(shares)).gap("RTE", "random")
    assert found.count == 2
    assert found.value == pytest.approx(0.25)


def test_other_rows_are_refused_and_trials_are_passed_over():
    ours = made("RTE", 1, "bayestune", [1.0, -1.0], [1.0, 0.0])
    theirs = made("RTE", 1, "random", [1.0, -1.0], [0.0, 0.0])
    with pytest.raises(DataError, match="same rows of RTE"):
        collect_outcomes([ours, theirs]).gap("RTE", "random")
    trial = Record(
        "cell", {"kind": "tuning", "data": {"name": "RTE"}}, {"validation_nll": 1.0}, seed=0
    )
    other = Record("cell", {"kind": "laplace", "data": {"name": "RTE"}}, {}, seed=1)
    assert collect_outcomes([trial, other]).tasks == Outcomes({}).tasks == []


def test_the_page_tells_what_the_tasks_tell():
    shares = {
        "bayestune": dict.fromkeys(TASKS, (0.7, 0.75)),
        "random": dict.fromkeys(TASKS, (0.45, 0.55)),
    }
    records = records_of(shares)
    found = tuple(describe_verdicts(collect_outcomes(records)))
    page = render_many(records, About("Tuning", baseline="bayestune", found=found))
    assert all(str(escape(line)) in page for line in found)
    assert "Task&#39;s own score" in page
    assert "Over all data" not in page
