"""The way from a graph to a plan: every pass in its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import GraphError
from ..ir import Desc, Graph, Node, Operator, TensorType, Value, variable
from . import memory as memory_pass
from . import order as order_pass
from .epilogue import epilogue
from .fold_norm import fold_norm
from .fuse import fuse as fuse_pass
from .infer import infer
from .keep import keep as keep_pass
from .layout import layout as layout_pass
from .lower import lower
from .manager import Pass, run_passes
from .plan import CompiledPlan, Step
from .precision import precision as precision_pass
from .recompute import Saving, fit
from .schedule import (
    AGAIN,
    ORDER,
    PIECES,
    Schedule,
    ScheduleBuilder,
    Task,
    Use,
    desc_of,
    kernel_pairs,
)
from .simplify import simplify

if TYPE_CHECKING:
    from .place import Places

MEMORY = ("arena", "inplace", "none")


def single(
    op: Operator, params: dict[str, Any], types: list[TensorType], scalars: tuple[str, ...] = ()
) -> Graph:
    """The graph of one operator call.

    Args:
        op: the operator.
        params: its typed parameters, those in `scalars` left out or ignored.
        types: of the inputs.
        scalars: names of the runtime parameters that are given at each run, in order.
    """
    values = [variable(f"in{i}", t) for i, t in enumerate(types)]
    numbers = [variable(name, _SCALAR, kind="scalar") for name in scalars]
    given = {**params, **dict(zip(scalars, numbers, strict=True))}
    node = Node(op, op.name, values, given)
    first = len(node.types) - len(node.mutated)
    updates = tuple((node[first + k], values[i]) for k, i in enumerate(node.mutated))
    return Graph((*values, *numbers), node.values[:first], updates)


def compile_graph(
    graph: Graph,
    backend: Any,
    *,
    train: bool = False,
    device: tuple[int, int] = (1, 0),
    memory: str = "arena",
    fuse: bool = True,
    layout: bool = True,
    threads: int = 0,
    label: str = "plan",
) -> CompiledPlan:
    """Compiles a graph of any level.

    The plan's arguments are the graph's inputs in order (scalars excluded: they are the run's
    scalars), then its outputs. Variables listed in `updates` are written in place ('rw').

    Args:
        graph: its inputs have known types, or types that follow from the others.
        backend: prepares the kernels.
        train: mode for operators that ask for it.
        device: (type code, index).
        memory: 'arena', 'inplace' or 'none'.
        fuse: whether elementwise chains become programs.
        layout: whether convolutions may choose blocked activations.
        threads: for kernels; 0 = the whole core budget.

    Raises:
        ShapeError, DTypeError, GraphError: from the passes.
    """
    if memory not in MEMORY:
        raise GraphError(f"[compile] expected memory among {', '.join(MEMORY)}, got '{memory}'")
    ready = optimize(graph, train=train, fuse=fuse, backend=backend if layout else None)
    return build_plan(ready, backend, device, memory, threads, label)


_LOWERED = frozenset({"typed", "primitives"})


def _finishing(
    fuse: bool, backend: Any, narrow: Any = None, places: Places | None = None
) -> tuple[Pass, ...]:
    passes = [Pass("simplify", simplify, _LOWERED, frozenset({"simple"}))]
    if places is not None:
        from .place import place as place_pass

        passes.append(Pass("place", lambda g: place_pass(g, places), _LOWERED))
    if fuse:
        passes.append(Pass("fold_norm", fold_norm, _LOWERED))
    if narrow is not None:
        chooser, dtype = narrow
        passes.append(Pass("precision", lambda g: precision_pass(g, chooser, dtype), _LOWERED))
    if backend is not None:
        passes.append(Pass("layout", lambda g: layout_pass(g, backend), _LOWERED))
        if fuse:
            passes.append(Pass("epilogue", epilogue, _LOWERED))
    if fuse:
        passes.append(Pass("fuse", fuse_pass, _LOWERED, frozenset({"fused"})))
    return tuple(passes)


def optimize(graph: Graph, *, train: bool = False, fuse: bool = True, backend: Any = None) -> Graph:
    """The graph of primitives and programs that runs; layouts are those `backend` asks for."""
    first = Pass("lower", lambda g: lower(g, infer(g), train=train), frozenset(), _LOWERED)
    return run_passes(graph, (first, *_finishing(fuse, backend)))


def finish(
    graph: Graph,
    *,
    fuse: bool = True,
    backend: Any = None,
    narrow: tuple[Any, np.dtype[Any]] | None = None,
    places: Places | None = None,
) -> Graph:
    """Simplified, laid out for `backend`, fused unless told otherwise; takes primitives.

    Args:
        narrow: for mixed precision: the backend that says which products pay, and the dtype.
        places: where the nodes run; None = all on one device.
    """
    return run_passes(graph, _finishing(fuse, backend, narrow, places), _LOWERED)


#: Nanoseconds of one thread below which a whole plan stays on it: bringing others in, step by step,
#: costs about as much, and the plan may run on the thread that pushes it.
LIGHT = 60_000.0
_FREE = ("reshape", "assign")  # as a rule nothing to do when run
_HEAVY = ("conv", "rnn", "linalg", "sort")


def _size(value: Value) -> int:
    shape = value.type.shape if value.type is not None else None
    return math.prod(d or 1 for d in shape or ())


def _one_thread(graph: Graph) -> float:
    """A rough time of a graph of primitives on one thread, in nanoseconds."""
    total = 0.0
    for node in graph.nodes():
        if node.op is None or node.op.name in _FREE:
            continue
        name, made = node.op.name, sum(_size(v) for v in node.values)
        total += 100.0 + 0.3 * made
        if name == "matmul":
            inner = node.inputs[0].shape[-2 if node.params["transpose_a"] else -1]
            total += 0.02 * made * inner
        elif any(part in name for part in _HEAVY):
            return math.inf
    return total


def scheduled(
    graph: Graph, backend: Any, device: tuple[int, int], threads: int
) -> tuple[Schedule, list[Task]]:
    """Tasks of a graph of primitives, and an order for them."""
    if threads == 0 and _one_thread(graph) < LIGHT:
        threads = 1

    def prepare(op: Operator, params: dict[str, Any], ins: list[Desc], outs: list[Desc]) -> Any:
        return backend.prepare(op, params, ins, outs, threads)

    levels: dict[Value, int] = {}
    for _ in range(3):
        builder = ScheduleBuilder(graph, prepare, device, levels)
        schedule = builder.build()
        found = order_pass.order(schedule, keep=ORDER in graph.meta)
        if found is not None:
            return schedule, found
        for new in order_pass.stuck(schedule, builder.mutations):
            levels[new] = levels.get(new, 0) + 1
    raise GraphError("[order] expected an acyclic graph, got mutations that wait for each other")


@dataclass
class _Placed:
    """A graph's tasks in order, with their places in the arena."""

    graph: Graph
    schedule: Schedule
    tasks: list[Task]
    kept: int
    spaces: dict[int, int]
    arena: int
    bound: int


