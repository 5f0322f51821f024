"""Fitting: posteriors, their calibration, and the point estimates to compare with."""

from smidgen.fit.bayestune.chain import Scales
from smidgen.fit.bayestune.langevin import (
    Agreement,
    LangevinSettings,
    agreement,
    langevin,
)
from smidgen.fit.bayestune.scale_prior import ScalePrior
from smidgen.fit.calibration.evidence import calibrate_by_evidence, log_evidence
from smidgen.fit.calibration.precision import CalibrationSettings
from smidgen.fit.calibration.temperature import temperature
from smidgen.fit.finetune import FinetuneResult, FinetuneSettings, finetune
from smidgen.fit.isotropic import isotropic
from smidgen.fit.laplace import LaplaceSettings, laplace
from smidgen.fit.laplace_many import laplace_many
from smidgen.fit.point import point
from smidgen.fit.sgd import SwagSettings
from smidgen.fit.ssvi import ssvi
from smidgen.fit.subset_adamw import SubsetAdamW
from smidgen.fit.swag import swag
from smidgen.posterior.swag import SwagCollector
from smidgen.sparse.training import SsviSettings

__all__ = [
    "Agreement",
    "CalibrationSettings",
    "FinetuneResult",
    "FinetuneSettings",
    "LangevinSettings",
    "LaplaceSettings",
    "ScalePrior",
    "Scales",
    "SubsetAdamW",
    "SwagCollector",
    "SsviSettings",
    "SwagSettings",
    "agreement",
    "finetune",
    "isotropic",
    "langevin",
    "laplace",
    "laplace_many",
    "log_evidence",
    "point",
    "swag",
    "ssvi",
    "temperature",
    "calibrate_by_evidence",
]
