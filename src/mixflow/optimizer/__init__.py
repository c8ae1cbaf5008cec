"""Optimizers (``mx.optimizer``): methods, states, and the fused update of a whole model."""

from .fused import FusedUpdate
from .methods import NAG, SGD, AdaGrad, Adam, Ftrl, RMSProp, Signum, Test, ccSGD
from .optimizer import Optimizer, UpdateRule, create, register
from .updater import Updater, get_updater

opt = Optimizer

__all__ = [
    "NAG",
    "SGD",
    "AdaGrad",
    "Adam",
    "Ftrl",
    "FusedUpdate",
    "Optimizer",
    "RMSProp",
    "Signum",
    "Test",
    "UpdateRule",
    "Updater",
    "ccSGD",
    "create",
    "get_updater",
    "register",
]
