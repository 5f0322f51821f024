"""`Likelihood`: what outputs mean, from targets to predictives. One file for each."""

from smidgen.outputs.likelihood.base import Likelihood
from smidgen.outputs.likelihood.bernoulli import Bernoulli
from smidgen.outputs.likelihood.categorical import Categorical, is_extreme
from smidgen.outputs.likelihood.description import LIKELIHOODS, describe, from_description
from smidgen.outputs.likelihood.gaussian import Gaussian

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Likelihood",
    "describe",
    "from_description",
    "is_extreme",
]
