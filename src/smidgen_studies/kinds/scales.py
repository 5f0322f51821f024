"""BayesTune's first stage as a cell: a chain, and the weights that it would have tuned.

`update = "langevin"` leaves two choices, by the mean scale and by the mean displacement of
one chain; `update = "published"` leaves that of the published update. Its seconds are its
own, so that they are counted once for each method that needs it. The chain reads
training rows on top of what tuning reads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from smidgen import fit, select
from smidgen.fit.bayestune.langevin import (
    NOISE_DISCOUNT,
    TEMPERATURE,
    Update,
    schedule_chain,
)
from smidgen_studies.data.text import TextData
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Fraction, Positive, Several, Unsigned
from smidgen_studies.methods.tuned_text import load_start

Data = TextData


@dataclass(frozen=True)
class Settings:
    """Which chain, and how long; half of it is burn-in.

    `temperature` and `noise_discount` are those of "langevin"; the published update has
    its own.
    """

    update: Update = "langevin"
    base: str = "all-MiniLM-L6-v2"
    fraction: Fraction = 0.005
    epochs: Positive = 1.5
    samples: Several = 20
    learning_rate: Positive = 1e-4
    temperature: Positive = TEMPERATURE
    noise_discount: Unsigned = NOISE_DISCOUNT
    reported_methods = ()


def run(job: Job) -> Mapping[str, Any]:
    """Run the chain and leave what it chooses."""
    settings: Settings = job.settings
    start = load_start(job, settings.base)
    train = start.shuffled()
    course = asdict(schedule_chain(settings.epochs * len(train), settings.samples))
    ours = settings.update == "langevin"
    names = ("temperature", "noise_discount") if ours else ()
    chain = fit.LangevinSettings(
        **course,
        **{name: getattr(settings, name) for name in names},
        head=start.head,
        update=settings.update,
        learning_rate=settings.learning_rate,
        displacement=ours,
    )
    started = time.process_time()
    scales = fit.langevin(
        start.problem, train, settings=chain, seed=job.seed, progress=False
    )
    scores = {"bayestune" if ours else "published": scales.means}
    if scales.displacement is not None:
        scores["displacement"] = dict(scales.displacement)
    subsets = {
        name: select.bayestune(start.model, by, fraction=settings.fraction, head=start.head)
        for name, by in scores.items()
    }
    seconds = time.process_time() - started
    job.artifact.mkdir(exist_ok=True)
    for name, subset in subsets.items():
        subset.to_file(job.artifact / f"{name}.safetensors")
    return {
        "fraction": settings.fraction,
        "cpu_seconds": seconds,
        "course": course,
        "chain": scales.to_dict(),
    }
