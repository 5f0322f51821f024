"""`smidgen tune`: find the few weights worth tuning, tune them, and fit a posterior."""

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
from smidgen.workflows.bayestune_settings import BayesTuneSettings, Kind

if TYPE_CHECKING:
    from smidgen.integrations.text import TextTable
    from smidgen.workflows.bayestune import Finding

_PAGE = "report.html"

Val = Annotated[
    Path | None,
    typer.Option(help="Held-out data that decide when to stop; else a tenth of --train."),
]
Fraction = Annotated[
    float | None, typer.Option(help="Share of weights to tune; 0.005 if no rule is given.")
]
Threshold = Annotated[
    float | None, typer.Option(help="Tune all weights of a larger scale instead.")
]
Elbow = Annotated[
    bool, typer.Option("--elbow", help="Tune up to the elbow of the scales instead.")
]
Temperature = Annotated[
    float | None,
    typer.Option(help=f"Of the chain's likelihood; {TEMPERATURE:g} if left out."),
]
Discount = Annotated[
    float | None,
    typer.Option(help=f"Factor on the chain's noise; {NOISE_DISCOUNT:g} if left out."),
]
Halves = Annotated[
    bool, typer.Option("--agreement", help="Compare chains on halves of the data too.")
]
Gain = Annotated[
    Criterion | None, typer.Option(help="What a gain is; accuracy for classes, else nll.")
]
State = Annotated[
    Path | None, typer.Option(help="Folder to go on from after an interruption.")
]


def tune(
    model: texts.Model,
    train: Annotated[Path, typer.Option(help="Training data: TSV, CSV, JSONL or Parquet.")],
    val: Val = None,
    folder: Annotated[Path, typer.Option("--out", help="Where all goes.")] = Path("tuned"),
    text: texts.Text = "text",
    text_pair: texts.Pair = None,
    label: texts.Label = "label",
    fraction: Fraction = None,
    threshold: Threshold = None,
    elbow: Elbow = False,
    posterior: Annotated[Kind, typer.Option(help="Over the tuned weights.")] = "laplace",
    chain_epochs: Annotated[int, typer.Option(min=1, help="Length of the chain.")] = 2,
    temperature: Temperature = None,
    noise_discount: Discount = None,
    update: Annotated[Update, typer.Option(help="How the chain moves.")] = "langevin",
    agreement: Halves = False,
    epochs: Annotated[int, typer.Option(min=1, help="Most epochs of tuning.")] = 5,
    learning_rate: Annotated[float, typer.Option("--lr", help="Peak rate.")] = 1e-3,
    patience: Annotated[int, typer.Option(min=1, help="Epochs without gain.")] = 2,
    stop_on: Gain = None,
    half: Annotated[bool, typer.Option("--half", help="Keep differences in fp16.")] = False,
    checkpoint: State = None,
    batch_size: texts.BatchSize = 16,
    max_length: texts.MaxLength = 128,
    seed: Annotated[int, typer.Option(help="Seed of head, order and noise.")] = 0,
    device: texts.Device = "auto",
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Tune the few weights worth it, keep them as a small delta, and fit a posterior."""
    asked = locals()
    from smidgen.report import write
    from smidgen.workflows.bayestune import bayestune
    from smidgen.workflows.tuned_folder import open_folder

    settings = BayesTuneSettings(
        **{each.name: asked[each.name] for each in fields(BayesTuneSettings)}
    )
    place = open_folder(folder, overwrite=overwrite, checkpoint=checkpoint)
    page = folder / _PAGE
    refuse_taken_files(page, json_file, overwrite=place.overwrite)
    columns = (text, text_pair, label)
    tables = _tables((train, val), columns, seed)
    given: dict[str, Any] = {"title": _title(model, train), "model": model}
    given |= {"train": str(train), "val": val and str(val), "columns": columns}
    how: dict[str, Any] = {"config": given, "say": Steps(), "show": _show}
    record = bayestune(model, *tables, place, settings, **how)
    write_json(json_file, record.results)
    out.print(f"wrote {write(record, page)}")


def _title(model: str, train: Path) -> str:
    # A hub's id is a name; a folder may be anywhere.
    name = Path(model).resolve().name if Path(model).is_dir() else model
    return f"{name}, tuned on {train.name}"


def _tables(
    files: tuple[Path, Path | None], columns: tuple[str, str | None, str], seed: int
) -> tuple[TextTable, TextTable]:
    """Read the data; a tenth of the training rows is held out if there are no others."""
    table = texts.read_table(files[0], *columns)
    if files[1] is None:
        return _parted(table, files[0], seed)
    return table, texts.read_table(files[1], *columns, table.label_names)


def _parted(table: TextTable, path: Path, seed: int) -> tuple[TextTable, TextTable]:
    """Hold a tenth of the rows out."""
    from random import Random

    from smidgen.errors import DataError

    rows = Random(seed).sample(range(len(table)), len(table))
    count = len(table) // 10
    if not count:
        raise DataError(
            f"{path} must hold 10 texts or more to hold a tenth of them out, got "
            f"{len(table)}. Give held-out data with --val."
        )
    return table.take(sorted(rows[count:])), table.take(sorted(rows[:count]))


def _show(found: Finding) -> None:
    """Print what was found, as soon as it is there."""
    from smidgen.fit import Agreement, FinetuneResult
    from smidgen.report.one_record.tuned import tuned_weights
    from smidgen.workflows.bayestune import Choice

    if isinstance(found, Choice):
        out.print(f"  {tuned_weights(found.subset.size, found.head_size)}")
        out.print(f"  the head is {', '.join(found.head_modules)}")
        show_chain(found.scales, found.fraction)
    elif isinstance(found, Agreement):
        out.print(
            f"  chains on two halves of the data agree on {found.overlap:.0%}, by chance "
            f"on {found.chance:.1%}"
        )
    elif isinstance(found, FinetuneResult):
        show_history(found.history, found.best)
    else:
        show_posterior(found)
