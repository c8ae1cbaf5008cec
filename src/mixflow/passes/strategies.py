"""The storage strategies of the MXNet paper, on the outputs of the user's operators.

`none` gives every internal array its own bytes, `inplace` lets an operator write over an input
that nobody else needs, `coshare` lets arrays with disjoint lifetimes share a block (a pool, first
come, with reference counts), `both` does both. Graph outputs, parameters, their gradients and
workspaces are left out. Linear time, as the paper has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .memory import Block, lower_bound
from .schedule import Buffer, Task, kernel_pairs

_RANGES = (1, 2, 4, 8, 16, 1 << 60)


@dataclass(eq=False)
class _Array:
    """An internal array: what one operator makes and another reads."""

    nbytes: int
    born: int
    dies: int
    taken: _Array | None = None  #: the input whose bytes it uses


@dataclass(eq=False)
class _Step:
    """One operator of the user, or its gradient."""

    tasks: list[Task] = field(default_factory=list)
    made: list[_Array] = field(default_factory=list)
    read: list[tuple[_Array, Buffer]] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)


def strategies(order: Sequence[Task]) -> dict[str, int]:
    """Bytes of each strategy for an unfused order of tasks, and the lower bound.

    Returns:
        'none', 'inplace', 'coshare', 'both', 'lower_bound_unfused'.
    """
    steps = _steps(order)
    arrays = [a for s in steps for a in s.made]
    none = sum(a.nbytes for a in arrays)
    coshare = min(_pooled(steps, r) for r in _RANGES)
    _take_inputs(steps)
    inplace = sum(a.nbytes for a in arrays if a.taken is None)
    both = min(_pooled(steps, r) for r in _RANGES)
    blocks = [Block(a.born, a.dies, a.nbytes) for a in arrays if a.taken is None]
    bound = lower_bound(blocks, len(steps)) if blocks else 0
    return {
        "none": none,
        "inplace": inplace,
        "coshare": coshare,
        "both": min(both, inplace, coshare),
        "lower_bound_unfused": bound,
    }


def _steps(order: Sequence[Task]) -> list[_Step]:
    """Groups tasks by the user's node and phase; a buffer that leaves its group is an array."""
    last: dict[tuple[str, int], int] = {}
    for pos, task in enumerate(order):
        last[task.origin or task.label, task.phase] = pos
    rank = {key: k for k, (key, _) in enumerate(sorted(last.items(), key=lambda item: item[1]))}
    steps = [_Step() for _ in rank]
    maker: dict[int, int] = {}
    ends: dict[int, int] = {}
    buffers: dict[int, Buffer] = {}
    for task in order:
        at = rank[task.origin or task.label, task.phase]
        steps[at].tasks.append(task)
        for use in task.writes:
            if use.buffer.slot is None:
                maker.setdefault(use.buffer.number, at)
                buffers[use.buffer.number] = use.buffer
        for use in task.reads:
            if use.buffer.number in maker:
                ends[use.buffer.number] = max(ends.get(use.buffer.number, at), at)
    made: dict[int, _Array] = {}
    for number, buffer in buffers.items():
        born, dies = maker[number], ends.get(number, maker[number])
        if dies > born and buffer.nbytes:
            made[number] = _Array(buffer.nbytes, born, dies)
            steps[born].made.append(made[number])
            steps[born].buffers.append(buffer)
    for at, step in enumerate(steps):
        for number in {u.buffer.number for t in step.tasks for u in t.reads}:
            if number in made and made[number].born < at:
                step.read.append((made[number], buffers[number]))
    return steps


def _take_inputs(steps: Sequence[_Step]) -> None:
    """Lets outputs take the bytes of inputs that die in the same step."""
    for at, step in enumerate(steps):
        used: set[int] = set()
        for array, target in zip(step.made, step.buffers, strict=True):
            for source, buffer in step.read:
                root = _root(source)
                if id(root) in used or root.dies != at or source.dies != at:
                    continue
                if root.nbytes == array.nbytes and _may_take(step, buffer, target):
                    array.taken = root
                    root.dies = max(root.dies, array.dies)
                    used.add(id(root))
                    break


def _root(array: _Array) -> _Array:
    while array.taken is not None:
        array = array.taken
    return array


def _may_take(step: _Step, source: Buffer, target: Buffer) -> bool:
    """Whether the step could write `target` over `source`: all its work is elementwise, or its only
    task allows it."""
    if len(step.tasks) == 1:
        task = step.tasks[0]
        pairs = kernel_pairs(
            None, task.op, [u.desc for u in task.reads], [u.desc for u in task.writes]
        )
        out = next((k for k, u in enumerate(task.writes) if u.buffer is target), -1)
        return all((out, k) in pairs for k, u in enumerate(task.reads) if u.buffer is source)
    return all(t.op.elementwise or t.op.random for t in step.tasks)


def _pooled(steps: Sequence[_Step], match: int) -> int:
    """Bytes of the blocks that a first-come pool needs; a block serves sizes within `match`."""
    free: list[list[int]] = []  # blocks as one-element lists: their size may grow
    blocks: list[list[int]] = []
    home: dict[int, list[int]] = {}
    ending: dict[int, list[_Array]] = {}
    for at, step in enumerate(steps):
        for array in step.made:
            if array.taken is not None:
                continue
            block = _pick(free, array.nbytes, match)
            if block is None:
                block = [array.nbytes]
                blocks.append(block)
            block[0] = max(block[0], array.nbytes)
            home[id(array)] = block
            ending.setdefault(array.dies, []).append(array)
        free += [home[id(a)] for a in ending.get(at, ())]
    return sum(b[0] for b in blocks)


def _pick(free: list[list[int]], nbytes: int, match: int) -> list[int] | None:
    """The smallest free block that is large enough, else the largest one, within the range."""
    best = None
    for block in free:
        size = block[0]
        if not nbytes <= size * match or not size <= nbytes * match:
            continue
        if best is None or _better(size, best[0], nbytes):
            best = block
    if best is not None:
        for k, block in enumerate(free):
            if block is best:
                del free[k]
                break
    return best


def _better(size: int, best: int, nbytes: int) -> bool:
    if (size >= nbytes) != (best >= nbytes):
        return size >= nbytes
    return size < best if size >= nbytes else size > best
