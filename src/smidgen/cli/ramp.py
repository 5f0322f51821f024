"""`smidgen ramp`: how much must be stochastic, and what?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import smidgen
from smidgen.cli.console import Steps, out, refuse_taken_files, show_record
from smidgen.cli.options import select as choosing
from smidgen.cli.options import swag
from smidgen.cli.options import text as texts
from smidgen.cli.options.lists import numbers, some_of
from smidgen.errors import ArgumentError
from smidgen.fit.swag import SwagOptions
from smidgen.posterior.store import refuse_taken_posterior
from smidgen.runtime.record import Record
from smidgen.workflows.ramp.schemes import SCHEMES
from smidgen.workflows.ramp.swag import SWAG_SCHEMES, SwagRampSettings, swag_ramp

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader
    from transformers import PreTrainedModel

    from smidgen.workflows.ramp.laplace import Ramp, RampSettings

_BEST = "best"
_WRITTEN = ("record.json", "report.html", "posterior")


Test = Annotated[Path, typer.Option(help="Labelled test data; they only report.")]
Folder = Annotated[
    Path, typer.Option("--out", help="Where record.json and report.html go.")
]
Schemes = Annotated[
    list[str] | None,
    typer.Option(
        help=f"Some of {', '.join(SCHEMES)}; for SWAG {', '.join(SWAG_SCHEMES)}; all if "
        "left out."
    ),
]
Percents = Annotated[
    list[str] | None, typer.Option(help="Percents of rows and of columns: 1,3,10,100.")
]
Fractions = Annotated[
    list[str] | None, typer.Option(help="SWAG: shares of the weights to try: 0.03,0.1.")
]
Repeats = Annotated[int, typer.Option(min=1, help="Draws of random modules.")]
Most = Annotated[
    float, typer.Option(help="Largest share of the weights that may be chosen.")
]
Save = Annotated[
    str | None,
    typer.Option(help="Laplace: also save a scheme's posterior, or the 'best' by NLL."),
]


@dataclass(frozen=True)
class _Inputs:
    """The model and the files, as they were named."""

    model: str
    files: Mapping[str, Path]
    columns: tuple[str, str | None, str]
    batch_size: int
    max_length: int
    device: str

    def noted(self) -> dict[str, object]:
        """List what else the record says of the run."""
        title = f"How much of {Path(self.model).name} must be stochastic?"
        paths = {name: str(path) for name, path in self.files.items()}
        about = {"title": title, "model": self.model, "max_length": self.max_length}
        return {**about, **paths}

    def identity(self) -> dict[str, object]:
        """List what the points of an interrupted study depend on."""
        hashes = {
            name: sha256(path.read_bytes()).hexdigest() if path.is_file() else None
            for name, path in self.files.items()
        }
        columns = list(self.columns)
        return {"batch_size": self.batch_size, "columns": columns, "sha256": hashes}

    def loaded(
        self, shuffle: int | None = None
    ) -> tuple[PreTrainedModel, dict[str, DataLoader[dict[str, Tensor]]]]:
        """Load the model and the batches, in order of length to save padding.

        Args:
            shuffle: Seed of the training batches' order, if they are to be shuffled.

        Returns:
            The model, and batches by the file's name.
        """
        say = Steps()
        network, tokenizer = texts.load_model(
            self.model, *self.files.values(), device=self.device
        )
        columns = (*self.columns, texts.label_names(network))
        tables = {n: texts.read_table(path, *columns) for n, path in self.files.items()}
        counts = ", ".join(f"{len(each):,} {name}" for name, each in tables.items())
        say(f"Ramping over {counts} texts")
        sizes = (self.batch_size, self.max_length)
        loaders = {
            name: texts.batches_of(each.take(each.by_length()), tokenizer, *sizes)
            for name, each in tables.items()
        }
        if shuffle is not None:
            loaders["train"] = texts.shuffled(tables["train"], tokenizer, *sizes, shuffle)
        return network, loaders


def ramp(
    context: typer.Context,
    model: texts.Model,
    train: Annotated[Path, typer.Option(help="The data the model was trained on.")],
    val: Annotated[Path, typer.Option(help="Held-out data that choose.")],
    test: Test,
    folder: Folder,
    text: texts.Text = "text",
    text_pair: texts.Pair = None,
    label: texts.Label = "label",
    method: swag.Method = "laplace",
    schemes: Schemes = None,
    percents: Percents = None,
    repeats: Repeats = 5,
    most_stochastic: Most = 0.1,
    approximation: choosing.GivenApproximation = "reduce",
    fractions: Fractions = None,
    steps: swag.Steps = 2000,
    every: swag.Every = 5,
    rank: swag.Rank = 20,
    rates: swag.Rates = None,
    trial_steps: swag.TrialSteps = 400,
    samples: swag.Samples = 32,
    seed: Annotated[int, typer.Option(help="Seed of the random modules.")] = 0,
    save: Save = None,
    batch_size: texts.BatchSize = 16,
    max_length: texts.MaxLength = 128,
    device: texts.Device = "auto",
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Find how much must be stochastic, and what: every scheme and size from one pass."""
    swag.refuse_unused(method, context)
    files = {"train": train, "validation": val, "test": test}
    inputs = _Inputs(model, files, (text, text_pair, label), batch_size, max_length, device)
    written = [folder / name for name in _WRITTEN[:2]]
    refuse_taken_files(*written, json_file, overwrite=overwrite)
    if method == "swag":
        given = swag.options(steps, every, rank, rates, trial_steps, samples)
        _show(_swag(inputs, schemes, fractions, given, seed, folder), written, json_file)
        return
    from smidgen.workflows.ramp.laplace import PERCENTS, RampSettings

    settings = RampSettings(
        schemes=some_of("--schemes", schemes, SCHEMES),
        percents=numbers("--percents", percents, 100, "1,3,10,100", percent=True)
        or PERCENTS,
        repeats=repeats,
        most_stochastic=_share(most_stochastic),
        approximation=approximation,
        seed=seed,
    )
    _check_save(save, settings, folder, overwrite)
    done = _laplace(inputs, settings)
    _show(done.record, written, json_file)
    if save is not None:
        _save(done, save, folder / _WRITTEN[2], overwrite)


