"""Did it help? Posteriors beside the point estimate and temperature scaling on test data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from smidgen import report
from smidgen.errors import (
    ArgumentError,
    DataError,
    as_path,
    fill_settings,
    require_kind,
    warn,
)
from smidgen.fit.calibration.samples import HeldOut
from smidgen.outputs.likelihood import Gaussian, Likelihood
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.posterior.base import Posterior
from smidgen.report import fields
from smidgen.report.one_record import tables
from smidgen.report.one_record.verdict import list_sides
from smidgen.runtime.record import BASELINES, Record
from smidgen.runtime.showing.html import Printed, PrintedTable
from smidgen.types import Batch
from smidgen.weights.affine import coverage
from smidgen.weights.blocks import find_blocks
from smidgen.weights.subset import Subset
from smidgen.workflows.decisions.score import add_decisions, find_rows
from smidgen.workflows.decisions.settings import CompareSettings
from smidgen.workflows.method import (
    predict_point,
    predict_posterior,
    predict_shifted,
    read_examples,
    score_methods,
)
from smidgen.workflows.naming import label_posterior, name_posterior

Posteriors = Posterior | Sequence[Posterior] | Mapping[str, Posterior]
_PREFERRED = "sparse-kfac"


@dataclass(frozen=True)
class Comparison(Record):
    """The record of a comparison: print it, or write its page."""

    def report(self, path: str | Path) -> Path:
        """Write the comparison as one HTML page that needs no network.

        Args:
            path: The file; missing folders are made.

        Returns:
            The path.
        """
        return report.write(self, as_path("path", path))

    def printed_parts(self) -> list[Printed]:
        """List the table of scores and the verdict."""
        headings = ("", *(column.plain_heading for column in tables.list_columns(self)))
        rows = [
            (row.label, *(cell.plain_text for cell in row.cells))
            for row in report.score_rows(self)
        ]
        lines = [*report.verdict(self), *list_sides(self), *self.results.get("notes", ())]
        if "choice" in self.results:
            lines.append(f"Chosen on held-out rows: {self.results['choice']['verdict']}")
        return [PrintedTable([headings, *rows]), "", *lines]


def compare(
    model: nn.Module | Problem,
    posteriors: Posteriors,
    test: Iterable[Batch],
    *,
    validation: Iterable[Batch] | None = None,
    shifted: Mapping[str, Iterable[Batch]] | None = None,
    config: Mapping[str, Any] | None = None,
    settings: CompareSettings | None = None,
    progress: bool = True,
) -> Comparison:
    """Score posteriors, the point estimate and temperature scaling on test data.

    Works for classification, multi-label classification and regression; a regression's
    noise variance takes the place of the temperature. The test data choose nothing. Beside
    the scores it says what to do: how many answers each method may give with few errors,
    what intervals hold, and which rows a person should look at.

    Args:
        model: The model, or its `Problem`: the MAP. It is not changed.
        posteriors: One posterior, several, or several by name. Without names, each is
            named after its method and the selector of its weights.
        test: Labelled test batches from any loader, read once.
        validation: Held-out batches that fit the temperature of temperature scaling. By
            default it is the one found when a posterior was calibrated.
        shifted: Shifted data by name, with or without labels. Their uncertainty should
            tell them apart from the test data.
        config: What else to note in the record.
        settings: Rules to try on the test rows, texts to show of them, names of the classes
            and the errors that automated answers may have.
        progress: Show progress bars.

    Returns:
        The record. Print it for a table and a verdict; `report` writes a page.
    """
    network = as_problem(model).model
    if shifted is not None:
        require_kind("shifted", shifted, Mapping, "Give them a name: {'news': loader}")
    settings = fill_settings(settings, CompareSettings)
    named = _name_posteriors(posteriors)
    likelihood = next(iter(named.values())).likelihood
    problem = as_problem(model).with_likelihood(likelihood)
    scale = _find_scale(problem, named, validation, progress)
    problem = problem.with_likelihood(_point_likelihood(named, scale))
    examples = read_examples(problem, test, progress=progress)
    methods, targets = predict_point(problem.likelihood, examples, scale)
    rows = find_rows(settings, network, examples, methods[0].predictive)
    for name, posterior in named.items():
        label = label_posterior(posterior) if not isinstance(posteriors, Mapping) else None
        methods.append(
            predict_posterior(
                name, posterior, problem, examples, label=label, progress=progress
            )
        )
    methods = predict_shifted(methods, named, problem, shifted or {}, progress=progress)
    results = score_methods(methods, targets)
    if scale is None:
        results["notes"] = [
            "Temperature scaling is missing: no posterior of this model's weights was "
            "calibrated, and no validation data were given."
        ]
    results |= _describe(network, named, len(targets))
    results = add_decisions(results, methods, rows, settings, results["primary"])
    record = Comparison("evaluate", {**(config or {}), **_settings(named)}, results)
    _warn_if_worse(record)
    return record


def _warn_if_worse(record: Record) -> None:
    """Say which posteriors have a clearly higher NLL than temperature scaling."""
    scaling = fields.name_scaling(record)
    worse = [
        f"{gap['method']} (by {gap['value']:.4f}, {gap['low']:.4f} to {gap['high']:.4f})"
        for gap in record.results["differences"]
        if (gap["baseline"], gap["score"]) == (BASELINES[1], "nll") and gap["low"] > 0
    ]
    if worse:
        warn(
            f"worse than {scaling} on these test data, in NLL: {', '.join(worse)}. "
            f"{scaling.capitalize()} is enough here, or calibrate the posterior on more "
            "validation data."
        )


def _name_posteriors(posteriors: Posteriors) -> dict[str, Posterior]:
    """Give every posterior a different name."""
    if isinstance(posteriors, Mapping):
        for name in posteriors:
            require_kind("the name of a posterior", name, str, "Choose another name")
            if not name.strip() or name in BASELINES:
                raise ArgumentError(
                    f"the name of a posterior must be none of {', '.join(BASELINES)}, got "
                    f"{name!r}. Choose another name."
                )
        named = dict(posteriors)
    else:
        several: Any = [posteriors] if isinstance(posteriors, Posterior) else posteriors
        if isinstance(several, str) or not isinstance(several, Iterable):
            raise ArgumentError(
                f"posteriors must be one posterior, several, or several by name, got "
                f"{posteriors!r}. The order is (model, posteriors, test)."
            )
        several = list(several)
        _check_kinds(several)
        named = {}
        for posterior in several:
            first = name_posterior(posterior, several)
            names = (first, *(f"{first}-{number}" for number in range(2, len(several) + 1)))
            named[next(name for name in names if name not in named)] = posterior
    if not named:
        raise ArgumentError(
            "posteriors must be one posterior or more, got none. Fit one with smidgen.fit."
        )
    _check_kinds(named.values())
    kinds = {(p.likelihood.kind, p.likelihood.outputs) for p in named.values()}
    if len(kinds) > 1:
        raise ArgumentError(
            f"posteriors must be of one model, got likelihoods {sorted(kinds)}. Compare "
            "those of each model separately."
        )
    return named


def _check_kinds(posteriors: Iterable[object]) -> None:
    for posterior in posteriors:
        advice = "The order is (model, posteriors, test)"
        require_kind("posteriors", posterior, Posterior, advice)


def _find_scale(
    problem: SettledProblem,
    posteriors: Mapping[str, Posterior],
    validation: Iterable[Batch] | None,
    progress: bool,
) -> float | None:
    """Fit the model's temperature or noise on held-out data, or look it up."""
    if validation is None:
        # Of a posterior with weights of its own, SSVI's, the scale is that of its means.
        centred = (
            p for p in posteriors.values() if p.point_model(problem.model) is problem.model
        )
        calibrations = (p.calibration for p in centred)
        return next((c.map_scale for c in calibrations if c is not None), None)
    data = read_examples(problem, validation, progress=progress)
    if data.targets is None:
        raise DataError(
            "validation must be labelled, got batches with -100 alone. Pass labelled data."
        )
    outputs, likelihood = data.outputs, problem.likelihood
    targets = likelihood.check_targets(outputs, data.targets)
    point = outputs[None]
    return HeldOut(likelihood, point, point, targets).best(point)[0]


