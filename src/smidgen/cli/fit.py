"""`smidgen fit`: a posterior over a subset of the weights, tuned on held-out data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import smidgen
from smidgen.cli.console import Steps, out, refuse_taken_files, write_json
from smidgen.cli.options import select as choosing
from smidgen.cli.options import swag
from smidgen.cli.options import text as texts
from smidgen.fit.calibration.groups import Scope
from smidgen.fit.calibration.precision import What
from smidgen.outputs.likelihood import Gaussian
from smidgen.posterior.base import Posterior
from smidgen.posterior.store import refuse_taken_posterior
from smidgen.workflows.swag import collect, keep

Tune = Annotated[What, typer.Option(help="What to choose on held-out data.")]
GivenScope = Annotated[
    Scope, typer.Option(help="One precision, or one for each group or layer.")
]


def fit(
    context: typer.Context,
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
    method: swag.Method = "laplace",
    structure: choosing.GivenStructure = None,
    tune: Tune = "joint",
    scope: GivenScope = "auto",
    approximation: choosing.GivenApproximation = "reduce",
    steps: swag.Steps = 2000,
    every: swag.Every = 5,
    rank: swag.Rank = 20,
    rates: swag.Rates = None,
    trial_steps: swag.TrialSteps = 400,
    samples: swag.Samples = 32,
    batch_size: texts.BatchSize = 16,
    max_length: texts.MaxLength = 128,
    device: texts.Device = "auto",
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Fit a posterior over a subset of the weights and tune it on held-out data."""
    swag.refuse_unused(method, context)
    refuse_taken_posterior(folder, overwrite=overwrite)
    refuse_taken_files(json_file, overwrite=overwrite)
    sizes = {"size": size, "percent": percent, "fraction": fraction, "count": count}
    wanted = choosing.wanted(select, sizes=sizes, patterns=pattern, seed=seed)
    how: Any = {"structure": wanted.structure(structure), "approximation": approximation}
    given = swag.options(steps, every, rank, rates, trial_steps, samples)
    say = Steps()
    network, tokenizer = texts.load_model(model, train, val, device=device)
    columns = (text, text_pair, label, texts.label_names(network))
    tables = [texts.read_table(path, *columns) for path in (train, val)]
    seen, held = [texts.batches_of(t, tokenizer, batch_size, max_length) for t in tables]
    subset = wanted.subset(network, seen, say)
    found: Posterior
    if method == "swag":
        say(f"Collecting SWAG's snapshots of {choosing.share(subset)}")
        batches = texts.shuffled(tables[0], tokenizer, batch_size, max_length, seed)
        found = collect(
            network, batches, held, subset, options=given, seed=seed, folder=folder, say=say
        )
    else:
        say(f"Fitting {choosing.share(subset)} with structure {how['structure']}")
        found = smidgen.fit.laplace(network, seen, subset, **how)
        say(f"Calibrating on {len(tables[1]):,} held-out texts")
        chosen = smidgen.fit.CalibrationSettings(what=tune, scope=scope)
        found = smidgen.calibrate(found, network, held, settings=chosen)
    keep(found, folder, say, overwrite=overwrite)
    _tell(found, json_file, posterior=str(folder), selector=select, method=method)


def _tell(found: Posterior, json_file: Path | None, **how: str) -> None:
    """Print what was found, and write it where that is asked for."""
    show_posterior(found)
    write_json(json_file, {**how, **found.summary()})


def show_posterior(posterior: Posterior) -> None:
    """Print what was chosen."""
    tuning = posterior.calibration
    assert tuning is not None
    if isinstance(posterior.likelihood, Gaussian):
        scaled, scale = "MAP with its noise fitted", ""
    else:
        scaled, scale = "temperature scaling", f", temperature {posterior.temperature:.3g}"
    out.print(
        f"  {posterior.headline()}{scale}; {posterior.floats:,} floats\n"
        f"  validation NLL {tuning.chosen_nll:.4f}; MAP "
        f"{tuning.map_nll:.4f}; {scaled} {tuning.map_scaled_nll:.4f}"
    )
