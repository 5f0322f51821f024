"""One scheme of SWAG on a fine-tuned text model, its size chosen on validation data.

Points are noted as they are made, so a killed cell goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen.fit.swag import SwagOptions
from smidgen.report.names import label_method
from smidgen.runtime.record import BASELINES
from smidgen.workflows.ramp.swag import SwagRampSettings, SwagScheme, swag_ramp
from smidgen_studies.data.text import TextData, draw
from smidgen_studies.engine.cell import Job, read_settings
from smidgen_studies.engine.settings import Rates, Several, Shares
from smidgen_studies.methods.text_models import needed_model

Data = TextData


@dataclass(frozen=True, kw_only=True)
class Settings(SwagOptions):
    """Which scheme, and what of `SwagRampSettings` is told otherwise."""

    scheme: SwagScheme
    rates: Rates | None = None
    fractions: Shares = SwagRampSettings.fractions
    trial_samples: Several = SwagRampSettings.trial_samples

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Names of the methods that its record has."""
        return (f"swag-{self.scheme}",)


def run(job: Job) -> Mapping[str, Any]:
    """Collect the scheme's posteriors and report the best of them."""
    told = read_settings(Settings, job.settings, "swag")
    model, tokenizer = needed_model(job)
    data = draw(job)
    loaders = data.loaders(tokenizer)
    own = {name: value for name, value in vars(told).items() if name != "scheme"}
    settings = SwagRampSettings(schemes=(told.scheme,), **own, seed=job.seed)
    train = data.shuffled(tokenizer, job.seed)
    record = swag_ramp(
        model, train, loaders["validation"], loaders["test"], job.work / "points", settings
    )
    return renamed(record.results)


def renamed(results: Mapping[str, Any]) -> dict[str, Any]:
    """Tell SWAG's schemes from those of the Laplace family, which have the same names."""
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
    points = [{**each, "scheme": f"swag-{each['scheme']}"} for each in ramp["points"]]
    chosen = {f"swag-{name}": place for name, place in ramp["chosen"].items()}
    curves = {**ramp, "points": points, "chosen": chosen, "best": f"swag-{ramp['best']}"}
    kept = {name: results[name] for name in ("data", "seconds")}
    return {"methods": methods, "ramp": curves, **kept}
