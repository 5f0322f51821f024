"""One run from its rows to a ready folder; each finished step leaves its result and is kept.

Every step reads what the one before it left on the disk, also when nothing was interrupted:
so a run that was killed and started again ends with the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from smidgen.decide import Rules
from smidgen.errors import DataError
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.posterior.base import Posterior
from smidgen.posterior.store import load_saved, save
from smidgen.runtime.record import Record
from smidgen.workflows.bayesify import bayesify
from smidgen.workflows.compare import compare
from smidgen.workflows.decisions.settings import CompareSettings
from smidgen.workflows.predictor.predictor import Predictor
from smidgen.workflows.rules import make_rules
from smidgen.workflows.run.dividing import TaskRows
from smidgen.workflows.run.ready_folder import RunParts
from smidgen.workflows.run.rows import RunRows, read_run_rows
from smidgen.workflows.run.settings import (
    RunSettings,
    RunSource,
    refuse_idle_options,
)
from smidgen.workflows.run.task_model import TaskModel, load_task_model, name_rows
from smidgen.workflows.run.text_base import (
    list_text_classes,
    load_text_model,
    save_text_model,
)
from smidgen.workflows.run.training import make_untrained, measure_task, train_model

_CHECKPOINT = "training"


@dataclass
class StepTimes:
    """Says each step as it begins, and remembers what each took."""

    say: Callable[[str], None]
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, sentence: str) -> Iterator[None]:
        """Do one step."""
        self.say(sentence)
        start = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - start

    def describe(self) -> str:
        """Say what each step took."""
        return ", ".join(
            f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items()
        )


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """What a run made: the note of its task, its record, posterior and rules."""

    note: TaskNote
    record: Record
    posterior: Posterior
    rules: Rules


def run_steps(
    source: RunSource,
    settings: RunSettings,
    work: Path,
    *,
    say: Callable[[str], None] = print,
    progress: bool = True,
) -> FinishedRun:
    """Read, divide, train, make Bayesian, decide and compare.

    Args:
        source: Where the rows are.
        settings: How to train and decide.
        work: A folder for what each step leaves; a step that left it is not repeated. Only
            the same run may use it again.
        say: Takes a sentence for each step.
        progress: Show progress bars.

    Returns:
        The results; the model and the posterior are in `work`.
    """
    parts, times = RunParts(work), StepTimes(say)
    with times.step("reading", f"Reading {source.data}"):
        data = read_run_rows(source, settings.seed)
        is_regression = data.note.classes is None
        refuse_idle_options(source, settings, data.note.kind, is_regression=is_regression)
        data = replace(data, note=measure_task(data, settings))
    for sentence in data.said:
        say(f"  {sentence}")
    with times.step("training", "Training: the point estimate (MAP)"):
        data, task = _train(data, settings, parts, say, progress)
    with times.step("bayesify", "Making it Bayesian, as far as that pays (bayesify)"):
        posterior = _make_posterior(data, task, settings, parts, say, progress)
    with times.step("rules", "Making rules from rows that chose nothing else"):
        rules = _make_rules(data, task, posterior, settings, parts, say, progress)
    for rule in rules.by_name().values():
        say(f"  {rule}")
    if task.note.unit is not None:
        say(f"  numbers of rules are of {task.note.unit}; answers are of the label itself")
    with times.step("comparing", "Comparing on test rows that chose nothing"):
        record = _compare(
            data, Predictor(task, posterior, rules), settings, parts, progress
        )
    say(f"Took: {times.describe()}")
    return FinishedRun(task.note, record, posterior, rules)


def score_rows_of(
    predictor: Predictor,
    rows: TaskRows,
    *,
    config: dict[str, Any],
    shifted: Mapping[str, TaskRows] | None = None,
    name: str | None = None,
    max_error: float = 0.05,
    row_numbers: Sequence[int] | None = None,
    progress: bool = True,
) -> Record:
    """Compare a predictor with its model, and with temperature scaling, on labelled rows.

    Args:
        predictor: A ready folder, or what a run has made so far.
        rows: Labelled rows.
        config: What else to note in the record.
        shifted: Other rows by name, which uncertainty should tell apart.
        name: The name of the posterior in the record.
        max_error: The share of wrong answers that automated ones may have.
        row_numbers: Which row of its file each is, from 0; by default they are in its order.
        progress: Show progress bars.

    Returns:
        The record.
    """
    task = predictor.task
    note = task.note
    if note.unit is not None:
        config["units"] = note.unit
    return compare(
        task.problem,
        predictor.posterior if name is None else {name: predictor.posterior},
        task.batch(rows),
        shifted={key: task.batch(others) for key, others in (shifted or {}).items()},
        config=config,
        settings=CompareSettings(
            rules=predictor.rules,
            texts=list(name_rows(rows)),
            row_numbers=row_numbers,
            class_names=note.classes or ([note.label] if note.label else None),
            max_errors=(max_error,),
        ),
        progress=progress,
    )


def _train(
    data: RunRows,
    settings: RunSettings,
    parts: RunParts,
    say: Callable[[str], None],
    progress: bool,
) -> tuple[RunRows, TaskModel]:
    """Train a model, or take the one that is trained; then read it from the disk."""
    if settings.trained is not None:
        data = _take_trained(data, settings, parts)
        note = data.note
        _say_cut(note, settings, say)
    else:
        start = make_untrained(data, data.note, settings)
        note = start.note
        _say_cut(note, settings, say)
        if parts.model.is_dir():
            say("  trained already")
        else:
            say(f"  {start.name}, on {len(data.part('train')):,} rows")
            model, history, best = train_model(
                data, start, settings, parts.folder / _CHECKPOINT, progress=progress
            )
            epochs = f"{len(history)} epoch{'s' * (len(history) != 1)}"
            say(f"  {epochs}; the weights of epoch {best.number} are kept")
            start.save(model, parts.model)
    return data, load_task_model(parts.model, note, device=settings.device)


def _say_cut(note: TaskNote, settings: RunSettings, say: Callable[[str], None]) -> None:
    """Say that a model reads fewer tokens than usual."""
    cut = note.max_length and settings.text_length.describe_cut(note.max_length)
    if cut:
        say(f"  {cut}")


def _take_trained(data: RunRows, settings: RunSettings, parts: RunParts) -> RunRows:
    """Copy a trained text model as it is, and number classes as it does."""
    assert settings.trained is not None
    note = data.note
    network, tokenizer = load_text_model(settings.trained, device="cpu")
    classes = list_text_classes(network)
    if sorted(classes or ()) != sorted(note.classes or ()):
        raise DataError(
            f"--trained {settings.trained} must have the classes of --label, "
            f"{_name(note.classes)}, got {_name(classes)}. Name classes as the model does."
        )
    if not parts.model.is_dir():
        save_text_model(tokenizer)(network, parts.model)
    length = settings.text_length.fit(tokenizer)
    if classes is not None:
        data = data.order_classes(classes)
    note = replace(data.note, base=settings.trained, max_length=length)
    return replace(data, note=note)


def _name(classes: tuple[str, ...] | None) -> str:
    return "a number" if classes is None else ", ".join(classes[:9])


def _make_posterior(
    data: RunRows,
    task: TaskModel,
    settings: RunSettings,
    parts: RunParts,
    say: Callable[[str], None],
    progress: bool,
) -> Posterior:
    if not parts.posterior.is_dir():
        size = settings.batch_size
        posterior = bayesify(
            task.problem,
            task.batch(data.part("train"), size=size),
            task.batch(data.part("calibration"), size=size),
            groups=data.groups_of("calibration"),
            seed=settings.seed,
            progress=progress,
        )
        save(posterior, parts.posterior)
    loaded = load_saved(parts.posterior, task.problem)
    if loaded.choice is not None:
        say(f"  {loaded.choice.verdict()}")
    return loaded


def _make_rules(
    data: RunRows,
    task: TaskModel,
    posterior: Posterior,
    settings: RunSettings,
    parts: RunParts,
    say: Callable[[str], None],
    progress: bool,
) -> Rules:
    rows, single = data.part("decision"), data.draw_from_groups("decision", settings.seed)
    if len(single) < len(rows):
        say(f"  rules from {len(single):,} groups of {len(rows):,} rows, a row of each")
    if not parts.rules.is_file():
        rules = make_rules(
            posterior,
            task.problem,
            task.batch(single, size=settings.batch_size),
            max_error=settings.allowed_error,
            coverage=settings.coverage,
            progress=progress,
        )
        rules.save(parts.posterior)
    return Rules.load(parts.posterior)


def _compare(
    data: RunRows,
    predictor: Predictor,
    settings: RunSettings,
    parts: RunParts,
    progress: bool,
) -> Record:
    if parts.record.is_file():
        return Record.load(parts.record)
    note = predictor.task.note
    assert note.split is not None
    path = Path(note.files[0].path)
    config = {
        "title": f"{note.label or 'class'} of {path.name}",
        "model": note.base or f"{note.kind} model",
        "data": str(path),
        "split": {name: len(rows) for name, rows in note.split.rows.items()},
        "seed": settings.seed,
    }
    record = score_rows_of(
        predictor,
        data.part("test"),
        config=config,
        progress=progress,
        max_error=settings.allowed_error,
        row_numbers=data.number_rows("test"),
    )
    # The page says which command made it.
    record = replace(record, kind="run")
    record.save(parts.record)
    return record
