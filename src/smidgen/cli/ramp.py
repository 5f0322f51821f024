"""`smidgen ramp`: how much must be stochastic, and what?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

import smidgen
from smidgen.cli.completion.table import offer
from smidgen.cli.console import Steps, out, show_record
from smidgen.cli.options import methods, noted, outputs
from smidgen.cli.options import select as selecting
from smidgen.cli.options import text as texts
from smidgen.cli.options.lists import read_choices, read_numbers, require_files
from smidgen.cli.options.source import Source
from smidgen.errors import ArgumentError
from smidgen.posterior.store import refuse_taken_posterior
from smidgen.runtime.record import Record
from smidgen.runtime.writing.claim import Claim
from smidgen.runtime.writing.output import Output
from smidgen.workflows.ramp import laplace
from smidgen.workflows.ramp.schemes import SCHEMES
from smidgen.workflows.ramp.swag import (
    SWAG_SCHEMES,
    SwagOptions,
    SwagRampSettings,
    forget_other_points,
    swag_ramp,
)

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader
    from transformers import PreTrainedModel

    from smidgen.integrations.text_length import TextLength

    Batches = DataLoader[dict[str, Tensor]]
    Loaded = tuple[PreTrainedModel, tuple[Batches, Batches, Batches]]

_BEST = "best"
_WRITTEN = ("record.json", "report.html", "posterior")


HeldOut = Annotated[
    Path,
    Option(
        callback=require_files, help="Held-out data, to choose sizes and to calibrate on."
    ),
]
Test = Annotated[
    Path, Option(callback=require_files, help="Labelled test data, which are only scored.")
]
Folder = Annotated[Path, Option("--out", help="Folder for record.json and report.html.")]
Schemes = Annotated[
    list[str] | None,
    Option(
        autocompletion=offer(tuple(dict.fromkeys((*SCHEMES, *SWAG_SCHEMES)))),
        help=f"Schemes to try, by default all: {', '.join(SCHEMES)}; with --method swag: "
        f"{', '.join(SWAG_SCHEMES)}.",
    ),
]
Percents = Annotated[
    list[str] | None,
    Option(help="Laplace: percents of rows and columns to try, such as 1,3,10,100."),
]
Fractions = Annotated[
    list[str] | None,
    Option(help="SWAG: fractions of the weights to try, such as 0.03,0.1."),
]
Repeats = Annotated[int, Option(min=1, help="Laplace: how often to draw random layers.")]
Most = Annotated[
    float, Option(help="Laplace: largest fraction of the weights that may be chosen.")
]
RampMethod = Annotated[Literal["laplace", "swag"], Option(help="How to fit the posterior.")]
Save = Annotated[
    str | None,
    Option(help="Laplace: also save the posterior of this scheme, or of the 'best' one."),
]


@dataclass(frozen=True)
class _Inputs:
    """The model and the data files."""

    model: str
    files: Mapping[str, Path]
    columns: tuple[str, str | None, str]
    batch_size: int
    length: TextLength
    device: str

    def describe(self) -> dict[str, object]:
        """List what the record says of the inputs."""
        longest = self.length.typed or self.length.usual
        title = f"How much of {Path(self.model).name} must be stochastic?"
        paths = {name: str(path) for name, path in self.files.items()}
        about = {"title": title, "model": self.model, "max_length": longest}
        return {**about, **paths}

    def identity(self) -> dict[str, object]:
        """List what the stored points of an interrupted study depend on."""
        hashes = {
            name: sha256(path.read_bytes()).hexdigest() if path.is_file() else None
            for name, path in self.files.items()
        }
        columns = list(self.columns)
        return {"batch_size": self.batch_size, "columns": columns, "sha256": hashes}

    def load(self, shuffle: int | None = None) -> Loaded:
        """Load the model and batches by length; a seed shuffles the training batches."""
        network, tokenizer = texts.load_model(self.model, device=self.device)
        columns = (*self.columns, texts.find_label_names(network))
        tables = {n: texts.read_table(path, *columns) for n, path in self.files.items()}
        counts = ", ".join(f"{len(table):,} {name}" for name, table in tables.items())
        Steps()(f"Ramping over {counts} texts")
        loading = (tokenizer, self.batch_size, self.length)
        train, validation, test = (
            texts.make_batches(table.take(table.by_length()), *loading)
            for table in tables.values()
        )
        if shuffle is not None:
            rows = tables["train"]
            train = texts.make_batches(rows, *loading, shuffle=True, seed=shuffle)
        return network, (train, validation, test)


def ramp(
    context: typer.Context,
    model: texts.Model,
    train: texts.TrainedOn,
    val: HeldOut,
    test: Test,
    folder: Folder,
    text: noted.Text = None,
    text_pair: noted.Pair = None,
    label: noted.Label = None,
    method: RampMethod = "laplace",
    schemes: Schemes = None,
    percents: Percents = None,
    repeats: Repeats = 5,
    most_stochastic: Most = 0.1,
    approximation: selecting.CurvatureApproximation = "reduce",
    fractions: Fractions = None,
    steps: methods.Steps = 2000,
    every: methods.Every = 5,
    rank: methods.Rank = 20,
    rates: methods.Rates = None,
    trial_steps: methods.TrialSteps = 400,
    samples: methods.Samples = 32,
    seed: texts.Seed = 0,
    save: Save = None,
    exact: selecting.Exact = False,
    batch_size: texts.BatchSize = 16,
    max_length: noted.MaxLength = None,
    device: texts.Device = "auto",
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Find out which weights, and how many, are worth making stochastic."""
    methods.refuse_unused(method, context)
    files = {"train": train, "validation": val, "test": test}
    seen = noted.find_seen(Source(model), text, text_pair, label, max_length)
    inputs = _Inputs(model, files, seen.columns, batch_size, seen.length, device)
    run = outputs.open_run(context, *_outputs(folder, save))
    if method == "swag":
        options = methods.read_swag_options(steps, every, rank, rates, trial_steps, samples)
        record = _ramp_swag(inputs, schemes, fractions, options, seed, run)
        _show(record, folder, json_file)
        run.finish()
        return
    numbers = read_numbers("--percents", percents, 100, "1,3,10,100", percent=True)
    settings = laplace.RampSettings(
        schemes=read_choices("--schemes", schemes, SCHEMES),
        percents=numbers or laplace.PERCENTS,
        repeats=repeats,
        most_stochastic=_check_fraction(most_stochastic),
        approximation=approximation,
        seed=seed,
    )
    _check_save(save, settings, exact)
    network, batches = inputs.load()
    study = laplace.ramp(network, *batches, settings, config=inputs.describe())
    _show(study.record, folder, json_file)
    if save is not None:
        _save(study, save, exact, folder / _WRITTEN[2], run.overwrite)
    run.finish()


