"""Recipes: ways to choose precision and temperature for a fine-tuned text model.

One pass over training data fits every subset, one over validation data gives the table that
all recipes choose from, and one over test data only reports. It needs a cell of kind
`finetune`, which reports the point estimate and temperature scaling.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from smidgen import fit, select
from smidgen.errors import ArgumentError
from smidgen.fit.calibration.objective import Objective
from smidgen.fit.calibration.precision import GRID, choose_precisions
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.predictive import CategoricalPredictive
from smidgen.outputs.problem import Problem, SettledProblem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.variance_table import VarianceTable, variance_table
from smidgen.types import Batch
from smidgen.workflows.method import Method, score_methods
from smidgen_studies.data.text import TextData, draw
from smidgen_studies.engine.cell import Job
from smidgen_studies.methods.text_models import load_needed_model

RecipeScope = Literal["scalar", "group", "layer"]
Parts = Mapping[str, Sequence[tuple[str, str]]]
"""Blocks, each a level and a layer, by the label of their common precision."""

Data = TextData
_PERCENTS = (1.0, 3.0, 10.0, 30.0)
_SIZES = tuple(f"{percent:g} %" for percent in _PERCENTS)
_LEVELS = (
    *_SIZES,
    "last layer",
    *(f"10 % by {score}" for score in ("random", "activation", "curvature")),
    "10 % ekfac",
)
_BEST = "best size or last layer, joint"
_LINK = Categorical(2).resolve_link("auto")
_EVIDENCE: tuple[Literal["scalar", "layer"], ...] = ("scalar", "layer")
# One training batch in so many scores rows and columns by activation and curvature.
_SCORING_STEP = 5


@dataclass(frozen=True)
class Recipe:
    """Which posterior, how many precisions, and what is chosen.

    `head` takes the whole last layer in place of a level's part of it; `jointly` chooses a
    temperature together with the precisions.
    """

    level: str
    scope: RecipeScope = "scalar"
    head: bool = False
    jointly: bool = True

    @property
    def name(self) -> str:
        """Its name in records and for readers."""
        what = "joint" if self.jointly else "precision alone"
        by = "" if self.scope == "scalar" else f", by {self.scope}"
        return f"{self.level}{' and the head' * self.head}, {what}{by}"


RECIPES = (
    Recipe("10 %", jointly=False),
    *map(Recipe, _LEVELS),
    Recipe("10 %", "group"),
    Recipe("10 %", "layer"),
    Recipe("10 %", "scalar", head=True),
    Recipe("10 %", "group", head=True),
    Recipe("10 %", "layer", head=True),
    *(Recipe(level, "group", head=True) for level in ("3 %", "30 %", "10 % ekfac")),
)


@dataclass(frozen=True)
class Settings:
    """None: the recipes are those of `RECIPES`."""

    reported_methods = (
        *(recipe.name for recipe in RECIPES),
        _BEST,
        *(f"10 %, evidence by {scope}, temperature" for scope in _EVIDENCE),
    )


def run(job: Job) -> Mapping[str, Any]:
    """Score every recipe."""
    data = draw(job)
    if data.classes != 2:
        raise ArgumentError(
            f"data {data.about.name!r} must have 2 classes, got {data.classes}. These recipes "
            "are of one difference of logits: choose other data."
        )
    model, tokenizer = load_needed_model(job)
    loaders = data.loaders(tokenizer)
    problem = Problem(model).with_likelihood(Categorical(2))
    posteriors = _fit_levels(problem, list(loaders["train"]))
    grid = torch.tensor(GRID, dtype=torch.float64)
    held, test = (
        variance_table(problem, loaders[name], posteriors, grid, _LINK)
        for name in ("validation", "test")
    )
    tables = _Tables(held, test)
    evidence: dict[str, Mapping[str, float]] = {
        scope: fit.calibrate_by_evidence(
            posteriors["10 %"], problem, scope=scope
        ).precisions
        for scope in _EVIDENCE
    }
    methods = list(_apply_recipes(tables, evidence))
    results = score_methods(methods, tables.test.targets)
    return {**results, "precisions": tables.precisions, "data": data.sizes}


def _fit_levels(
    problem: SettledProblem, train: Sequence[Batch]
) -> dict[str, LaplacePosterior]:
    """Fit the posterior of every level."""
    model, some = problem.model, train[::_SCORING_STEP]
    by = {
        "random": select.scores.random(model, seed=0),
        "activation": select.scores.activation(problem, some),
        "curvature": select.scores.curvature(problem, some),
    }
    subsets = {f"{p:g} %": select.sparse_kfac(model, percent=p) for p in _PERCENTS}
    subsets["last layer"] = select.last_layer(problem, train)
    for name, scores in by.items():
        subsets[f"10 % by {name}"] = select.sparse_kfac(model, percent=10, by=scores)
    posteriors = fit.laplace_many(problem, train, subsets)
    ekfac = fit.laplace(problem, train, subsets["10 %"], structure="ekfac")
    return {**posteriors, "10 % ekfac": ekfac}


@dataclass
class _Tables:
    """Outputs and covariances of held-out and test data, and the precisions chosen so far."""

    validation: VarianceTable
    test: VarianceTable
    precisions: dict[str, dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.likelihood = Categorical(2)
        held = self.validation
        self.objective = Objective(self.likelihood, held.outputs, held.targets, _LINK)

    def parts(self, recipe: Recipe) -> Parts:
        """The blocks of a recipe by the label of their precision."""
        blocks: Any = self.validation.covariance
        layers = [layer for level, layer in blocks if level == recipe.level]
        last = {layer for level, layer in blocks if level == "last layer"}
        parts: dict[str, list[tuple[str, str]]] = {}
        for layer in layers:
            group = "attention" if "attention" in layer else "mlp"
            label = {"scalar": "all", "layer": layer}.get(recipe.scope, group)
            if layer in last and recipe.scope != "scalar":
                label = "head"
            level = "last layer" if recipe.head and layer in last else recipe.level
            parts.setdefault(label, []).append((level, layer))
        return parts

    def calibrate(self, recipe: Recipe, name: str | None = None) -> Method:
        """Choose by validation NLL and predict test data."""
        parts = self.parts(recipe)
        held, test = _sum_parts(self.validation, parts), _sum_parts(self.test, parts)
        _, choice = choose_precisions(self.objective, held, jointly=recipe.jointly)
        total = torch.stack([test.at(*pair) for pair in choice.precisions.items()]).sum(0)
        chosen = {str(label): value for label, value in choice.precisions.items()}
        return self.method(name or recipe.name, total, choice.scale, choice.nll, chosen)

    def calibrate_evidence(self, name: str, precisions: Mapping[str, float]) -> Method:
        """Take the precisions of the marginal likelihood, and choose a temperature."""
        held, test = (
            torch.stack(
                [
                    table.at(("10 %", layer), min(max(precision, GRID[0]), GRID[-1]))
                    for layer, precision in precisions.items()
                ]
            ).sum(0)
            for table in (self.validation, self.test)
        )
        scale, nll = self.objective.best(held[None])
        return self.method(name, test, float(scale), float(nll), dict(precisions))

    def method(
        self,
        name: str,
        covariance: Tensor,
        temperature: float,
        validation_nll: float,
        precisions: dict[str, float],
    ) -> Method:
        """Predict test data under a covariance (N, 1, 1) and a temperature."""
        predictive = self.likelihood.predictive(
            self.test.outputs,
            covariance.double(),
            link=_LINK,
            temperature=temperature,
        )
        assert isinstance(predictive, CategoricalPredictive)
        self.precisions[name] = precisions
        settings = {"temperature": temperature, "validation_nll": validation_nll}
        return Method(name, predictive, settings=settings)


def _apply_recipes(
    tables: _Tables, evidence: Mapping[str, Mapping[str, float]]
) -> Iterator[Method]:
    """Apply every recipe, and the size that validation data choose."""
    nll: dict[str, float] = {}
    for recipe in RECIPES:
        method = tables.calibrate(recipe)
        nll[recipe.name] = float(method.settings["validation_nll"] or 0.0)
        yield method
    sizes = [Recipe(level) for level in (*_SIZES, "last layer")]
    yield tables.calibrate(min(sizes, key=lambda recipe: nll[recipe.name]), _BEST)
    for scope, precisions in evidence.items():
        yield tables.calibrate_evidence(
            f"10 %, evidence by {scope}, temperature", precisions
        )


def _sum_parts(table: VarianceTable, parts: Parts) -> VarianceTable:
    """Sum covariances by the labels that have a precision each."""
    sums: dict[Hashable, Tensor] = {
        label: torch.stack([table.covariance[block] for block in blocks]).sum(0)
        for label, blocks in parts.items()
    }
    return VarianceTable(table.outputs, table.targets, table.precisions, sums)
