"""Version of the library (``mx.libinfo``, as in MXNet)."""

__version__ = "0.1.0"
