"""`smidgen fit`: fit a posterior over a subset of the weights and calibrate it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

import smidgen
from smidgen.cli.completion.table import offer
from smidgen.cli.console import Steps, out, write_json
from smidgen.cli.options import budget, methods, noted, outputs
from smidgen.cli.options import select as selecting
from smidgen.cli.options import text as texts
from smidgen.cli.options.lists import require_files, require_one_of
from smidgen.cli.options.source import Source, TextModel, reads_model
from smidgen.curvature.factors.low_rank import TOLERANCE
from smidgen.curvature.factors.operator import Kronecker
from smidgen.curvature.kronecker import Approximation
from smidgen.curvature.operators import Isotropic
from smidgen.errors import ArgumentError
from smidgen.fit.calibration.groups import Scope
from smidgen.fit.calibration.precision import What
from smidgen.integrations.reading.splitting import group_rows
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.problem import declared_likelihood
from smidgen.posterior.base import Posterior
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.store import refuse_taken_posterior
from smidgen.runtime.writing.claim import Claim
from smidgen.runtime.writing.writable import require_space
from smidgen.select import SELECTORS
from smidgen.weights.blocks import find_body
from smidgen.workflows.bayesify.settings import BayesifySettings
from smidgen.workflows.fit_posterior import (
    CHECKPOINT_EVERY,
    FitChoices,
    estimate_size,
    fit_posterior,
    takes,
)
from smidgen.workflows.ramp.swag import SwagOptions

if TYPE_CHECKING:
    from smidgen.integrations.text import TextTable
    from smidgen.integrations.text_length import TextLength

# What a method's fit takes, and what its calibration takes.
_Arguments = tuple[dict[str, Any], dict[str, Any]]
HeldOut = Annotated[
    Path | None,
    Option(
        "--val",
        callback=require_files,
        help="Held-out data to calibrate on; by default the rows of --train that 'smidgen "
        "finetune' without --val left for it, which are then not fitted to.",
    ),
]
TrainedOn = Annotated[
    Path | None,
    Option(
        callback=require_files,
        help="The data the model was trained on; not needed for a classifier's --structure "
        "isotropic.",
    ),
]
ByHand = Annotated[
    str,
    Option(
        metavar="NAME",
        callback=require_one_of(SELECTORS),
        autocompletion=offer(SELECTORS),
        show_default=False,
        help="Fit one posterior over these weights, by default sparse-kfac. Without --select, "
        "--method, --structure and a size, several are tried, temperature scaling first, and "
        "the cheapest that is not clearly worse than the best on --val is kept. One of "
        f"{', '.join(SELECTORS)}.",
    ),
]
Calibrate = Annotated[What, Option(help="Laplace: what to choose on the held-out data.")]
PrecisionScope = Annotated[
    Scope, Option(help="Laplace: choose one prior precision, or one per group or layer.")
]


@reads_model
def fit(
    context: typer.Context,
    source: Source,
    folder: Annotated[Path, Option("--out", help="Folder for the posterior.")],
    train: TrainedOn = None,
    val: HeldOut = None,
    text: noted.Text = None,
    text_pair: noted.Pair = None,
    label: noted.Label = None,
    select: ByHand = "sparse-kfac",
    size: selecting.Size = None,
    percent: selecting.Percent = None,
    fraction: selecting.Fraction = None,
    count: selecting.Count = None,
    pattern: selecting.Patterns = None,
    seed: texts.Seed = 0,
    method: methods.Method = "laplace",
    structure: selecting.Structure = None,
    isotropic_body: selecting.IsotropicBody = False,
    calibrate: Calibrate = "joint",
    scope: PrecisionScope = "auto",
    approximation: selecting.CurvatureApproximation = "reduce",
    exact: selecting.Exact = False,
    steps: methods.Steps = 2000,
    every: methods.Every = 5,
    rank: methods.Rank = 20,
    rates: methods.Rates = None,
    trial_steps: methods.TrialSteps = 400,
    samples: methods.Samples = 32,
    density: methods.Density = None,
    memory: budget.Memory = None,
    seconds: budget.Seconds = None,
    batch_size: texts.BatchSize = 16,
    max_length: noted.MaxLength = None,
    overwrite: texts.Overwrite = False,
    json_file: texts.Json = None,
) -> None:
    """Make a trained model Bayesian: try the cheap things first, and keep what pays."""
    methods.refuse_unused(method, context)
    methods.check_density(density, context)
    settings = budget.read_budget(memory, seconds, by_hand=_is_by_hand(context))
    run = outputs.open_run(context, outputs.folder(folder, refuse_taken_posterior))
    seen = noted.find_seen(source, text, text_pair, label, max_length)
    rows = _Rows((train, val), seen, batch_size, seed)
    if not _is_by_hand(context):
        _bayesify_text(source, rows, folder, exact, json_file, run, settings)
        return
    sizes = {"size": size, "percent": percent, "fraction": fraction, "count": count}
    selection = selecting.read_selection(select, sizes=sizes, patterns=pattern, seed=seed)
    structure = selection.choose_structure(structure, isotropic_body)
    _check_together(method, structure, selection, exact=exact, trained_on=train)
    swag = methods.read_swag_options(steps, every, rank, rates, trial_steps, samples)
    laplace = _laplace_arguments(structure, approximation, calibrate, scope)
    arguments = _find_arguments(method, laplace, swag, density, seed)
    choices = FitChoices(
        method, folder, *arguments, **_keep(run, exact), isotropic_body=isotropic_body
    )
    chosen = selection if density is None else None
    posterior = _fit_text(source, rows, chosen, choices)
    _note_fit(choices, select if chosen else None, posterior, json_file, run)


# What chooses a posterior by hand, by the names in Python.
_BY_HAND = (
    *("select", "size", "percent", "fraction", "count", "pattern", "method"),
    *("structure", "isotropic_body", "calibrate", "scope", "approximation"),
    *("steps", "every", "rank", "rates", "trial_steps", "samples", "density"),
)


def _is_by_hand(context: typer.Context) -> bool:
    """Whether an option says which posterior to fit, or how."""
    sources = (context.get_parameter_source(name) for name in _BY_HAND)
    return any(source is not None and source.name != "DEFAULT" for source in sources)


def _bayesify_text(
    source: Source,
    rows: _Rows,
    folder: Path,
    exact: bool,
    json_file: Path | None,
    run: Claim,
    settings: BayesifySettings,
) -> None:
    """Try several posteriors, keep one, save it and print the account."""
    say = Steps()
    if rows.files[0] is None:
        raise _missing_training_data("the choice among posteriors, which fits them to it")
    loaded = source.load()
    tables = rows.read(loaded, say)
    seen, held_out = (loaded.batch(table, *rows.sizes) for table in tables)
    say("Trying temperature scaling, the last layer and deeper ones")
    posterior = smidgen.bayesify(
        loaded.problem,
        seen,
        held_out,
        groups=group_rows(tables[1].keys()),
        settings=settings,
        seed=rows.seed,
    )
    if isinstance(posterior, LaplacePosterior) and not exact:
        # At the precision just chosen, few eigenvectors matter.
        posterior = posterior.compress(TOLERANCE)
    smidgen.save(posterior, folder, overwrite=run.overwrite)
    say(f"Saved the posterior to {folder}")
    choice = posterior.choice
    assert choice is not None
    out.print(f"\n{choice}", soft_wrap=True)
    about = {"posterior": str(folder), "method": posterior.method, "kept": choice.kept}
    about["verdict"] = choice.verdict()
    write_json(json_file, {**about, **posterior.summary()})
    run.finish()


def _check_together(
    method: str,
    structure: str,
    selection: selecting.Selection,
    *,
    exact: bool,
    trained_on: Path | None,
) -> None:
    """Refuse an option that does nothing, and missing data that the others need."""
    if exact and structure != Kronecker.structure:
        raise ArgumentError(
            f"--exact is for --structure kron, whose factors it keeps whole, got {structure}, "
            "of which nothing is cut. Leave it out."
        )
    if trained_on is not None:
        return
    selector = selection.selector
    needing = {
        f"--method {method}, which fits to it": method != LaplacePosterior.method,
        f"--select {selector.name}, which scores weights by it": bool(
            selector.needs & {"batches", "scores"}
        ),
        f"--structure {structure}, which measures curvature on it": structure
        != Isotropic.structure,
    }
    for what, needs in needing.items():
        if needs:
            raise _missing_training_data(what)


def _missing_training_data(what: str) -> ArgumentError:
    return ArgumentError(
        f"--train must be given for {what}, got none. Give the data that the model was "
        "trained on; only --structure isotropic of a classifier needs none."
    )


@dataclass(frozen=True)
class _Rows:
    """Where the texts are: files to fit and to calibrate on, how to read them, the batches."""

    files: tuple[Path | None, Path | None]
    seen: noted.SeenTexts
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if self.files[1] is None:
            self.seen.require_held_out(self.files[0])

    @property
    def sizes(self) -> tuple[int, TextLength]:
        """Texts per batch, and tokens per text."""
        return self.batch_size, self.seen.length

    def read(self, loaded: TextModel, say: Steps) -> Sequence[TextTable]:
        """Read what to fit to, if there is any, and what to calibrate on."""
        paths = [path for path in self.files if path is not None]
        tables = [loaded.read(path, self.seen.columns) for path in paths]
        if self.files[1] is not None:
            return tables
        fitted, held_out = self.seen.divide(tables[0])
        say(f"Calibrating on {len(held_out):,} rows of {paths[0]} that training left")
        return fitted, held_out


def _fit_text(
    source: Source,
    rows: _Rows,
    selection: selecting.Selection | None,
    choices: FitChoices,
) -> Posterior:
    say = Steps()
    loaded = source.load()
    network = loaded.problem.model
    if rows.files[0] is None and isinstance(declared_likelihood(network), Gaussian):
        raise _missing_training_data("a regression, whose noise is fitted to it")
    tables = rows.read(loaded, say)
    # Without curvature one batch is read, to see the layers: a held-out one will do.
    seen, held_out = (loaded.batch(tables[i], *rows.sizes) for i in (0, -1))
    subset = None
    if selection is not None:
        subset = selection.choose(loaded.problem, seen, say)
    if takes(choices.method, "validation"):
        seen = loaded.batch(tables[0], *rows.sizes, shuffle=True, seed=rows.seed)
    if subset is None:
        chosen = "the largest weights of every layer"
    else:
        require_space(choices.folder, "--out", estimate_size(network, subset, choices))
        chosen = selecting.describe_subset(subset) + _describe(choices)
    if choices.isotropic_body and subset is not None:
        body = find_body(network, subset)
        chosen += f"; without curvature, {selecting.describe_subset(body)}"
    say(f"Fitting {choices.method} to {chosen}")
    posterior = fit_posterior(loaded.problem, seen, held_out, subset, choices, say=say)
    show_posterior(posterior)
    return posterior


def _keep(run: Claim, exact: bool) -> dict[str, Any]:
    """How the posterior is kept, and where a long fit leaves what it has."""
    return {
        "tolerance": None if exact else TOLERANCE,
        "checkpoint": run.place("training"),
        "overwrite": run.overwrite,
    }


def _note_fit(
    choices: FitChoices,
    selector: str | None,
    posterior: Posterior,
    json_file: Path | None,
    run: Claim,
) -> None:
    by = {} if selector is None else {"selector": selector}
    about = {"posterior": str(choices.folder), **by, "method": choices.method}
    write_json(json_file, {**about, **posterior.summary()})
    run.finish()


def _find_arguments(
    method: str, laplace: _Arguments, swag: SwagOptions, density: float | None, seed: int
) -> _Arguments:
    """Find what a method's fit takes, and its calibration; of others the seed alone."""
    known = {"laplace": laplace, "swag": _swag_arguments(swag, seed)}
    if density is not None:
        # The model is trained: its largest weights stay.
        sparse = smidgen.fit.SsviSettings(density=density, start="magnitude")
        known["ssvi"] = {"settings": sparse, "seed": seed}, {}
    return known.get(method, ({"seed": seed} if takes(method, "seed") else {}, {}))


