"""Better than temperature? Ways to choose precision and temperature, on four tasks.

    .venv/bin/python -m docs.build.recipes --data FOLDER --cache FOLDER --seeds 0 1 2 3 4

For each task and seed (`studies.finetuned` makes the point estimates) one curvature pass
fits every subset, one pass over validation data makes the table that every recipe chooses
from, and one over test data only reports. A record for each under `results/recipes/`; one
that is there is not made again.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from docs.build.finetuned import TASKS, Finetuned, finetuned

import smidgen
from smidgen import evaluate, fit, select
from smidgen.curvature.accumulate import accumulate
from smidgen.curvature.moments import MomentAccumulator
from smidgen.fit.calibration.objective import Objective
from smidgen.fit.calibration.precision import GRID, choose
from smidgen.outputs.predictive import CategoricalPredictive
from smidgen.outputs.problem import Problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.variance_table import VarianceTable, variance_table
from smidgen.runtime.record import Record
from smidgen.weights.blocks import find_blocks

PERCENTS = (1.0, 3.0, 10.0, 30.0)
# Every such batch of training data says which rows and columns are used most.
_SCORING_STEP = 5


def posteriors_of(made: Finetuned, problem: Problem) -> dict[str, LaplacePosterior]:
    """Fit every subset in one pass, and measure the 10 % block's basis in another."""
    train = list(made.loader(made.task.train))
    some = train[::_SCORING_STEP]
    model = problem.model
    by = {
        "random": select.scores.random(model, torch.Generator().manual_seed(0)),
        "activation": select.scores.activation(problem, some),
        "curvature": select.scores.curvature(problem, some),
    }
    subsets = {f"{p:g} %": select.sparse_kfac(model, percent=p) for p in PERCENTS}
    subsets["last layer"] = select.last_layer(model)
    for name, scores in by.items():
        subsets[f"10 % by {name}"] = select.sparse_kfac(model, percent=10, by=scores)
    found = fit.laplace_many(problem, train, subsets)
    base = found["10 %"]
    settled = Problem(model, base.likelihood)
    chosen = find_blocks(model, base.subset)
    sums = MomentAccumulator(settled, chosen, base.operators)
    measured = accumulate(sums, settled, train, chosen).finish().operators
    operators = {n: o.to(torch.float32) for n, o in measured.items()}
    found["10 % ekfac"] = smidgen.LaplacePosterior(
        subset=base.subset,
        likelihood=base.likelihood,
        operators=operators,
        precision=1.0,
        fingerprint=base.fingerprint,
        num_data=base.num_data,
        structure="ekfac",
    )
    return found


Parts = Mapping[str, Sequence[tuple[str, str]]]


def regrouped(table: VarianceTable, parts: Parts) -> VarianceTable:
    """Sum shares by the labels that have a precision each."""
    found = {
        label: torch.stack([table.covariance[share] for share in shares]).sum(0)
        for label, shares in parts.items()
    }
    return VarianceTable(table.outputs, table.targets, table.precisions, found)


class Bench:
    """The tables of one task and seed, and the scores of recipes on its test data."""

    def __init__(
        self,
        validation: VarianceTable,
        test: VarianceTable,
        evidence: Mapping[str, Mapping[str, float]],
    ) -> None:
        self.validation, self.test, self.evidence = validation, test, evidence
        self.likelihood = smidgen.Categorical(validation.outputs.shape[1])
        self.levels = list(dict.fromkeys(level for level, _ in validation.covariance))
        self.names = [n for level, n in validation.covariance if level == "10 %"]
        self.objective = Objective(
            self.likelihood, validation.outputs, validation.targets, "probit"
        )
        self.rows: dict[str, dict[str, Any]] = {}
        self.losses: dict[str, torch.Tensor] = {}

    def add(
        self, name: str, covariance: torch.Tensor, temperature: float, **noted: Any
    ) -> None:
        """Score a recipe on the test data."""
        found = self.likelihood.predictive(
            self.test.outputs,
            covariance.double(),
            link="probit",
            temperature=temperature,
            normals=torch.empty(0),
        )
        assert isinstance(found, CategoricalPredictive)
        self.losses[name] = evaluate.nll(found, self.test.targets)
        self.rows[name] = {
            "nll": float(self.losses[name].mean()),
            "ece": evaluate.expected_calibration_error(found, self.test.targets),
            "temperature": temperature,
            **noted,
        }

    def baselines(self) -> None:
        """The model as it is, and with a temperature."""
        none = torch.zeros(len(self.test.outputs), 1, 1)
        self.add("MAP", none, 1.0)
        self.add("temperature", none, float(self.objective.best(None)[0]))

    def parts(self, level: str, scope: str = "scalar", *, head: bool = False) -> Parts:
        """Shares of a level by label; `head` takes the whole last layer for its own."""
        names = [name for own, name in self.validation.covariance if own == level]
        last = self.names[-1]
        found: dict[str, list[tuple[str, str]]] = {}
        for name in names:
            group = "attention" if "attention" in name else "mlp"
            label = {"scalar": "all", "layer": name}.get(scope, group)
            if name == last and scope != "scalar":
                label = "head"
            whole = head and name == last
            found.setdefault(label, []).append(("last layer" if whole else level, name))
        return found

    def tuned(self, name: str, parts: Parts, *, jointly: bool = True) -> float:
        """Choose by validation NLL, report on test; returns the validation NLL."""
        validation, test = regrouped(self.validation, parts), regrouped(self.test, parts)
        curve, choice = choose(self.objective, validation, jointly=jointly)
        total = sum(test.at(label, tau) for label, tau in choice.precisions.items())
        assert isinstance(total, torch.Tensor)
        noted = {"precisions": dict(choice.precisions), "validation_nll": choice.nll}
        self.add(name, total, choice.scale, at_edge=curve.at_edge, **noted)
        return choice.nll

    def by_evidence(self, name: str, scope: str) -> None:
        """Precision by the marginal likelihood, then a temperature on validation data."""
        taus = self.evidence[scope]
        totals = [
            torch.stack(
                [
                    table.at(("10 %", each), min(max(tau, GRID[0]), GRID[-1]))
                    for each, tau in taus.items()
                ]
            ).sum(0)
            for table in (self.validation, self.test)
        ]
        scales, nlls = self.objective.best(totals[0][None])
        noted = {"precisions": dict(taus), "validation_nll": float(nlls)}
        self.add(name, totals[1], float(scales), **noted)