def _placed(
    graph: Graph, backend: Any, device: tuple[int, int], memory: str, threads: int, keep: bool
) -> _Placed:
    schedule, tasks = scheduled(graph, backend, device, threads)
    order_pass.lifetimes(tasks)
    kept = keep_pass(tasks, schedule.arg_access) if keep and graph.phase_outputs is None else 0
    return _Placed(graph, schedule, tasks, kept, *memory_pass.allocate(tasks, memory))


def build_plan(
    graph: Graph,
    backend: Any,
    device: tuple[int, int],
    memory: str,
    threads: int,
    label: str = "plan",
    saving: Saving | None = None,
    keep: bool = False,
) -> CompiledPlan:
    """Order, memory and the core's plan for a graph of primitives.

    Args:
        saving: forward values that the backward phase may compute again, and a limit of bytes.
        keep: whether each binding keeps what is made of parameters alone from run to run.

    Raises:
        ParamError: the limit of `saving` cannot be met.
    """

    def place(graph: Graph) -> tuple[int, _Placed]:
        made = _placed(graph, backend, device, memory, threads, keep)
        return made.arena, made

    _, placed = place(graph)
    if saving:
        placed = fit(graph, placed.tasks, placed.arena, saving, place) or placed
    return _assembled(placed, device, memory, label, placed.schedule.draws)


def build_part(
    graph: Graph,
    backend: Any,
    device: tuple[int, int],
    threads: int,
    label: str,
    draws: Sequence[str],
) -> CompiledPlan:
    """The plan of what one device does of a graph that runs on several; its pieces are phases.

    Args:
        graph: its `meta` has an order of nodes and the piece of each (pass split).
        threads: for kernels.
        draws: label of every draw of the whole graph, in the order of their numbers.
    """
    placed = _placed(graph, backend, device, "arena", threads, False)
    return _assembled(placed, device, "arena", label, draws)


