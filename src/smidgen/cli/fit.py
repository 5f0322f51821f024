"""`smidgen fit`: a posterior over a subset of the weights, tuned on held-out data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import smidgen
from smidgen.cli import choosing, texts
from smidgen.cli.console import Steps, check_free, out, write_json
from smidgen.curvature.factors import Approximation
from smidgen.fit.scope import Scope
from smidgen.fit.tuning import What
from smidgen.posterior import Posterior
from smidgen.store import check_free as check_folder


def fit(
    model: texts.Model,
    train: Annotated[Path, typer.Option(help="The data the model was trained on.")],
    val: Annotated[Path, typer.Option(help="Held-out data that choose the precision.")],
    folder: Annotated[Path, typer.Option("--out", help="Where the posterior goes.")],
    text: texts.Text = "text",
    text_pair: texts.Pair = None,
    label: texts.Label = "label",
    select: choosing.SelectorName = "sparse-kfac",
    size: choosing.Size = None,
    percent: choosing.Percent = None,
    fraction: choosing.Fraction = None,
    count: choosing.Count = None,
    pattern: choosing.Patterns = None,
    seed: choosing.Seed = 0,
    structure: choosing.GivenStructure = None,
    tune: Annotated[What, typer.Option(help="What to choose on held-out data.")] = "joint",
    scope: Annotated[
        Scope, typer.Option(help="One precision, or one for each group or layer.")
    ] = "auto",
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
    sizes = {"size": size, "percent": percent, "fraction": fraction, "count": count}
    wanted = choosing.wanted(select, sizes=sizes, patterns=pattern, seed=seed)
    kept_as = wanted.structure(structure)
    say = Steps()
    network, tokenizer = texts.load_model(model)
    names = texts.label_names(network)
    tables = [
        texts.read_table(path, text, text_pair, label, names) for path in (train, val)
    ]
    loaders = [texts.batches_of(each, tokenizer, batch_size, max_length) for each in tables]
    subset = wanted.subset(network, loaders[0], say)
    share = f"{subset.size:,} of {subset.total:,} weights ({subset.fraction:.2%})"
    say(f"Fitting {share} with structure {kept_as}")
    posterior = smidgen.fit.laplace(
        network,
        loaders[0],
        subset,
        structure=kept_as,
        approximation=approximation,
    )
    say(f"Tuning on {len(tables[1]):,} held-out texts")
    posterior = smidgen.fit.tune_precision(
        posterior, network, loaders[1], what=tune, scope=scope
    )
    smidgen.save(posterior, folder, overwrite=overwrite)
    say(f"Saved the posterior to {folder}")
    chosen = {"posterior": str(folder), "selector": select}
    write_json(json_file, {**chosen, **_summary(posterior)})


def _summary(posterior: Posterior) -> dict[str, object]:
    """Print what was chosen, and return it."""
    tuning = posterior.tuning
    assert tuning is not None
    out.print(
        f"  precision {posterior.precision_range}, temperature "
        f"{posterior.temperature:.3g}; {posterior.floats:,} floats\n"
        f"  validation NLL {tuning.chosen_nll:.4f}; MAP "
        f"{tuning.map_nll:.4f}; temperature scaling {tuning.map_scaled_nll:.4f}"
    )
    return {
        "weights": posterior.subset.size,
        "fraction": posterior.subset.fraction,
        "floats": posterior.floats,
        "precision": posterior.plain_precision,
        "temperature": posterior.temperature,
        "tuning": asdict(tuning),
    }
