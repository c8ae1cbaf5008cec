"""Networks as symbols (``mixflow.models``)."""

from .lenet import lenet
from .mlp import mlp, softmax_regression

#: Networks by the name that the command line uses.
NETWORKS = {"lenet": lenet, "mlp": mlp, "softmax": softmax_regression}

__all__ = ["NETWORKS", "lenet", "mlp", "softmax_regression"]
