"""The errors under the name of MXNet's module (``mx.base.MXNetError``)."""

from .errors import (
    DTypeError,
    FileError,
    FormatError,
    GraphError,
    MissingFileError,
    MixflowError,
    MXNetError,
    ParamError,
    ShapeError,
    UnknownNameError,
)

__all__ = [
    "DTypeError",
    "FileError",
    "FormatError",
    "GraphError",
    "MXNetError",
    "MissingFileError",
    "MixflowError",
    "ParamError",
    "ShapeError",
    "UnknownNameError",
]
