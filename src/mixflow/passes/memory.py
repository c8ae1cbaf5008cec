"""Arena offsets for the plan that runs: best fit over lifetimes, in-place reuse first.

Hazard: two values may share bytes only when one is dead before the other is born in the serial
order. `check_overlap` replays a finished plan and proves it from the steps alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import GraphError
from .plan import CompiledPlan
from .schedule import Buffer, Task, kernel_pairs

ALIGN = 64
_EFFORT = 2_000_000  # pairs of blocks that improving an order may look at
_GOOD = 1.002  # this close to the lower bound no further order of placement is tried


def _rounded(nbytes: int) -> int:
    return max(ALIGN, (nbytes + ALIGN - 1) // ALIGN * ALIGN)


def share_inplace(order: list[Task]) -> None:
    """Lets outputs take the storage of inputs that die in the same task, where kernels allow it.

    Needs `first` and `last` of the buffers (`order.lifetimes`).
    """
    for task in order:
        pairs = None
        taken: set[int] = set()
        for output, written in enumerate(task.writes):
            target = written.buffer
            if target.slot is not None or target.first != task.pos or target.shared is not None:
                continue
            for source_index, use in enumerate(task.reads):
                source = use.buffer.root()
                if not _dies_here(source, task, target, taken):
                    continue
                if pairs is None:
                    pairs = kernel_pairs(
                        task.kernel,
                        task.op,
                        [u.desc for u in task.reads],
                        [u.desc for u in task.writes],
                    )
                if _all_allowed(task, output, source, pairs) and (output, source_index) in pairs:
                    target.shared = source
                    source.last = max(source.last, target.last)
                    taken.add(source.number)
                    break


def _dies_here(source: Buffer, task: Task, target: Buffer, taken: set[int]) -> bool:
    return (
        source.slot is None
        and source.last == task.pos
        and source.first < task.pos
        and source.nbytes >= target.nbytes > 0
        and source.number not in taken
    )


def _all_allowed(task: Task, output: int, source: Buffer, pairs: set[tuple[int, int]]) -> bool:
    """Every read of `source` by the task allows `output` to be the same memory."""
    return all((output, k) in pairs for k, u in enumerate(task.reads) if u.buffer.root() is source)


class Block:
    """An interval of steps that needs bytes: a buffer or a workspace."""

    __slots__ = ("first", "last", "nbytes", "offset", "size")

    def __init__(self, first: int, last: int, nbytes: int) -> None:
        self.first, self.last, self.nbytes, self.offset = first, last, nbytes, 0
        self.size = _rounded(nbytes)


def lower_bound(blocks: Sequence[Block], steps: int) -> int:
    """Largest sum of live bytes over the steps: no placement can need less."""
    change = [0] * (steps + 1)
    for block in blocks:
        change[block.first] += block.nbytes
        change[block.last + 1] -= block.nbytes
    live = most = 0
    for delta in change:
        live += delta
        most = max(most, live)
    return most


def place(blocks: list[Block]) -> int:
    """Sets the offset of every block and returns the arena's size.

    Tries several orders (size, lifetime, area, birth) of best-fit placement and keeps the best.
    """
    if len(blocks) <= 1:
        return sum(b.size for b in blocks)
    bound = lower_bound(blocks, 1 + max(b.last for b in blocks))
    keys = (
        lambda b: (-b.nbytes, b.first),
        lambda b: (-(b.last - b.first), -b.nbytes),
        lambda b: (-b.nbytes * (b.last - b.first + 1), b.first),
        lambda b: (b.first, -b.nbytes),
    )
    enough = bound * _GOOD + ALIGN
    best, order = -1, list(blocks)
    for key in keys:
        trial = sorted(blocks, key=key)
        size = _best_fit(trial)
        if best < 0 or size < best:
            best, order = size, trial
        if best <= enough:
            return best
    return _improve(order, enough)


def _improve(order: list[Block], enough: float) -> int:
    """Places what ends at the top first in the next trial, as long as that may pay."""
    best = size = _best_fit(order)
    kept = [(b, b.offset) for b in order]
    for _ in range(min(100, _EFFORT // len(order) ** 2)):
        if best <= enough:
            break
        top = [b for b in order if b.offset + b.size >= size]
        order = [*top, *(b for b in order if b.offset + b.size < size)]
        size = _best_fit(order)
        if size < best:
            best, kept = size, [(b, b.offset) for b in order]
    for block, offset in kept:
        block.offset = offset
    return best


def _best_fit(blocks: Sequence[Block]) -> int:
    """Puts each block in turn into the smallest gap between the placed ones that live with it."""
    placed: list[Block] = []  # by offset
    total = 0
    for block in blocks:
        size, first, last = block.size, block.first, block.last
        end = 0
        best_gap, best_offset = -1, -1
        for other in placed:
            if other.last < first or other.first > last:
                continue
            gap = other.offset - end
            if gap >= size and (best_gap < 0 or gap < best_gap):
                best_gap, best_offset = gap, end
            top = other.offset + other.size
            if top > end:
                end = top
        block.offset = best_offset if best_gap >= 0 else end
        total = max(total, block.offset + size)
        _insert(placed, block)
    return total


def _insert(placed: list[Block], block: Block) -> None:
    low, high = 0, len(placed)
    while low < high:
        middle = (low + high) // 2
        if placed[middle].offset < block.offset:
            low = middle + 1
        else:
            high = middle
    placed.insert(low, block)


def allocate(order: list[Task], strategy: str) -> tuple[dict[int, int], int, int]:
    """Places the arena buffers and workspaces of an order.

    Args:
        strategy: 'arena' shares bytes, 'inplace' only in place, 'none' gives each value its own.

    Returns:
        (workspace offset by task index, arena bytes, lower bound).
    """
    if strategy in ("arena", "inplace"):
        share_inplace(order)
    blocks: list[Block] = []
    owners: list[Buffer | Task] = []
    seen: set[int] = set()
    for task in order:
        for use in task.writes:
            root = use.buffer.root()
            if root.slot is None and root.number not in seen:
                seen.add(root.number)
                blocks.append(Block(root.first, root.last, root.nbytes))
                owners.append(root)
        nbytes = getattr(task.kernel, "workspace_bytes", 0)
        if nbytes:
            blocks.append(Block(task.pos, task.pos, nbytes))
            owners.append(task)
    bound = lower_bound(blocks, len(order)) if blocks else 0
    size = place(blocks) if strategy == "arena" else _one_after_another(blocks)
    spaces = {}
    for block, owner in zip(blocks, owners, strict=True):
        if isinstance(owner, Task):
            spaces[owner.index] = block.offset
        else:
            owner.offset = block.offset
    return spaces, size, bound


def _one_after_another(blocks: list[Block]) -> int:
    total = 0
    for block in blocks:
        block.offset = total
        total += block.size
    return total


def check_overlap(plan: CompiledPlan) -> None:
    """Replays the steps of a plan and proves that every read finds the value it is meant to.

    Works from slots and identities alone (`Step.input_ids`, `Step.output_ids`), not from lifetimes.

    Raises:
        GraphError: a step reads bytes that another value has overwritten, or writes over what it
            reads without leave.
    """
    live: list[tuple[Any, int, int, int]] = []  # space, begin, end, id
    for step in plan.steps:
        for slot, number in zip(step.inputs, step.input_ids, strict=True):
            _check_read(step.label, slot, number, live)
        ranges = []
        if step.workspace is not None:
            ranges.append(("arena", step.workspace[0], sum(step.workspace), -1))
        for slot, number in zip(step.outputs, step.output_ids, strict=True):
            span = _span(slot)
            if span is not None:
                ranges.append((*span, number))
        for i, a in enumerate(ranges):
            if any(_overlap(a, b) for b in ranges[:i]):
                raise GraphError(f"[memory] expected outputs apart, got an overlap in {step.label}")
        if step.workspace is not None:
            for slot in step.inputs:
                span = _span(slot)
                if span is not None and _overlap((*span, 0), ranges[0]):
                    raise GraphError(
                        f"[memory] expected a free workspace, got inputs in {step.label}"
                    )
        live = [r for r in live if not any(_overlap(r, w) for w in ranges)]
        live += [r for r in ranges if r[3] >= 0]


def _span(slot: tuple[Any, ...]) -> tuple[Any, int, int] | None:
    if slot[0] in ("arena", "kept"):
        return slot[0], slot[1], slot[1] + slot[2]
    if slot[0] == "arg":
        return ("arg", slot[1]), 0, 1
    return None


def _overlap(a: tuple[Any, int, int, int], b: tuple[Any, int, int, int]) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def _check_read(label: str, slot: tuple[Any, ...], number: int, live: list[Any]) -> None:
    span = _span(slot)
    if span is None or number < 0:
        return
    if not any(r[:3] == span and r[3] == number for r in live):
        raise GraphError(f"[memory] expected value {number} at {slot}, got another one; in {label}")
