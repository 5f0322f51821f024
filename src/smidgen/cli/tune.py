"""`smidgen tune`: find the few weights worth tuning, tune them, and fit a posterior."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from smidgen.cli import swag, texts
from smidgen.cli.chain_table import show_chain
from smidgen.cli.console import Steps, check_free, out, write_json
from smidgen.cli.finetune import show_history
from smidgen.cli.fit import show_posterior
from smidgen.cli.tuning_data import TuningData, load_data
from smidgen.fit.langevin import NOISE_DISCOUNT, TEMPERATURE, Update
from smidgen.fit.stopping import Criterion

if TYPE_CHECKING:
    from smidgen.delta import Delta
    from smidgen.fit import Scales, SparselyFinetuned
    from smidgen.posterior import Posterior
    from smidgen.subset import Subset
    from smidgen.swag import SwagPosterior

Kind = Literal["laplace", "swag", "none"]
_FRACTION = 0.005
_DELTA, _MODEL, _POSTERIOR = "delta.safetensors", "model", "posterior"
_RECORD, _PAGE = "record.json", "report.html"
_STATES = {"chain": "chain.safetensors", "tuning": "tuning.safetensors"}


Val = Annotated[
    Path | None,
    typer.Option(help="Held-out data that decide when to stop; else a tenth of --train."),
]
Fraction = Annotated[
    float | None, typer.Option(help="Share of weights to tune; 0.005 if no rule is given.")
]
Threshold = Annotated[
    float | None, typer.Option(help="Tune all weights of a larger scale instead.")
]
Elbow = Annotated[
    bool, typer.Option("--elbow", help="Tune up to the elbow of the scales instead.")
]
Temperature = Annotated[
    float | None,
    typer.Option(help=f"Of the chain's likelihood; {TEMPERATURE:g} if left out."),
]
Discount = Annotated[
    float | None,
    typer.Option(help=f"Factor on the chain's noise; {NOISE_DISCOUNT:g} if left out."),
]
Halves = Annotated[
    bool, typer.Option("--agreement", help="Compare chains on halves of the data too.")
]
Gain = Annotated[
    Criterion | None, typer.Option(help="What a gain is; accuracy for classes, else nll.")
]
State = Annotated[
    Path | None, typer.Option(help="Folder to go on from after an interruption.")
]


def tune(
    model: texts.Model,
    train: Annotated[Path, typer.Option(help="Training data: TSV, CSV, JSONL or Parquet.")],
    val: Val = None,
    folder: Annotated[Path, typer.Option("--out", help="Where all goes.")] = Path("tuned"),
    text: texts.Text = "text",
    text_pair: texts.Pair = None,
    label: texts.Label = "label",
    fraction: Fraction = None,
    threshold: Threshold = None,
    elbow: Elbow = False,
    posterior: Annotated[Kind, typer.Option(help="Over the tuned weights.")] = "laplace",
    chain_epochs: Annotated[int, typer.Option(min=1, help="Length of the chain.")] = 2,
    temperature: Temperature = None,
    noise_discount: Discount = None,
    update: Annotated[Update, typer.Option(help="How the chain moves.")] = "langevin",
    agreement: Halves = False,
    epochs: Annotated[int, typer.Option(min=1, help="Most epochs of tuning.")] = 5,
    learning_rate: Annotated[float, typer.Option("--lr", help="Peak rate.")] = 1e-3,
    patience: Annotated[int, typer.Option(min=1, help="Epochs without gain.")] = 2,
    stop_on: Gain = None,
    half: Annotated[bool, typer.Option("--half", help="Keep differences in fp16.")] = False,
    checkpoint: State = None,
    batch_size: texts.BatchSize = 16,
    max_length: texts.MaxLength = 128,
    seed: Annotated[int, typer.Option(help="Seed of head, order and noise.")] = 0,
    device: texts.Device = "auto",
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Tune the few weights worth it, keep them as a small delta, and fit a posterior."""
    rule = _rule(fraction, threshold, elbow)
    overwrite = overwrite or _interrupted(checkpoint, folder)
    _check_free(folder, overwrite, json_file)
    columns = (text, text_pair, label)
    data = load_data(model, (train, val), columns, batch_size, max_length, seed, device)
    how = {
        "temperature": temperature,
        "noise_discount": noise_discount,
        "update": update,
        "seed": seed,
    }
    tuning = {
        "epochs": epochs,
        "learning_rate": learning_rate,
        "patience": patience,
        "stop_on": stop_on,
        "seed": seed,
    }
    asked = _Asked(rule, posterior, chain_epochs, how, tuning, agreement, half, checkpoint)
    summary = _run(data, asked, folder, overwrite)
    write_json(json_file, summary)
    given: dict[str, Any] = {"model": model, "train": str(train), "val": val and str(val)}
    given |= {"columns": columns, "batch_size": batch_size, "max_length": max_length}
    given |= {"head": data.head_modules}
    _report({**given, **asked.to_dict()}, summary, folder)
    asked.forget()


