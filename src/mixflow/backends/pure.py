"""The core's Protocol (`_rt.Core`) in plain Python on NumPy: tasks run at once, on the caller.

Hazard: two cores must not drift apart. What the protocol promises (errors that stay on storage,
versions, alias rules of `out=`, draw numbers) is kept here too, and both pass the same tests.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import dtype as dtypes
from ..errors import MXNetError
from ..ir.types import Desc
from . import pure_state as state
from .pure_array import Array
from .pure_picture import picture
from .pure_plan import Arena, Bound, Plan
from .pure_state import Chunk, TaskError

name = "pure"

__all__ = ["Arena", "Array", "Bound", "Plan", "Tag", "name", "picture"]


class Tag:
    """A resource that is no array: only its errors matter, as tasks run in push order."""

    def __init__(self) -> None:
        self._chunk = Chunk(np.empty(0, np.uint8), (1, 0))

    @property
    def version(self) -> int:
        """Number of writes so far."""
        return self._chunk.version

    def wait(self) -> None:
        """Raises the error that the last task left on the tag."""
        self._chunk.check()


# -- arrays


def set_array_class(cls: type) -> None:
    """See `_rt.Core`."""
    state.array_class = cls


def set_operator_ids(ids: dict[str, tuple[int, tuple[Any, ...]]]) -> None:
    """See `_rt.Core`."""
    state.operator_ids.update(ids)


def empty(shape: Sequence[int], dtype_code: int, device: tuple[int, int]) -> Any:
    """See `_rt.Core`."""
    return state.new_array(tuple(shape), dtypes.from_code(dtype_code), (device[0], device[1]))


def from_numpy(source: np.ndarray[Any, Any], device: tuple[int, int]) -> Any:
    """See `_rt.Core`."""
    made = state.new_array(source.shape, dtypes.canonical(source.dtype), (device[0], device[1]))
    np.copyto(made._np, source)
    return made


class _Capsule:
    """Gives a bare capsule the two methods that NumPy asks for."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def from_dlpack(capsule: Any) -> Any:
    """See `_rt.Core`. A strided tensor is copied, a contiguous one shared."""
    shared = np.from_dlpack(_Capsule(capsule))
    dtype = dtypes.canonical(shared.dtype)
    plain = shared if shared.flags.c_contiguous else shared.copy()
    return state.wrap(Chunk(_writable_bytes(plain), (1, 0)), 0, plain.shape, dtype)


