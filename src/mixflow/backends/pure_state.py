"""What the parts of the plain Python core share: chunks, errors, generators, statistics, trace."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import MXNetError

array_class: Any = None
operator_ids: dict[str, Any] = {}
generators: dict[tuple[int, int], list[int]] = {}
default_seed = 0
events: list[dict[str, Any]] | None = None
spare_arenas: deque[np.ndarray[Any, Any]] = deque(maxlen=2)
lock = threading.RLock()

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class _Memory:
    """Bytes of chunks."""

    live = peak = allocations = limit = 0

    def add(self, nbytes: int) -> None:
        if self.limit and self.live + nbytes > self.limit:
            raise MXNetError(
                f"[storage] expected at most {self.limit} bytes (the limit), got a request of "
                f"{nbytes} with {self.live} in use"
            )
        self.live += nbytes
        self.allocations += 1
        self.peak = max(self.peak, self.live)


memory = _Memory()


class TaskError:
    """The error of a task, kept on what the task wrote. Each wait raises a new exception."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.raised = False
        _pending.append(self)
        _bodies.errors.append(self)

    def throw(self) -> None:
        """Raises it."""
        self.raised = True
        raise MXNetError(self.text)


_pending: deque[TaskError] = deque(maxlen=10_000)


class _Bodies(threading.local):
    """Errors of the tasks that the Python call now running on this thread has pushed."""

    def __init__(self) -> None:
        self.errors: deque[TaskError] = deque(maxlen=1)


_bodies = _Bodies()


class Completion:
    """See `_rt.Completion`."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: str | None = None

    def done(self, error: str | None = None) -> None:
        """Ends the task."""
        if self.ended.is_set():
            raise MXNetError("[push] expected one call of done, got a second one")
        self.error = error
        self.ended.set()


def run_asynchronous(fn: Callable[[Completion], None]) -> None:
    """Runs an asynchronous callback and waits for its end: tasks run in push order here."""
    completion = Completion()
    fn(completion)
    # The callback keeps the completion while it may still end it.
    while not completion.ended.wait(0.1):
        if sys.getrefcount(completion) <= 2:
            raise MXNetError("the task was abandoned")
    if completion.error is not None:
        raise MXNetError(completion.error)


def run_body(fn: Callable[..., Any], *args: Any) -> TaskError | None:
    """Runs a Python call of a task; the error of something that it pushed and nobody saw."""
    outer, _bodies.errors = _bodies.errors, deque()
    try:
        fn(*args)
        return next((e for e in _bodies.errors if not e.raised), None)
    finally:
        _bodies.errors = outer


def raise_oldest() -> None:
    """Raises the oldest error that no wait has raised, if there is one."""
    while _pending:
        error = _pending.popleft()
        if not error.raised:
            error.throw()


def call_site() -> str:
    """`file.py:12` of the innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_PACKAGE) and not name.startswith("<"):
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "unknown"


def describe(label: str, error: BaseException) -> str:
    """Text of a task's error: the original first, then operator, shapes and creating line."""
    text = str(error) or type(error).__name__
    if not isinstance(error, MXNetError):
        text = f"{type(error).__name__}: {text}"
    if ", created at " in text:
        return text
    return f"{text}; in operator {label}, created at {call_site()}"


class Chunk:
    """Bytes with an owner, a version that grows with each write, and the error of the last task."""

    __slots__ = ("counted", "data", "device", "error", "number", "version", "writer")
    _next = 0

    def __init__(self, data: Any, device: tuple[int, int], counted: bool = True) -> None:
        self.counted = 0
        if counted:
            memory.add(data.nbytes)
            self.counted = data.nbytes
        self.data = data
        self.device = device
        self.version = 0
        self.writer = ""
        self.error: TaskError | None = None
        Chunk._next += 1
        self.number = Chunk._next

    def __del__(self) -> None:
        memory.live -= self.counted

    def wrote(self) -> None:
        """Notes a write and the line that it comes from."""
        self.version += 1
        self.writer = call_site()

    def check(self) -> None:
        """Raises the error of the storage, if it has one."""
        if self.error is not None:
            self.error.throw()


