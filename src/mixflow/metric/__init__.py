"""Evaluation metrics: sums over batches on the host, with MXNet's names and numbers."""

from .base import (
    CompositeEvalMetric,
    CustomMetric,
    EvalMetric,
    alias,
    check_label_shapes,
    create,
    np_metric,
    register,
)
from .classification import (
    F1,
    MCC,
    Accuracy,
    CrossEntropy,
    NegativeLogLikelihood,
    Perplexity,
    TopKAccuracy,
)
from .regression import MAE, MSE, RMSE, Loss, PearsonCorrelation

#: MXNet's name of `np_metric`.
np = np_metric

__all__ = [
    "F1", "MAE", "MCC", "MSE", "RMSE", "Accuracy", "CompositeEvalMetric", "CrossEntropy",
    "CustomMetric", "EvalMetric", "Loss", "NegativeLogLikelihood", "PearsonCorrelation",
    "Perplexity", "TopKAccuracy", "alias", "check_label_shapes", "create", "np", "np_metric",
    "register",
]  # fmt: skip