def _point_likelihood(
    posteriors: Mapping[str, Posterior], scale: float | None
) -> Likelihood:
    """Return the likelihood of the point estimate, a regression's with noise of its own."""
    first = next(iter(posteriors.values())).likelihood
    if not isinstance(first, Gaussian):
        return first
    # A linearised posterior has the noise of the model's residuals on the training data, as
    # it was before its calibration; those of draws suit the draws and not the model.
    for posterior in posteriors.values():
        if posterior.linearised:
            noise = getattr(
                posterior.calibration, "fixed_scale", posterior.likelihood.scale
            )
            return replace(first, noise=noise)
    return first if scale is None else replace(first, noise=scale)


def _find_primary(posteriors: Mapping[str, Posterior]) -> str:
    """Name the posterior that the verdict is about: held-out data choose, never test data."""
    scores = {
        name: posterior.calibration.chosen_nll
        for name, posterior in posteriors.items()
        if posterior.calibration is not None
        and posterior.calibration.chosen_nll is not None
    }
    if len(scores) == len(posteriors):
        return min(scores, key=lambda name: scores[name])
    return _PREFERRED if _PREFERRED in posteriors else next(iter(posteriors))


def _describe(
    network: nn.Module, posteriors: Mapping[str, Posterior], examples: int
) -> dict[str, Any]:
    """Describe the subset, the data and the choice of the precision for a record."""
    primary = _find_primary(posteriors)
    posterior = posteriors[primary]
    results: dict[str, Any] = {
        "primary": primary,
        "subset": describe_subset(network, posterior.subset),
        "data": {"train": posterior.num_data, "test": examples},
    }
    if posterior.calibration is not None:
        results["data"]["validation"] = posterior.calibration.examples
    choices = [p.choice for p in posteriors.values() if p.choice is not None]
    if choices:
        # Of several the primary one's, else the first.
        results["choice"] = (posterior.choice or choices[0]).describe()
    curve = posterior.precision_curve()
    return results if curve is None else {**results, "precision_curve": curve}