def run(bench: Bench) -> None:
    """Score every recipe."""
    parts = bench.parts
    bench.baselines()
    bench.tuned("10 %, precision alone", parts("10 %"), jointly=False)
    scored = {}
    for level in bench.levels:
        scored[level] = bench.tuned(f"{level}, joint", parts(level))
    for scope in ("group", "layer"):
        bench.tuned(f"10 %, joint, by {scope}", parts("10 %", scope))
    bench.tuned("10 % and the head, joint", parts("10 %", head=True))
    for scope in ("group", "layer"):
        found = parts("10 %", scope, head=True)
        bench.tuned(f"10 % and the head, joint, by {scope}", found)
    for level in ("3 %", "30 %", "10 % ekfac"):
        found = parts(level, "group", head=True)
        bench.tuned(f"{level} and the head, joint, by group", found)
    sizes = [f"{p:g} %" for p in PERCENTS]
    best = min([*sizes, "last layer"], key=scored.__getitem__)
    bench.tuned("best size or last layer, joint", parts(best))
    for scope in bench.evidence:
        bench.by_evidence(f"10 %, evidence by {scope}, temperature", scope)


def differences(bench: Bench) -> dict[str, dict[str, float]]:
    """Paired difference of each recipe's test NLL to temperature scaling."""
    base = bench.losses["temperature"]
    return {
        name: evaluate.paired_difference(loss, base).to_dict()
        for name, loss in bench.losses.items()
        if name not in ("MAP", "temperature")
    }


def bench_of(name: str, seed: int, data: Path, cache: Path) -> Bench:
    """Load the tables of a task and seed, or make them."""
    kept = cache / f"tables-{name.lower()}-seed{seed}.pt"
    if not kept.exists():
        made = finetuned(name, seed, data, cache)
        problem = Problem(made.model, smidgen.Categorical(2))
        posteriors = posteriors_of(made, problem)
        grid = torch.tensor(GRID, dtype=torch.float64)
        tables = [
            variance_table(problem, made.loader(table), posteriors, grid, "probit")
            for table in (made.task.validation, made.task.test)
        ]
        evidence = {
            scope: fit.tune_by_evidence(
                posteriors["10 %"],
                problem,
                scope=scope,  # type: ignore[arg-type]
            ).precisions
            for scope in ("scalar", "layer")
        }
        torch.save([*(vars(each) for each in tables), evidence], kept)
    validation, test, *rest = torch.load(kept, weights_only=False)
    evidence = rest[0] if rest else {}
    return Bench(VarianceTable(**validation), VarianceTable(**test), evidence)


def main() -> None:
    """Run the tasks and seeds that have no record yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path("results/recipes"))
    given = parser.parse_args()
    warnings.simplefilter("ignore", smidgen.SmidgenWarning)
    for seed in given.seeds:
        for name in given.tasks:
            target = given.out / f"{name.lower()}-seed{seed}.json"
            if target.exists():
                continue
            bench = bench_of(name, seed, given.data, given.cache)
            run(bench)
            config = {
                "task": name,
                "model": "all-MiniLM-L6-v2",
                "percents": list(PERCENTS),
                "approximation": "reduce",
                "link": "probit",
            }
            results = {
                "recipes": bench.rows,
                "differences_to_temperature": differences(bench),
                "data": {
                    "validation": len(bench.validation.targets),
                    "test": len(bench.test.targets),
                },
            }
            print(f"wrote {Record('recipes', config, results, seed=seed).save(target)}")


if __name__ == "__main__":
    main()
