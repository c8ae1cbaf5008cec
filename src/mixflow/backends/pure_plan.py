"""Plans of the plain Python core: a list of host calls and nested plans, run in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import dtype as dtypes
from ..errors import MXNetError
from . import pure_state as state

#: Fills the buffers of one slot: (argument arrays, arena bytes, scalars) -> ndarray.
_Getter = Callable[[Sequence[Any], Any, Sequence[float]], Any]


class Arena:
    """Memory for the intermediate values of the plans that are bound to it; one user at a time."""

    def __init__(self, device: tuple[int, int] = (1, 0)) -> None:
        self.device = device
        self.owner = ""
        self._data = np.empty(0, np.uint8)
        self._user: Any = None
        self._draws = (0, 0)  # key and number of the first draw of the forward phase

    @property
    def bytes(self) -> int:
        """Present size."""
        return self._data.nbytes

    def _reserve(self, nbytes: int) -> Any:
        if self._data.nbytes < nbytes:
            self._data = np.empty(nbytes, np.uint8)
            self._user = None
        return self._data


def _getter(slot: tuple[Any, ...], desc: Any) -> _Getter:
    kind = slot[0]
    shape = tuple(desc.shape) if desc is not None else ()
    dtype = dtypes.from_code(desc.dtype) if desc is not None else None
    if kind == "arg":
        index = slot[1]

        def from_arg(args: Sequence[Any], _a: Any, _s: Any) -> Any:
            found = args[index]._np
            if found.dtype != dtype:
                found = found.reshape(-1).view(dtype)
            return found if found.shape == shape else found.reshape(shape)

        return from_arg
    if kind == "arena":
        offset = slot[1]
        return lambda _args, arena, _s: np.ndarray(shape, dtype, arena, offset)
    if kind == "scalar":
        position, code = slot[1], slot[2]
        number = dtypes.from_code(code)
        return lambda _args, _a, scalars: np.asarray(scalars[position]).astype(number)
    if kind == "const":
        constant = slot[1]
        return lambda _args, _a, _s: constant._np.reshape(shape)
    if kind == "null":
        return lambda _args, _a, _s: None
    raise MXNetError(f"[plan] expected a slot kind of arg, arena, scalar, const, null, got {kind}")


class _Step:
    """A step with its slots resolved as far as possible before a run."""

    __slots__ = ("draw", "inputs", "kernel", "label", "nested", "outputs", "specs")

    def __init__(self, spec: Any) -> None:
        self.kernel = spec.kernel
        self.nested = isinstance(spec.kernel, Plan)
        self.inputs = [_getter(s, d) for s, d in zip(spec.inputs, spec.input_descs, strict=True)]
        self.outputs = [_getter(s, d) for s, d in zip(spec.outputs, spec.output_descs, strict=True)]
        self.draw = spec.draw_slot
        self.label = spec.label
        self.specs = (spec.inputs, spec.outputs)


class Plan:
    """See `_rt.Plan`."""

    def __init__(
        self,
        steps: Sequence[Any],
        arg_descs: Sequence[Any],
        arg_access: Sequence[str],
        num_scalars: int = 0,
        arena_bytes: int = 0,
        phase_ends: Sequence[int] | None = None,
        label: str = "plan",
    ) -> None:
        self._steps = [_Step(s) for s in steps]
        self._descs = [
            (tuple(d.shape), dtypes.from_code(d.dtype), tuple(d.device)) for d in arg_descs
        ]
        self._access = list(arg_access)
        self._scalars = num_scalars
        self._ends = list(phase_ends) if phase_ends else [len(self._steps)]
        self.label = label
        self.arena_bytes = arena_bytes
        self.steps = len(self._steps)
        self.host_calls = sum(not s.nested for s in self._steps)
        self.num_draws = 1 + max((s.draw for s in self._steps), default=-1)
        self.phases = len(self._ends)
        self._used = [self._uses(p) for p in range(self.phases)]

    def _range(self, phase: int) -> range:
        return range(self._ends[phase - 1] if phase else 0, self._ends[phase])

    def _uses(self, phase: int) -> tuple[list[int], list[int], list[int]]:
        """Arguments that a phase reads, writes, and writes without reading."""
        reads, writes = set(), set()
        for i in self._range(phase):
            ins, outs = self._steps[i].specs
            reads |= {s[1] for s in ins if s[0] == "arg"}
            writes |= {s[1] for s in outs if s[0] == "arg"}
        known = [i for i in writes if self._access[i] == "w" and i not in reads]
        inherits = sorted(reads | {i for i in writes if self._access[i] == "rw"})
        return sorted(i for i in inherits if self._access[i] != "w"), sorted(writes), known

    def run(
        self,
        args: Sequence[Any],
        scalars: Sequence[float] = (),
        arena: Any = None,
        phase: int = 0,
        draws: Sequence[int] | None = None,
    ) -> int:
        """See `_rt.Plan`."""
        self._check(args, scalars, phase)
        if arena is None and self.phases > 1:
            raise MXNetError(f"[{self.label}] expected an arena for a plan of several phases")
        return self._run(args, scalars, arena, phase, draws, self)[0]

    def _check(self, args: Sequence[Any], scalars: Sequence[float], phase: int) -> None:
        if len(args) != len(self._descs) or len(scalars) != self._scalars:
            raise MXNetError(
                f"[{self.label}] expected {len(self._descs)} arrays and {self._scalars} scalars, "
                f"got {len(args)} and {len(scalars)}"
            )
        if not 0 <= phase < self.phases:
            raise MXNetError(f"[{self.label}] expected a phase below {self.phases}, got {phase}")
        for i, (array, (shape, dtype, device)) in enumerate(zip(args, self._descs, strict=True)):
            found = array._np
            if found.shape != shape or found.dtype != dtype or array._chunk.device != device:
                raise MXNetError(
                    f"[{self.label}] expected argument {i} of {dtype.name}{list(shape)} on "
                    f"{device}, got {found.dtype.name}{list(found.shape)} on {array._chunk.device}"
                )

    def _run(
        self, args: Any, scalars: Any, arena: Any, phase: int, draws: Any, user: Any
    ) -> tuple[int, int]:
        """Runs one phase; (first draw number, steps executed)."""
        began = time.perf_counter_ns()
        reads, writes, fresh = self._used[phase]
        device = self._descs[0][2] if self._descs else (1, 0)
        if phase:  # those of the forward phase, so that draws made again are equal
            seed, first = arena._draws
        else:
            seed, first = state.take_draws(device, 0 if draws is not None else self.num_draws)
            if arena is not None:
                arena._draws = (seed, first)
        numbers = draws if draws is not None else range(first, first + self.num_draws)
        carried = state.first_error([args[i]._chunk for i in reads])
        failed, done = carried, 0
        if carried is None:
            try:
                done = self._execute(args, scalars, arena, phase, (seed, numbers), user)
            except _Failure as failure:
                failed = state.TaskError(failure.text)
        for i in writes:
            chunk = args[i]._chunk
            chunk.wrote()
            whole = i in fresh and args[i]._np.nbytes == chunk.data.nbytes
            if failed is not None or whole:
                chunk.error = failed
        if state.events is not None:
            chunks = [a._chunk for a in args]
            seen, made = [chunks[i] for i in reads], [chunks[i] for i in writes]
            state.trace(self.label, "compute", began, seen, made, carried, failed)
        return first, done

    def _execute(self, args: Any, scalars: Any, arena: Any, phase: int, rng: Any, user: Any) -> int:
        if arena is not None:
            memory = self._claim(arena, phase, user)
        else:
            memory = _temporary(self.arena_bytes)
        steps = self._range(phase)
        with np.errstate(all="ignore"):
            for i in steps:
                self._step(self._steps[i], args, memory, scalars, rng)
        if arena is None and memory is not None:
            state.spare_arenas.append(memory)
        return len(steps)

    def _claim(self, arena: Arena, phase: int, user: Any) -> Any:
        if phase and arena._user is not user:
            raise MXNetError(
                f"[{self.label}] expected the values of its forward pass in the arena, got those "
                f"of '{arena.owner}', which used it in between; run forward again"
            )
        memory = arena._reserve(self.arena_bytes)
        arena._user, arena.owner = user, self.label
        return memory

    def _step(self, step: _Step, args: Any, memory: Any, scalars: Any, rng: Any) -> None:
        seed, numbers = rng
        inputs = [get(args, memory, scalars) for get in step.inputs]
        outputs = [get(args, memory, scalars) for get in step.outputs]
        draw = numbers[step.draw] if step.draw >= 0 else 0
        try:
            if step.nested:
                _run_nested(step.kernel, inputs + outputs, args)
            else:
                unseen = state.run_body(step.kernel, inputs, outputs, (seed, draw))
                if unseen is not None:
                    unseen.throw()
        except Exception as error:
            raise _Failure(state.describe(step.label or self.label, error)) from error

    def bind(self, args: Sequence[Any], arena: Any = None) -> Bound:
        """See `_rt.Plan`."""
        self._check(args, (0.0,) * self._scalars, 0)
        if arena is not None:
            arena._reserve(self.arena_bytes)
        return Bound(self, args, arena)


class _Failure(Exception):
    """Carries the text of a step's error to the plan's end."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def _temporary(nbytes: int) -> Any:
    if nbytes == 0:
        return None
    try:
        memory = state.spare_arenas.pop()
    except IndexError:
        return np.empty(nbytes, np.uint8)
    return memory if memory.nbytes >= nbytes else np.empty(nbytes, np.uint8)


