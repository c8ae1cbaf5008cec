"""Typed parameters of operators, with the strings of MXNet's JSON at the edge."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import dtype as dtypes
from ..errors import MixflowError, ParamError


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


#: Default of a parameter that must be given.
REQUIRED: Any = _Required()


@dataclass(frozen=True)
class Kind:
    """A parameter type: how to check a Python value or a string, and how MXNet writes it."""

    name: str
    convert: Callable[[Any], Any]
    format: Callable[[Any], str] = str


def _literal(text: str) -> Any:
    """The Python value that a text of MXNet's JSON stands for; ValueError if it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError("not a literal") from None


def _int(value: Any) -> int:
    if isinstance(value, str):
        value = _literal(value)
    number = int(value)
    if number != value:
        raise ValueError("not a whole number")
    return number


def _float(value: Any) -> float:
    return float(value)


def _bool(value: Any) -> bool:
    if isinstance(value, str):
        lowered = value.strip().lower()
        if lowered in ("true", "1"):
            return True
        if lowered in ("false", "0"):
            return False
        raise ValueError("not a boolean")
    if isinstance(value, (bool, int, np.bool_, np.integer)) and value in (0, 1):
        return bool(value)
    raise ValueError("not a boolean")


def _int_tuple(value: Any) -> tuple[int | None, ...]:
    if isinstance(value, str):
        text = value.strip().replace("L", "")
        value = _literal(text.replace("[", "(").replace("]", ",)") if text != "[]" else "()")
    if isinstance(value, (int, np.integer)):
        return (int(value),)
    return tuple(None if v is None else _int(v) for v in value)


def _float_tuple(value: Any) -> tuple[float, ...]:
    if isinstance(value, str):
        value = _literal(value)
    if isinstance(value, (int, float, np.number)):
        return (float(value),)
    return tuple(float(v) for v in value)


def _dtype(value: Any) -> np.dtype[Any]:
    return dtypes.canonical(value)


def _format_tuple(value: Any) -> str:
    return "(" + ", ".join(str(v) for v in value) + ("," if len(value) == 1 else "") + ")"


def _format_float(value: float) -> str:
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


Int = Kind("int", _int)
Float = Kind("float", _float, lambda v: _format_float(v) if np.isfinite(v) else str(v))
Bool = Kind("boolean", _bool, str)
Str = Kind("string", str)
Shape = Kind("shape", _int_tuple, _format_tuple)  #: tuple of integers, None inside allowed
Floats = Kind("tuple of float", _float_tuple, _format_tuple)
DType = Kind("dtype", _dtype, lambda v: v.name)
#: Further parameters by name, as sorted (name, string) pairs; in JSON each stands for itself.
Keywords = Kind("keywords", lambda v: tuple(sorted((str(k), str(x)) for k, x in v)), str)
Any_ = Kind("any", lambda v: v, str)  #: not checked; must be hashable


def Enum(*choices: str) -> Kind:
    """One of these strings."""

    def convert(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"not one of {', '.join(choices)}")
        return str(value)

    return Kind("{" + ", ".join(choices) + "}", convert)


@dataclass(frozen=True)
class Param:
    """One parameter.

    Attributes:
        name: MXNet's name.
        kind: its type.
        default: Python value, `REQUIRED`, or None for a nullable one.
        nullable: None is a legal value ('None' in JSON).
        runtime: a float that may change from call to call without a new kernel (learning rates,
            the scalar of ``x + 3``): imperative calls pass it to `compose` as a 0-d Value, while
            Symbol graphs pass a float. `compose` must treat it by arithmetic only.
        doc: meaning, with its unit.
    """

    name: str
    kind: Kind
    default: Any = REQUIRED
    nullable: bool = False
    runtime: bool = False
    doc: str = ""

    def check(self, operator: str, value: Any) -> Any:
        """The typed value.

        Raises:
            ParamError: wrong type or choice.
        """
        if value is None or (value == "None" if isinstance(value, str) else False):
            if self.nullable or self.default is None:
                return None
            raise ParamError(f"[{operator}] expected '{self.name}' ({self.kind.name}), got None")
        try:
            return self.kind.convert(value)
        except (ValueError, TypeError, SyntaxError, OverflowError, MixflowError) as error:
            raise ParamError(
                f"[{operator}] expected '{self.name}' of type {self.kind.name}, got {value!r} "
                f"({error})"
            ) from None

    def format(self, value: Any) -> str:
        """The string that MXNet's JSON holds."""
        return "None" if value is None else self.kind.format(value)
