"""`Likelihood`: what outputs mean, from targets to predictives. One file for each."""

from smidgen.likelihood.base import Likelihood
from smidgen.likelihood.bernoulli import Bernoulli
from smidgen.likelihood.categorical import Categorical, is_extreme
from smidgen.likelihood.gaussian import Gaussian

KINDS: dict[str, type[Likelihood]] = {
    each.kind: each for each in (Categorical, Bernoulli, Gaussian)
}

__all__ = ["KINDS", "Bernoulli", "Categorical", "Gaussian", "Likelihood", "is_extreme"]