def _laplace(inputs: _Inputs, settings: RampSettings) -> Ramp:
    from smidgen.workflows.ramp import laplace as study

    network, loaders = inputs.loaded()
    batches = (loaders["train"], loaders["validation"], loaders["test"])
    return study.ramp(network, *batches, settings, config=inputs.noted())


def _swag(
    inputs: _Inputs,
    schemes: list[str] | None,
    fractions: list[str] | None,
    given: SwagOptions,
    seed: int,
    folder: Path,
) -> Record:
    settings = SwagRampSettings(
        schemes=some_of("--schemes", schemes, SWAG_SCHEMES),
        fractions=numbers("--fractions", fractions, 1, "0.03,0.1")
        or SwagRampSettings.fractions,
        seed=seed,
        **asdict(given),
    )
    network, loaders = inputs.loaded(shuffle=seed)
    batches = (loaders["train"], loaders["validation"], loaders["test"])
    points = folder / "points"
    config = {**inputs.noted(), **inputs.identity()}
    return swag_ramp(network, *batches, points, settings, config=config)


def _show(record: Record, written: list[Path], json_file: Path | None) -> None:
    """Write record and page, and print what was found."""
    from smidgen.report import write

    numbers_at, page = written
    for path in filter(None, (numbers_at, json_file)):
        record.save(path)
    write(record, page)
    show_record(record)
    out.print()
    for phase, seconds in record.results["seconds"].items():
        out.print(f"[dim]{seconds:8.1f} s[/dim]  {phase}")
    out.print(f"\nThe whole story: {page}  (numbers: {numbers_at})")


def _save(done: Ramp, save: str, folder: Path, overwrite: bool) -> None:
    scheme = done.best if save == _BEST else some_of("--save", [save], SCHEMES)[0]
    if scheme not in done.posteriors:
        raise ArgumentError(
            f"--save must name a scheme that this model has points of, got {save!r}. Try "
            f"one of {', '.join(done.posteriors)}."
        )
    smidgen.save(done.posteriors[scheme], folder, overwrite=overwrite)
    out.print(f"Saved the posterior of {scheme} to {folder}")


def _share(value: float) -> float:
    if not 0 < value <= 1:
        raise ArgumentError(
            f"--most-stochastic must be in (0, 1], got {value:g}. Try 0.1, a tenth."
        )
    return value


def _check_save(
    save: str | None, settings: RampSettings, folder: Path, overwrite: bool
) -> None:
    if save is None:
        return
    if save not in (_BEST, *settings.schemes):
        raise ArgumentError(
            f"--save must be 'best' or one of {', '.join(settings.schemes)}, got {save!r}."
        )
    refuse_taken_posterior(folder / _WRITTEN[2], overwrite=overwrite)
