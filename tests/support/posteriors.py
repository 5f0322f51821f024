"""Quick fits of every registered method; one that is not named here is fitted as it is."""

from __future__ import annotations

import torch
from torch import nn

import smidgen

QUICK = {
    "swag": smidgen.fit.SwagSettings(learning_rate=0.01, steps=8, every=2, rank=3),
    "ssvi": smidgen.fit.SsviSettings(epochs=1, every=1, num_data=16),
}
"""Settings that make a fit quick, by method."""

LIKELIHOODS = {
    "two-classes": smidgen.Categorical(2),
    "classes": smidgen.Categorical(3),
    "labels": smidgen.Bernoulli(3),
    "regression": smidgen.Gaussian(2),
}


def make_problem(kind, seed=0):
    """A small network and two labelled batches of what its outputs mean."""
    likelihood = LIKELIHOODS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, likelihood.outputs))
    return smidgen.Problem(model, likelihood), draw_batches(model, likelihood, seed=seed)


def draw_batches(model, likelihood, *, inputs=4, seed=0):
    """Draw two batches of eight examples, with targets from the model's own outputs."""
    generator, batches = torch.Generator().manual_seed(seed), []
    for _ in range(2):
        x = torch.randn(8, inputs, generator=generator)
        targets = likelihood.draw_targets(model(x).detach().double(), generator)
        if likelihood.kind != "categorical":
            targets = targets.float()
        batches.append((x, targets))
    return batches


def fit_quickly(method, problem, batches):
    """Fit a posterior of a registered method over the last layer."""
    arguments = {"settings": QUICK[method]} if method in QUICK else {}
    subset = smidgen.select.last_layer(problem.model)
    function = getattr(smidgen.fit, method)
    return function(problem, batches, subset, **arguments, progress=False)
