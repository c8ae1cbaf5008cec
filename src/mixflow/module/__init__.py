"""Modules (``mx.mod``): training loops over symbols."""

from .base_module import BaseModule
from .module import Module

__all__ = ["BaseModule", "Module"]
