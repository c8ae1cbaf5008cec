"""What a prediction makes of its parameters alone is kept between runs: which steps, and where.

Hazard: a kept value outlives its run, so it needs bytes that no other value may take, and must be
made again as soon as a parameter was written. The runner compares the versions of those arguments
at each run (`csrc/plan/kept.h`); this pass only says what depends on them and on nothing else.

Kept are the weights and biases of convolutions: in the order or transform of their kernel where it
has one (`Kernel.prepared_bytes`), else as they are; with norms folded into them, the result. A step
that makes nothing but weights which a kernel keeps in its own form writes to the arena and is left
out like the others as long as the parameters stay.
"""

from __future__ import annotations

import math

from .schedule import Buffer, Task, Use

_ALIGN = 64
_CONVOLUTIONS = frozenset({"conv", "blocked_conv"})
#: Cheap primitives on the way from a parameter to a weight, besides the elementwise ones.
_CHEAP = frozenset({"fused", "broadcast", "permute", "strided_slice", "concatenate", "full"})


def keep(tasks: list[Task], arg_access: list[str]) -> int:
    """Marks steady tasks, and gives what is kept its place; returns the bytes that are kept.

    Args:
        tasks: of a plan without gradients, in the order in which they run, before arena memory is
            given to them.
        arg_access: 'r', 'w' or 'rw' for each argument.
    """
    if not tasks or not _ends_with_argument(tasks[-1]):
        return 0
    steady = _steady(tasks, arg_access)
    convolutions = [t for t in tasks if t.op.name in _CONVOLUTIONS]
    wanted = _wanted(convolutions, steady, arg_access)
    size = 0
    for task in convolutions:
        nbytes = getattr(task.kernel, "prepared_bytes", 0)
        if nbytes and _known(task.reads[1], wanted, arg_access) and _pays(task, nbytes):
            task.prepared = (size, nbytes)
            size += _rounded(nbytes)
    for task in tasks:
        task.steady = task in wanted
    for task in wanted:
        for use in task.writes:
            if use.buffer.slot is None and _read_by_others(use.buffer):
                use.buffer.slot = ("kept", size, use.buffer.nbytes)
                size += _rounded(use.buffer.nbytes)
    return size


def _pays(task: Task, nbytes: int) -> bool:
    """Whether keeping weights in a larger form saves some 2 % of the convolution.

    Making them writes about 8 GB/s, the convolution runs at some 400 Gflop/s.
    """
    weights = task.reads[1].desc.shape
    flops = 2 * math.prod(task.writes[0].desc.shape) * math.prod(weights[1:])
    return nbytes < 6 * math.prod(weights) or flops < 2500 * nbytes


def _rounded(nbytes: int) -> int:
    return (max(nbytes, 1) + _ALIGN - 1) // _ALIGN * _ALIGN


def _ends_with_argument(task: Task) -> bool:
    return any(u.buffer.slot is not None and u.buffer.slot[0] == "arg" for u in task.writes)


def _known(use: Use, steady: set[Task], arg_access: list[str]) -> bool:
    """Whether a content depends on arguments and on nothing else, and is written once."""
    buffer = use.buffer
    if len(buffer.writers) != 1:
        return False
    if buffer.slot is not None:
        kind, index = buffer.slot[:2]
        return bool(kind == "const" or (kind == "arg" and arg_access[index] == "r"))
    return buffer.writers[0] in steady


def _steady(tasks: list[Task], arg_access: list[str]) -> set[Task]:
    """Cheap native tasks that depend on arguments alone."""
    found: set[Task] = set()
    for task in tasks:
        cheap = task.op.elementwise or task.op.name in _CHEAP
        if not cheap or task.draw is not None or callable(task.kernel):
            continue
        inside = all(u.buffer.slot is None and len(u.buffer.writers) == 1 for u in task.writes)
        if inside and all(_known(u, found, arg_access) for u in task.reads):
            found.add(task)
    return found


def _wanted(convolutions: list[Task], steady: set[Task], arg_access: list[str]) -> set[Task]:
    """The steady tasks from which weights and biases come."""
    stack = []
    for task in convolutions:
        ends = task.reads[1 : 3 if _has_bias(task) else 2]
        stack += [u.buffer.writers[0] for u in ends if _known(u, steady, arg_access)]
    wanted: set[Task] = set()
    while stack:
        writer = stack.pop()
        if writer is not None and writer not in wanted:
            wanted.add(writer)
            stack += [u.buffer.writers[0] for u in writer.reads]
    return wanted


def _has_bias(task: Task) -> bool:
    if task.op.name == "blocked_conv":
        return bool(task.params["bias"])
    return len(task.reads) > 2


def _read_by_others(buffer: Buffer) -> bool:
    """Whether somebody reads the content who is neither left out nor keeps it in another form.

    The fields that say so (`steady`, `prepared`) are set for all tasks before this is asked.
    """
    for task in buffer.readers[0]:
        if task.steady:
            continue
        as_weights = task.prepared is not None and all(
            u.buffer is not buffer for k, u in enumerate(task.reads) if k != 1
        )
        if not as_weights:
            return True
    return False
