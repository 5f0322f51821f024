"""Likelihoods as JSON takes them, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from smidgen.errors import StoreError
from smidgen.outputs.likelihood.base import Likelihood
from smidgen.outputs.likelihood.bernoulli import Bernoulli
from smidgen.outputs.likelihood.categorical import Categorical
from smidgen.outputs.likelihood.gaussian import Gaussian
from smidgen.runtime.reading import make_from_json

LIKELIHOODS: dict[str, type[Likelihood]] = {
    likelihood.kind: likelihood for likelihood in (Categorical, Bernoulli, Gaussian)
}


def describe(likelihood: Likelihood) -> dict[str, Any]:
    """Write a likelihood as JSON takes it."""
    return {"kind": likelihood.kind, **asdict(likelihood)}


def from_description(description: Mapping[str, Any]) -> Likelihood:
    """Make the likelihood that was described."""
    settings = dict(description)
    kind = settings.pop("kind", None)
    if not isinstance(kind, str) or kind not in LIKELIHOODS:
        raise StoreError(
            f"likelihood must be one of {', '.join(LIKELIHOODS)}, got {str(kind)[:40]!r}"
        )
    return make_from_json(LIKELIHOODS[kind], settings)
