"""Plans of a graph that runs on several devices: one plan per device, copies between them.

Hazard: the plans run at the same time and know nothing of each other. All that orders them are
tags: each value that crosses lies in an array on either side, written once per run, and everything
is pushed in an order in which whatever a task waits for was pushed before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .. import dtype as dtypes
from ..ir import Graph, Node
from . import cost
from .lower import DRAW
from .pipeline import build_part, finish, scheduled
from .place import Device, Places
from .plan import CompiledPlan, Step
from .schedule import draw_order
from .split import Action, Part, Split, Transfer, split

#: Name of the steps that copy between devices, as in MXNet.
COPY = "_CrossDeviceCopy"


@dataclass(frozen=True)
class Link:
    """What a copy between two devices costs.

    Attributes:
        latency: seconds until a copy has begun and its reader has been woken.
        bandwidth: bytes per second.
    """

    latency: float = 5e-5
    bandwidth: float = 4e9

    def seconds(self, nbytes: int) -> float:
        """Estimated time of a copy."""
        return self.latency + nbytes / self.bandwidth


class Arenas:
    """The arenas of an executor, one per device, made when first asked for."""

    def __init__(self, made: Mapping[Device, Any] | None = None) -> None:
        self._made = dict(made or {})

    def on(self, device: Device) -> Any:
        """The arena of a device."""
        from .. import _rt

        if device not in self._made:
            self._made[device] = _rt.core.Arena(device)
        return self._made[device]


@dataclass
class PlacedPart:
    """The plan of one device.

    Attributes:
        device: (type code, index).
        compiled: its plan; a phase of it is a piece.
        args: of the plan: ('whole', argument of the whole), ('in', transfer) or ('out', transfer).
    """

    device: Device
    compiled: CompiledPlan
    args: list[tuple[str, int]]


class PlacedPlan:
    """Stands for `_rt.Plan` where there is one plan per device. Immutable, holds no nodes.

    Attributes:
        parts: the plans.
        transfers: what goes between devices.
        actions: what a run pushes, in order.
        arena_bytes: over all devices.
    """

    def __init__(
        self,
        parts: Sequence[PlacedPart],
        transfers: Sequence[Transfer],
        actions: Sequence[Action],
        draws: int,
        home: Device,
    ) -> None:
        self.parts, self.transfers, self.actions = list(parts), list(transfers), list(actions)
        self.num_draws, self.home = draws, home
        plans = [p.compiled.plan for p in parts]
        self.host_calls = sum(p.host_calls for p in plans)
        self.arena_bytes = sum(p.arena_bytes for p in plans)
        self.phases = 2
        self.runs = [self._run_of(a) for a in actions]

    def _run_of(self, action: Action) -> int:
        """Number of the plan's phase that is the piece of an action; -1 = a copy, or no step."""
        if action.part < 0:
            return -1
        pieces = self.parts[action.part].compiled.pieces
        return pieces.index(action.piece) if action.piece in pieces else -1

    def bytes_on(self, device: Device) -> int:
        """Bytes of a device's arena, and of the arrays there that values are sent from or to."""
        total = sum(p.compiled.memory["arena"] for p in self.parts if p.device == device)
        for number, transfer in enumerate(self.transfers):
            own = transfer.given < 0 and transfer.first == number
            total += transfer.type.nbytes * (
                (transfer.target == device) + (own and transfer.source == device)
            )
        return total

    @property
    def steps(self) -> int:
        """Number of steps, copies included."""
        return sum(int(p.compiled.plan.steps) for p in self.parts) + len(self.transfers)

    def bind(self, args: Sequence[Any], arenas: Arenas) -> PlacedBound:
        """See `_rt.Plan.bind`.

        Args:
            args: of the whole graph, each on its device.
            arenas: memory for the intermediate values.
        """
        return PlacedBound(self, list(args), arenas)


class PlacedBound:
    """Stands for `_rt.Bound`: runs push one task per piece and per copy."""

    def __init__(self, plan: PlacedPlan, args: list[Any], arenas: Arenas) -> None:
        self._plan, self._args = plan, args
        sources: list[Any] = []
        targets: list[Any] = []
        for number, transfer in enumerate(plan.transfers):
            if transfer.given >= 0:
                sources.append(args[transfer.given])
            elif transfer.first != number:
                sources.append(sources[transfer.first])
            else:
                sources.append(_array(transfer, transfer.source))
            targets.append(_array(transfer, transfer.target))
        where = {"whole": args, "in": targets, "out": sources}
        self._parts = [
            p.compiled.plan.bind([where[kind][k] for kind, k in p.args], arenas.on(p.device))
            for p in plan.parts
        ]
        self._pairs = list(zip(sources, targets, strict=True))
        self._draws: list[int] | None = None
        self._copied = 0

    def run(
        self,
        scalars: Sequence[float] = (),
        phase: int = 0,
        draws: Sequence[int] | None = None,
        feeds: Sequence[tuple[int, Any]] | None = None,
        alias: bool = False,
    ) -> int:
        """See `_rt.Bound.run`. Feeds are copied into their arguments, never read in place of them.

        Draw numbers are taken once for all devices, so that the values are those of one device.
        """
        from .. import _rt

        for index, source in feeds or ():
            _rt.core.copy_array(source, self._args[index])
        first = self._number_draws(phase, draws)
        for action, number in zip(self._plan.actions, self._plan.runs, strict=True):
            if phase in (-1, action.phase):
                if action.part < 0:
                    _rt.core.copy_array(*self._pairs[action.transfer])
                    self._copied += 1
                elif number >= 0:
                    self._parts[action.part].run((), number, self._draws)
        return first

    def _number_draws(self, phase: int, draws: Sequence[int] | None) -> int:
        """Numbers for the draws of this run; those of the forward phase are kept for the other."""
        from .. import _rt

        plan = self._plan
        if draws is not None:
            self._draws = list(draws)
        elif plan.num_draws and phase != 1:
            _, first = _rt.core.take_draws(plan.num_draws, plan.home)
            self._draws = list(range(first, first + plan.num_draws))
        return self._draws[0] if self._draws else 0

    def profile(self, scalars: Sequence[float] = (), phase: int = 0) -> list[float]:
        """See `_rt.Bound.profile`: piece after piece, undisturbed by others; copies are 0."""
        from .. import _rt

        times: list[float] = []
        for action, number in zip(self._plan.actions, self._plan.runs, strict=True):
            if action.phase != phase:
                continue
            if action.part < 0:
                _rt.core.copy_array(*self._pairs[action.transfer])
                times.append(0.0)
            elif number >= 0:
                times += self._parts[action.part].profile((), number)
        return times

    def executed_steps(self) -> int:
        """Steps executed so far, copies included."""
        return self._copied + sum(int(part.executed_steps()) for part in self._parts)


