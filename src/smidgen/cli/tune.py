"""`smidgen tune`: find the few weights worth tuning, tune them, and fit a posterior."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from smidgen.cli import swag, texts
from smidgen.cli.console import Steps, check_free, out, write_json
from smidgen.cli.finetune import classes_of, show_history
from smidgen.cli.fit import show_posterior
from smidgen.fit.langevin import Update
from smidgen.fit.stopping import Criterion

if TYPE_CHECKING:
    from smidgen.delta import Delta
    from smidgen.fit import Scales, SparselyFinetuned
    from smidgen.posterior import Posterior
    from smidgen.subset import Subset
    from smidgen.swag import SwagPosterior

Kind = Literal["laplace", "swag", "none"]
_DELTA, _MODEL, _POSTERIOR = "delta.safetensors", "model", "posterior"


def tune(
    model: texts.Model,
    train: Annotated[Path, typer.Option(help="Training data: TSV, CSV, JSONL or Parquet.")],
    val: Annotated[Path, typer.Option(help="Held-out data that decide when to stop.")],
    folder: Annotated[Path, typer.Option("--out", help="Where all that is made goes.")],
    text: texts.Text = "text",
    text_pair: texts.Pair = None,
    label: texts.Label = "label",
    fraction: Annotated[float, typer.Option(help="Share of weights to tune.")] = 0.005,
    posterior: Annotated[Kind, typer.Option(help="Over the tuned weights.")] = "laplace",
    chain_epochs: Annotated[int, typer.Option(min=1, help="Length of the chain.")] = 2,
    temperature: Annotated[float, typer.Option(help="Of the chain's likelihood.")] = 1e-5,
    update: Annotated[Update, typer.Option(help="How the chain moves.")] = "langevin",
    epochs: Annotated[int, typer.Option(min=1, help="Most epochs of tuning.")] = 5,
    learning_rate: Annotated[float, typer.Option("--lr", help="Peak rate.")] = 3e-3,
    patience: Annotated[int, typer.Option(min=1, help="Epochs without gain.")] = 2,
    stop_on: Annotated[Criterion, typer.Option(help="What a gain is.")] = "accuracy",
    half: Annotated[bool, typer.Option("--half", help="Keep differences in fp16.")] = False,
    batch_size: texts.BatchSize = 16,
    max_length: texts.MaxLength = 128,
    seed: Annotated[int, typer.Option(help="Seed of head, order and noise.")] = 0,
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Tune the few weights worth it, keep them as a small delta, and fit a posterior."""
    from smidgen import fit
    from smidgen.select.top import fraction_share

    fraction_share(fraction)
    _check_free(folder, overwrite, json_file)
    say = Steps()
    columns = (text, text_pair, label)
    network, tokenizer, loaders = _loaded(
        model, (train, val), columns, batch_size, max_length, seed
    )
    say(f"Sampling the scales of {model}")
    scales = _sampled(network, loaders[0], chain_epochs, temperature, update, seed)
    subset = _chosen(network, scales, fraction)
    say(f"Tuning {subset.size:,} weights")
    found = fit.sparse_finetune(
        network,
        loaders[0],
        loaders[1],
        subset,
        epochs=epochs,
        learning_rate=learning_rate,
        patience=patience,
        stop_on=stop_on,
        seed=seed,
    )
    show_history(found.history, found.best)
    delta = found.delta.half() if half else found.delta
    tuned, size = _saved(delta, network, tokenizer, folder, overwrite)
    say(f"Saved {folder / _DELTA}, {size / 1e6:.2f} MB, and the model beside it")
    summary = _summary(found, scales, folder, size)
    if posterior != "none":
        say("Fitting a posterior over the tuned weights")
        place = folder / _POSTERIOR
        fitted = _fitted(posterior, tuned, loaders, subset, place, seed, say)
        summary["posterior"] = _keep(fitted, place, posterior, overwrite, say)
    write_json(json_file, summary)


def _check_free(folder: Path, overwrite: bool, json_file: Path | None) -> None:
    """Refuse to write over anything before work is done."""
    from smidgen.integrations import huggingface
    from smidgen.store import check_free as check_posterior

    huggingface.check_free(folder / _MODEL, overwrite)
    check_posterior(folder / _POSTERIOR, overwrite)
    check_free(overwrite, folder / _DELTA, json_file)


