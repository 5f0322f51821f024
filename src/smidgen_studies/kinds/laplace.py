"""Every Laplace scheme and size of a fine-tuned text model, from one pass over each set.

The results are those of `smidgen ramp`, the baselines left to the cell that made the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from smidgen.curvature.kronecker import Approximation
from smidgen.runtime.record import BASELINES
from smidgen.workflows.ramp.laplace import PERCENTS, RampSettings, ramp
from smidgen.workflows.ramp.schemes import SCHEMES, Scheme
from smidgen_studies.data.text import TextData, draw
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Count, Fraction, Percents, Rule
from smidgen_studies.methods.text_models import load_needed_model

Data = TextData
# A cell's key says what its study sets and no default, so the schemes that records of these
# keys have stay the default. A study names those without curvature if it wants them.
_USUAL = SCHEMES[: SCHEMES.index("isotropic")]
_SOME = Rule(f"some of {', '.join(SCHEMES)}", bool)


@dataclass(frozen=True)
class Settings:
    """What is tried."""

    schemes: Annotated[tuple[Scheme, ...], _SOME] = _USUAL
    percents: Percents = PERCENTS
    repeats: Count = 5
    most_stochastic: Fraction = 0.1
    approximation: Approximation = "reduce"

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Names of the methods that its record has."""
        return self.schemes


def run(job: Job) -> Mapping[str, Any]:
    """Run the ramping study."""
    settings: Settings = job.settings
    model, tokenizer = load_needed_model(job)
    loaders = draw(job).loaders(tokenizer)
    sets = (loaders["train"], loaders["validation"], loaders["test"])
    record = ramp(model, *sets, RampSettings(**vars(settings), seed=job.seed)).record
    results = dict(record.results)
    results["methods"] = [m for m in results["methods"] if m["name"] not in BASELINES]
    return results
