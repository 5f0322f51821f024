"""Fitting: posteriors, their tuning, and the point estimates they are compared with."""

from smidgen.fit.collector import SwagCollector
from smidgen.fit.evidence import log_evidence, tune_by_evidence
from smidgen.fit.finetune import Finetuned, finetune
from smidgen.fit.laplace import laplace
from smidgen.fit.many import laplace_many
from smidgen.fit.sample_tuning import tune_samples
from smidgen.fit.ssvi import SparseFit, SparseTraining, ssvi
from smidgen.fit.swag import swag
from smidgen.fit.temperature import temperature
from smidgen.fit.tuning import tune_precision

__all__ = [
    "Finetuned",
    "SparseFit",
    "SparseTraining",
    "SwagCollector",
    "finetune",
    "laplace",
    "laplace_many",
    "log_evidence",
    "ssvi",
    "swag",
    "temperature",
    "tune_by_evidence",
    "tune_precision",
    "tune_samples",
]
