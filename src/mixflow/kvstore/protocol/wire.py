"""Messages as bytes: a JSON head with every field, then the arrays as they lie in memory.

The hazard is a peer that is broken, of another version, or not one of ours: lengths, kinds and
dtypes are checked against the bytes that came before an array is made, fields against their types
(`field_types`), and nothing is unpickled.
Decoded arrays are views of the received frames.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from ...errors import FormatError
from . import field_types, messages
from .messages import Array, Gradient, Message
from .policy import Part

VERSION = 1
KINDS: dict[str, type[Message]] = {
    name: kind
    for name, kind in vars(messages).items()
    if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
}
_FIELDS = {kind: tuple(f.name for f in fields(kind)) for kind in KINDS.values()}
_CHECKS = {kind: field_types.checks_of(kind) for kind in KINDS.values()}
_DTYPES = {
    np.dtype(name).str: np.dtype(name)
    for name in ("f2", "f4", "f8", "i1", "u1", "i2", "i4", "i8", "u4", "bool")
}
_json = json.JSONEncoder(separators=(",", ":")).encode


def split(message: Message) -> tuple[bytes, list[Array]]:
    """The head of a message, and its arrays.

    Raises:
        FormatError: an array of a dtype that has no name on the wire.
    """
    arrays: list[Array] = []
    head = {n: _plain(getattr(message, n), arrays) for n in _FIELDS[type(message)]}
    shapes = [(_code(array), array.size) for array in arrays]
    return _json([VERSION, type(message).__name__, head, shapes]).encode(), arrays


def bytes_of(array: Array) -> memoryview:
    """An array's bytes, not copied."""
    return array.reshape(-1).view(np.uint8).data


def encode(message: Message) -> list[Any]:
    """Frames of a message: the head as bytes, then one buffer per array (not copied).

    Raises:
        FormatError: an array of a dtype that has no name on the wire.
    """
    head, arrays = split(message)
    return [head, *map(bytes_of, arrays)]


def decode(frames: Sequence[Any]) -> Message:
    """The message of some frames; its arrays are read-only views of them.

    Raises:
        FormatError: not a message of this version, or one that is damaged.
    """
    try:
        version, kind, head, shapes = json.loads(bytes(frames[0]))
        if version != VERSION:
            raise FormatError(f"[kvstore wire] expected version {VERSION}, got {version!r}")
        arrays = [_array(code, size, frame) for (code, size), frame in _paired(shapes, frames[1:])]
        known = KINDS[kind]
        values = {name: _rebuilt(name, head[name], arrays) for name in _FIELDS[known]}
        field_types.check(known, _CHECKS[known], values)
        return known(**values)
    except FormatError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise FormatError(f"[kvstore wire] expected a whole message, got {error!r}") from None


def _code(array: Array) -> str:
    if array.dtype.str not in _DTYPES or not array.flags.c_contiguous:
        raise FormatError(
            f"[kvstore wire] expected a contiguous array of {sorted(_DTYPES)}, got {array.dtype}"
        )
    return str(array.dtype.str)


def _paired(shapes: Any, frames: Sequence[Any]) -> Any:
    if len(shapes) != len(frames):
        raise FormatError(f"[kvstore wire] expected {len(shapes)} arrays, got {len(frames)}")
    return zip(shapes, frames, strict=True)


def _array(code: str, size: int, frame: Any) -> Array:
    dtype = _DTYPES[code]
    data = memoryview(frame).cast("B")
    if not isinstance(size, int) or size < 0 or data.nbytes != size * dtype.itemsize:
        raise FormatError(
            f"[kvstore wire] expected {size} values of {dtype}, got {data.nbytes} bytes"
        )
    return np.frombuffer(data, dtype)


def _plain(value: Any, arrays: list[Array]) -> Any:
    """A field as JSON values; arrays are put aside and stand as their number."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return len(arrays) - 1
    if isinstance(value, Gradient):
        return [value.parts, _plain(value.values, arrays), value.code]
    if isinstance(value, dict):
        return {key: _plain(one, arrays) for key, one in value.items()}
    return value


def _rebuilt(name: str, value: Any, arrays: list[Array]) -> Any:
    """A field of a message from its JSON values."""
    if name == "gradients":
        return {key: _gradient(one, arrays) for key, one in value.items()}
    if name in ("values", "rows"):
        return {key: arrays[one] for key, one in value.items()}
    if name in ("seen", "parts"):
        return {key: _parts(one) for key, one in value.items()}
    is_tuple = name in ("slices", "missing", "keys") and isinstance(value, list)
    return tuple(value) if is_tuple else value


def _gradient(value: Any, arrays: list[Array]) -> Gradient:
    parts, number, code = value
    return Gradient(_parts(parts), arrays[number], code)


def _parts(value: Any) -> tuple[Part, ...]:
    return tuple(Part(int(worker), int(step)) for worker, step in value)
