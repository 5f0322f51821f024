"""Scores: how much each weight counts, for selectors to rank by.

A score function returns a tensor of the parameter's shape for every weight and bias of the
affine layers, in fp64 on the CPU. Larger is chosen first.
"""

from smidgen.select.scores.activation import activation
from smidgen.select.scores.curvature import curvature
from smidgen.select.scores.magnitude import magnitude
from smidgen.select.scores.random import random
from smidgen.select.scores.squared_gradient import squared_gradient
from smidgen.select.scores.variance import variance

__all__ = [
    "activation",
    "curvature",
    "magnitude",
    "random",
    "squared_gradient",
    "variance",
]
