"""MXNet's ``contrib`` names that mixflow has."""

from .. import amp

__all__ = ["amp"]
