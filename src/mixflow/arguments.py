"""Checks of arguments: one declaration per argument, one form of error.

Hazard: a wrong argument that is found deep inside appears as an error of NumPy or OpenCV, minutes
later, or never (nan, a loop without end). So public constructors declare the kinds of their
arguments, in the types of the operators' parameters, and each value is checked before anything is
opened, started or allocated. Texts are taken where they stand for a value, as MXNet takes them.

    @checked(batch_size=whole(1), resize=whole(0), mean=optional(numbers(3)))
    def __init__(self, batch_size, resize=0, mean=None): ...
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from . import config
from .errors import MixflowError, ParamError
from .ir.params import Bool, Int, Kind

P = ParamSpec("P")
R = TypeVar("R")
_MEMORY = "/proc/meminfo"


def _bounds(least: float | None, most: float | None, above: float | None = None) -> str:
    if least is not None and most is not None:
        return f" from {least} to {most}"
    parts = [f" above {above}"] if above is not None else []
    parts += [f" of at least {least}"] if least is not None else []
    parts += [f" of at most {most}"] if most is not None else []
    return "".join(parts)


def _single(value: Any) -> Any:
    """The value itself, which must not be an array of several."""
    if getattr(value, "shape", ()) not in ((), None):
        raise ValueError("an array")
    if getattr(value, "mask", False):
        raise ValueError("masked")
    return value


def whole(least: int | None = None, most: int | None = None) -> Kind:
    """A whole number within limits."""

    def convert(value: Any) -> int:
        # Plain numbers, the usual case, are not looked at twice: some functions run per image.
        number: int = value if type(value) is int else Int.convert(_single(value))
        if (least is not None and number < least) or (most is not None and number > most):
            raise ValueError("out of range")
        return number

    return Kind("a whole number" + _bounds(least, most), convert)


def number(
    least: float | None = None, most: float | None = None, above: float | None = None
) -> Kind:
    """A finite number within limits."""

    def convert(value: Any) -> float:
        found = value if type(value) is float else float(_single(value))
        if not math.isfinite(found):
            raise ValueError("not finite")
        low = (least is not None and found < least) or (above is not None and found <= above)
        if low or (most is not None and found > most):
            raise ValueError("out of range")
        return found

    return Kind("a finite number" + _bounds(least, most, above), convert)


def _elements(value: Any) -> Sequence[Any]:
    if type(value) in (tuple, list):
        found: Sequence[Any] = value
        return found
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise ValueError("not a tuple") from None
    if hasattr(value, "asnumpy"):
        value = value.asnumpy()
    if getattr(value, "ndim", 1) != 1 or isinstance(value, (bytes, dict, set)):
        raise ValueError("not a flat sequence")
    return list(value)


def several(kind: Kind, *counts: int) -> Kind:
    """A sequence of values of a kind, as a tuple; `counts`: how many there may be."""

    def convert(value: Any) -> tuple[Any, ...]:
        items = _elements(value)
        if counts and len(items) not in counts:
            raise ValueError(f"{len(items)} of them")
        return tuple(kind.convert(item) for item in items)

    size = f"{' or '.join(map(str, counts))} values" if counts else "values"
    return Kind(f"a sequence of {size}, each {kind.name}", convert)


def either(*kinds: Kind) -> Kind:
    """The first of some kinds that fits."""

    def convert(value: Any) -> Any:
        for kind in kinds:
            try:
                return kind.convert(value)
            except (ValueError, TypeError, OverflowError, MixflowError):
                continue
        raise ValueError("neither")

    return Kind(" or ".join(kind.name for kind in kinds), convert)


def numbers(above: float | None = None, shape: tuple[int, ...] | None = None) -> Kind:
    """An array of finite numbers, as it was given; `shape`: None: a number or any one axis."""

    def convert(value: Any) -> Any:
        found = np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value)
        if found.dtype.kind not in "iuf" or np.ma.is_masked(value):
            raise ValueError(f"of {found.dtype}")
        if found.ndim > 1 if shape is None else found.shape != shape:
            raise ValueError(f"of shape {found.shape}")
        if not np.isfinite(found).all() or (above is not None and (found <= above).any()):
            raise ValueError("out of range")
        return value

    size = "a number or a sequence" if shape is None else f"an array {shape}"
    return Kind(f"{size} of finite numbers" + _bounds(None, None, above), convert)


def rising(kind: Kind) -> Kind:
    """Two values, the second at least the first."""
    pair = several(kind, 2)

    def convert(value: Any) -> tuple[Any, Any]:
        low, high = pair.convert(value)
        if low > high:
            raise ValueError("falling")
        return low, high

    return Kind(f"two rising values, each {kind.name}", convert)


def choice(*known: Any) -> Kind:
    """One of these values."""

    def convert(value: Any) -> Any:
        if value not in known:
            raise ValueError
        return known[known.index(value)]

    return Kind(f"one of {', '.join(map(repr, known))}", convert)


def a(*types: type) -> Kind:
    """An object of one of these classes."""

    def convert(value: Any) -> Any:
        if not isinstance(value, types):
            raise ValueError(f"a {type(value).__name__}")
        return value

    return Kind(f"a {' or '.join(t.__name__ for t in types)}", convert)


def having(*names: str) -> Kind:
    """An object with these methods or attributes, whatever its class."""

    def convert(value: Any) -> Any:
        missing = [name for name in names if not hasattr(value, name)]
        if missing:
            raise ValueError(f"a {type(value).__name__} without {missing[0]}")
        return value

    return Kind(f"an object with {', '.join(names)}", convert)


def optional(kind: Kind) -> Kind:
    """Of a kind, or None."""

    def convert(value: Any) -> Any:
        return None if value is None else kind.convert(value)

    return Kind(f"{kind.name} or None", convert)


def kept(kind: Kind) -> Kind:
    """Of a kind, and handed on as it was given: 127 stays a whole number where 127.0 would do."""

    def convert(value: Any) -> Any:
        kind.convert(value)
        return value

    return Kind(kind.name, convert)


def _path(value: Any) -> str:
    found = os.fspath(value)
    if not isinstance(found, str):
        raise ValueError("bytes")
    if "\0" in found:
        raise ValueError("a zero byte")
    return found


def _callable(value: Any) -> Any:
    if not callable(value):
        raise ValueError(f"a {type(value).__name__}")
    return value


flag = Kind("a boolean", lambda value: Bool.convert(_single(value)))
text = a(str)
path = Kind("a path", _path)
function = Kind("a function", _callable)
#: Bytes, also as a text with a unit.
nbytes = Kind("a number of bytes", config.as_bytes)
#: More threads or processes than this help on no machine.
MOST_THREADS = 1024
#: Seeds: any whole number of 64 bits.
seed = whole(-(1 << 63), (1 << 64) - 1)


def check(operator: str, name: str, value: Any, kind: Kind) -> Any:
    """The value of a kind.

    Raises:
        ParamError: it is of another; the text names operator, argument and kind.
    """
    try:
        return kind.convert(value)
    except (ValueError, TypeError, ArithmeticError, AttributeError, MixflowError) as error:
        why = f" ({error})" if str(error) else ""
        raise ParamError(
            f"[{operator}] expected {name} to be {kind.name}, got {value!r:.200}{why}"
        ) from None


def check_fields(operator: str, record: Any, **kinds: Kind) -> None:
    """Checks fields of a (frozen) dataclass and puts the typed values in their place.

    Raises:
        ParamError: as `check`.
    """
    for name, kind in kinds.items():
        value = getattr(record, name)
        object.__setattr__(record, name, check(operator, name, value, kind))


def checked(
    operator: str | None = None, /, **kinds: Kind
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Checks arguments of a function at each call; what is left out keeps its default.

    Args:
        operator: name for errors; None: that of the function, or of the object's class.
        **kinds: kinds of arguments by name, also of such that come as further keywords.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = tuple(inspect.signature(function).parameters)
        is_method = names[:1] == ("self",)
        name = operator or function.__name__

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            title = type(args[0]).__name__ if is_method and not operator and args else name
            given = list(args)
            for place, (key, value) in enumerate(zip(names, args, strict=False)):
                if key in kinds:
                    given[place] = check(title, key, value, kinds[key])
            for key in kwargs:
                if key in kinds:
                    kwargs[key] = check(title, key, kwargs[key], kinds[key])
            return function(*given, **kwargs)

        return call

    return decorate


def available_bytes() -> int:
    """Bytes that arrays may still take: the memory limit of `mx.config`, else free memory."""
    limit = config.current().memory_limit
    if limit:
        return limit
    try:
        with open(_MEMORY) as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_bytes(operator: str, what: str, nbytes: int, hint: str) -> None:
    """Refuses what cannot fit into memory, before anything of it is made.

    Args:
        operator, what, hint: for the error.
        nbytes: bytes that it takes at least.

    Raises:
        ParamError: more than there are.
    """
    if nbytes < 1 << 28:  # not worth a look
        return
    room = available_bytes()
    if nbytes > room:
        raise ParamError(
            f"[{operator}] expected {what} of at most {room} bytes (free memory), got {nbytes}; "
            f"{hint}"
        )