def _laplace_arguments(
    structure: str, approximation: Approximation, what: What, scope: Scope
) -> _Arguments:
    settings = smidgen.fit.LaplaceSettings(approximation=approximation)
    calibration = smidgen.fit.CalibrationSettings(what=what, scope=scope)
    return {"structure": structure, "settings": settings}, {"settings": calibration}


def _swag_arguments(options: SwagOptions, seed: int) -> _Arguments:
    settings = options.settings(checkpoint_every=CHECKPOINT_EVERY)
    return {"settings": settings, "seed": seed}, {"samples": options.samples}


def _describe(choices: FitChoices) -> str:
    structure = choices.arguments.get("structure")
    return "" if structure is None else f" with structure {structure}"


def show_posterior(posterior: Posterior) -> None:
    """Print what was chosen on the held-out data."""
    calibration = posterior.calibration
    assert calibration is not None
    if isinstance(posterior.likelihood, Gaussian):
        scaled, scale = "MAP with its noise fitted", ""
    else:
        scaled, scale = "temperature scaling", f", temperature {posterior.temperature:.3g}"
    out.print(
        f"  {posterior.headline()}{scale}; {posterior.floats:,} floats\n"
        f"  validation NLL {calibration.chosen_nll:.4f}; MAP "
        f"{calibration.map_nll:.4f}; {scaled} {calibration.map_scaled_nll:.4f}"
    )
