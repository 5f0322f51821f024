"""Prediction: from a posterior and inputs to a `Predictive`."""

from smidgen.prediction.dropout import dropout_outputs
from smidgen.prediction.features import point_features
from smidgen.prediction.point import point_outputs
from smidgen.prediction.predict import predict, predict_batches

__all__ = [
    "dropout_outputs",
    "point_features",
    "point_outputs",
    "predict",
    "predict_batches",
]