def _phase_ends(graph: Graph, tasks: Sequence[Task]) -> list[int]:
    """Number of tasks up to the end of each phase; a piece without a task has none."""
    if graph.meta.get(PIECES) is not None:
        after = [k for k in range(1, len(tasks)) if tasks[k].phase != tasks[k - 1].phase]
        return [*after, len(tasks)]
    if graph.phase_outputs is not None:
        return [sum(t.phase == 0 for t in tasks), len(tasks)]
    return [len(tasks)]


def _assembled(
    placed: _Placed, device: tuple[int, int], memory: str, label: str, draws: Sequence[str]
) -> CompiledPlan:
    """The core's plan of tasks that have their places."""
    from .. import _rt

    graph, schedule, tasks = placed.graph, placed.schedule, placed.tasks
    numbers = {d: k for k, d in enumerate(draws)}
    steps = [_step(task, placed.spaces, numbers) for task in tasks]
    ends = _phase_ends(graph, tasks)
    plan = _rt.core.Plan(
        steps,
        schedule.arg_descs,
        schedule.arg_access,
        schedule.num_scalars,
        placed.arena,
        ends,
        label,
        **({"kept_bytes": placed.kept} if placed.kept else {}),
    )
    return CompiledPlan(
        plan=plan,
        steps=steps,
        arg_descs=schedule.arg_descs,
        arg_access=schedule.arg_access,
        out_descs=[desc_of(v.type, device) for v in graph.outputs],
        memory={memory: placed.arena, "lower_bound": placed.bound},
        inplace=_argument_pairs(schedule, tasks),
        draws=schedule.draws,
        phase_ends=ends,
        outputs=schedule.outputs,
        recomputed=sum(t.node is not None and AGAIN in t.node.attrs for t in tasks),
        kept=placed.kept,
        pieces=sorted({t.phase for t in tasks}) if graph.meta.get(PIECES) is not None else [],
    )


def _step(task: Task, spaces: dict[int, int], draws: dict[str, int]) -> Step:
    nbytes = getattr(task.kernel, "workspace_bytes", 0)
    return Step(
        kernel=task.kernel,
        inputs=[_slot(u) for u in task.reads],
        outputs=[_slot(u) for u in task.writes],
        input_descs=[u.desc for u in task.reads],
        output_descs=[u.desc for u in task.writes],
        workspace=(spaces[task.index], nbytes) if nbytes else None,
        draw_slot=draws[task.draw] if task.draw is not None else -1,
        label=task.label,
        input_ids=[_identity(u) for u in task.reads],
        output_ids=[_identity(u) for u in task.writes],
        op=task.op.name,
        steady=task.steady,
        prepared=task.prepared,
    )


def _slot(use: Use) -> tuple[Any, ...]:
    buffer = use.buffer
    if buffer.slot is not None:
        return buffer.slot
    return ("arena", buffer.root().offset, buffer.nbytes)


def _identity(use: Use) -> int:
    """Number of a content; -1 for what comes from outside."""
    if use.buffer.writers[use.epoch] is None:
        return -1
    return use.buffer.number * 1024 + use.epoch


def _argument_pairs(schedule: Schedule, tasks: list[Task]) -> list[tuple[int, int]]:
    """(output, input) pairs of graph outputs and inputs that may be the same memory."""
    args = {b.slot[1]: b for b in schedule.buffers if b.slot is not None and b.slot[0] == "arg"}
    pairs = []
    for number, argument in enumerate(schedule.outputs):
        out, desc = args[argument], schedule.arg_descs[argument]
        writer = out.writers[0]
        for index in range(schedule.outputs[0]):
            source = args[index]
            if schedule.arg_access[index] != "r" or schedule.arg_descs[index] != desc:
                continue
            if (
                source.last < out.first
                or source.last < 0
                or (
                    source.last == out.first
                    and writer is not None
                    and _task_allows(writer, out, source)
                )
            ):
                pairs.append((number, index))
    return pairs


def _task_allows(task: Task, out: Any, source: Any) -> bool:
    pairs = kernel_pairs(
        task.kernel, task.op, [u.desc for u in task.reads], [u.desc for u in task.writes]
    )
    at = next(k for k, u in enumerate(task.writes) if u.buffer is out)
    return all((at, k) in pairs for k, u in enumerate(task.reads) if u.buffer is source)


def _scalar_type() -> TensorType:
    return TensorType((), np.dtype(np.float64))


_SCALAR = _scalar_type()
