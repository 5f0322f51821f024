"""`smidgen bayestune`: find the weights worth fine-tuning, and fine-tune only those."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smidgen.cli.console import Steps, out, refuse_taken_files, write_json
from smidgen.cli.finetune import show_history
from smidgen.cli.fit import show_posterior
from smidgen.cli.options import text as texts
from smidgen.cli.options.chain_table import show_chain
from smidgen.fit.bayestune.langevin import NOISE_DISCOUNT, TEMPERATURE, Update
from smidgen.fit.epochs import Criterion
from smidgen.workflows.bayestune import BayesTuneSettings, Kind

if TYPE_CHECKING:
    from smidgen.integrations.text import TextTable
    from smidgen.workflows.bayestune import Finding

_PAGE = "report.html"

Val = Annotated[
    Path | None,
    typer.Option(help="Held-out data; by default a tenth of --train is held out."),
]
Fraction = Annotated[
    float | None,
    typer.Option(help="Fraction of the weights to fine-tune.  [default: 0.005]"),
]
Threshold = Annotated[
    float | None, typer.Option(help="Instead: fine-tune all weights with a larger scale.")
]
Elbow = Annotated[
    bool,
    typer.Option(
        "--elbow", help="Instead: fine-tune up to the elbow of the sorted scales."
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(help=f"Temperature of the chain.  [default: {TEMPERATURE:g}]"),
]
Discount = Annotated[
    float | None,
    typer.Option(help=f"Factor on the chain's noise.  [default: {NOISE_DISCOUNT:g}]"),
]
Halves = Annotated[
    bool,
    typer.Option(
        "--agreement", help="Also run chains on two halves of the data and compare."
    ),
]
Gain = Annotated[
    Criterion | None,
    typer.Option(help="Score to stop by; by default accuracy, or nll for regression."),
]
State = Annotated[
    Path | None, typer.Option(help="Folder for checkpoints; pass it again to resume.")
]


def bayestune(
    model: texts.Model,
    train: Annotated[Path, typer.Option(help="Training data: TSV, CSV, JSONL or Parquet.")],
    val: Val = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for all results.")] = Path(
        "tuned"
    ),
    text: texts.Text = "text",
    text_pair: texts.Pair = None,
    label: texts.Label = "label",
    fraction: Fraction = None,
    threshold: Threshold = None,
    elbow: Elbow = False,
    posterior: Annotated[Kind, typer.Option(help="Posterior to fit.")] = "laplace",
    chain_epochs: Annotated[int, typer.Option(min=1, help="Epochs of the chain.")] = 2,
    temperature: Temperature = None,
    noise_discount: Discount = None,
    update: Annotated[Update, typer.Option(help="Update rule of the chain.")] = "langevin",
    agreement: Halves = False,
    epochs: Annotated[int, typer.Option(min=1, help="Largest number of epochs.")] = 5,
    learning_rate: Annotated[
        float, typer.Option("--lr", help="Peak learning rate.")
    ] = 1e-3,
    patience: Annotated[
        int, typer.Option(min=1, help="Epochs without gain before stopping.")
    ] = 2,
    stop_on: Gain = None,
    half: Annotated[bool, typer.Option("--half", help="Store the delta in fp16.")] = False,
    checkpoint: State = None,
    batch_size: texts.BatchSize = 16,
    max_length: texts.MaxLength = 128,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    device: texts.Device = "auto",
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Fine-tune only the weights worth it, save a small delta, and fit a posterior."""
    options = locals()
    from smidgen.report import write
    from smidgen.workflows import bayestune as workflow
    from smidgen.workflows.tuned_folder import open_folder

    settings = BayesTuneSettings(
        **{f.name: options[f.name] for f in fields(BayesTuneSettings)}
    )
    paths = open_folder(folder, overwrite=overwrite, checkpoint=checkpoint)
    page = folder / _PAGE
    refuse_taken_files(page, json_file, overwrite=paths.overwrite)
    columns = (text, text_pair, label)
    tables = _tables((train, val), columns, seed)
    config: dict[str, Any] = {"title": _title(model, train), "model": model}
    config |= {"train": str(train), "val": val and str(val), "columns": columns}
    say = Steps()

    def show(result: str | Finding) -> None:
        say(result) if isinstance(result, str) else _show(result)

    record = workflow.bayestune(model, *tables, paths, settings, config=config, show=show)
    write_json(json_file, record.results)
    out.print(f"wrote {write(record, page)}")


def _title(model: str, train: Path) -> str:
    # A hub's id is a name; a folder may be anywhere.
    name = Path(model).resolve().name if Path(model).is_dir() else model
    return f"{name}, tuned on {train.name}"


def _tables(
    files: tuple[Path, Path | None], columns: tuple[str, str | None, str], seed: int
) -> tuple[TextTable, TextTable]:
    """Read the data; without held-out data, hold out a tenth of the training rows."""
    table = texts.read_table(files[0], *columns)
    if files[1] is None:
        return _hold_out(table, files[0], seed)
    return table, texts.read_table(files[1], *columns, table.label_names)


def _hold_out(table: TextTable, path: Path, seed: int) -> tuple[TextTable, TextTable]:
    """Hold out a tenth of the rows."""
    from random import Random

    from smidgen.errors import DataError

    rows = Random(seed).sample(range(len(table)), len(table))
    count = len(table) // 10
    if not count:
        raise DataError(
            f"{path} must have 10 texts or more to hold out a tenth, got {len(table)}. "
            "Pass held-out data with --val."
        )
    return table.take(sorted(rows[count:])), table.take(sorted(rows[:count]))


def _show(result: Finding) -> None:
    """Print a result as soon as it is there."""
    from smidgen.fit import Agreement, FinetuneResult
    from smidgen.report.one_record.tuned import describe_weights
    from smidgen.workflows.bayestune import Choice

    if isinstance(result, Choice):
        out.print(f"  {describe_weights(result.subset.size, result.head_size)}")
        out.print(f"  the head is {', '.join(result.head_modules)}")
        show_chain(result.scales, result.fraction)
    elif isinstance(result, Agreement):
        out.print(
            f"  chains on two halves of the data agree on {result.overlap:.0%} of the "
            f"weights ({result.chance:.1%} by chance)"
        )
    elif isinstance(result, FinetuneResult):
        show_history(result.history, result.best)
    else:
        show_posterior(result)