def _loaded(
    model: str,
    files: tuple[Path, Path],
    columns: tuple[str, str | None, str],
    batch_size: int,
    max_length: int,
    seed: int,
) -> tuple[Any, Any, list[Any]]:
    """Load the model with a new head, its tokenizer, and both loaders."""
    from smidgen.integrations.huggingface import load_classifier

    table = texts.read_table(files[0], *columns)
    held_out = texts.read_table(files[1], *columns, table.label_names)
    classes = classes_of(table, files[0])
    network, tokenizer = load_classifier(model, labels=classes, seed=seed)
    if table.label_names is not None:
        network.config.id2label = dict(enumerate(table.label_names))
        network.config.label2id = {n: i for i, n in enumerate(table.label_names)}
    loaders = [
        texts.batches_of(
            each, tokenizer, batch_size, max_length, shuffle=each is table, seed=seed
        )
        for each in (table, held_out)
    ]
    return network, tokenizer, loaders


def _sampled(
    network: Any, loader: Any, epochs: int, temperature: float, update: Update, seed: int
) -> Scales:
    """Run the chain; half of it is burn-in."""
    from smidgen import fit

    steps = max(40, epochs * len(loader))
    return fit.langevin(
        network,
        loader,
        steps=steps,
        burn_in=steps // 2,
        thin=steps // 40,
        temperature=temperature,
        update=update,
        seed=seed,
    )


def _chosen(network: Any, scales: Scales, fraction: float) -> Subset:
    """Choose by the scales, and say what is known of the choice."""
    from smidgen import select

    subset = select.bayestune(network, scales.means, fraction=fraction)
    head = sum(subset.sizes()[name] for name in select.last_layer(network).parts)
    out.print(
        f"  {subset.size - head:,} pretrained weights and {head:,} of the head; the two "
        f"halves of the chain agree on {scales.overlap(fraction):.0%}"
    )
    return subset


def _saved(
    delta: Delta, network: Any, tokenizer: Any, folder: Path, overwrite: bool
) -> tuple[Any, int]:
    """Write the delta and the tuned model; return that and the delta's bytes."""
    from copy import deepcopy

    from smidgen.integrations.huggingface import save_model

    tuned = deepcopy(network)
    delta.apply(tuned)
    path = delta.save(folder / _DELTA)
    save_model(tuned, tokenizer, folder / _MODEL, overwrite=overwrite)
    return tuned, path.stat().st_size


def _summary(
    found: SparselyFinetuned, scales: Scales, folder: Path, size: int
) -> dict[str, Any]:
    """Everything that was found, as JSON takes it."""
    whole = sum(each.numel() for each in found.delta.replaced.values())
    return {
        "delta": str(folder / _DELTA),
        "bytes": size,
        "weights": found.delta.subset.size + whole,
        "best": asdict(found.best),
        "history": [asdict(each) for each in found.history],
        "chain": scales.to_dict(),
    }


def _keep(
    fitted: Posterior | SwagPosterior, folder: Path, kind: Kind, overwrite: bool, say: Steps
) -> dict[str, Any]:
    """Save the posterior, drop what would have resumed it, and show it."""
    from smidgen import save

    save(fitted, folder, overwrite=overwrite)
    swag.forget(folder, kind, say)
    return show_posterior(fitted)


def _fitted(
    kind: Kind,
    tuned: Any,
    loaders: list[Any],
    subset: Subset,
    folder: Path,
    seed: int,
    say: Steps,
) -> Posterior | SwagPosterior:
    """Fit a posterior over the tuned weights and tune it on the held-out texts."""
    from smidgen import fit
    from smidgen.fit.swag import SwagOptions

    if kind == "swag":
        steps = max(100, 2 * len(loaders[0]))
        given = SwagOptions(steps=steps, trial_steps=steps // 5)
        return swag.collect(tuned, loaders[0], loaders[1], subset, given, seed, folder, say)
    # Single weights: no rows × columns to factor.
    found = fit.laplace(tuned, loaders[0], subset, structure="diag")
    return fit.tune_precision(found, tuned, loaders[1])
