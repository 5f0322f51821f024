"""`smidgen train-sparse`: train a Bayesian network that is sparse from the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Context, Option

from smidgen.cli.console import Steps, out, write_json
from smidgen.cli.options import outputs
from smidgen.cli.options import text as texts
from smidgen.cli.options.lists import require_files_or_folders
from smidgen.errors import ArgumentError, DataError
from smidgen.sparse.budgets import Budget
from smidgen.sparse.build import FirstWeights
from smidgen.sparse.prune import PruningScore

if TYPE_CHECKING:
    from smidgen.fit import SsviSettings
    from smidgen.integrations.arrays import Arrays
    from smidgen.posterior.sparse import SparsePosterior
    from smidgen.sparse import SparseNetwork
    from smidgen.sparse.architectures import PlainNetwork

_FILE = (
    "Training data: .npz, .csv, IDX images (.gz or not), a CIFAR-10 .bin file or the "
    "folder of its batches. Several files are joined."
)
Train = Annotated[list[Path], Option(callback=require_files_or_folders, help=_FILE)]
Out = Annotated[Path, Option("--out", help="Folder for the trained network.")]
Test = Annotated[
    Path | None,
    Option(callback=require_files_or_folders, help="Test data, which are only scored."),
]
Label = Annotated[
    str,
    Option(help="Column of the class in a CSV file: its name or number; -1 is the last."),
]
Architecture = Annotated[
    Literal["mlp", "resnet"], Option(help="Architecture of the network.")
]
Hidden = Annotated[
    str, Option(help="Units of an MLP's hidden layers, separated by commas.")
]
Width = Annotated[int, Option(help="Channels of a ResNet's first stage.", min=1)]


def _check_density(density: float) -> float:
    """Check it before any data are read."""
    if not 0 < density <= 1:
        raise ArgumentError(f"--density must be in (0, 1], got {density:g}. Try 0.1.")
    return density


Density = Annotated[
    float,
    Option(
        callback=_check_density,
        help="Fraction of the weights that are active, in (0, 1].",
    ),
]
BudgetName = Annotated[
    Budget, Option(help="How to divide them among the layers; erk gives small layers more.")
]
Start = Annotated[
    FirstWeights, Option(help="Weights to start with: random ones, or the largest.")
]
InitialScale = Annotated[
    float, Option(help="Initial standard deviation, as a fraction of the prior's.")
]
Prior = Annotated[
    float | None,
    Option(help="Standard deviation of the prior; by default from each layer's size."),
]
Removal = Annotated[
    PruningScore, Option(help="Score of active weights; the lowest are pruned.")
]
Every = Annotated[
    int | None,
    Option(
        min=1,
        help="Steps between changes of the active set; by default 100, or a twentieth of "
        "all steps if that is less.",
    ),
]
Replaced = Annotated[
    float, Option(help="Fraction of active weights that the first change replaces.")
]
Until = Annotated[
    float, Option(help="Fraction of the steps during which the active set changes.")
]
Passes = Annotated[
    int, Option(min=1, help="Batches whose gradients decide which weights become active.")
]
Epochs = Annotated[int, Option(min=1, help="Number of epochs.")]
LearningRate = Annotated[float, Option("--lr", help="Initial learning rate.")]
OptimiserName = Annotated[Literal["adam", "sgd"], Option(help="Optimiser.")]
Temperature = Annotated[
    float, Option(help="Weight of the KL term: 1 is plain VI, less is a cold posterior.")
]
WarmUp = Annotated[
    float, Option(help="Fraction of the steps over which the KL term grows to full weight.")
]
Deterministic = Annotated[
    bool, Option("--deterministic", help="Train plain weights instead of Gaussians.")
]
ValShare = Annotated[
    float, Option("--val-share", help="Fraction of the training data to hold out.")
]
BatchSize = Annotated[int, Option(help="Examples per batch.", min=1)]
Samples = Annotated[int, Option(help="Weight samples to predict with.")]
Checkpoint = Annotated[
    Path | None,
    Option(
        help="Checkpoint file, written every epoch; by default a hidden one beside --out."
    ),
]
Picture = Annotated[Path | None, Option(help="Draw the connectivity to this SVG file.")]


def train_sparse(
    context: Context,
    train: Train,
    folder: Out,
    test: Test = None,
    label: Label = "-1",
    model: Architecture = "mlp",
    hidden: Hidden = "512,512",
    width: Width = 16,
    density: Density = 0.1,
    budget: BudgetName = "erk",
    start: Start = "random",
    scale: InitialScale = 0.1,
    prior: Prior = None,
    removal: Removal = "snr",
    every: Every = None,
    replaced: Replaced = 0.3,
    until: Until = 0.75,
    passes: Passes = 4,
    epochs: Epochs = 10,
    learning_rate: LearningRate = 3e-3,
    optimiser: OptimiserName = "adam",
    temperature: Temperature = 0.1,
    warm_up: WarmUp = 0.25,
    deterministic: Deterministic = False,
    held_out: ValShare = 0.1,
    batch_size: BatchSize = 128,
    samples: Samples = 32,
    checkpoint: Checkpoint = None,
    picture: Picture = None,
    seed: texts.Seed = 0,
    device: texts.Device = "auto",
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Train a sparse Bayesian network on numbers or images."""
    options = dict(locals())
    from smidgen.posterior.store import refuse_taken_posterior, save

    made = outputs.folder(folder, refuse_taken_posterior)
    drawn, states = outputs.files(picture=picture), outputs.files(checkpoint=checkpoint)
    run = outputs.open_run(context, made, *drawn, states=states)
    say = Steps()
    data, classes = _read_data(train, test, label, held_out, seed)
    plain = _describe_network(model, data["train"], classes, hidden, width)
    network = _make_network(plain, data["train"], options)
    count = len(data["train"])
    settings = _read_settings(options, -(-count // batch_size) * epochs)
    _announce(network, count, temperature, say)
    state = checkpoint or run.place("training")
    posterior = _train(network, data, settings, batch_size, seed, state)
    scores = _score(posterior, data, samples)
    notes = {**_describe(posterior, settings, train, count), "seed": seed}
    save(replace(posterior, plain=plain, notes=notes), folder, overwrite=run.overwrite)
    say(f"Saved the network to {folder}")
    if picture is not None:
        _draw(posterior, plain, picture, say)
    write_json(json_file, _list_results(posterior, folder, scores))
    run.finish()


# What `SsviSettings` says of the network, which is made before it is trained.
_OF_NETWORK = ("density", "start", "num_data")


def _read_settings(options: Mapping[str, Any], steps: int) -> SsviSettings:
    """Read the options that `SsviSettings` has too; a short training changes more often."""
    from smidgen.fit import SsviSettings

    names = [f.name for f in fields(SsviSettings) if f.name not in _OF_NETWORK]
    settings = {name: options[name] for name in names if name in options}
    if settings["every"] is None:
        settings["every"] = max(1, min(100, steps // 20))
    return SsviSettings(**settings)


def _announce(network: SparseNetwork, count: int, temperature: float, say: Steps) -> None:
    say(f"Training {network.count:,} of {network.total:,} weights on {count:,} examples")
    if network.stochastic and temperature < 1:
        say(f"The KL term is weighted {temperature:g}: a cold posterior (1 is VI)")


def _describe(
    posterior: SparsePosterior, settings: SsviSettings, files: Sequence[Path], count: int
) -> dict[str, Any]:
    likelihood = {"kind": posterior.likelihood.kind, **asdict(posterior.likelihood)}
    training = {n: v for n, v in asdict(settings).items() if n not in _OF_NETWORK}
    data = {"files": [path.name for path in files], "examples": count}
    return {"likelihood": likelihood, "training": training, "data": data}


def _list_results(
    posterior: SparsePosterior, folder: Path, scores: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "network": str(folder),
        "scores": scores,
        "history": [epoch.scores() for epoch in posterior.history],
        "moves": [change.to_record() for change in posterior.changes],
        "state_bytes": posterior.state_bytes,
        "derived_bytes": posterior.derived_bytes,
    }


def _train(
    network: SparseNetwork,
    data: Mapping[str, Arrays],
    settings: SsviSettings,
    batch_size: int,
    seed: int,
    checkpoint: Path,
) -> SparsePosterior:
    """Train the network and print its epochs."""
    from smidgen import fit
    from smidgen.integrations.arrays import ArrayBatches

    posterior = fit.ssvi(
        network,
        ArrayBatches(data["train"], batch_size, shuffle=True, seed=seed),
        validation=ArrayBatches(data["validation"], 1000),
        settings=settings,
        seed=seed,
        checkpoint=checkpoint,
    )
    for epoch in posterior.history:
        out.print(
            f"  epoch {epoch.number}: training NLL {epoch.train_nll:.4f}; of the means, "
            f"validation NLL {epoch.nll:.4f}, accuracy {epoch.accuracy:.1%}"
        )
    changes = posterior.changes
    pruned = sum(sum(change.pruned.values()) for change in changes)
    out.print(f"  {len(changes)} changes of the active set pruned {pruned:,} weights")
    return posterior


def _read_data(
    train: Sequence[Path], test: Path | None, label: str, held_out: float, seed: int
) -> tuple[dict[str, Arrays], int]:
    """Read training, validation and perhaps test examples; count the classes."""
    import torch

    from smidgen.integrations.arrays import join_arrays, read_arrays

    if not 0 < held_out < 1:
        raise ArgumentError(f"--val-share must be in (0, 1), got {held_out}. Try 0.1.")
    column = int(label) if label.removeprefix("-").isdigit() else label
    everything = join_arrays([read_arrays(path, label=column) for path in train], train)
    count = max(1, round(held_out * len(everything)))
    parts = everything.split(count, torch.Generator().manual_seed(seed))
    data = dict(zip(("train", "validation"), parts, strict=True))
    if test is not None:
        data["test"] = read_arrays(test, label=column)
        # Joining refuses test examples of another shape.
        join_arrays([everything, data["test"]], [train[0], test])
        if data["test"].classes > everything.classes:
            raise DataError(
                f"{test} has a class {data['test'].classes - 1}, the training data have "
                f"0 to {everything.classes - 1}. Train on data with all classes."
            )
    return data, everything.classes


def _describe_network(
    kind: Literal["mlp", "resnet"], train: Arrays, classes: int, hidden: str, width: int
) -> PlainNetwork:
    from smidgen.sparse.architectures import PlainNetwork

    try:
        units = tuple(int(word) for word in hidden.split(",") if word.strip())
    except ValueError:
        raise ArgumentError(
            f"--hidden must be numbers of units such as 512,512, got {hidden!r}."
        ) from None
    return PlainNetwork(kind, tuple(train.inputs.shape[1:]), classes, units, width)


def _make_network(
    plain: PlainNetwork, train: Arrays, options: Mapping[str, Any]
) -> SparseNetwork:
    """Make the sparse network, which standardises its inputs by the training data."""
    from smidgen.integrations.arrays import measure_moments
    from smidgen.sparse import SparseSettings, make_sparse
    from smidgen.sparse.architectures import Standardise

    model = plain.build(options["seed"])
    first = model[0]
    assert isinstance(first, Standardise)
    first.measure(*measure_moments(train))
    names = ("budget", "scale", "prior", "deterministic")
    return make_sparse(
        model.to(options["device"]),
        settings=SparseSettings(**{name: options[name] for name in names}),
        **{name: options[name] for name in ("density", "start", "seed")},
    )


def _score(
    posterior: SparsePosterior, data: Mapping[str, Arrays], samples: int
) -> dict[str, dict[str, Any]]:
    """Score the predictions on the data that were held out, and print the scores."""
    from smidgen import evaluate, predict_batches
    from smidgen.integrations.arrays import ArrayBatches

    scores: dict[str, dict[str, Any]] = {}
    for name, arrays in data.items():
        if name == "train":
            continue
        batches = ArrayBatches(arrays, 1000)
        predictive = predict_batches(posterior, posterior.network, batches, samples=samples)
        summary = evaluate.summarise(predictive, arrays.labels)
        scores[name] = {score: interval.to_dict() for score, interval in summary.items()}
        error = summary["ece_equal_mass"]
        assert isinstance(error, evaluate.CalibrationError)
        out.print(
            f"  {name}: accuracy {summary['accuracy'].value:.1%}, NLL "
            f"{summary['nll'].value:.4f}, ECE {error.value:.3f} ({error.floor:.3f} by chance)"
        )
    return scores


def _draw(
    posterior: SparsePosterior, plain: PlainNetwork, picture: Path, say: Steps
) -> None:
    from smidgen.report.drawing.connectivity import connectivity_picture
    from smidgen.runtime.files import write_text

    epochs = [epoch.connectivity for epoch in posterior.history]
    first = next(iter(posterior.network.layers.values()))
    image = None
    # An image needs one column and one bin per pixel: no colours, no pooled columns.
    if len(plain.shape) == 3 and plain.shape[0] == 1:
        pixels = plain.shape[1] * plain.shape[2]
        if pixels == first.pattern.columns == len(next(iter(epochs[0].values()))):
            image = plain.shape[1:]
    write_text(picture, connectivity_picture(epochs, image=image))
    say(f"Drew its connectivity to {picture}")
