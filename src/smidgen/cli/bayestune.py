"""`smidgen bayestune`: find the weights worth fine-tuning, and fine-tune only those."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Context, Option

from smidgen.cli.console import Steps, out, write_json
from smidgen.cli.finetune import show_history
from smidgen.cli.fit import show_posterior
from smidgen.cli.options import outputs
from smidgen.cli.options import text as texts
from smidgen.cli.options.chain_table import show_chain
from smidgen.cli.options.lists import require_files
from smidgen.fit.bayestune.langevin import NOISE_DISCOUNT, TEMPERATURE, Update
from smidgen.fit.epochs import Criterion
from smidgen.runtime.writing.output import Output

if TYPE_CHECKING:
    from smidgen.integrations.text import TextTable
    from smidgen.workflows.bayestune import Finding
    from smidgen.workflows.tuned_folder import TunedFolder

Val = Annotated[
    Path | None,
    Option(
        callback=require_files,
        help="Held-out data; by default a tenth of --train is held out.",
    ),
]
Out = Annotated[Path, Option("--out", help="Folder for all results.")]
Fraction = Annotated[
    float | None, Option(help="Fraction of the weights to fine-tune; by default 0.005.")
]
Threshold = Annotated[
    float | None,
    Option(help="Instead of --fraction: fine-tune all weights with a larger scale."),
]
Elbow = Annotated[
    bool,
    Option(
        "--elbow",
        help="Instead of --fraction: fine-tune up to the elbow of the sorted scales.",
    ),
]
Temperature = Annotated[
    float | None, Option(help=f"Temperature of the chain; by default {TEMPERATURE:g}.")
]
Discount = Annotated[
    float | None,
    Option(help=f"Factor on the chain's noise; by default {NOISE_DISCOUNT:g}."),
]
Halves = Annotated[
    bool,
    Option(
        "--agreement",
        help="Also run chains on two halves of the data, and compare their choices.",
    ),
]
Gain = Annotated[
    Criterion | None,
    Option(help="Score to stop by; by default accuracy, or nll for regression."),
]
State = Annotated[
    Path | None,
    Option(help="Folder for checkpoints; by default a hidden one beside --out."),
]


def bayestune(
    context: Context,
    model: texts.Model,
    train: texts.Train,
    val: Val = None,
    folder: Out = Path("tuned"),
    text: texts.Text = "text",
    text_pair: texts.Pair = None,
    label: texts.Label = "label",
    fraction: Fraction = None,
    threshold: Threshold = None,
    elbow: Elbow = False,
    posterior: Annotated[
        Literal["laplace", "swag", "none"],
        Option(help="Posterior to fit over the fine-tuned weights."),
    ] = "laplace",
    chain_epochs: Annotated[
        int, Option(min=1, help="Epochs of the chain that ranks the weights.")
    ] = 2,
    temperature: Temperature = None,
    noise_discount: Discount = None,
    update: Annotated[Update, Option(help="Update rule of the chain.")] = "langevin",
    agreement: Halves = False,
    epochs: texts.Epochs = 5,
    learning_rate: texts.LearningRate = 1e-3,
    patience: texts.Patience = 2,
    stop_on: Gain = None,
    half: Annotated[bool, Option("--half", help="Store the delta in fp16.")] = False,
    checkpoint: State = None,
    batch_size: texts.BatchSize = 16,
    max_length: texts.MaxLength = 128,
    seed: texts.Seed = 0,
    device: texts.Device = "auto",
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Fine-tune only the weights worth it, save a small delta, and fit a posterior."""
    options = locals()
    from smidgen.report import write
    from smidgen.workflows.bayestune import BayesTuneSettings, run_bayestune
    from smidgen.workflows.tuned_folder import TunedFolder

    settings = BayesTuneSettings(
        **{f.name: options[f.name] for f in fields(BayesTuneSettings)}
    )
    paths = TunedFolder(folder, overwrite, checkpoint, "--out", keep_states=True)
    made = paths.list_outputs(posterior=posterior != "none", page=True)
    run = outputs.open_run(context, *made, states=_list_states(paths))
    paths = replace(paths, overwrite=run.overwrite, checkpoint=checkpoint or run.folder)
    columns = (text, text_pair, label)
    tables = _read_tables(train, val, columns, seed)
    # A hub's id is a name; a folder may be anywhere.
    name = Path(model).resolve().name if Path(model).is_dir() else model
    config: dict[str, Any] = {"title": f"{name}, tuned on {train.name}", "model": model}
    config |= {"train": str(train), "val": val and str(val), "columns": columns}
    show = partial(_show, Steps())
    record = run_bayestune(model, *tables, paths, settings, config=config, show=show)
    write_json(json_file, record.results)
    out.print(f"wrote {write(record, paths.page)}")
    run.finish()


def _list_states(paths: TunedFolder) -> list[Output]:
    """List the checkpoints in a folder that the user named, and the folder first."""
    if paths.checkpoint is None:
        return []
    folder = Output("--checkpoint", paths.checkpoint, folder=True)
    return [folder, *(Output("--checkpoint", path) for path in paths.states)]


def _read_tables(
    train: Path, val: Path | None, columns: tuple[str, str | None, str], seed: int
) -> tuple[TextTable, TextTable]:
    """Read the data; without held-out data, hold out a tenth of the training rows."""
    from random import Random

    from smidgen.errors import DataError

    table = texts.read_table(train, *columns)
    if val is not None:
        return table, texts.read_table(val, *columns, table.label_names)
    rows = Random(seed).sample(range(len(table)), len(table))
    count = len(table) // 10
    if not count:
        raise DataError(
            f"{train} must have 10 texts or more to hold out a tenth, got {len(table)}. "
            "Pass held-out data with --val."
        )
    return table.take(sorted(rows[count:])), table.take(sorted(rows[:count]))


def _show(say: Steps, result: str | Finding) -> None:
    """Print a step, or a result as soon as it is known."""
    from smidgen.fit import Agreement, FinetuneResult
    from smidgen.report.one_record.tuned import describe_weights
    from smidgen.workflows.bayestune import ChosenWeights

    if isinstance(result, str):
        say(result)
    elif isinstance(result, ChosenWeights):
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
