"""The one configuration object of the process, with scoped overrides.

Hazard: engine, core budget and limits belong to the process, not to a thread. An override in one
thread is seen by all others, and changing the engine or the budget waits for the work under way.

    with mx.config.override(threads=1, engine="serial"):
        ...

Defaults come from the environment, read once, when mixflow is imported (docs/environment.md).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from .errors import ParamError, UnknownNameError, describe_unknown

_BYTES = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([KMGT]?)(?:I?B)?")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
ENGINES = ("threaded", "serial")
PRECISIONS = ("float32", "bfloat16", "float16")
#: MXNet's names of engines and what they mean here.
MXNET_ENGINES = {
    "NaiveEngine": "serial",
    "ThreadedEngine": "threaded",
    "ThreadedEnginePooled": "threaded",
    "ThreadedEnginePerDevice": "threaded",
}


def _bool(text: Any) -> bool:
    known = {"0": False, "false": False, "1": True, "true": True, "": False}
    key = str(text).strip().lower()
    if key not in known:
        raise ValueError("not 0 or 1")
    return known[key]


def _text(value: Any) -> str:
    return str(value)


def _engine(value: Any) -> str:
    if value not in ENGINES:
        raise ValueError(f"not one of {', '.join(ENGINES)}")
    return str(value)


def _precision(value: Any) -> str:
    if value not in PRECISIONS:
        raise ValueError(f"not one of {', '.join(PRECISIONS)}")
    return str(value)


def _positive(value: Any) -> int:
    number = as_bytes(value)
    if number < 1:
        raise ValueError("below 1")
    return number


def as_bytes(value: Any) -> int:
    """A number of bytes, as text with an optional unit K, M, G or T (powers of 1024).

    The unit may be written G, GB or GiB, in small letters, with a space before it, and the number
    with a fraction: '1.5G', '2 GiB'.

    Raises:
        ValueError: anything else.
    """
    found = _BYTES.fullmatch(str(value).strip().upper())
    if found is None:
        raise ValueError("not a number of bytes such as 2000000000, 500M, '1.5G' or '2 GiB'")
    if found[1].isdigit():
        return int(found[1]) * _UNITS[found[2]]
    from fractions import Fraction  # not at start-up: it brings all of decimal

    number = Fraction(found[1]) * _UNITS[found[2]]
    if not found[2] and number.denominator != 1:
        raise ValueError("not a whole number")
    return int(number)


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def _setting(
    variable: str | None, convert: Callable[[Any], Any], default: Any, fixed: bool = False
) -> Any:
    metadata = {"variable": variable, "convert": convert, "fixed": fixed}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Config:
    """Every setting of the process; immutable, so that a copy stays what it was.

    Attributes:
        pure: use the plain Python core even where the compiled one was built. Fixed at import.
        onednn_library: path of a libdnnl 3.x to load instead of the wheel's, or 'none'. Fixed at
            import.
        engine: 'threaded', or 'serial', which runs each task on the thread that pushes it.
        threads: core budget of the process, at least 1.
        memory_limit: most bytes that arrays may hold together; 0 = no limit.
        queue_tasks: pending tasks at which a push blocks, at least 1.
        queue_bytes: bytes held by pending tasks at which a push blocks; 0 = a quarter of memory.
        deterministic: choose kernels by fixed rules, not by timing, so that runs repeat bit by bit
            (same machine and thread count). Holds for kernels prepared afterwards.
        precision: 'float32', or the narrow float ('bfloat16', 'float16') of the products in graphs
            bound afterwards: mixed precision. No effect where the processor has no instructions
            for it, see docs/precision.md.
        verify: check every graph between passes; slower, for debugging and tests.
        mirror: executors made from now on drop what is cheap to compute (all but convolutions and
            matrix products) after the forward pass and compute it again in the backward pass.
        image_pixel_limit: most pixels of an image that is decoded or made by resizing; a header
            that asks for more is refused before anything is allocated. No environment name.
    """

    pure: bool = _setting("MIXFLOW_PURE", _bool, False, fixed=True)
    onednn_library: str = _setting("MIXFLOW_ONEDNN_LIBRARY", _text, "", fixed=True)
    engine: str = _setting("MIXFLOW_ENGINE", _engine, "threaded")
    threads: int = _setting("MIXFLOW_NUM_THREADS", _positive, _cores)
    memory_limit: int = _setting("MIXFLOW_MEMORY_LIMIT", as_bytes, 0)
    queue_tasks: int = _setting("MIXFLOW_QUEUE_TASKS", _positive, 1 << 16)
    queue_bytes: int = _setting("MIXFLOW_QUEUE_BYTES", as_bytes, 0)
    deterministic: bool = _setting("MIXFLOW_DETERMINISTIC", _bool, False)
    precision: str = _setting("MIXFLOW_PRECISION", _precision, "float32")
    verify: bool = _setting("MIXFLOW_VERIFY", _bool, False)
    mirror: bool = _setting("MIXFLOW_MIRROR", _bool, False)
    image_pixel_limit: int = _setting(None, _positive, 1 << 28)


_FIELDS: dict[str, Field[Any]] = {f.name: f for f in fields(Config)}
#: Setting -> name in the environment, for those that have one.
VARIABLES: dict[str, str] = {
    name: f.metadata["variable"] for name, f in _FIELDS.items() if f.metadata["variable"]
}


def _convert(name: str, value: Any, called: str) -> Any:
    try:
        return _FIELDS[name].metadata["convert"](value)
    except ValueError as error:
        raise ParamError(
            f"[config] expected a value for {called}, got {value!r} ({error})"
        ) from None


def _of_others(environment: Mapping[str, str]) -> dict[str, Any]:
    """Settings that MXNet's and OpenMP's names give; ours come first."""
    found: dict[str, Any] = {}
    engine = environment.get("MXNET_ENGINE_TYPE", "")
    if engine:
        if engine not in MXNET_ENGINES:
            raise ParamError(
                f"[config] expected MXNET_ENGINE_TYPE among {', '.join(MXNET_ENGINES)}, "
                f"got {engine!r}"
            )
        found["engine"] = MXNET_ENGINES[engine]
    mirror = environment.get("MXNET_BACKWARD_DO_MIRROR", "")
    if mirror:
        found["mirror"] = _convert("mirror", mirror, "MXNET_BACKWARD_DO_MIRROR")
    threads = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if threads.isdecimal() and int(threads) >= 1:
        found["threads"] = int(threads)
    return found


def from_environment(environment: Mapping[str, str]) -> Config:
    """The configuration that these variables ask for.

    Raises:
        ParamError: a value is not of its setting's type; names the variable.
    """
    given = _of_others(environment)
    for name, variable in VARIABLES.items():
        if environment.get(variable, "") != "":
            given[name] = _convert(name, environment[variable], variable)
    return Config(**given)


_lock = threading.RLock()
_current = from_environment(os.environ)
_listeners: list[Callable[[Config, Config], None]] = []


def current() -> Config:
    """The configuration in force."""
    return _current


def on_change(listener: Callable[[Config, Config], None]) -> None:
    """Calls ``listener(old, new)`` whenever a setting changes; for the module that applies it."""
    _listeners.append(listener)


def update(**changes: Any) -> Config:
    """Changes settings for the whole process until further notice; returns the old configuration.

    Args:
        **changes: settings by the names of `Config`.

    Raises:
        UnknownNameError: no such setting.
        ParamError: wrong type, or a setting that is fixed at import.
    """
    global _current
    with _lock:
        old = _current
        new = replace(old, **{name: _checked(name, value, old) for name, value in changes.items()})
        if new != old:
            for listener in _listeners:
                listener(old, new)
            _current = new
        return old


def _checked(name: str, value: Any, old: Config) -> Any:
    if name not in _FIELDS:
        raise UnknownNameError(describe_unknown("config", name, list(_FIELDS)))
    value = _convert(name, value, f"'{name}'")
    if _FIELDS[name].metadata["fixed"] and value != getattr(old, name):
        raise ParamError(
            f"[config] expected '{name}' to stay {getattr(old, name)!r}, got {value!r}; "
            f"it is fixed at import: set {VARIABLES[name]} before"
        )
    return value


@contextmanager
def override(**changes: Any) -> Iterator[Config]:
    """Scope in which settings differ; they return to what they were at its start.

    Args:
        **changes: settings by the names of `Config`.

    Raises:
        UnknownNameError, ParamError: as `update`.
    """
    old = update(**changes)
    try:
        yield _current
    finally:
        update(**{name: getattr(old, name) for name in changes})