def _writable_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Its memory as bytes. NumPy marks what an old capsule gives read-only, the sender does not."""
    buffer = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
    buffer.owner = array  # type: ignore[attr-defined]
    return np.frombuffer(memoryview(buffer), np.uint8) if array.nbytes else np.empty(0, np.uint8)


def borrow_numpy(source: np.ndarray[Any, Any], device: tuple[int, int] | None = None) -> Any:
    """An array on the memory of a contiguous NumPy array, for use inside a host call."""
    if not source.flags.c_contiguous:
        raise MXNetError("[borrow_numpy] expected a contiguous array, got a strided one")
    data = source.reshape(-1).view(np.uint8)
    place = (1, 0) if device is None else (device[0], device[1])
    return state.wrap(Chunk(data, place, counted=False), 0, source.shape, source.dtype)


def writable_view(array: Any) -> np.ndarray[Any, Any]:
    """See `_rt.Core`."""
    array.wait_to_write()
    return array._np  # type: ignore[no-any-return]


def shared_empty(name: str, shape: Sequence[int], dtype_code: int, create: bool) -> Any:
    """See `_rt.Core`."""
    dtype = dtypes.from_code(dtype_code)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    chunk = Chunk(state.shared_bytes(name, size, create), (1, 0))
    return state.wrap(chunk, 0, tuple(shape), dtype)


# -- imperative calls


class _Entry:
    __slots__ = ("inplace", "mutated", "name", "plan", "types", "visible")

    def __init__(self, made: Any) -> None:
        self.plan = made.plan
        self.types = [(d.shape, dtypes.from_code(d.dtype), tuple(d.device)) for d in made.out_descs]
        self.visible = made.visible
        self.inplace = frozenset(tuple(pair) for pair in made.inplace)
        self.name = made.name


_cache: dict[Any, _Entry] = {}
_misses = 0
_miss_handler: Callable[..., Any] | None = None
_recorder: Callable[..., None] | None = None


class _Flags(threading.local):
    recording = False
    training = False


_flags = _Flags()


def _look_up(op_id: int, params: Any, inputs: Sequence[Any], device: Any) -> _Entry:
    global _misses
    if inputs:
        device = inputs[0]._chunk.device
    key = (
        op_id,
        params,
        tuple([(a._np.dtype.num, a._np.shape) for a in inputs]),
        device,
        _flags.training,
    )
    entry = _cache.get(key)
    if entry is None:
        for other in inputs:
            if other._chunk.device != device:
                raise MXNetError(
                    f"[{state.operator_name(op_id)}] expected inputs on one context, got "
                    f"{device} and {other._chunk.device}; use as_in_context"
                )
        if _miss_handler is None:
            raise MXNetError("[invoke] expected a miss handler, got none; import mixflow.ndarray")
        _misses += 1
        device = (1, 0) if device is None else device
        made = _miss_handler(op_id, params, [a._desc() for a in inputs], device, _flags.training)
        entry = _cache[key] = _Entry(made)
    elif len(inputs) > 1 and any(a._chunk.device != device for a in inputs):
        raise MXNetError(f"[{entry.name}] expected inputs on one context; use as_in_context")
    return entry


def _given_outputs(entry: _Entry, out: Any) -> list[Any]:
    given = list(out) if isinstance(out, (list, tuple)) else [out]
    if len(given) != entry.visible:
        raise MXNetError(
            f"[{entry.name}] expected {entry.visible} arrays in out=, got {len(given)}"
        )
    for array, (shape, dtype, device) in zip(given, entry.types, strict=False):
        if not isinstance(array, Array):
            raise MXNetError(f"[{entry.name}] expected arrays in out=, got {type(array).__name__}")
        if array._np.shape != shape or array._np.dtype != dtype or array._chunk.device != device:
            raise MXNetError(
                f"[{entry.name}] expected out= of {dtype.name}{list(shape)} on {device}, got "
                f"{array._np.dtype.name}{list(array._np.shape)} on {array._chunk.device}"
            )
    return given


def _must_copy(entry: _Entry, index: int, array: Any, inputs: Sequence[Any], given: Any) -> bool:
    """Whether writing output `index` straight into `array` could spoil an input or output."""
    for j, source in enumerate(inputs):
        if source._chunk is array._chunk and np.may_share_memory(source._np, array._np):
            same = source._offset == array._offset and source._np.nbytes == array._np.nbytes
            if not same or (index, j) not in entry.inplace:
                return True
    return any(other._chunk is array._chunk for other in given[:index])


def invoke(
    op_id: int,
    inputs: Sequence[Any],
    params: tuple[Any, ...],
    scalars: Sequence[float],
    out: Any,
    device: tuple[int, int] | None,
) -> Any:
    """See `_rt.Core`."""
    entry = _look_up(op_id, params, inputs, device)
    types = entry.types
    copies: list[tuple[Any, Any]] = []
    if out is None:
        targets = outputs = [state.new_array(*t) for t in types]
    else:
        given = _given_outputs(entry, out)
        outputs = given + [state.new_array(*t) for t in types[len(given) :]]
        targets = list(outputs)
        for i, array in enumerate(given):
            if _must_copy(entry, i, array, inputs, given):
                targets[i] = state.new_array(*types[i])
                copies.append((array, targets[i]))
    recording = _flags.recording and _recorder is not None
    versions = [a._chunk.version for a in inputs] if recording else []
    first = entry.plan.run((*inputs, *targets), scalars)
    for array, fresh in copies:
        array._take(fresh)
    if recording:
        assert _recorder is not None
        _recorder(op_id, params, scalars, list(inputs), list(outputs), first, versions)
    if out is not None:
        return out
    return outputs[0] if entry.visible == 1 else outputs[: entry.visible]


def set_miss_handler(handler: Callable[..., Any]) -> None:
    """See `_rt.Core`."""
    global _miss_handler
    _miss_handler = handler


def clear_dispatch_cache() -> None:
    """Forgets every prepared call."""
    _cache.clear()


def dispatch_misses() -> int:
    """Number of calls that had to be prepared."""
    return _misses


def set_recorder(recorder: Callable[..., None] | None) -> None:
    """See `_rt.Core`."""
    global _recorder
    _recorder = recorder


def set_recording(on: bool) -> bool:
    """Thread-local; returns the old value."""
    old, _flags.recording = _flags.recording, bool(on)
    return old


def set_training(on: bool) -> bool:
    """Thread-local; returns the old value."""
    old, _flags.training = _flags.training, bool(on)
    return old


def is_recording() -> bool:
    """Whether this thread records for autograd."""
    return _flags.recording


def is_training() -> bool:
    """Whether operators of this thread behave as in training."""
    return _flags.training


# -- kernels


def prepare(
    primitive: str,
    attrs: dict[str, Any],
    inputs: Sequence[Desc],
    outputs: Sequence[Desc],
    threads: int,
) -> None:
    """There are no native kernels here: always None."""
    return None


# -- engine


def push(
    fn: Callable[..., None],
    reads: Sequence[Any],
    writes: Sequence[Any],
    name: str = "call",
    priority: int = 0,
    lane: str = "python",
    asynchronous: bool = False,
    inline_ok: bool = False,
) -> None:
    """See `_rt.Core`: runs `fn` now; its error stays on the written arrays."""
    if asynchronous:
        fn = functools.partial(state.run_asynchronous, fn)
    began = time.perf_counter_ns()
    written = [w._chunk for w in writes]
    carried = state.first_error([r._chunk for r in reads])
    failed = carried
    if carried is None:
        try:
            failed = state.run_body(fn)
        except Exception as error:
            failed = TaskError(state.describe(name, error))
    for chunk in written:
        chunk.wrote()
        chunk.error = failed
    state.trace(name, lane, began, [r._chunk for r in reads], written, carried, failed)


def fresh_handle(array: Any) -> Any:
    """See `_rt.Core`."""
    old = array._chunk
    chunk = Chunk(old.data, old.device, counted=False)
    return state.wrap(chunk, array._offset, array._np.shape, array._np.dtype, type(array))


def copy_array(source: Any, target: Any) -> None:
    """See `_rt.Core`."""
    if source._np.shape != target._np.shape or source._np.dtype != target._np.dtype:
        raise MXNetError(
            f"[copy] expected {target._np.dtype.name}{list(target._np.shape)}, got "
            f"{source._np.dtype.name}{list(source._np.shape)}"
        )
    target._take(source)


def wait_all() -> None:
    """Raises the oldest error that no wait has raised."""
    state.raise_oldest()


_engine = "serial"
_threads = 1


def set_engine(kind: str) -> None:
    """Accepts 'threaded' and 'serial'; both run at once here."""
    global _engine
    if kind not in ("threaded", "serial"):
        raise MXNetError(f"[engine] expected 'threaded' or 'serial', got {kind!r}")
    _engine = kind


def engine_kind() -> str:
    """The kind asked for."""
    return _engine


def set_threads(count: int) -> None:
    """Kept for `threads()`; NumPy decides itself."""
    global _threads
    if count < 1:
        raise MXNetError(f"[threads] expected at least 1, got {count}")
    _threads = count


def measure_peak(threads: int) -> tuple[float, float]:
    """NumPy's best: operations of a matrix product, bytes of an addition, per second."""
    matrix = np.ones((512, 512), np.float32)
    vector, result = np.ones(1 << 24, np.float32), np.empty(1 << 24, np.float32)
    product = _fastest(lambda: np.matmul(matrix, matrix))
    addition = _fastest(lambda: np.add(vector, vector, out=result))
    return 2 * 512**3 / product, 2 * result.nbytes / addition


