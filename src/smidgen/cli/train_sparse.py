"""`smidgen train-sparse`: a Bayesian network that is sparse from the first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from smidgen.cli.console import Steps, out, refuse_taken_files, write_json
from smidgen.cli.options import text as texts
from smidgen.errors import ArgumentError, DataError
from smidgen.sparse.budgets import Budget
from smidgen.sparse.build import FirstWeights
from smidgen.sparse.prune import PruningScore

if TYPE_CHECKING:
    from torch import nn

    from smidgen.fit import SparseTraining
    from smidgen.integrations.arrays import Arrays
    from smidgen.posterior.sparse import SparsePosterior
    from smidgen.sparse import SparseNetwork
    from smidgen.sparse.architectures import PlainNetwork

_FILE = (
    "Data: .npz, .csv, IDX images (.gz or not), CIFAR-10 .bin or the folder of its "
    "batches. Several are joined."
)
Train = Annotated[list[Path], typer.Option(help=_FILE)]
Out = Annotated[Path, typer.Option("--out", help="Where the network goes.")]
Test = Annotated[Path | None, typer.Option(help="Data that only report.")]
Label = Annotated[str, typer.Option(help="Column of the class in a CSV: name or number.")]
Kind = Annotated[Literal["mlp", "resnet"], typer.Option(help="What to train.")]
Hidden = Annotated[str, typer.Option(help="Units of an MLP's layers.")]
Width = Annotated[int, typer.Option(help="Channels of a resnet's start.", min=1)]
Density = Annotated[float, typer.Option(help="Active share of the weights, up to 1.")]
Shared = Annotated[Budget, typer.Option(help="How layers share the active weights.")]
First = Annotated[
    FirstWeights, typer.Option(help="First active set: at random, or the largest weights.")
]
Scale = Annotated[float, typer.Option(help="First scale, as a share of the prior's.")]
Prior = Annotated[
    float | None,
    typer.Option(help="Standard deviation of the prior; by layer if left out."),
]
Going = Annotated[PruningScore, typer.Option(help="The score that says which may go.")]
Every = Annotated[
    int | None,
    typer.Option(
        min=1, help="Steps between moves; 100, or a twentieth of all if that is less."
    ),
]
Replaced = Annotated[float, typer.Option(help="Share that the first moves replace.")]
Until = Annotated[float, typer.Option(help="Share of the steps in which weights move.")]
Passes = Annotated[int, typer.Option(min=1, help="Batches whose gradients say who comes.")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the data.")]
Rate = Annotated[float, typer.Option("--lr", help="First rate.")]
Optimiser = Annotated[Literal["adam", "sgd"], typer.Option(help="Who takes the steps.")]
Temperature = Annotated[
    float, typer.Option(help="Weight of the KL term; 1 is VI, less a cold posterior.")
]
WarmUp = Annotated[float, typer.Option(help="Share of the steps in which it grows.")]
Points = Annotated[
    bool, typer.Option("--deterministic", help="Points instead of Gaussians.")
]
HeldOut = Annotated[float, typer.Option("--val-share", help="Share of data held out.")]
BatchSize = Annotated[int, typer.Option(help="Examples in a batch.", min=1)]
Samples = Annotated[int, typer.Option(help="Draws of the weights to score with.")]
Checkpoint = Annotated[
    Path | None, typer.Option(help="File to resume from, written every epoch.")
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
    start: First = "random",
    scale: Scale = 0.1,
    prior: Prior = None,
    removal: Going = "snr",
    every: Every = None,
    replaced: Replaced = 0.3,
    until: Until = 0.75,
    passes: Passes = 4,
    epochs: Epochs = 10,
    learning_rate: Rate = 3e-3,
    optimiser: Optimiser = "adam",
    temperature: Temperature = 0.1,
    warm_up: WarmUp = 0.25,
    deterministic: Points = False,
    held_out: HeldOut = 0.1,
    batch_size: BatchSize = 128,
    samples: Samples = 32,
    checkpoint: Checkpoint = None,
    picture: Picture = None,
    seed: Seed = 0,
    device: texts.Device = "auto",
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Train a sparse Bayesian network on numbers or images."""
    options = dict(locals())
    from smidgen.posterior.store import refuse_taken_posterior, save

    refuse_taken_posterior(folder, overwrite=overwrite)
    refuse_taken_files(json_file, picture, overwrite=overwrite)
    say = Steps()
    data, classes = _data(train, test, label, held_out, seed)
    plain = _plain(model, data["train"], classes, hidden, width)
    network = _network(plain, data["train"], options)
    count = len(data["train"])
    training = _training(options, -(-count // batch_size) * epochs)
    say(f"Training {network.count:,} of {network.total:,} weights on {count:,} examples")
    if network.stochastic and temperature < 1:
        say(f"The KL term counts {temperature:g}-fold, a cold posterior; 1 is VI")
    found = _trained(network, data, training, batch_size, seed, checkpoint)
    scores = _scored(found, data, samples)
    about = _about(found, training, seed, count, train)
    save(replace(found, plain=plain, notes=about), folder, overwrite=overwrite)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    say(f"Saved the network to {folder}")
    if picture is not None:
        _draw(found, plain, picture)
        say(f"Drew its connectivity to {picture}")
    write_json(json_file, {"network": str(folder), "scores": scores, **_course(found)})


# Options that `make_sparse` and `SparseSettings` have under the same names.
_CHOICES = ("density", "start", "seed")
_SETTINGS = ("budget", "scale", "prior", "deterministic")


def _training(options: Mapping[str, Any], steps: int) -> SparseTraining:
    """What `SparseTraining` has under the same names; short trainings move oftener."""
    from smidgen.fit import SparseTraining

    found = {f.name: options[f.name] for f in fields(SparseTraining) if f.name in options}
    if found["every"] is None:
        found["every"] = max(1, min(100, steps // 20))
    return SparseTraining(**found)


def _course(found: SparsePosterior) -> dict[str, Any]:
    return {
        "history": [epoch.scores() for epoch in found.history],
        "moves": [change.to_record() for change in found.changes],
        "state_bytes": found.state_bytes,
        "derived_bytes": found.derived_bytes,
    }


def _trained(
    network: SparseNetwork,
    data: Mapping[str, Arrays],
    training: SparseTraining,
    batch_size: int,
    seed: int,
    checkpoint: Path | None,
) -> SparsePosterior:
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
    went = sum(sum(move.pruned.values()) for move in found.changes)
    out.print(f"  {len(found.changes)} moves, in which {went:,} weights went")
    return found


def _data(
    train: Sequence[Path], test: Path | None, label: str, held_out: float, seed: int
) -> tuple[dict[str, Arrays], int]:
    """Training, validation and perhaps test examples, raw; and how many classes."""
    import torch

    from smidgen.integrations.arrays import join_arrays, read_arrays

    if not 0 < held_out < 1:
        raise ArgumentError(f"--val-share must be in (0, 1), got {held_out}.")
    column = int(label) if label.removeprefix("-").isdigit() else label
    everything = join_arrays([read_arrays(path, label=column) for path in train], train)
    count = max(1, round(held_out * len(everything)))
    parts = everything.split(count, torch.Generator().manual_seed(seed))
    found = dict(zip(("train", "validation"), parts, strict=True))
    if test is not None:
        found["test"] = read_arrays(test, label=column)
        join_arrays([everything, found["test"]], [train[0], test])
        if found["test"].classes > everything.classes:
            raise DataError(
                f"{test} has a class {found['test'].classes - 1}, the training data have "
                f"0 to {everything.classes - 1}. Train on data with all classes."
            )
    return found, everything.classes


def _plain(
    kind: Literal["mlp", "resnet"], train: Arrays, classes: int, hidden: str, width: int
) -> PlainNetwork:
    from smidgen.sparse.architectures import PlainNetwork

    try:
        units = tuple(int(each) for each in hidden.split(",") if each.strip())
    except ValueError:
        raise ArgumentError(f"--hidden must be like 512,512, got {hidden!r}.") from None
    return PlainNetwork(kind, tuple(train.inputs.shape[1:]), classes, units, width)


def _network(
    plain: PlainNetwork, train: Arrays, options: Mapping[str, Any]
) -> SparseNetwork:
    """The network to be trained, on its device."""
    from smidgen.sparse import SparseSettings, make_sparse

    model = _model(plain, train, options["seed"]).to(options["device"])
    settings = SparseSettings(**{name: options[name] for name in _SETTINGS})
    return make_sparse(
        model, settings=settings, **{name: options[name] for name in _CHOICES}
    )


def _model(plain: PlainNetwork, train: Arrays, seed: int) -> nn.Module:
    """A new model that standardises by the training data, and keeps how."""
    from smidgen.integrations.arrays import moments
    from smidgen.sparse.architectures import Standardise

    model = plain.build(seed)
    first = model[0]
    assert isinstance(first, Standardise)
    first.measure(*moments(train))
    return model


def _about(
    found: SparsePosterior,
    training: SparseTraining,
    seed: int,
    count: int,
    train: Sequence[Path],
) -> dict[str, Any]:
    """What else the folder says of its network."""
    likelihood = {"kind": found.likelihood.kind, **asdict(found.likelihood)}
    return {
        "likelihood": likelihood,
        "seed": seed,
        "training": asdict(training),
        "data": {"files": [path.name for path in train], "examples": count},
    }


def _scored(
    found: SparsePosterior, data: Mapping[str, Arrays], samples: int
) -> dict[str, dict[str, Any]]:
    """Score the draws on data that were held out, and say it."""
    from smidgen import evaluate, predict_batches
    from smidgen.integrations.arrays import ArrayBatches

    scores: dict[str, dict[str, Any]] = {}
    for name, arrays in data.items():
        if name == "train":
            continue
        batches = ArrayBatches(arrays, 1000)
        predictive = predict_batches(found, found.network, batches, samples=samples)
        summary = evaluate.summarise(predictive, arrays.labels)
        scores[name] = {score: interval.to_dict() for score, interval in summary.items()}
        out.print(
            f"  {name}: accuracy {summary['accuracy'].value:.1%}, NLL "
            f"{summary['nll'].value:.4f}, ECE {summary['ece_equal_mass'].value:.3f}"
        )
    return scores


def _draw(found: SparsePosterior, plain: PlainNetwork, picture: Path) -> None:
    from smidgen.report.drawing.connectivity import connectivity_picture
    from smidgen.runtime.files import write_text

    epochs = [epoch.connectivity for epoch in found.history]
    first = next(iter(found.network.layers.values()))
    image = None
    # One pixel, one column and one bin: of colours, or of pooled columns, it is no image.
    if len(plain.shape) == 3 and plain.shape[0] == 1:
        pixels = plain.shape[1] * plain.shape[2]
        if pixels == first.pattern.columns == len(next(iter(epochs[0].values()))):
            image = plain.shape[1:]
    write_text(picture, connectivity_picture(epochs, image=image))
