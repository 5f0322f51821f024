"""`Likelihood`: what outputs mean, from targets to predictives. One file for each."""

from smidgen.likelihood.base import Likelihood
from smidgen.likelihood.bernoulli import Bernoulli
from smidgen.likelihood.categorical import Categorical, is_extreme
from smidgen.likelihood.description import KINDS, described, from_description
from smidgen.likelihood.gaussian import Gaussian

__all__ = [
    "KINDS",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Likelihood",
    "described",
    "from_description",
    "is_extreme",
]
