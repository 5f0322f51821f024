"""The ramping study of a task: python -m docs.build.ramping MRPC --data DIR --cache DIR.

Fifteen percentages, 21 precisions and nine schemes of a fine-tuned MiniLM
(`studies.finetuned` makes it), the record under `results/ramp/`. With `--method swag` the
schemes of SWAG instead, each a run of its own: shorter runs and fewer samples than the
paper's, so that it ends in about an hour on a core. `smidgen report` draws either.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from docs.build.finetuned import TASKS, Finetuned, finetuned

from smidgen.integrations.huggingface import text_loader
from smidgen.runtime.record import Record
from smidgen.workflows.ramp.laplace import RampSettings, ramp
from smidgen.workflows.ramp.swag import SwagRampSettings, swag_ramp

SWAG = SwagRampSettings(
    fractions=(0.1,),
    rates=(1e-2, 5e-2),
    steps=300,
    every=5,
    trial_steps=60,
    trial_samples=4,
    samples=12,
)


def laplace(made: Finetuned, seed: int, config: dict[str, str]) -> Record:
    """Every scheme of the Laplace family from one pass over each set."""
    sets = (made.task.train, made.task.validation, made.task.test)
    loaders = (made.loader(table) for table in sets)
    return ramp(made.model, *loaders, RampSettings(seed=seed), config=config).record


def swag(made: Finetuned, seed: int, config: dict[str, str], folder: Path) -> Record:
    """SWAG's schemes, point by point; an interrupted study goes on."""
    train = text_loader(
        made.task.train,
        made.tokenizer,
        batch_size=made.settings.batch_size,
        max_length=made.settings.max_length,
        shuffle=True,
        seed=seed,
    )
    others = (made.loader(table) for table in (made.task.validation, made.task.test))
    settings = replace(SWAG, seed=seed)
    return swag_ramp(made.model, train, *others, folder, settings, config=config)


def main() -> None:
    """Run the seeds that have no record yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--method", choices=("laplace", "swag"), default="laplace")
    parser.add_argument("--out", type=Path, default=Path("results/ramp"))
    given = parser.parse_args()
    for seed in given.seeds:
        kind = "" if given.method == "laplace" else f"{given.method}-"
        name = f"{given.task.lower()}-{kind}seed{seed}"
        target = given.out / f"{name}.json"
        if target.exists():
            continue
        made = finetuned(given.task, seed, given.data, given.cache)
        config = {"title": made.task.title, "model": "all-MiniLM-L6-v2"}
        if given.method == "laplace":
            record = laplace(made, seed, config)
        else:
            record = swag(made, seed, config, given.cache / f"ramp-{name}")
        print(f"wrote {record.save(target)}: {record.results['seconds']}")


if __name__ == "__main__":
    main()
