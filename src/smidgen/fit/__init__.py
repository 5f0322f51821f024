"""Fitting: posteriors, their calibration, and point estimates to compare them with."""

from smidgen.fit.bayestune.agreement import Agreement, agreement
from smidgen.fit.bayestune.chain import Scales
from smidgen.fit.bayestune.langevin import langevin
from smidgen.fit.calibration.evidence import calibrate_by_evidence, log_evidence
from smidgen.fit.calibration.precision import CalibrationSettings
from smidgen.fit.calibration.temperature import temperature
from smidgen.fit.finetune import FinetuneResult, finetune
from smidgen.fit.laplace import laplace
from smidgen.fit.laplace_many import laplace_many
from smidgen.fit.sparse_finetune import SparseFinetuneResult, sparse_finetune
from smidgen.fit.ssvi import ssvi
from smidgen.fit.subset_adamw import SubsetAdamW
from smidgen.fit.swag import swag
from smidgen.posterior.swag_collector import SwagCollector
from smidgen.sparse.training import SparseTraining

__all__ = [
    "Agreement",
    "CalibrationSettings",
    "FinetuneResult",
    "Scales",
    "SparseFinetuneResult",
    "SubsetAdamW",
    "SwagCollector",
    "SparseTraining",
    "agreement",
    "finetune",
    "langevin",
    "laplace",
    "laplace_many",
    "log_evidence",
    "sparse_finetune",
    "swag",
    "ssvi",
    "temperature",
    "calibrate_by_evidence",
]
