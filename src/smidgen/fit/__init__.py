"""Fitting: posteriors, their tuning, and the point estimates they are compared with."""

from smidgen.fit.chain import Scales
from smidgen.fit.evidence import log_evidence, tune_by_evidence
from smidgen.fit.finetune import Finetuned, finetune
from smidgen.fit.langevin import langevin
from smidgen.fit.laplace import laplace
from smidgen.fit.many import laplace_many
from smidgen.fit.temperature import temperature
from smidgen.fit.tuning import tune_precision

__all__ = [
    "Finetuned",
    "Scales",
    "finetune",
    "langevin",
    "laplace",
    "laplace_many",
    "log_evidence",
    "temperature",
    "tune_by_evidence",
    "tune_precision",
]
