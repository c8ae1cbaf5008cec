"""The only module that knows the core: the compiled `_core`, or its plain Python twin.

`core` is bound when `mixflow.backends` is imported: to `mixflow._core` where it was built, else to
`mixflow.backends.pure`. Both satisfy the Protocols below and pass the same tests.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from . import config
from .errors import MixflowError
from .ir.types import Desc


class Array(Protocol):
    """A dense array handle: a contiguous view (offset, shape, dtype) of a storage chunk.

    `mixflow.NDArray` subclasses it. Never blocks unless stated. Values may still be computed when a
    handle exists; reading bytes waits.
    """

    shape: tuple[int, ...]
    dtype_code: int
    device: tuple[int, int]
    size: int
    ndim: int
    version: int  #: version of the storage: grows with each write pushed
    last_write: str  #: 'file.py:12' of the line that pushed the last write, '' if not known
    autograd: Any  #: slot for the tape (None at first); a Python object that only this handle holds

    def view(self, offset: int, shape: Sequence[int], dtype_code: int | None = None) -> Array:
        """A handle of the same class on the same storage; offset in elements from this handle's."""

    def shares_storage(self, other: Array) -> bool: ...
    def storage_id(self) -> int: ...
    def wait_to_read(self) -> None: ...
    def wait_to_write(self) -> None: ...
    def to_numpy(self) -> np.ndarray[Any, Any]:
        """A fresh plain copy (bfloat16 as ml_dtypes). Waits; raises the storage's error."""

    def copy_from_numpy(self, source: np.ndarray[Any, Any]) -> None:
        """Copies a C-contiguous array of the same dtype and size in. Waits for earlier accesses."""

    def __dlpack__(self, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


class Completion(Protocol):
    """Ends an asynchronous callback's task, once. One that is lost ends it with an error."""

    def done(self, error: str | None = None) -> None:
        """Ends the task, with an error if there is a text."""


class Kernel(Protocol):
    """A prepared native kernel."""

    workspace_bytes: int
    threads: int
    cheap: bool
    random: bool
    inplace: list[tuple[int, int]]
    implementation: str


#: A reference kernel or other Python call as a plan step. Gets NumPy views (outputs writable) and
#: (seed, draw). The core keeps the views' memory alive during the call.
HostCall = Callable[[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]], tuple[int, int]], None]

#: Where a step finds a buffer:
#: ('arg', i)              argument i of the run
#: ('arena', offset, n)    n bytes at an offset of the arena
#: ('scalar', i, code)     number i of the run's scalars, converted to dtype code, shape ()
#: ('const', Array)        a constant owned by the plan
#: ('null',)               absent optional buffer
Slot = tuple[Any, ...]


class StepSpec(Protocol):
    """One step, as `core.Plan` takes it (any object with these attributes; see passes/plan.py).

    `draw_slot` is k for the k-th random step of the plan, -1 for others. A random step runs with
    draw number = base of the run + k, or with `draws[k]` when the run is given recorded numbers.
    """

    kernel: Any  #: Kernel | Plan (nested) | HostCall
    inputs: list[Slot]
    outputs: list[Slot]
    input_descs: list[Desc]
    output_descs: list[Desc]
    workspace: tuple[int, int] | None  #: (offset, bytes) in the arena
    draw_slot: int
    label: str  #: operator and shapes, for errors and profiles
    steady: bool  #: left out while what it makes of parameters is kept; may be absent
    prepared: tuple[int, int] | None  #: (offset, bytes) of kept weights; may be absent


class Plan(Protocol):
    """Immutable list of steps. Thread-safe; runs may overlap when their tags allow it."""

    steps: int
    host_calls: int
    arena_bytes: int
    num_draws: int
    phases: int

    def run(
        self,
        args: Sequence[Array],
        scalars: Sequence[float] = (),
        arena: Any = None,
        phase: int = 0,
        draws: Sequence[int] | None = None,
    ) -> int:
        """Pushes one engine task per segment and returns the first draw number that it took.

        Each argument's tag is released after the last step of the phase that touches it. Draw
        numbers are taken by phase 0; later phases on the same arena use the same ones. Without
        `arena` a temporary one comes from the pool; a plan of several phases needs one.

        Raises:
            MXNetError: an argument's dtype, shape, layout or device is not the plan's.
        """

    def bind(self, args: Sequence[Array], arena: Any = None) -> Bound:
        """The same with the arguments checked and resolved once."""


