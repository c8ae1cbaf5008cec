"""What a step costs: arithmetic, traffic, an estimate of its time, and its measured time.

Hazard: a measurement on a busy machine is too long by any factor, and one that runs a step twice
may do something twice. So each kernel is timed on arrays of its own, the fastest of several runs
counts, and what calls Python code is estimated instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import dtype as dtypes
from ..ir import Desc, Node
from .plan import Step
from .schedule import FREE, Task, desc_of

#: Of one thread, roughly; where nothing is measured only their ratio matters.
FLOPS, BANDWIDTH, STEP = 4.0e10, 6.0e9, 1.0e-6
_REPEAT = 3
_ENOUGH = 0.05  # seconds of measuring after which a step is not run again

_measured: dict[tuple[Any, ...], float] = {}


def flops(op: str, ins: Sequence[Desc], outs: Sequence[Desc]) -> int:
    """Two for each multiplication and addition of a convolution or matrix product.

    Args:
        op: name of the primitive.
        ins, outs: descriptors of its operands.
    """
    a, b = [d.shape for d in ins], [d.shape for d in outs]
    kind = op.removeprefix("blocked_")
    if kind == "conv":
        return 2 * math.prod(b[0]) * math.prod(a[1][1:])
    if kind == "conv_data_grad":
        return 2 * math.prod(a[0]) * math.prod(a[1][1:])
    if kind == "conv_weight_grad":
        return 2 * math.prod(a[0]) * math.prod(b[0][1:])
    if kind == "matmul":
        inner = a[0][-1] if a[0][-2] == b[0][-2] else a[0][-2]
        return 2 * math.prod(b[0]) * inner
    return 0


def moved(ins: Sequence[Desc], outs: Sequence[Desc]) -> int:
    """Bytes of all operands together."""
    return sum(math.prod(d.shape) * dtypes.from_code(d.dtype).itemsize for d in (*ins, *outs))


def estimated(op: str, ins: Sequence[Desc], outs: Sequence[Desc], threads: int = 1) -> float:
    """A rough time of a step in seconds, the same on every machine."""
    work = flops(op, ins, outs) / (FLOPS * threads) + moved(ins, outs) / BANDWIDTH
    return STEP + work


def measured(task: Task) -> float:
    """Seconds of a task's kernel, measured once per kernel signature and remembered.

    The kernel runs on arrays of its own. Python code (a custom operator, a reference kernel) and
    random draws, which would take numbers of the user's, are not run: their time is estimated.
    """
    ins, outs = [u.desc for u in task.reads], [u.desc for u in task.writes]
    threads = getattr(task.kernel, "threads", 1)
    if callable(task.kernel) or task.op.random:
        return estimated(task.op.name, ins, outs, threads)
    key = _key(task.op.name, task.params, ins, outs, threads)
    found = _measured.get(key)
    if found is None:
        found = _measured[key] = _run(task)
    return found


def known(node: Node, device: tuple[int, int], threads: int) -> float:
    """Seconds of a node of a graph of primitives: as measured before, else estimated."""
    assert node.op is not None
    if node.op.name in FREE or not node.inputs:
        return 0.0
    ins = [desc_of(v.type, device) for v in node.inputs]
    outs = [desc_of(v.type, device) for v in node.values]
    name = node.op.name
    found = _measured.get(_key(name, node.params, ins, outs, threads))
    return estimated(name, ins, outs, threads) if found is None else found


def _key(
    name: str,
    params: Mapping[str, Any],
    ins: Sequence[Desc],
    outs: Sequence[Desc],
    threads: int,
) -> tuple[Any, ...]:
    operands = tuple((d.dtype, tuple(d.shape), d.layout) for d in (*ins, *outs))
    return name, repr(sorted(params.items(), key=lambda item: item[0])), threads, operands


def forget() -> None:
    """Drops what was measured."""
    _measured.clear()


def _run(task: Task) -> float:
    """The fastest of a few runs of a plan of this one step."""
    from .. import _rt

    slots: dict[int, tuple[Any, ...]] = {}
    descs: list[Desc] = []
    access: list[str] = []
    written = {u.buffer.number for u in task.writes}
    for use in (*task.reads, *task.writes):
        buffer = use.buffer
        if buffer.number in slots:
            continue
        if buffer.slot is not None and buffer.slot[0] in ("const", "scalar"):
            slots[buffer.number] = _constant(use.desc)
            continue
        slots[buffer.number] = ("arg", len(descs))
        descs.append(use.desc)
        access.append("rw" if buffer.number in written else "r")
    space = getattr(task.kernel, "workspace_bytes", 0)
    step = Step(
        kernel=task.kernel,
        inputs=[slots[u.buffer.number] for u in task.reads],
        outputs=[slots[u.buffer.number] for u in task.writes],
        input_descs=[u.desc for u in task.reads],
        output_descs=[u.desc for u in task.writes],
        workspace=(0, space) if space else None,
        label=task.label,
    )
    plan = _rt.core.Plan([step], descs, access, 0, space, [1], f"timing {task.label}")
    bound = plan.bind([_filled(d) for d in descs])
    times: list[float] = []
    while len(times) < _REPEAT and sum(times) < _ENOUGH:
        times.append(bound.profile((), 0)[0])
    return STEP + min(times)


def _constant(desc: Desc) -> tuple[Any, ...]:
    from .. import _rt

    return ("const", _rt.core.from_numpy(_values(desc), desc.device))


def _filled(desc: Desc) -> Any:
    from .. import _rt

    return _rt.core.from_numpy(_values(desc), desc.device)


def _values(desc: Desc) -> np.ndarray[Any, Any]:
    """Halves, which no kernel is slower with; zeros, which every index may be."""
    dtype = dtypes.from_code(desc.dtype)
    return np.full(desc.shape, 0.5 if dtypes.is_float(dtype) else 0).astype(dtype)
