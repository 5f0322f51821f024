"""`smidgen run`: from a file of rows to a ready predictor, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from smidgen.cli.console import Steps, out, show_record
from smidgen.cli.options import outputs
from smidgen.cli.options import text as texts
from smidgen.cli.options.lists import (
    require_files_or_folders,
    split_words,
)
from smidgen.errors import ArgumentError

if TYPE_CHECKING:
    from smidgen.workflows.run.settings import RunSettings, RunSource

Data = Annotated[
    Path,
    Argument(
        callback=require_files_or_folders,
        help="CSV, TSV, JSONL, Parquet or .npz; for images an IDX file, .npz, or a folder of "
        "pictures by class.",
    ),
]
Label = Annotated[
    str | None, Option("--label", help="Column to predict; images need none.")
]
Text = Annotated[
    str | None,
    Option("--text", metavar="COLUMN,COLUMN", help="Columns that make the text."),
]
Table = Annotated[bool, Option("--table", help="Rows of numbers and categories.")]
Images = Annotated[bool, Option("--images", help="Images with a class each, or a number.")]
Model = Annotated[
    str | None,
    Option(
        "--model", help="Text model to fine-tune: a folder or Hugging Face id; else MiniLM."
    ),
]
Trained = Annotated[
    str | None, Option("--trained", help="A trained text classifier, taken as it is.")
]
Out = Annotated[Path, Option("--out", help="Folder for everything that is made.")]
Validation = Annotated[
    Path | None,
    Option(
        "--val",
        callback=require_files_or_folders,
        help="Rows that stop training, calibrate and make rules; else some of DATA.",
    ),
]
Test = Annotated[
    Path | None,
    Option(
        "--test",
        callback=require_files_or_folders,
        help="Rows that are only scored; else some of DATA.",
    ),
]
Split = Annotated[
    str | None,
    Option("--split", help="Column that says train, validation or test."),
]
Group = Annotated[
    str | None,
    Option(
        "--group", help="Column whose rows of one value stay together, as of a patient."
    ),
]
LeaveOut = Annotated[
    list[str] | None,
    Option(
        "--leave-out", help="Columns of a table that are not used, such as numbers of rows."
    ),
]
Regression = Annotated[
    bool, Option("--regression", help="Predict a number, also where it is a whole one.")
]
Classes = Annotated[
    bool, Option("--classes", help="Predict a class, also where classes are numbers.")
]
Rows = Annotated[
    int | None,
    Option("--rows", min=25, help="Use so many rows of DATA, drawn by the seed."),
]
Epochs = Annotated[int | None, Option(min=1, help="Largest number of epochs.")]
Rate = Annotated[float | None, Option("--lr", help="Peak learning rate.")]
BatchSize = Annotated[int | None, Option(min=1, help="Rows per batch.")]
MaxLength = Annotated[
    int | None,
    Option(
        "--max-length", min=3, help="Longer texts are cut to this many tokens; else 128."
    ),
]
MaxError = Annotated[
    float | None,
    Option(min=0.0, max=1.0, help="Share of wrong answers that may be given; else 0.05."),
]
Coverage = Annotated[
    float | None,
    Option(
        min=0.0,
        max=1.0,
        help="How often a set or interval must hold the truth; else 0.9 or 0.95.",
    ),
]


def run(
    context: Context,
    data: Data,
    folder: Out,
    label: Label = None,
    text: Text = None,
    text_pair: texts.Pair = None,
    table: Table = False,
    images: Images = False,
    model: Model = None,
    trained: Trained = None,
    val: Validation = None,
    test: Test = None,
    split: Split = None,
    group: Group = None,
    leave_out: LeaveOut = None,
    regression: Regression = False,
    classes: Classes = False,
    rows: Rows = None,
    epochs: Epochs = None,
    learning_rate: Rate = None,
    batch_size: BatchSize = None,
    max_length: MaxLength = None,
    max_error: MaxError = None,
    coverage: Coverage = None,
    seed: texts.Seed = 0,
    device: texts.Device = "auto",
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """From a file of texts, numbers or images to a predictor that knows when it is unsure."""
    from smidgen.workflows.run.pipeline import run_steps
    from smidgen.workflows.run.ready_folder import (
        RunParts,
        fill_ready_folder,
        refuse_taken_ready,
    )

    source, settings = _read_source(context.params), _read_settings(context.params)
    claim = outputs.open_run(context, outputs.folder(folder, refuse_taken_ready))
    assert claim.folder is not None
    say = Steps()
    result = run_steps(source, settings, claim.folder, say=say)
    ready = fill_ready_folder(
        RunParts(claim.folder), folder, result.note, overwrite=claim.overwrite
    )
    if json_file is not None:
        result.record.save(json_file)
    claim.finish()
    show_record(result.record)
    if "units" in result.record.config:
        out.print(f"Numbers above are of {result.record.config['units']}.")
    out.print(f"\nReady: {folder}. The whole story: {ready.page}")
    out.print(f"New rows: smidgen predict {folder} --data NEW --out answers.csv")


def _read_source(typed: dict[str, Any]) -> RunSource:
    """Put together what was typed about the rows; refuse what cannot be both."""
    from smidgen.workflows.run.settings import RunSource

    chosen = [
        (option, kind)
        for option, kind, value in (
            ("--text", "text", typed["text"]),
            ("--table", "table", typed["table"]),
            ("--images", "images", typed["images"]),
        )
        if value
    ]
    if len(chosen) > 1:
        raise ArgumentError(
            f"{chosen[1][0]} must be left out beside {chosen[0][0]}, got both. Say in one way "
            "what a row is."
        )
    if typed["regression"] and typed["classes"]:
        raise ArgumentError(
            "--classes must be left out beside --regression, got both. Choose one."
        )
    target = (
        "regression" if typed["regression"] else "classes" if typed["classes"] else None
    )
    kind: Any = chosen[0][1] if chosen else ("text" if typed["text_pair"] else None)
    return RunSource(
        typed["data"],
        typed["label"],
        kind,
        split_columns(typed["text"]),
        typed["text_pair"],
        tuple(split_words(typed["leave_out"])),
        typed["group"],
        typed["split"],
        typed["val"],
        typed["test"],
        target,  # type: ignore[arg-type]
        typed["rows"],
    )


def split_columns(typed: str | None) -> tuple[str, ...]:
    """Read the columns of a text: one name, or several separated by commas."""
    return tuple(split_words([typed or ""]))


def _read_settings(typed: dict[str, Any]) -> RunSettings:
    from smidgen.workflows.run.settings import RunSettings

    for name in ("max_error", "coverage"):
        value = typed[name]
        if value is not None and not 0 < value < 1:
            raise ArgumentError(
                f"--{name.replace('_', '-')} must be between 0 and 1, got {value:g}. Try "
                f"{0.05 if name == 'max_error' else 0.9}."
            )
    names = ("model", "trained", "epochs", "learning_rate", "batch_size", "max_length")
    others = ("max_error", "coverage", "seed", "device")
    return RunSettings(**{name: typed[name] for name in (*names, *others)})