class Bound(Protocol):
    """A plan with its arguments: `run` is one native call."""

    def run(
        self,
        scalars: Sequence[float] = (),
        phase: int = 0,
        draws: Sequence[int] | None = None,
        feeds: Sequence[tuple[int, Array]] | None = None,
        alias: bool = False,
    ) -> int:
        """Like `Plan.run`.

        Args:
            phase: a phase, or -1: all of them as one task.
            feeds: (argument, array) pairs; each array's content is copied into the argument's
                before the first step, as part of the task.
            alias: the run may read the feeds in place of their arguments, which then keep what
                they had. It does where the arguments are only read.

        Raises:
            MXNetError: a feed's dtype, shape or device is not the argument's.
        """

    def profile(self, scalars: Sequence[float] = (), phase: int = 0) -> list[float]:
        """Runs a phase with a clock at every step and waits; seconds of each step.

        Host calls count 0.
        """

    def executed_steps(self) -> int:
        """Steps executed so far, over all runs (tests count pruned work with it)."""


class Core(Protocol):
    """Functions of the core module."""

    Array: Any  #: a type
    Plan: type  #: Plan(steps, arg_descs, arg_access, num_scalars, arena_bytes, phase_ends, label)
    #: kept_bytes, a further argument, is understood by the compiled core only
    #  arg_access[i]: 'r', 'w' (fully overwritten) or 'rw'; phase_ends: step counts, e.g. [10, 25]
    #: Arena(device): grows to the largest plan bound; `.bytes`, `.owner` (last user's label)
    Arena: type
    Tag: type

    name: str  #: 'native' or 'pure'

    # -- arrays
    def set_array_class(self, cls: type) -> None:
        """The class of arrays that calls return (`mixflow.NDArray`)."""

    def set_operator_ids(self, ids: dict[str, tuple[int, tuple[Any, ...]]]) -> None:
        """Operators of Python's number protocol: key -> (operator id, static params tuple).

        Two arrays (inputs self, other; no scalars): 'add' 'sub' 'mul' 'div' 'mod' 'pow' 'eq' 'ne'
        'lt' 'le' 'gt' 'ge'. Array and number (input self; scalars (float(number),)): each of these
        with '_scalar', and with the number on the left 'rsub_scalar' 'rdiv_scalar' 'rmod_scalar'
        'rpow_scalar'. One array: 'neg' 'abs'. In-place operators pass out=self. Numbers are bool,
        int, float and NumPy scalars; anything else, and a missing key, gives NotImplemented.
        """

    def empty(self, shape: Sequence[int], dtype_code: int, device: tuple[int, int]) -> Array: ...
    def from_numpy(self, source: np.ndarray[Any, Any], device: tuple[int, int]) -> Array:
        """A new array with a copy of `source`."""

    def from_dlpack(self, capsule: Any) -> Array: ...
    def shared_empty(
        self, name: str, shape: Sequence[int], dtype_code: int, create: bool
    ) -> Array: ...

    # -- imperative calls
    def invoke(
        self,
        op_id: int,
        inputs: Sequence[Array],
        params: tuple[Any, ...],
        scalars: Sequence[float],
        out: Any,
        device: tuple[int, int] | None,
    ) -> Any:
        """Runs an operator and returns one array or a list (visible outputs only).

        Looks (op_id, params, input descs, device, training, which outputs alias inputs) up in the
        dispatch cache, allocates outputs (or uses `out`), pushes the plan, and calls the recorder
        when recording. `params` is the hashable tuple of all static parameter values in the
        record's order (a runtime parameter's place holds None); `scalars` the runtime parameters
        in order. `device` is used when there are no inputs.
        """

    def set_miss_handler(self, handler: Callable[..., Any]) -> None:
        """handler(op_id, params, in_descs, device, training) makes what `invoke` caches.

        It returns an object with: plan, out_descs (all outputs, hidden included), visible (count),
        inplace (list of (output, input) pairs that may be one memory), name. The plan's arguments
        are the inputs, then all outputs; mutated inputs are 'rw'.
        """

    def clear_dispatch_cache(self) -> None: ...
    def dispatch_misses(self) -> int: ...

    def set_recorder(self, recorder: Callable[..., None]) -> None:
        """recorder(op_id, params, scalars, inputs, outputs (all), first_draw, versions).

        Called after each invoke while recording. versions[i]: version of inputs[i]'s storage
        before the call.
        """

    def set_recording(self, on: bool) -> bool:
        """Thread-local; returns the old value."""

    def set_training(self, on: bool) -> bool: ...
    def is_recording(self) -> bool: ...
    def is_training(self) -> bool: ...

    # -- kernels
    def prepare(
        self,
        primitive: str,
        attrs: dict[str, Any],
        inputs: Sequence[Desc],
        outputs: Sequence[Desc],
        threads: int,
    ) -> Kernel | None:
        """A native kernel, or None when native does not serve this request."""

    # -- engine
    def push(
        self,
        fn: Callable[..., None],
        reads: Sequence[Any],
        writes: Sequence[Any],
        name: str = "call",
        priority: int = 0,
        lane: str = "python",
        asynchronous: bool = False,
        inline_ok: bool = False,
    ) -> None:
        """A Python callback as a task (python lane). reads/writes: Arrays or Tags.

        With `asynchronous` the callback gets a `Completion`, and the task ends when its `done` is
        called, from any thread, not when the callback returns: it holds no worker meanwhile. A
        short one may run before `push` returns, if nothing has to be waited for (`inline_ok`).

        Arrays that the callback needs must come as fresh handles: see `fresh_handle`.
        """

    def fresh_handle(self, array: Array) -> Array:
        """A handle with a fresh tag over the same memory, for use inside a callback."""

    def copy_array(self, source: Array, target: Array) -> None:
        """Copies between arrays of one type, on any devices of the host, as a native task."""

    def borrow_numpy(
        self, source: np.ndarray[Any, Any], device: tuple[int, int] | None = None
    ) -> Array:
        """An array over a contiguous NumPy array's memory, for use inside a host call.

        The host call's step ends when the work on such arrays has ended, and fails with its first
        error.
        """

    def writable_view(self, array: Array) -> np.ndarray[Any, Any]:
        """A writable NumPy view of an array's memory, which stays valid when the array is gone.

        Waits for earlier accesses. The engine knows nothing of what is written through it: only
        for an array that nobody else has yet, until it is handed on.
        """

    def wait_all(self) -> None: ...
    def set_engine(self, kind: str) -> None:
        """'threaded' or 'serial'; waits for all work first."""

    def engine_kind(self) -> str: ...
    def set_threads(self, count: int) -> None:
        """The core budget of the process."""

    def threads(self) -> int: ...
    def measure_peak(self, threads: int) -> tuple[float, float]:
        """Most float32 operations, and bytes read and written, of this machine per second.

        Measured now, for about half a second, by loops that do nothing else.
        """

    def set_deterministic(self, on: bool) -> None:
        """Whether kernels prepared from now on are chosen by fixed rules instead of by timing."""

    def set_queue_limits(self, tasks: int, nbytes: int) -> None: ...
    def start_trace(self) -> None: ...
    def stop_trace(self) -> list[dict[str, Any]]:
        """One dict per task: order, name, lane, device, start_ns, end_ns, reads and writes (tag
        numbers), released (pairs of tag number and time), skipped, failed."""

    # -- storage
    def storage_statistics(self) -> dict[str, int]: ...
    def reset_peak(self) -> None: ...
    def set_memory_limit(self, nbytes: int) -> None: ...
    def empty_pool(self) -> None: ...

    # -- pictures
    def picture(
        self,
        source: np.ndarray[Any, Any],
        out: np.ndarray[Any, Any],
        geometry: Sequence[int],
        order: Sequence[int] | None = None,
        mean: Sequence[float] | None = None,
        factor: Sequence[float] | None = None,
        bias: Sequence[float] | None = None,
        mean_image: np.ndarray[Any, Any] | None = None,
    ) -> None:
        """One decoded picture into one sample of a batch, on this thread and without the GIL.

        Bilinear resizing with the weights and the rounding of OpenCV's, crop, mirror, then
        `(pixel - mean) * factor + bias` per channel. The batch's other samples may be written by
        other threads meanwhile.

        Args:
            source: (h, w, channels) uint8; a region of the whole picture is enough, and it may be
                larger than the picture (whose top and left then lie at negative places).
            out: (channels, height, width), C-contiguous: float32; uint8 (pixels as they are); or
                int8 (normalised, rounded, saturated).
            geometry: top and left of `source` in the picture, whole height and width, resized
                height and width, top and left of the part in the resized picture, mirror (0 or 1).
            order: source channel of each output channel.
            mean, factor, bias: one number per output channel; 0, 1 and 0 by default.
            mean_image: (channels, height, width) float32 in place of `mean`.

        Raises:
            MXNetError: sizes that do not fit, or a region without a pixel that is needed.
        """

    # -- random
    def seed(self, value: int, device: tuple[int, int] | None = None) -> None: ...
    def rng_state(self, device: tuple[int, int]) -> tuple[int, int]:
        """(seed, next draw number)"""

    def take_draws(self, count: int, device: tuple[int, int]) -> tuple[int, int]:
        """Takes `count` draw numbers at once; (seed, the first of them)."""

    def set_rng_state(self, state: tuple[int, int], device: tuple[int, int]) -> None: ...


