"""Prediction: from a posterior and inputs to a `Predictive`."""

from smidgen.prediction.dropout import dropout_outputs
from smidgen.prediction.linearised import predict, predict_batches
from smidgen.prediction.point import point_outputs
from smidgen.prediction.sampled import predict_samples, predict_samples_batches
from smidgen.prediction.sparse import (
    predict_sparse,
    predict_sparse_batches,
    sparse_outputs,
)

__all__ = [
    "dropout_outputs",
    "point_outputs",
    "predict",
    "predict_batches",
    "predict_samples",
    "predict_samples_batches",
    "predict_sparse",
    "predict_sparse_batches",
    "sparse_outputs",
]
