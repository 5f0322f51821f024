"""A smidgen of Bayes: calibrated uncertainty from a small, well-chosen subset of weights.

posterior = smidgen.bayesify(model, train_loader, val_loader)  # or by hand:
subset = smidgen.select.sparse_kfac(model, percent=10)
posterior = smidgen.fit.laplace(model, train_loader, subset)
posterior = smidgen.calibrate(posterior, model, val_loader)
predictive = smidgen.predict(posterior, model, batch)
smidgen.save(posterior, "my-posterior")
"""

from typing import TYPE_CHECKING

from smidgen.runtime.importing.first_use import import_on_first_use

if TYPE_CHECKING:
    from smidgen import decide, evaluate, fit, select
    from smidgen.errors import SmidgenError, SmidgenWarning
    from smidgen.fit.calibration.calibrate import calibrate
    from smidgen.outputs.likelihood import Bernoulli, Categorical, Gaussian
    from smidgen.outputs.links import Link
    from smidgen.outputs.predictive import Predictive
    from smidgen.outputs.problem import Problem
    from smidgen.planning.plan import Plan, plan
    from smidgen.posterior.base import Posterior
    from smidgen.posterior.choice import Choice
    from smidgen.posterior.laplace import LaplacePosterior
    from smidgen.posterior.point import PointPosterior
    from smidgen.posterior.sparse import SparsePosterior
    from smidgen.posterior.store import save
    from smidgen.posterior.swag import SwagPosterior
    from smidgen.prediction import point_outputs, predict, predict_batches
    from smidgen.runtime.record import Record
    from smidgen.sparse import make_sparse
    from smidgen.weights.affine import coverage
    from smidgen.weights.delta import Delta, make_delta, merge_deltas
    from smidgen.weights.subset import Subset
    from smidgen.workflows.bayesify.one_call import bayesify
    from smidgen.workflows.bayesify.settings import BayesifySettings
    from smidgen.workflows.compare import Comparison, compare
    from smidgen.workflows.decisions.settings import CompareSettings
    from smidgen.workflows.predictor.answers import Answer, Answers
    from smidgen.workflows.predictor.describing import (
        describe_images,
        describe_table,
        describe_texts,
    )
    from smidgen.workflows.predictor.loading import load
    from smidgen.workflows.predictor.making import make_predictor
    from smidgen.workflows.predictor.predictor import Predictor
    from smidgen.workflows.predictor.pushing import push_to_hub
    from smidgen.workflows.predictor.saving import save_predictor
    from smidgen.workflows.rules import make_rules
    from smidgen.workflows.verify import Verification, verify
else:
    __getattr__, __dir__ = import_on_first_use(__name__)

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Answers",
    "BayesifySettings",
    "Bernoulli",
    "Categorical",
    "Choice",
    "CompareSettings",
    "Comparison",
    "Delta",
    "Gaussian",
    "LaplacePosterior",
    "Link",
    "Plan",
    "PointPosterior",
    "Posterior",
    "Predictive",
    "Predictor",
    "Problem",
    "Record",
    "SmidgenError",
    "SmidgenWarning",
    "SparsePosterior",
    "Subset",
    "SwagPosterior",
    "Verification",
    "bayesify",
    "calibrate",
    "compare",
    "coverage",
    "decide",
    "describe_images",
    "describe_table",
    "describe_texts",
    "evaluate",
    "fit",
    "load",
    "make_delta",
    "make_predictor",
    "make_rules",
    "make_sparse",
    "merge_deltas",
    "plan",
    "point_outputs",
    "predict",
    "predict_batches",
    "push_to_hub",
    "save",
    "save_predictor",
    "select",
    "verify",
]