@dataclass(frozen=True)
class _Asked:
    """What is to be done with the data."""

    rule: dict[str, Any]
    posterior: Kind
    chain_epochs: int
    chain: dict[str, Any]
    tuning: dict[str, Any]
    agreement: bool
    half: bool
    checkpoint: Path | None

    def file(self, name: str) -> Path | None:
        """Where the state of a stage goes, if anywhere."""
        return None if self.checkpoint is None else self.checkpoint / _STATES[name]

    def forget(self) -> None:
        """Remove the states: all is done."""
        for stage in _STATES:
            state = self.file(stage)
            if state is not None:
                state.unlink(missing_ok=True)

    def to_dict(self) -> dict[str, Any]:
        """As a record holds it, defaults filled in."""
        chain = dict(self.chain)
        if chain["update"] == "langevin":
            defaults = {"temperature": TEMPERATURE, "noise_discount": NOISE_DISCOUNT}
            chain |= {n: d for n, d in defaults.items() if chain[n] is None}
        return {
            "rule": self.rule,
            "chain": {"epochs": self.chain_epochs, **chain},
            "tuning": self.tuning,
            "posterior": self.posterior,
            "half": self.half,
        }


def _run(data: TuningData, asked: _Asked, folder: Path, overwrite: bool) -> dict[str, Any]:
    """Do all of it, and return what was found as JSON takes it."""
    from smidgen import fit
    from smidgen.memory import readable

    say = Steps()
    network = data.network
    loaders = data.batches(data.tables[0], shuffle=True), data.batches(data.tables[1])
    say("Sampling the scales")
    scales = _sampled(data, loaders[0], asked)
    subset, fraction = _chosen(data, scales, asked.rule)
    summary: dict[str, Any] = {"chain": scales.to_dict(fraction)}
    if asked.agreement:
        say("Sampling on two halves of the data")
        summary["agreement"] = _agreement(data, asked, fraction)
    say(f"Tuning {subset.size:,} weights")
    state = asked.file("tuning")
    train, held = loaders
    how = {**asked.tuning, "head": data.head, "checkpoint": state}
    found = fit.sparse_finetune(network, train, subset, held, **how)
    show_history(found.history, found.best)
    delta = found.delta.half() if asked.half else found.delta
    tuned, size = _saved(delta, network, data.tokenizer, folder, overwrite)
    say(f"Saved {folder / _DELTA}, {readable(size)}, and the model beside it")
    summary = {**_summary(found, data, folder, size), **summary}
    if asked.posterior != "none":
        say("Fitting a posterior over the tuned weights")
        place, seed = folder / _POSTERIOR, asked.tuning["seed"]
        fitted = _fitted(asked.posterior, tuned, loaders, subset, place, seed, say)
        summary["posterior"] = _keep(fitted, place, asked.posterior, overwrite, say)
    return summary


def _rule(fraction: float | None, threshold: float | None, elbow: bool) -> dict[str, Any]:
    """Settle how many weights are chosen, before any work is done."""
    from smidgen.errors import ArgumentError
    from smidgen.select.top import fraction_share

    if (fraction is not None) + (threshold is not None) + elbow > 1:
        raise ArgumentError("give one of --fraction, --threshold and --elbow, not several.")
    if threshold is not None or elbow:
        return {"threshold": threshold, "elbow": elbow}
    return {"fraction": fraction_share(_FRACTION if fraction is None else fraction)}


def _interrupted(checkpoint: Path | None, folder: Path) -> bool:
    """Whether an interrupted run of this checkpoint left the folder, to be gone on with."""
    from smidgen.errors import ArgumentError

    if checkpoint is None:
        return False
    if checkpoint.resolve() == folder.resolve():
        raise ArgumentError(
            f"--checkpoint must be a folder of its own, got {str(checkpoint)!r}, which is "
            "--out. Give another, and the same one again to go on."
        )
    left = any((checkpoint / name).is_file() for name in _STATES.values())
    # The record is written last: where there is one, a run has ended.
    return left and not (folder / _RECORD).exists()