def _settings(posteriors: Mapping[str, Posterior]) -> dict[str, Any]:
    """Describe the posteriors for the configuration of a record."""
    settings = {name: p.record_config() for name, p in posteriors.items()}
    for name, posterior in posteriors.items():
        if posterior.subset.origin is not None:
            settings[name]["select"] = str(posterior.subset.origin)
    return settings.popitem()[1] if len(settings) == 1 else {"posteriors": settings}


def describe_subset(model: nn.Module, subset: Subset) -> dict[str, Any]:
    """List which rows and columns of which layer are stochastic, for a picture."""
    affine, origin = coverage(model).universe, subset.origin
    parts = {name: part for name, part in subset.parts.items() if name in affine}
    blocks = find_blocks(model, Subset(subset.universe, parts)) if parts else ()
    percent = None if origin is None else origin.settings.get("percent")
    return {
        **({} if percent is None else {"percent": percent}),
        **({} if origin is None else {"origin": origin.to_json()}),
        "size": subset.size,
        "total": subset.total,
        "fraction": subset.fraction,
        "maps": [
            {
                "name": block.layer.name,
                "group": block.layer.group,
                "outputs": block.layer.outputs,
                "inputs": block.layer.inputs,
                "rows": block.rows.tolist(),
                "columns": block.columns.tolist(),
            }
            for block in blocks
        ],
    }
