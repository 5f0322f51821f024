"""One scheme of SWAG on a fine-tuned text model, its size chosen on validation data.

Points are noted as they are made, so a killed cell resumes where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen.report.names import label_method
from smidgen.runtime.record import BASELINES
from smidgen.workflows.ramp.swag import SwagOptions, SwagRampSettings, SwagScheme, swag_ramp
from smidgen_studies.data.text import TextData, draw
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Fractions, Rates, Several
from smidgen_studies.methods.text_models import load_needed_model

Data = TextData


@dataclass(frozen=True, kw_only=True)
class Settings(SwagOptions):
    """Which scheme, and the settings of `SwagRampSettings` that may differ."""

    scheme: SwagScheme
    rates: Rates | None = None
    fractions: Fractions = SwagRampSettings.fractions
    trial_samples: Several = SwagRampSettings.trial_samples

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Names of the methods that its record has."""
        return (f"swag-{self.scheme}",)


def run(job: Job) -> Mapping[str, Any]:
    """Collect the scheme's posteriors and report the best of them."""
    settings: Settings = job.settings
    model, tokenizer = load_needed_model(job)
    data = draw(job)
    loaders = data.loaders(tokenizer)
    others = {name: value for name, value in vars(settings).items() if name != "scheme"}
    ramp = SwagRampSettings(schemes=(settings.scheme,), **others, seed=job.seed)
    train = data.shuffled(tokenizer, job.seed)
    record = swag_ramp(
        model, train, loaders["validation"], loaders["test"], job.work / "points", ramp
    )
    return rename_schemes(record.results)


def rename_schemes(results: Mapping[str, Any]) -> dict[str, Any]:
    """Mark SWAG's schemes: those of the Laplace family have the same names."""
    methods = [
        {
            **method,
            "name": f"swag-{method['name']}",
            "label": label_method(method["name"], family="swag"),
        }
        for method in results["methods"]
        if method["name"] not in BASELINES
    ]
    ramp = results["ramp"]
    points = [{**point, "scheme": f"swag-{point['scheme']}"} for point in ramp["points"]]
    chosen = {f"swag-{name}": index for name, index in ramp["chosen"].items()}
    curves = {**ramp, "points": points, "chosen": chosen, "best": f"swag-{ramp['best']}"}
    return {
        "methods": methods,
        "ramp": curves,
        "data": results["data"],
        "seconds": results["seconds"],
    }
