"""What the records of `studies.bayestune` come to: means, and differences to BayesTune."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from scipy.stats import t as student
from torch import Tensor

from smidgen.evaluate.association import average_ranks
from smidgen.record import Record

LEVEL = 0.95
ORDER = (
    "full",
    "lora",
    "bitfit",
    "head",
    "random",
    "magnitude",
    "gradient",
    "displacement",
    "published",
    "bayestune",
)


def scored(task: str, values: Tensor, targets: Tensor) -> dict[str, float]:
    """The task's own metric, and the mean NLL.

    `values` are the difference of the two logits, or the prediction of a regression.
    """
    values, targets = values.double().cpu(), targets.double().cpu()
    if task == "STS-B":
        pearson = float(torch.corrcoef(torch.stack([values, targets]))[0, 1])
        ranks = torch.stack([average_ranks(each) for each in (values, targets)])
        spearman = float(torch.corrcoef(ranks.double())[0, 1])
        error = float((values - targets).square().mean())
        return {"metric": pearson, "spearman": spearman, "squared_error": error}
    nll = float(torch.nn.functional.softplus(values).sub(targets * values).mean())
    hits = (values > 0) == (targets > 0.5)
    accuracy = float(hits.double().mean())
    if task != "CoLA":
        return {"metric": accuracy, "nll": nll}
    said, true = (values > 0).double(), targets
    if said.min() == said.max():
        return {"metric": 0.0, "accuracy": accuracy, "nll": nll}
    matthews = float(torch.corrcoef(torch.stack([said, true]))[0, 1])
    return {"metric": matthews, "accuracy": accuracy, "nll": nll}


def summary(folder: Path) -> str:
    """Write `summary.json` from all records of cells, and return it as Markdown."""
    found: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    trained: dict[str, int] = {}
    for path in sorted(folder.glob("*-seed*.json")):
        record = Record.load(path)
        config = record.config
        assert record.seed is not None
        found[config["method"]][config["task"]][record.seed] = record.results["metric"]
        trained[config["method"]] = record.results["trained"]
    tasks = sorted({task for each in found.values() for task in each})
    rows: dict[str, Any] = {}
    ours = found.get("bayestune", {})
    for method, by_task in found.items():
        rows[method] = {
            "trained": trained[method],
            "tasks": {
                task: _spread(list(by_task.get(task, {}).values())) for task in tasks
            },
            "bayestune_minus_this": _differences(ours, by_task, tasks),
        }
    results = {
        "metrics": "CoLA Matthews, STS-B Pearson, MRPC and RTE accuracy",
        "rows": rows,
    }
    Record("bayestune summary", {"level": LEVEL}, results).save(folder / "summary.json")
    return _table(rows, tasks)


def _table(rows: dict[str, Any], tasks: list[str]) -> str:
    """A row for each method: what it trains, its scores, and BayesTune less those."""
    lines = [
        f"| method | trained | {' | '.join(tasks)} | BayesTune less this |",
        "|---" * (len(tasks) + 3) + "|",
    ]
    for method in [each for each in ORDER if each in rows]:
        row = rows[method]
        cells = [_shown(row["tasks"][task]) for task in tasks]
        less = row["bayestune_minus_this"]["all"]
        found = "" if method == "bayestune" or not less["pairs"] else f"{less['mean']:+.3f}"
        if found and "low" in less:
            found += f" [{less['low']:+.3f}, {less['high']:+.3f}]"
        lines.append(f"| {method} | {row['trained']:,} | {' | '.join(cells)} | {found} |")
    return "\n".join(lines)


def _shown(found: dict[str, float]) -> str:
    if not found["seeds"]:
        return ""
    spread = f" ± {found['sd']:.3f}" if "sd" in found else ""
    return f"{found['mean']:.3f}{spread}"


def _spread(values: list[float]) -> dict[str, float]:
    found = {"mean": mean(values), "seeds": len(values)} if values else {"seeds": 0}
    return {**found, "sd": stdev(values)} if len(values) > 1 else found


def _differences(
    ours: dict[str, dict[int, float]], theirs: dict[str, dict[int, float]], tasks: list[str]
) -> dict[str, Any]:
    """Paired by task and seed, with Student's interval over the pairs."""
    pairs = {
        task: [ours[task][seed] - theirs[task][seed] for seed in theirs[task]]
        for task in tasks
        if task in theirs and ours.get(task, {}).keys() == theirs[task].keys()
    }
    every = [each for found in pairs.values() for each in found]
    return {name: _interval(each) for name, each in {**pairs, "all": every}.items()}


def _interval(values: list[float]) -> dict[str, float]:
    found = {"mean": mean(values), "pairs": len(values)} if values else {"pairs": 0}
    if len(values) > 1:
        reach = student.ppf((1 + LEVEL) / 2, len(values) - 1)
        half = float(reach) * stdev(values) / len(values) ** 0.5
        found.update({"low": found["mean"] - half, "high": found["mean"] + half})
    return found
