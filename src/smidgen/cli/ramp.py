"""`smidgen ramp`: how much must be stochastic, and what?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import smidgen
from smidgen.cli import texts
from smidgen.cli.console import Steps, check_free, out, show_record
from smidgen.curvature.factors import Approximation
from smidgen.errors import ArgumentError
from smidgen.store import check_free as check_folder
from smidgen.study.schemes import SCHEMES, Scheme

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader
    from transformers import PreTrainedModel

    from smidgen.study.ramp import Ramp

_BEST = "best"
_WRITTEN = ("record.json", "report.html", "posterior")


Test = Annotated[Path, typer.Option(help="Labelled test data; they only report.")]
Folder = Annotated[
    Path, typer.Option("--out", help="Where record.json and report.html go.")
]
Schemes = Annotated[
    list[str] | None,
    typer.Option(help=f"Some of {', '.join(SCHEMES)}; all if left out."),
]
Percents = Annotated[
    list[str] | None, typer.Option(help="Percents of rows and of columns: 1,3,10,100.")
]
Most = Annotated[
    float, typer.Option(help="Largest share of the weights that may be chosen.")
]
Save = Annotated[
    str | None,
    typer.Option(help="Also save this scheme's posterior, or the 'best' by NLL."),
]


def ramp(
    model: texts.Model,
    train: Annotated[Path, typer.Option(help="The data the model was trained on.")],
    val: Annotated[Path, typer.Option(help="Held-out data that choose.")],
    test: Test,
    folder: Folder,
    text: texts.Text = "text",
    text_pair: texts.Pair = None,
    label: texts.Label = "label",
    schemes: Schemes = None,
    percents: Percents = None,
    repeats: Annotated[int, typer.Option(min=1, help="Draws of random modules.")] = 5,
    most_stochastic: Most = 0.1,
    approximation: Annotated[
        Approximation, typer.Option(help="How positions share weights.")
    ] = "reduce",
    seed: Annotated[int, typer.Option(help="Seed of the random modules.")] = 0,
    save: Save = None,
    batch_size: texts.BatchSize = 16,
    max_length: texts.MaxLength = 128,
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Find how much must be stochastic, and what: every scheme and size from one pass."""
    from smidgen.report import write
    from smidgen.study import ramp as study

    settings = study.RampSettings(
        schemes=_schemes(schemes),
        percents=_percents(percents) or study.PERCENTS,
        repeats=repeats,
        most_stochastic=_share(most_stochastic),
        approximation=approximation,
        seed=seed,
    )
    record, page, posterior = (folder / name for name in _WRITTEN)
    _check_save(save, settings.schemes, posterior, overwrite)
    check_free(overwrite, record, page, json_file)
    files = {"train": train, "validation": val, "test": test}
    network, loaders = _loaded(
        model, files, (text, text_pair, label), batch_size, max_length
    )
    done = study.ramp(
        network,
        loaders["train"],
        loaders["validation"],
        loaders["test"],
        settings,
        config=_noted(model, files, max_length),
    )
    for path in filter(None, (record, json_file)):
        done.record.save(path)
    write(done.record, page)
    show_record(done.record)
    _show_seconds(done)
    out.print(f"\nThe whole story: {page}  (numbers: {record})")
    if save is not None:
        _save(done, save, posterior, overwrite)


def _noted(model: str, files: Mapping[str, Path], max_length: int) -> dict[str, object]:
    """List what else the record says of the run."""
    title = f"How much of {Path(model).name} must be stochastic?"
    paths = {name: str(path) for name, path in files.items()}
    return {"title": title, "model": model, **paths, "max_length": max_length}


def _loaded(
    model: str,
    files: Mapping[str, Path],
    columns: tuple[str, str | None, str],
    batch_size: int,
    max_length: int,
) -> tuple[PreTrainedModel, dict[str, DataLoader[dict[str, Tensor]]]]:
    """Load the model, and each file as batches in order of length, to save padding."""
    say = Steps()
    network, tokenizer = texts.load_model(model)
    names = texts.label_names(network)
    tables = {key: texts.read_table(path, *columns, names) for key, path in files.items()}
    say(
        "Ramping over " + ", ".join(f"{len(t):,} {n}" for n, t in tables.items()) + " texts"
    )
    return network, {
        key: texts.batches_of(
            each.take(each.by_length()), tokenizer, batch_size, max_length
        )
        for key, each in tables.items()
    }


def _save(done: Ramp, save: str, folder: Path, overwrite: bool) -> None:
    scheme = done.best if save == _BEST else _scheme(save)
    if scheme not in done.posteriors:
        raise ArgumentError(
            f"--save must name a scheme that this model has points of, got {save!r}. Try "
            f"one of {', '.join(done.posteriors)}."
        )
    smidgen.save(done.posteriors[scheme], folder, overwrite=overwrite)
    out.print(f"Saved the posterior of {scheme} to {folder}")


def _words(given: list[str] | None) -> list[str]:
    """Options may be repeated, or hold several words with commas between."""
    parts = [part.strip() for item in given or [] for part in item.split(",")]
    return [part for part in parts if part]


def _scheme(word: str) -> Scheme:
    for each in SCHEMES:
        if each == word:
            return each
    raise ArgumentError(f"--schemes must be some of {', '.join(SCHEMES)}, got {word!r}.")


def _schemes(given: list[str] | None) -> tuple[Scheme, ...]:
    return tuple(dict.fromkeys(map(_scheme, _words(given)))) or SCHEMES


def _percents(given: list[str] | None) -> tuple[float, ...]:
    found = []
    for word in _words(given):
        try:
            percent = float(word.rstrip("%"))
        except ValueError:
            percent = float("nan")
        if not 0 < percent <= 100:
            raise ArgumentError(
                f"--percents must be numbers in (0, 100], got {word!r}. Try 1,3,10,100."
            )
        found.append(percent)
    return tuple(found)


def _share(value: float) -> float:
    if not 0 < value <= 1:
        raise ArgumentError(
            f"--most-stochastic must be in (0, 1], got {value:g}. Try 0.1, a tenth."
        )
    return value


def _check_save(
    save: str | None, schemes: tuple[Scheme, ...], folder: Path, overwrite: bool
) -> None:
    if save is None:
        return
    if save not in (_BEST, *schemes):
        raise ArgumentError(
            f"--save must be 'best' or one of {', '.join(schemes)}, got {save!r}."
        )
    check_folder(folder, overwrite)


def _show_seconds(done: Ramp) -> None:
    out.print()
    for phase, seconds in done.record.results["seconds"].items():
        out.print(f"[dim]{seconds:8.1f} s[/dim]  {phase}")
