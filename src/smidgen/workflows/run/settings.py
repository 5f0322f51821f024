"""What a run reads, and how it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from smidgen.errors import ArgumentError
from smidgen.integrations.reading.target import TargetKind
from smidgen.integrations.reading.task_note import TaskKind
from smidgen.integrations.text_length import TextLength

_MAX_ERROR = 0.05


@dataclass(frozen=True)
class RunSource:
    """Where the rows are, and which of their columns mean what.

    Args:
        data: A file of rows, or a folder of images by class.
        label: The column to predict; images have none.
        kind: What a row is; by default what the data look like.
        text: The columns that make a text.
        text_pair: The column of a second text.
        leave_out: Columns of a table that are not used.
        group: A column whose rows of one value stay on one side.
        split: A column that says train, validation or test.
        validation: A file of rows that may choose things, but not train.
        test: A file of rows that are only scored.
        target: Whether the label is a class or a number, where it could be either.
        limit: Use so many rows of `data`, drawn by the seed.

    Raises:
        ArgumentError: If two say different things.
    """

    data: Path
    label: str | None = None
    kind: TaskKind | None = None
    text: tuple[str, ...] = ()
    text_pair: str | None = None
    leave_out: tuple[str, ...] = ()
    group: str | None = None
    split: str | None = None
    validation: Path | None = None
    test: Path | None = None
    target: TargetKind | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.split is not None and (self.validation or self.test):
            other = "--val" if self.validation else "--test"
            raise ArgumentError(
                f"--split must be left out beside {other}, got {self.split!r}. Say in one way "
                "which rows are for what."
            )
        if self.kind == "images":
            _refuse_columns(self)
        if self.kind != "text" and (self.text or self.text_pair):
            option = "--text" if self.text else "--text-pair"
            raise ArgumentError(
                f"{option} must be left out beside --{self.kind}, got "
                f"{','.join(self.text) or self.text_pair!r}. Say in one way what a row is."
            )

    @property
    def files(self) -> tuple[Path, ...]:
        """The files, the data first."""
        others = [path for path in (self.validation, self.test) if path is not None]
        return (self.data, *others)


@dataclass(frozen=True)
class RunSettings:
    """How a run trains and decides.

    Args:
        model: The text model to fine-tune; by default the packaged MiniLM.
        trained: A trained text classifier, taken as it is.
        epochs: The largest number of epochs; by default what suits the rows.
        learning_rate: Peak learning rate; by default what suits the kind of model.
        batch_size: Rows per batch.
        max_length: Longer texts are cut to this many tokens; by default 128.
        max_error: The share of wrong answers that may be given; by default 0.05.
        coverage: How often sets or intervals must hold the truth; by default 0.9 for sets
            and 0.95 for intervals.
        seed: Seed of everything random.
        device: Where to compute.

    Raises:
        ArgumentError: If both models are given.
    """

    model: str | None = None
    trained: str | None = None
    epochs: int | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    max_length: int | None = None
    max_error: float | None = None
    coverage: float | None = None
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.model is not None and self.trained is not None:
            raise ArgumentError(
                f"--trained must be left out beside --model, got {self.trained!r}. Fine-tune "
                "one model, or take one that is trained."
            )

    @property
    def text_length(self) -> TextLength:
        """How many tokens of a text are read."""
        return TextLength(self.max_length)

    @property
    def allowed_error(self) -> float:
        """The share of wrong answers that may be given."""
        return _MAX_ERROR if self.max_error is None else self.max_error


def refuse_idle_options(
    source: RunSource, settings: RunSettings, kind: TaskKind, *, is_regression: bool
) -> None:
    """Refuse options that would do nothing for what the rows turned out to be.

    Args:
        source: What to read.
        settings: How to train.
        kind: What a row is.
        is_regression: Whether a number is predicted.

    Raises:
        ArgumentError: If there is such an option.
    """
    if kind == "images":
        _refuse_columns(source)
    of_texts = {
        "--text-pair": source.text_pair,
        "--model": settings.model,
        "--trained": settings.trained,
        "--max-length": settings.max_length,
    }
    idle: list[tuple[str, Mapping[str, object], str]] = []
    what = {"text": "texts", "table": "a table", "images": "images"}[kind]
    if kind != "text":
        idle.append((what, of_texts, "It is for texts; here a network is trained anew"))
    if kind != "table":
        idle.append((what, {"--leave-out": source.leave_out}, "It is for tables"))
    if is_regression:
        wrong = {"--max-error": settings.max_error}
        idle.append(("numbers, which are never quite right", wrong, "It is for classes"))
    if settings.trained is not None:
        training = {"--epochs": settings.epochs, "--lr": settings.learning_rate}
        idle.append(("--trained", training, "Such a model is taken as it is"))
    for beside, options, reason in idle:
        for option, value in options.items():
            if value not in (None, ()):
                raise ArgumentError(
                    f"{option} must be left out for {beside}, got {_show(value)}. {reason}."
                )


def _refuse_columns(source: RunSource) -> None:
    """Refuse names of columns for images, which have none."""
    for option, value in (
        ("--label", source.label),
        ("--group", source.group),
        ("--split", source.split),
    ):
        if value is not None:
            raise ArgumentError(
                f"{option} must be left out for images, which have no columns, got "
                f"{value!r}. Their labels are those of their file or folders."
            )


def _show(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else repr(value)