def _check_save(save: str | None, settings: laplace.RampSettings, exact: bool) -> None:
    if exact and save is None:
        raise ArgumentError(
            "--exact is for what --save saves, got no --save. Add --save best, or leave it out."
        )
    if save not in (None, _BEST, *settings.schemes):
        raise ArgumentError(
            f"--save must be 'best' or one of {', '.join(settings.schemes)}, got {save!r}."
        )


def _outputs(folder: Path, save: str | None) -> tuple[Output, ...]:
    """List what is written into the folder."""
    saved: tuple[Output, ...] = ()
    if save is not None:
        path = folder / _WRITTEN[2]
        saved = (outputs.folder(path, refuse_taken_posterior),)
    within = outputs.inside(folder, *_WRITTEN[:2])
    return (outputs.folder(folder), *within, *saved)


def _ramp_swag(
    inputs: _Inputs,
    schemes: list[str] | None,
    fractions: list[str] | None,
    options: SwagOptions,
    seed: int,
    run: Claim,
) -> Record:
    numbers = read_numbers("--fractions", fractions, 1, "0.03,0.1")
    settings = SwagRampSettings(
        schemes=read_choices("--schemes", schemes, SWAG_SCHEMES),
        fractions=numbers or SwagRampSettings.fractions,
        seed=seed,
        **asdict(options),
    )
    network, batches = inputs.load(shuffle=seed)
    config = {**inputs.describe(), **inputs.identity()}
    points = run.outputs[0].path / "points"
    if run.overwrite:
        forget_other_points(network, points, settings, config=config)
    return swag_ramp(network, *batches, points, settings, config=config)


def _show(record: Record, folder: Path, json_file: Path | None) -> None:
    """Write the record and the page, and print the results."""
    from smidgen.report import write

    numbers_at, page = (folder / name for name in _WRITTEN[:2])
    for path in filter(None, (numbers_at, json_file)):
        record.save(path)
    write(record, page)
    show_record(record)
    out.print()
    for phase, seconds in record.results["seconds"].items():
        out.say(f"{seconds:8.1f} s", phase, "dim")
    out.print(f"\nThe whole story: {page}  (numbers: {numbers_at})")


def _save(
    study: laplace.Ramp, save: str, exact: bool, folder: Path, overwrite: bool
) -> None:
    scheme = study.best if save == _BEST else save
    if scheme not in study.posteriors:
        raise ArgumentError(
            f"--save must be a scheme that this model can have, got {save!r}. Try one "
            f"of {', '.join(study.posteriors)}."
        )
    posterior = study.posteriors[scheme]
    # As `smidgen fit` does: at the precision chosen, few eigenvectors matter.
    posterior = posterior if exact else posterior.compress()
    smidgen.save(posterior, folder, overwrite=overwrite)
    out.print(f"Saved the posterior of {scheme} to {folder}")


def _check_fraction(value: float) -> float:
    if not 0 < value <= 1:
        raise ArgumentError(
            f"--most-stochastic must be in (0, 1], got {value:g}. Try 0.1, a tenth."
        )
    return value
