"""The whole path of one architecture, and what the table says of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import smidgen
from smidgen.errors import SmidgenError, StructureError
from tests.zoo.architecture import Architecture

PERCENT = 30
_Result = TypeVar("_Result")


class Walk:
    """One architecture on its way; notes what is refused, and that it may be."""

    def __init__(self, own: Architecture) -> None:
        self.own, self.model = own, own.make()
        self.problem = own.pose(self.model)
        self.train, (self.held_out, self.test) = own.batches(2, 1), own.batches(2, 2)
        self.refused: dict[str, str] = {}

    def run(self, folder: Path) -> dict[str, Any]:
        """Choose, fit, plan, calibrate, predict, save, load and verify; say what was found."""
        started = time.process_time()
        subset, posterior = self._fit()
        # Of what was asked for: the fit may leave layers out, and the plan must take them.
        planned = smidgen.plan(self.problem, subset=subset, batch=self.train[0], examples=8)
        assert planned.chosen.seconds > 0, str(planned)
        assert planned.chosen.cost.weights == subset.size
        posterior = smidgen.calibrate(
            posterior, self.problem, [self.held_out], progress=False
        )
        predictive = smidgen.predict(posterior, self.problem, self.test)
        smidgen.save(posterior, folder / "posterior")
        loaded = smidgen.load(folder / "posterior", self.model)
        require_same_bits(predictive, smidgen.predict(loaded, self.problem, self.test))
        checks = self._verify()
        assert self.refused.keys() == self.own.refused.keys(), self.refused
        return {
            "name": self.own.name,
            "kind": self.own.kind,
            "task": self.own.task,
            "class": type(self.model).__name__,
            **count_weights(self.model, posterior.subset),
            **checks,
            "refused": self.refused,
            "seconds": round(time.process_time() - started, 2),
        }

    def _fit(self) -> tuple[smidgen.Subset, smidgen.LaplacePosterior]:
        """Fit a part of all layers and the whole last one, or what may be chosen of that."""
        body = smidgen.select.sparse_kfac(self.model, percent=PERCENT)
        last = self._try(
            "last layer", lambda: smidgen.select.last_layer(self.problem, self.train)
        )
        subset = body if last is None else body | last
        fitted = self._try("all layers", lambda: self._fit_laplace(subset))
        if fitted is None:
            assert last is not None
            return last, self._fit_laplace(last)
        return subset, fitted

    def _fit_laplace(self, subset: smidgen.Subset) -> smidgen.LaplacePosterior:
        return smidgen.fit.laplace(self.problem, self.train, subset, progress=False)

    def _verify(self) -> dict[str, int]:
        def verify() -> smidgen.Verification:
            found = smidgen.verify(self.problem, self.train[:1])
            if not found.agrees:
                raise StructureError(found.summary())
            return found

        found = self._try("verify", verify)
        if found is None:
            return {}
        skipped = sum(check.verdict.startswith("skipped") for check in found.checks)
        return {"agree": len(found.checks) - skipped, "lost": len(found.lost)}

    def _try(self, step: str, call: Callable[[], _Result]) -> _Result | None:
        """Do a step, or note how it is refused if the row says that it is."""
        try:
            return call()
        except SmidgenError as error:
            expected = self.own.refused.get(step)
            if expected is None or not re.search(expected, str(error)):
                raise
            self.refused[step] = str(error)
            return None


def count_weights(model: nn.Module, subset: smidgen.Subset) -> dict[str, Any]:
    """Count the weights of a model, those of layers that a fit covers, and the chosen ones."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    layers = smidgen.coverage(model).layers
    fitted = [each for each in layers if each.weight in subset.parts]
    covered = sum(prod(shape) for each in fitted for shape in each.shapes.values())
    return {
        "weights": weights,
        "covered": covered,
        "chosen": subset.size,
        "layers": len(layers),
        "fitted": len(fitted),
    }


def require_same_bits(one: smidgen.Predictive, other: smidgen.Predictive) -> None:
    """Require two predictives to be equal to the last bit, and finite."""
    tensors = {n: value for n, value in vars(one).items() if isinstance(value, Tensor)}
    assert tensors
    for name, value in tensors.items():
        assert torch.isfinite(value).all(), name
        assert torch.equal(value, getattr(other, name)), name
    assert torch.isfinite(one.entropy).all()