def _check_free(folder: Path, overwrite: bool, json_file: Path | None) -> None:
    """Refuse to write over anything, or to end without a page, before work is done."""
    import smidgen.report  # noqa: F401  What it needs may not be installed.
    from smidgen.integrations import huggingface
    from smidgen.store import check_free as check_posterior

    huggingface.check_free(folder / _MODEL, overwrite)
    check_posterior(folder / _POSTERIOR, overwrite)
    files = (folder / name for name in (_DELTA, _RECORD, _PAGE))
    check_free(overwrite, *files, json_file)


def _course(batches: int, epochs: int) -> dict[str, Any]:
    """The length of a chain; half of it is burn-in."""
    steps = max(40, epochs * batches)
    return {"steps": steps, "burn_in": steps // 2, "thin": steps // 40}


def _sampled(data: TuningData, loader: Any, asked: _Asked) -> Scales:
    """Run the chain."""
    from smidgen import fit

    how = {**_course(len(loader), asked.chain_epochs), **asked.chain, "head": data.head}
    return fit.langevin(data.network, loader, **how, checkpoint=asked.file("chain"))


def _agreement(data: TuningData, asked: _Asked, fraction: float) -> dict[str, float]:
    """Run a chain on each half of the data, and say how much they agree."""
    from smidgen import fit

    table = data.tables[0]
    halves = [
        data.batches(table.take(range(start, len(table), 2)), shuffle=True)
        for start in (0, 1)
    ]
    course = _course(len(halves[0]), asked.chain_epochs)
    chain = {**course, **asked.chain, "head": data.head}
    found = fit.agreement(data.network, *halves, fraction=fraction, **chain)
    out.print(
        f"  chains on two halves of the data agree on {found.overlap:.0%}, by chance on "
        f"{found.chance:.1%}"
    )
    return found.to_dict()


def _chosen(data: TuningData, scales: Scales, rule: dict[str, Any]) -> tuple[Subset, float]:
    """Choose by the scales, and say what is known of the choice; its fraction."""
    from smidgen import select
    from smidgen.report.tuned import tuned_weights

    subset = select.bayestune(data.network, scales.means, **rule, head=data.head)
    chosen = subset.size - data.head_size
    fraction = rule.get("fraction", chosen / scales.size)
    out.print(f"  {tuned_weights(subset.size, data.head_size)}")
    out.print(f"  the head is {', '.join(data.head_modules)}")
    show_chain(scales, fraction)
    return subset, fraction


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
    found: SparselyFinetuned, data: TuningData, folder: Path, size: int
) -> dict[str, Any]:
    """Everything that was found, as JSON takes it."""
    whole = sum(each.numel() for each in found.delta.replaced.values())
    return {
        "delta": str(folder / _DELTA),
        "bytes": size,
        "weights": found.delta.subset.size + whole,
        "head": data.head_size,
        "best": asdict(found.best),
        "history": [asdict(each) for each in found.history],
    }


def _report(config: dict[str, Any], summary: dict[str, Any], folder: Path) -> None:
    """Keep the run as a record, and show it as a page."""
    from smidgen.record import Record
    from smidgen.report import write

    # A hub's id is a name; a folder may be anywhere.
    model = config["model"]
    name = Path(model).resolve().name if Path(model).is_dir() else model
    title = f"{name}, tuned on {Path(config['train']).name}"
    record = Record("tune", {"title": title, **config}, summary, config["tuning"]["seed"])
    record.save(folder / _RECORD)
    out.print(f"wrote {write(record, folder / _PAGE)}")


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
    loaders: tuple[Any, Any],
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
    found = fit.laplace(tuned, loaders[0], _affine(tuned, subset, say), structure="diag")
    return fit.tune_precision(found, tuned, loaders[1])


def _affine(model: Any, subset: Subset, say: Steps) -> Subset:
    """What a Laplace posterior can hold: a new head may have a norm between its maps."""
    from smidgen.affine import coverage
    from smidgen.subset import Subset

    universe = coverage(model).universe
    parts = {name: part for name, part in subset.parts.items() if name in universe}
    if len(parts) == len(subset.parts):
        return subset
    kept = Subset(universe, parts)
    say(f"Leaving {subset.size - kept.size:,} weights out that are of no affine map")
    return kept