def _fastest(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of a few calls."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return max(min(times), 1e-9)


def set_deterministic(on: bool) -> None:
    """NumPy has one kernel for each primitive."""


def threads() -> int:
    """The core budget of the process."""
    return _threads


def set_queue_limits(tasks: int, nbytes: int) -> None:
    """Nothing is ever queued here."""


def start_trace() -> None:
    """Starts recording tasks."""
    state.events = []


def stop_trace() -> list[dict[str, Any]]:
    """The tasks since `start_trace`."""
    found, state.events = state.events or [], None
    return found


# -- storage


def storage_statistics() -> dict[str, int]:
    """See csrc/storage/storage.h `Statistics`."""
    return {
        "live_bytes": state.memory.live,
        "peak_bytes": state.memory.peak,
        "pooled_bytes": 0,
        "allocations": state.memory.allocations,
        "system_calls": state.memory.allocations,
        "limit_bytes": state.memory.limit,
    }


def reset_peak() -> None:
    """The peak starts again from what lives now."""
    state.memory.peak = state.memory.live


def set_memory_limit(nbytes: int) -> None:
    """Allocations that would pass `nbytes` raise; 0 = no limit."""
    state.memory.limit = int(nbytes)


def empty_pool() -> None:
    """There is no pool, but the spare arenas go."""
    state.spare_arenas.clear()


# -- random


def seed(value: int, device: tuple[int, int] | None = None) -> None:
    """Sets the key of one device, or of all, and starts its draws again at 0."""
    key = int(value) & 0xFFFFFFFFFFFFFFFF
    if device is None:
        state.default_seed = key
        state.generators.clear()
    else:
        state.generators[device] = [key, 0]


def rng_state(device: tuple[int, int]) -> tuple[int, int]:
    """(seed, next draw number)"""
    found = state.generator(device)
    return (found[0], found[1])


def take_draws(count: int, device: tuple[int, int]) -> tuple[int, int]:
    """See `_rt.Core`."""
    return state.take_draws(device, count)


def set_rng_state(value: tuple[int, int], device: tuple[int, int]) -> None:
    """Restores what `rng_state` gave."""
    state.generators[device] = [int(value[0]), int(value[1])]
