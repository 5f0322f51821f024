"""`smidgen train-sparse`: a Bayesian network that is sparse from the first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from smidgen.cli import texts
from smidgen.cli.console import Steps, check_free, out, write_json
from smidgen.errors import ArgumentError, DataError
from smidgen.sparse.budgets import Budget
from smidgen.sparse.removal import Removal

if TYPE_CHECKING:
    from torch import nn

    from smidgen.fit import SparseFit, SparseTraining
    from smidgen.integrations.arrays import Arrays
    from smidgen.sparse import SparseNetwork

_FILE = "Data: .npz, .csv, IDX images (.gz or not), or CIFAR-10 .bin."
Train = Annotated[Path, typer.Option(help=_FILE)]
Out = Annotated[Path, typer.Option("--out", help="Where the network goes.")]
Test = Annotated[Path | None, typer.Option(help="Data that only report.")]
Label = Annotated[str, typer.Option(help="Column of the class in a CSV: name or number.")]
Kind = Annotated[Literal["mlp", "resnet"], typer.Option(help="What to train.")]
Hidden = Annotated[str, typer.Option(help="Units of an MLP's layers.")]
Width = Annotated[int, typer.Option(help="Channels of a resnet's start.", min=1)]
Density = Annotated[float, typer.Option(help="Active share of the weights, up to 1.")]
Shared = Annotated[Budget, typer.Option(help="How maps share the active weights.")]
Going = Annotated[Removal, typer.Option(help="The score that says which may go.")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the data.")]
Rate = Annotated[float, typer.Option("--lr", help="First rate.")]
Temperature = Annotated[float, typer.Option(help="Weight of the KL term; 1 is VI.")]
Points = Annotated[
    bool, typer.Option("--deterministic", help="Points instead of Gaussians.")
]
HeldOut = Annotated[float, typer.Option("--val-share", help="Share of data held out.")]
BatchSize = Annotated[int, typer.Option(help="Examples in a batch.", min=1)]
Samples = Annotated[int, typer.Option(help="Draws of the weights to score with.")]
Checkpoint = Annotated[
    Path | None, typer.Option(help="Folder to resume from, written every epoch.")
]
Picture = Annotated[Path | None, typer.Option(help="Draw the connectivity to an SVG.")]
Seed = Annotated[int, typer.Option(help="Seed of everything.")]


def train_sparse(
    train: Train,
    folder: Out,
    test: Test = None,
    label: Label = "-1",
    model: Kind = "mlp",
    hidden: Hidden = "512,512",
    width: Width = 16,
    density: Density = 0.1,
    budget: Shared = "erk",
    removal: Going = "snr",
    epochs: Epochs = 10,
    learning_rate: Rate = 3e-3,
    temperature: Temperature = 0.1,
    deterministic: Points = False,
    held_out: HeldOut = 0.1,
    batch_size: BatchSize = 128,
    samples: Samples = 32,
    checkpoint: Checkpoint = None,
    picture: Picture = None,
    seed: Seed = 0,
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Train a sparse Bayesian network on numbers or images."""
    from smidgen import fit
    from smidgen.sparse import save_sparse, sparse_bayesian
    from smidgen.sparse.folder import check_free as check_folder

    check_folder(folder, overwrite)
    check_free(overwrite, json_file, picture)
    training = fit.SparseTraining(
        epochs=epochs, learning_rate=learning_rate, temperature=temperature, removal=removal
    )
    say = Steps()
    data = _data(train, test, label, held_out, seed)
    network = sparse_bayesian(
        _model(model, data, hidden, width, seed),
        density=density,
        budget=budget,
        deterministic=deterministic,
        seed=seed,
    )
    count = len(data["train"])
    say(f"Training {network.count:,} of {network.total:,} weights on {count:,} examples")
    found = _trained(network, data, training, batch_size, seed, checkpoint)
    scores = _scored(found, data, samples)
    save_sparse(found.network, folder, overwrite=overwrite)
    say(f"Saved the network to {folder}")
    if picture is not None:
        _draw(found, data, picture)
        say(f"Drew its connectivity to {picture}")
    history = [asdict(epoch) for epoch in found.history]
    write_json(json_file, {"network": str(folder), "scores": scores, "history": history})


