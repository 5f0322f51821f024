"""Fitting: posteriors, their tuning, and the point estimates they are compared with."""

from smidgen.fit.chain import Scales
from smidgen.fit.collector import SwagCollector
from smidgen.fit.evidence import log_evidence, tune_by_evidence
from smidgen.fit.finetune import Finetuned, finetune
from smidgen.fit.langevin import langevin
from smidgen.fit.laplace import laplace
from smidgen.fit.many import laplace_many
from smidgen.fit.sample_tuning import tune_samples
from smidgen.fit.sparse_finetune import SparselyFinetuned, sparse_finetune
from smidgen.fit.ssvi import SparseFit, ssvi
from smidgen.fit.subset_adamw import SubsetAdamW
from smidgen.fit.swag import swag
from smidgen.fit.temperature import temperature
from smidgen.fit.tuning import tune_precision
from smidgen.sparse.training import SparseTraining

__all__ = [
    "Finetuned",
    "Scales",
    "SparselyFinetuned",
    "SubsetAdamW",
    "SwagCollector",
    "SparseFit",
    "SparseTraining",
    "finetune",
    "langevin",
    "laplace",
    "laplace_many",
    "log_evidence",
    "sparse_finetune",
    "swag",
    "ssvi",
    "temperature",
    "tune_by_evidence",
    "tune_precision",
    "tune_samples",
]