class NativeCore(Core, Protocol):
    """What the compiled core has besides."""

    # Boards of a KVStore, where the system has shared memory (csrc/kvstore/desk.h, lane.h).
    ServerDesk: Any  #: ServerDesk(address, bells): a server's boards; closes rounds on them
    WorkerLane: Any  #: WorkerLane(notify, patience_ms): a worker's boards, and exchanges over them
    LaneRoute: Any  #: LaneRoute(stops): where each slice of an exchange lies

    def lane_layout(
        self, sizes: Sequence[int], columns: int
    ) -> tuple[int, list[int], list[list[int]]]:
        """How a board for some slices (bytes of each) and workers lies in memory: bytes in all,
        where the values begin, and by slice and column where the gradients do."""

    def run_kernel(
        self,
        kernel: Kernel,
        ins: Sequence[Array],
        outs: Sequence[Array],
        seed: int = 0,
        draw: int = 0,
    ) -> None:
        """Runs a kernel once and waits; for tests."""

    def kernel_registry(self) -> Any:
        """Capsule "mixflow.kernels.Registry": where an extension module adds its kernels."""

    def operator_keys(self) -> list[str]:
        """The keys that `set_operator_ids` takes."""

    def pending(self) -> int:
        """Tasks that have not ended."""

    def close(self) -> None:
        """Drains the engine and ends its threads; every later push is an error."""


