"""Run in two processes: each scores its rows, and prints what it computes of all of them.

python -m tests.integration.shared_metrics RANK FOLDER
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed

from smidgen.evaluate import metrics
from smidgen.outputs.predictive import CategoricalPredictive

PROCESSES, ROWS = 2, 61


def make_metrics():
    return {
        "nll": metrics.NllMetric(),
        "ece": metrics.EceMetric(bins=5),
        "aurc": metrics.AurcMetric(),
        "automation": metrics.AutomationRateMetric(0.3),
    }


def make_rows():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, 3, generator=generator)
    targets = torch.randint(3, (ROWS,), generator=generator)
    return CategoricalPredictive.from_logits(logits), targets


def main(rank, folder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=PROCESSES
    )
    predictive, targets = make_rows()
    # Of the rows one process has more than the other, and in several batches.
    own = torch.arange(40) if rank == 0 else torch.arange(40, ROWS)
    found = {}
    for name, metric in make_metrics().items():
        for rows in own.split(17):
            metric.update(predictive.take(rows), targets[rows])
        found[name] = float(metric.compute())
    print(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