def _array(transfer: Transfer, device: Device) -> Any:
    from .. import _rt

    shape: Any = transfer.type.shape
    return _rt.core.empty(shape, dtypes.code(transfer.type.dtype), device)


def compile_placed(
    graph: Graph,
    places: Places,
    backend: Any,
    *,
    narrow: tuple[Any, np.dtype[Any]] | None = None,
    link: Link = Link(),
    label: str = "plan",
) -> CompiledPlan:
    """Compiles a graph of primitives whose nodes run on several devices.

    The devices share the core budget evenly. The plan's arguments are those of `build_plan`.

    Args:
        places: where its nodes and values are.
        narrow: see `finish`.
        link: cost of a copy, for the order in which things are pushed.
    """
    from .. import _rt

    ready = finish(graph, backend=backend, narrow=narrow, places=places)
    threads = max(1, _rt.core.threads() // len(places.devices))
    seconds = partial(cost.known, device=places.default, threads=threads)
    work = split(ready, places, seconds, link.seconds, _frugal(ready, places.default))
    draws = draw_order(n.attrs[DRAW] for n in ready.nodes() if DRAW in n.attrs)
    parts = [_part(p, backend, threads, label, draws) for p in work.parts]
    plan = PlacedPlan(parts, work.transfers, work.actions, len(draws), places.default)
    return _compiled(plan, graph, work, draws)


class _NoKernels:
    """Stands for a backend where only the order counts."""

    def prepare(self, *_: Any) -> None:
        """No kernel."""


def _frugal(graph: Graph, device: Device) -> dict[Node, int]:
    """Position of each node in the order that would be taken on one device."""
    _, tasks = scheduled(graph, _NoKernels(), device, 1)
    found: dict[Node, int] = {}
    for position, task in enumerate(tasks):
        if task.node is not None:
            found.setdefault(task.node, position)
    return found


def _part(part: Part, backend: Any, threads: int, label: str, draws: Sequence[str]) -> PlacedPart:
    name = f"{label} on device {part.device[0]}/{part.device[1]}"
    compiled = build_part(part.graph, backend, part.device, threads, name, draws)
    return PlacedPart(part.device, compiled, [*part.inputs, *part.outputs])


def _compiled(plan: PlacedPlan, graph: Graph, work: Split, draws: list[str]) -> CompiledPlan:
    """The whole as one record; `steps` are those of all devices in the order of the pushes."""
    steps: list[Step] = []
    forward = 0
    for action, number in zip(plan.actions, plan.runs, strict=True):
        if action.part < 0:
            steps.append(_copy_step(work.transfers[action.transfer]))
        elif number >= 0:
            compiled = plan.parts[action.part].compiled
            begin = compiled.phase_ends[number - 1] if number else 0
            steps += compiled.steps[begin : compiled.phase_ends[number]]
        forward = len(steps) if action.phase == 0 else forward
    memory = {
        key: sum(p.compiled.memory[key] for p in plan.parts) for key in ("arena", "lower_bound")
    }
    sides = {d for t in plan.transfers for d in (t.source, t.target)}
    devices = sides | {p.device for p in plan.parts}
    memory["copies"] = sum(plan.bytes_on(d) for d in devices) - memory["arena"]
    count = len(graph.inputs)
    return CompiledPlan(
        plan=plan,
        steps=steps,
        arg_descs=[],
        arg_access=[],
        out_descs=[],
        memory=memory,
        draws=draws,
        phase_ends=[forward, len(steps)],
        outputs=list(range(count, count + len(graph.outputs))),
    )


def _copy_step(transfer: Transfer) -> Step:
    """Stands in lists of steps for a copy, which the engine's copy lane runs."""
    shape: Any = transfer.type.shape
    code = dtypes.code(transfer.type.dtype)
    names = [f"{d[0]}/{d[1]}" for d in (transfer.source, transfer.target)]
    from ..ir import Desc

    size = "x".join(map(str, shape)) or "scalar"
    return Step(
        kernel=None,
        inputs=[],
        outputs=[],
        input_descs=[Desc(code, tuple(shape), 0, transfer.source)],
        output_descs=[Desc(code, tuple(shape), 0, transfer.target)],
        label=f"{COPY} {transfer.label} ({size}) {names[0]} -> {names[1]}",
        op=COPY,
    )