core: Core = None  # type: ignore[assignment]  # bound by mixflow.backends


#: Rounds that an idle OpenMP thread waits before it sleeps, a few microseconds: enough to catch the
#: next loop of a quiet plan (an mlp step of 0.58 ms takes 0.43), too short to starve others.
_SPIN_COUNT = "2000"


@contextmanager
def _idle_threads_sleep() -> Iterator[None]:
    """Scope in which OpenMP, when it is loaded, is told that its idle threads soon sleep.

    By default they spin for milliseconds, which takes the cores from everything else that runs: on
    two busy cores a LeNet step took twelve times as long (docs/design/engine.md). OpenMP reads the
    variable once, when it is loaded; it is put back so that other libraries and child processes
    keep their own defaults.
    """
    if os.environ.get("GOMP_SPINCOUNT") or os.environ.get("OMP_WAIT_POLICY"):
        yield  # the user's choice
        return
    os.environ["GOMP_SPINCOUNT"] = _SPIN_COUNT
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


def load_native() -> Any | None:
    """The compiled core, or None where it was not built (or MIXFLOW_PURE=1 asks for the twin).

    Raises:
        MixflowError: it was built but does not load. Falling back would hide a broken build.
    """
    if config.current().pure or importlib.util.find_spec("._core", __package__) is None:
        return None
    try:
        with _idle_threads_sleep():
            return importlib.import_module("._core", __package__)
    except ImportError as error:
        raise MixflowError(
            f"[core] expected mixflow._core to load, got {type(error).__name__}: {error}; rebuild "
            "it (`make core`, or `pip install --force-reinstall .`), or set MIXFLOW_PURE=1 to run "
            "on the plain Python core"
        ) from error


def bind_core(chosen: Any) -> None:
    """Makes `chosen` the core of the process; called once, by `mixflow.backends`."""
    global core
    core = chosen