def first_error(chunks: list[Chunk]) -> TaskError | None:
    """The error that a task over these chunks inherits."""
    return next((c.error for c in chunks if c.error is not None), None)


def wrap(chunk: Chunk, offset: int, shape: tuple[int, ...], dtype: Any, cls: Any = None) -> Any:
    """A handle on `chunk`, `offset` bytes in."""
    made = (cls or array_class).__new__(cls or array_class)
    made._chunk = chunk
    made._offset = offset
    made._np = np.ndarray(shape, dtype, chunk.data, offset)
    made.autograd = None
    return made


def new_array(shape: tuple[int, ...], dtype: Any, device: tuple[int, int]) -> Any:
    """A handle on fresh storage."""
    if device[0] == 2:
        raise MXNetError(
            f"[context] expected a usable device, got gpu({device[1]}); there is no GPU backend "
            "here, mx.num_gpus() is 0; use mx.cpu()"
        )
    size = dtype.itemsize
    for dim in shape:
        size *= dim
    if size < 0:
        raise MXNetError(f"[empty] expected dimensions of at least 0, got {shape}")
    if size > 2**60:
        raise MXNetError(f"[shape] expected at most 2^60 bytes, got {shape} of {dtype}")
    if memory.limit:
        memory.add(size)
        memory.live -= size
        memory.allocations -= 1
    return wrap(Chunk(np.empty(size, np.uint8), device), 0, shape, dtype)


def operator_name(op_id: int) -> str:
    """Name of a numbered operator, for texts."""
    from ..ir import by_id

    return by_id(op_id).name


def generator(device: tuple[int, int]) -> list[int]:
    """[seed, next draw] of a device."""
    found = generators.get(device)
    if found is None:
        found = generators[device] = [default_seed, 0]
    return found


def take_draws(device: tuple[int, int], count: int) -> tuple[int, int]:
    """(seed, first draw number); the next one starts `count` later."""
    with lock:
        found = generator(device)
        first = found[1]
        found[1] += count
        return found[0], first


def shared_bytes(name: str, size: int, create: bool) -> np.ndarray[Any, Any]:
    """Bytes of a named mapping under /dev/shm (what shm_open uses); the creator removes it."""
    path = os.path.join("/dev/shm", name.lstrip("/"))
    flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
    try:
        handle = os.open(path, flags, 0o600)
    except OSError as error:
        raise MXNetError(f"[shared_empty] expected a mapping '{name}', got {error}") from None
    try:
        if create:
            os.ftruncate(handle, max(size, 1))
        elif os.fstat(handle).st_size < size:
            raise MXNetError(
                f"[shared_empty] expected at least {size} bytes in '{name}', got "
                f"{os.fstat(handle).st_size}"
            )
        mapping = _Mapping(handle, max(size, 1))
    finally:
        os.close(handle)
    mapping.path = path if create else None
    return np.frombuffer(mapping, np.uint8, size)


class _Mapping(mmap.mmap):
    """A mapping that its creator removes when it is dropped."""

    path: str | None = None

    def __del__(self) -> None:
        if self.path is not None:
            try:
                os.unlink(self.path)
            except OSError:
                self.path = None


def trace(
    name: str, lane: str, began: int, reads: Any, writes: Any, skipped: Any, failed: Any
) -> None:
    """Adds a task to the trace, where one is recorded."""
    if events is None:
        return
    events.append(
        {
            "order": len(events),
            "name": name,
            "lane": lane,
            "start_ns": began,
            "end_ns": time.perf_counter_ns(),
            "reads": [c.number for c in reads],
            "writes": [c.number for c in writes],
            "released": [],
            "skipped": skipped is not None,
            "failed": failed is not None,
        }
    )