def _trained(
    network: SparseNetwork,
    data: Mapping[str, Arrays],
    training: SparseTraining,
    batch_size: int,
    seed: int,
    checkpoint: Path | None,
) -> SparseFit:
    from smidgen import fit
    from smidgen.integrations.arrays import ArrayBatches

    found = fit.ssvi(
        network,
        ArrayBatches(data["train"], batch_size, shuffle=True, seed=seed),
        ArrayBatches(data["validation"], 1000),
        training=training,
        seed=seed,
        checkpoint=checkpoint,
    )
    for epoch in found.history:
        out.print(
            f"  epoch {epoch.number}: training NLL {epoch.train_nll:.4f}; of the means, "
            f"validation NLL {epoch.nll:.4f}, accuracy {epoch.accuracy:.1%}"
        )
    return found


def _data(
    train: Path, test: Path | None, label: str, held_out: float, seed: int
) -> dict[str, Arrays]:
    """Training, validation and perhaps test examples, on one scale."""
    import torch

    from smidgen.integrations.arrays import read_arrays, standardised

    if not 0 < held_out < 1:
        raise ArgumentError(f"--val-share must be in (0, 1), got {held_out}.")
    column = int(label) if label.removeprefix("-").isdigit() else label
    everything = read_arrays(train, label=column)
    count = max(1, round(held_out * len(everything)))
    parts = list(everything.split(count, torch.Generator().manual_seed(seed)))
    if test is not None:
        parts.append(read_arrays(test, label=column))
        shapes = [tuple(each.inputs.shape[1:]) for each in parts]
        if shapes[2] != shapes[0]:
            raise DataError(
                f"{test} must hold examples of shape {shapes[0]}, as {train}, got "
                f"{shapes[2]}."
            )
    names = ("train", "validation", "test")
    return dict(zip(names, standardised(parts[0], *parts[1:]), strict=False))


def _model(
    kind: str, data: Mapping[str, Arrays], hidden: str, width: int, seed: int
) -> nn.Module:
    import torch

    from smidgen.integrations.plain_networks import mlp, small_resnet

    shape = tuple(data["train"].inputs.shape[1:])
    classes = max(each.classes for each in data.values())
    try:
        units = [int(each) for each in hidden.split(",") if each.strip()]
    except ValueError:
        raise ArgumentError(f"--hidden must be like 512,512, got {hidden!r}.") from None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "resnet":
            return small_resnet(shape, classes, width=width)
        return mlp(shape, classes, hidden=units)


def _scored(
    found: SparseFit, data: Mapping[str, Arrays], samples: int
) -> dict[str, dict[str, Any]]:
    """Score the draws on data that were held out, and say it."""
    from smidgen import evaluate, predict_sparse_batches
    from smidgen.integrations.arrays import ArrayBatches
    from smidgen.problem import Problem

    problem = Problem(found.network, found.likelihood)
    scores: dict[str, dict[str, Any]] = {}
    for name, arrays in data.items():
        if name == "train":
            continue
        batches = ArrayBatches(arrays, 1000)
        predictive = predict_sparse_batches(problem, batches, samples=samples)
        summary = evaluate.summarise(predictive, arrays.labels)
        scores[name] = {score: interval.to_dict() for score, interval in summary.items()}
        out.print(
            f"  {name}: accuracy {summary['accuracy'].value:.1%}, NLL "
            f"{summary['nll'].value:.4f}, ECE {summary['ece_equal_mass'].value:.3f}"
        )
    return scores


def _draw(found: SparseFit, data: Mapping[str, Arrays], picture: Path) -> None:
    from smidgen.atomic import write_text
    from smidgen.report.connectivity import connectivity_picture

    shape = tuple(data["train"].inputs.shape[1:])
    epochs = [epoch.connectivity for epoch in found.history]
    first = next(iter(epochs[0].values()))
    flat = len(shape) == 3 and len(first) == shape[1] * shape[2]
    image = (shape[1], shape[2]) if flat else None
    write_text(picture, connectivity_picture(epochs, image=image))
