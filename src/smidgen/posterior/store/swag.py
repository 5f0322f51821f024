"""What is kept of a SWAG posterior: mean, variance and deviations."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any

from torch import Tensor

from smidgen.errors import StoreError
from smidgen.outputs.problem import Problem
from smidgen.posterior.swag import SampleTuning, SwagPosterior

FIELDS: dict[str, type | tuple[type, ...]] = {"snapshots": int, "rates": list}
"""What its config must have."""
_PARTS = ("mean", "variance", "deviations")


def pack(posterior: SwagPosterior) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split into tensors and settings."""
    parts = {f"swag/{name}": getattr(posterior, name) for name in _PARTS}
    return {name: each for name, each in parts.items() if each is not None}, {
        "snapshots": posterior.snapshots,
        "learning_rate": posterior.learning_rate,
        # JSON has no infinity: a rate that ran off has no NLL.
        "rates": [[rate, nll if isfinite(nll) else None] for rate, nll in posterior.rates],
    }


def unpack(
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    problem: Problem,
    common: Mapping[str, Any],
) -> SwagPosterior:
    """Put together what `pack` split; the posterior checks every shape."""
    if "swag/mean" not in tensors:
        raise StoreError("swag/mean is missing from the stored tensors.")
    placed: dict[str, Any] = {
        name: tensors[f"swag/{name}"].to(problem.device)
        if f"swag/{name}" in tensors
        else None
        for name in _PARTS
    }
    tuning = config["tuning"]
    return SwagPosterior(
        **placed,
        snapshots=config["snapshots"],
        learning_rate=config["learning_rate"],
        rates=tuple((rate, inf if nll is None else nll) for rate, nll in config["rates"]),
        tuning=None if tuning is None else SampleTuning(**tuning),
        **common,
    )


def card(posterior: SwagPosterior) -> str:
    """Describe it to whoever finds the folder."""
    subset = posterior.subset
    return f"""---
library_name: smidgen
tags: [bayesian, swag, uncertainty]
---
# A posterior over {subset.size:,} weights

SWAG ({posterior.covariance}, {posterior.snapshots} snapshots) over {subset.size:,} of
{subset.total:,} weights ({subset.fraction:.3%}). Temperature {posterior.temperature:.4g};
{posterior.floats:,} floats in the moments.

```python
import smidgen

posterior = smidgen.load("this-folder", model)  # checks the base model's weights
predictive = smidgen.predict_samples(posterior, model, batch)
```

SHA-256 of the base model's weights: `{posterior.fingerprint}`
"""
