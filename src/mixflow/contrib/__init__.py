"""MXNet's ``contrib`` names that mixflow has."""

from .. import amp
from . import tensorboard

__all__ = ["amp", "tensorboard"]
