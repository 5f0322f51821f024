"""Prediction: from a posterior and inputs to a `Predictive`."""

from smidgen.prediction.linearised import predict, predict_batches
from smidgen.prediction.point import point_outputs

__all__ = ["point_outputs", "predict", "predict_batches"]
