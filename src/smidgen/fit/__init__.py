"""Fitting: posteriors, their tuning, and the point estimates they are compared with."""

from smidgen.fit.finetune import Finetuned, finetune
from smidgen.fit.laplace import laplace
from smidgen.fit.temperature import temperature
from smidgen.fit.tuning import tune_precision

__all__ = ["Finetuned", "finetune", "laplace", "temperature", "tune_precision"]
