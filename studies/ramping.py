"""The ramping study of a task: python -m studies.ramping MRPC --data DIR --cache DIR.

Fifteen percentages, 21 precisions and nine schemes of a fine-tuned MiniLM
(`studies.finetuned` makes it), the record under `results/ramp/`. `smidgen report` draws it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from smidgen.study.ramp import RampSettings, ramp
from studies.finetuned import TASKS, finetuned


def main() -> None:
    """Run the seeds that have no record yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("results/ramp"))
    given = parser.parse_args()
    for seed in given.seeds:
        target = given.out / f"{given.task.lower()}-seed{seed}.json"
        if target.exists():
            continue
        made = finetuned(given.task, seed, given.data, given.cache)
        sets = (made.task.train, made.task.validation, made.task.test)
        found = ramp(
            made.model,
            *(made.loader(table) for table in sets),
            RampSettings(seed=seed),
            config={"title": made.task.title, "model": "all-MiniLM-L6-v2"},
        )
        print(f"wrote {found.record.save(target)}: {found.record.results['seconds']}")


if __name__ == "__main__":
    main()
