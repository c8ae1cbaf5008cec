"""The errors that mixflow raises.

Every text has one form: ``[operator] expected ..., got ...; hint``.
"""

from __future__ import annotations


class MXNetError(RuntimeError):
    """Base of every error of mixflow; the name is that of MXNet 1.x, so that old handlers work."""


class MixflowError(MXNetError):
    """An error of mixflow; the same base under the library's own name."""


class ShapeError(MixflowError, ValueError):
    """A shape does not fit its operator, or cannot be inferred."""


class DTypeError(MixflowError, TypeError):
    """An element type does not fit its operator, or is unknown."""


class ParamError(MixflowError, ValueError):
    """An operator's parameter is missing, unknown or of the wrong type."""


class UnknownNameError(MixflowError, KeyError):
    """A name (operator, parameter, argument) is not known; the text lists the nearest ones."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class FormatError(MixflowError, ValueError):
    """A file is truncated, corrupt or of another format."""


class FileError(MixflowError, OSError):
    """A file cannot be read or written; `errno` and `filename` are set as in `OSError`."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class MissingFileError(FileError, FileNotFoundError):
    """A file does not exist; also Python's `FileNotFoundError`, which programs catch."""


class GraphError(MixflowError):
    """A graph breaks an invariant (verifier), or cannot be differentiated."""


def describe_unknown(
    kind: str, name: str, known: list[str], elsewhere: dict[str, str] | None = None
) -> str:
    """Text for an unknown ``name``: the nearest known names, else the first 20.

    Args:
        kind: what is named.
        name: the unknown name.
        known: names that there are.
        elsewhere: what other libraries call them -> known name.
    """
    import difflib

    near = difflib.get_close_matches(name, known, n=3)
    if (elsewhere or {}).get(name) in known:
        near = [(elsewhere or {})[name]]
    shown = sorted(known)[:20] + ["..."] * (len(known) > 20)
    hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(shown) or 'none'}"
    return f"[{kind}] expected a known name, got '{name}'; {hint}"
