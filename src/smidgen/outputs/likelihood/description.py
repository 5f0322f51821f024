"""Likelihoods as JSON takes them, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from smidgen.outputs.likelihood.base import Likelihood
from smidgen.outputs.likelihood.bernoulli import Bernoulli
from smidgen.outputs.likelihood.categorical import Categorical
from smidgen.outputs.likelihood.gaussian import Gaussian

LIKELIHOODS: dict[str, type[Likelihood]] = {
    each.kind: each for each in (Categorical, Bernoulli, Gaussian)
}


def describe(likelihood: Likelihood) -> dict[str, Any]:
    """Write a likelihood as JSON takes it."""
    return {"kind": likelihood.kind, **asdict(likelihood)}


def from_description(given: Mapping[str, Any]) -> Likelihood:
    """Make the likelihood that was described."""
    settings = dict(given)
    if settings.get("relative") is not None:
        settings["relative"] = tuple(settings["relative"])
    return LIKELIHOODS[settings.pop("kind")](**settings)
