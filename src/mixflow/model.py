"""``mx.model``: MXNet's names for checkpoints and the batch callback's argument."""

from .callback import BatchEndParam
from .checkpoint import load_checkpoint, load_params, save_checkpoint

__all__ = ["BatchEndParam", "load_checkpoint", "load_params", "save_checkpoint"]