def _run_nested(plan: Plan, buffers: list[Any], args: Any) -> None:
    device = args[0]._chunk.device if args else (1, 0)
    handles = []
    for buffer in buffers:
        flat = buffer.reshape(-1).view(np.uint8)
        chunk = state.Chunk(flat, device, counted=False)
        handles.append(state.wrap(chunk, 0, buffer.shape, buffer.dtype))
    plan.run(handles)
    for handle in handles:
        handle._chunk.check()


class Bound:
    """See `_rt.Bound`."""

    def __init__(self, plan: Plan, args: Sequence[Any], arena: Any) -> None:
        self._plan = plan
        self._args = list(args)
        self._arena = arena
        self._executed = 0

    def run(
        self,
        scalars: Sequence[float] = (),
        phase: int = 0,
        draws: Sequence[int] | None = None,
        feeds: Sequence[tuple[int, Any]] | None = None,
        alias: bool = False,
    ) -> int:
        """See `_rt.Bound`; `alias` has no use here."""
        plan = self._plan
        numbers: list[int] = []
        for number in range(plan.phases) if phase == -1 else (phase,):
            plan._check(self._args, scalars, number)
            if self._arena is None and plan.phases > 1:
                raise MXNetError(f"[{plan.label}] expected an arena for a plan of several phases")
            if not numbers:
                self._feed(feeds or ())
            first, done = plan._run(self._args, scalars, self._arena, number, draws, self)
            numbers.append(first)
            self._executed += done
        return numbers[0]

    def _feed(self, feeds: Sequence[tuple[int, Any]]) -> None:
        for index, source in feeds:
            if not 0 <= index < len(self._args):
                raise MXNetError(
                    f"[{self._plan.label}] expected feeds for arguments below {len(self._args)}, "
                    f"got {index}"
                )
            target = self._args[index]
            if source._np.shape != target._np.shape or source._np.dtype != target._np.dtype:
                raise MXNetError(
                    f"[{self._plan.label}] expected {target._np.dtype}{list(target._np.shape)} as "
                    f"feed of argument {index}, got {source._np.dtype}{list(source._np.shape)}"
                )
            failed = source._chunk.error
            if failed is None:
                target._np[...] = source._np
            target._chunk.wrote()
            target._chunk.error = failed

    def profile(self, scalars: Sequence[float] = (), phase: int = 0) -> list[float]:
        """See `_rt.Bound`; every step is a host call here."""
        self.run(scalars, phase)
        return [0.0] * len(self._plan._range(phase))

    def executed_steps(self) -> int:
        """Steps executed so far, over all runs."""
        return self._executed
