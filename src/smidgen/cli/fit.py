"""`smidgen fit`: a posterior over a subset of the weights, tuned on held-out data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from torch import nn

import smidgen
from smidgen.cli import texts
from smidgen.cli.console import Steps, check_free, out, write_json
from smidgen.curvature.factors import Approximation
from smidgen.errors import ArgumentError
from smidgen.fit.tuning import What
from smidgen.posterior import Posterior
from smidgen.store import check_free as check_folder

Selector = Literal["sparse-kfac", "last-layer"]
Structure = Literal["kron", "ekfac", "diag"]


def fit(
    model: texts.Model,
    train: Annotated[Path, typer.Option(help="The data the model was trained on.")],
    val: Annotated[Path, typer.Option(help="Held-out data that choose the precision.")],
    folder: Annotated[Path, typer.Option("--out", help="Where the posterior goes.")],
    text: texts.Text = "text",
    text_pair: texts.Pair = None,
    label: texts.Label = "label",
    select: Annotated[Selector, typer.Option(help="Which weights.")] = "sparse-kfac",
    percent: Annotated[
        float | None, typer.Option(help="Percent of rows and of columns; 10 if left out.")
    ] = None,
    structure: Annotated[
        Structure, typer.Option(help="How the curvature is kept.")
    ] = "kron",
    tune: Annotated[What, typer.Option(help="What to choose on held-out data.")] = "joint",
    approximation: Annotated[
        Approximation, typer.Option(help="How positions share weights.")
    ] = "reduce",
    batch_size: texts.BatchSize = 16,
    max_length: texts.MaxLength = 128,
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Fit a posterior over a subset of the weights and tune it on held-out data."""
    check_folder(folder, overwrite)
    check_free(overwrite, json_file)
    say = Steps()
    network, tokenizer = texts.load_model(model)
    names = texts.label_names(network)
    tables = [
        texts.read_table(path, text, text_pair, label, names) for path in (train, val)
    ]
    loaders = [texts.batches_of(each, tokenizer, batch_size, max_length) for each in tables]
    subset = _chosen(network, select, percent)
    say(f"Fitting {subset.size:,} of {subset.total:,} weights ({subset.fraction:.2%})")
    posterior = smidgen.fit.laplace(
        network,
        loaders[0],
        subset,
        structure=structure,
        approximation=approximation,
    )
    say(f"Tuning on {len(tables[1]):,} held-out texts")
    posterior = smidgen.fit.tune_precision(posterior, network, loaders[1], what=tune)
    smidgen.save(posterior, folder, overwrite=overwrite)
    say(f"Saved the posterior to {folder}")
    write_json(json_file, {"posterior": str(folder), **_summary(posterior, tune)})


def _chosen(network: nn.Module, select: Selector, percent: float | None) -> smidgen.Subset:
    if select == "sparse-kfac":
        return smidgen.select.sparse_kfac(
            network, percent=10 if percent is None else percent
        )
    if percent is not None:
        raise ArgumentError(
            f"--percent is for --select sparse-kfac, got {percent:g} with {select}. Leave "
            "one of them out."
        )
    return smidgen.select.last_layer(network)


def _summary(posterior: Posterior, tune: What) -> dict[str, object]:
    """Print what was chosen, and return it."""
    tuning = posterior.tuning
    assert tuning is not None
    chosen = tuning.nll if tune == "precision" else tuning.joint_nll
    out.print(
        f"  precision {posterior.precision:.3g}, temperature {posterior.temperature:.3g}; "
        f"{posterior.floats:,} floats\n  validation NLL {min(chosen):.4f}; MAP "
        f"{tuning.map_nll:.4f}; temperature scaling {tuning.map_scaled_nll:.4f}"
    )
    return {
        "weights": posterior.subset.size,
        "fraction": posterior.subset.fraction,
        "floats": posterior.floats,
        "precision": posterior.precision,
        "temperature": posterior.temperature,
        "tuning": asdict(tuning),
    }
