"""Recomputation: forward values are dropped and computed again in the backward phase.

Hazard: a value that is computed again must be the same value. What has effects is never computed
again (a moving average would move twice, a host call could answer otherwise), a random draw keeps
its number, and a value is computed again only from contents that nobody overwrites in between.

Chen et al., "Training deep nets with sublinear memory cost" (2016): what is kept cuts the net into
segments; the backward phase computes one segment at a time again. Here a segment is what one value
needs besides kept values, `span` bytes at most. Cheap values go first: candidates are ordered by
bytes per second of recomputing, a prefix of them is dropped, and every choice is played through on
the steps of the plan before one is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ..errors import ParamError
from ..ir import Graph, Node, Value
from .lower import DRAW
from .rewrite import backward_nodes, has_effect, with_heads, with_inputs
from .schedule import AGAIN, FREE, ORDER, Buffer, Task, Use, kernel_pairs

_ATTEMPTS = 5  # plans built to meet a limit: placement needs a little more than the peak
_LEVELS = 64  # prefixes of the candidates that the search may tell apart
_EFFORT = 20_000  # steps times prefixes that the search for the smallest plan may look at
_SPANS = 14
_FLOPS, _BANDWIDTH = 1.2e11, 1.0e10  # of a few cores; only their ratio matters
_MANY, _THRIFT = 1 << 30, 0.012  # arena from which a share of the step's time goes into thrift
_TINY = 1e-5  # share of all candidate bytes below which a value is not worth a step


@dataclass(frozen=True)
class Saving:
    """What is asked for.

    Attributes:
        limit: most bytes of internal arrays; None = no limit.
        forced: labels of the user's nodes whose results are dropped.
        mirror: drop what is cheap to compute: everything but convolutions and products.
        thrift: drop what costs next to nothing where the bytes are many.
    """

    limit: int | None = None
    forced: frozenset[str] = frozenset()
    mirror: bool = False
    thrift: bool = False

    def __bool__(self) -> bool:
        return self.limit is not None or bool(self.forced) or self.mirror or self.thrift


class Choice(NamedTuple):
    """A set of dropped buffers, played through."""

    peak: int  #: bytes
    seconds: float  #: estimate of the time spent on computing again
    dropped: frozenset[int]
    steps: list[int]  #: task numbers; ~number where the task is run again


Built = TypeVar("Built")


def fit(
    graph: Graph,
    order: Sequence[Task],
    arena: int,
    saving: Saving,
    build: Callable[[Graph], tuple[int, Built]],
) -> Built | None:
    """The plan of the graph with recomputation, or None where it needs none.

    Args:
        graph: of primitives, laid out and fused; with two phases, if anything is to be gained.
        order: its tasks as they would run, lifetimes set.
        arena: bytes that they need.
        build: plans a graph: (bytes, plan).

    Raises:
        ParamError: the limit cannot be met; the text states the bytes that can.
    """
    limit = saving.limit
    if not (saving.forced or saving.mirror) and arena <= (_MANY if limit is None else limit):
        return None
    model = Model(order, saving)
    if limit is None:
        named = saving.forced or saving.mirror
        small = model.smallest([model.wanted]) if named else model.thrifty()
        if not small.dropped or small.peak >= model.play(frozenset()).peak:
            return None
        return build(rebuilt(graph, model, small))[1]
    target, nbytes = limit, limit + 1
    for _ in range(_ATTEMPTS):
        choice = model.within(target)
        if choice is None:
            break
        nbytes, made = build(rebuilt(graph, model, choice))
        if nbytes <= limit:
            return made
        target -= nbytes - limit
    nbytes, made = build(rebuilt(graph, model, model.smallest(model.prefixes(model.effort))))
    if nbytes <= limit:
        return made
    raise ParamError(
        f"[memory_limit] expected at least {nbytes} bytes for internal arrays, which is what "
        f"recomputation reaches here, got {limit}; without it they need {arena}"
    )


class Model:
    """The steps of a plan without recomputation, and what dropping buffers would make of them.

    Attributes:
        candidates: buffers that may be dropped, those worth most per second first.
        wanted: of these, the ones that `saving` names.
    """

    def __init__(self, order: Sequence[Task], saving: Saving) -> None:
        self.order = order
        self.sizes: dict[int, int] = {}
        self.makers: dict[int, int] = {}
        self.values: dict[int, Value] = {}  # droppable buffer -> its value
        self.reads = [_numbers(t.reads) for t in order]
        self.writes = [[u.buffer for u in t.writes if u.buffer.slot is None] for t in order]
        self.spaces = [getattr(t.kernel, "workspace_bytes", 0) or 0 for t in order]
        self.takes = [_pairs(t) for t in order]
        late = {b for t, reads in zip(order, self.reads, strict=True) if t.phase for b in reads}
        for number, task in enumerate(order):
            again = _repeatable(task)
            for index, use in enumerate(task.writes):
                buffer = use.buffer
                if buffer.slot is not None or use.epoch:
                    continue
                self.sizes[buffer.number] = buffer.nbytes
                self.makers[buffer.number] = number
                if again and len(buffer.writers) == 1:
                    assert task.node is not None
                    self.values[buffer.number] = task.node[index]
        self.seconds = [_seconds(t) for t in order]
        self._rank(saving, late)

    def _rank(self, saving: Saving, late: set[int]) -> None:
        """Orders the candidates: named ones, then by bytes per second.

        What only leads to a candidate (nobody late reads it) is one too: else it would be kept.
        """
        needed = set(late)
        for task in range(len(self.order) - 1, -1, -1):
            if any(b.number in needed for b in self.writes[task]):
                needed.update(self.reads[task])
        total = sum(self.sizes[b] for b in needed if b in self.values)
        found = [b for b in self.values if b in needed and self.sizes[b] > total * _TINY]
        named = {b for b in found if self._named(b, saving)}
        found.sort(key=lambda b: (b not in named, -self._worth(b), self.makers[b]))
        self.effort = max(8, min(_LEVELS, _EFFORT // len(self.order)))
        self.candidates, self.wanted = found, found[: len(named)]

    def _named(self, buffer: int, saving: Saving) -> bool:
        task = self.order[self.makers[buffer]]
        return task.origin in saving.forced or (saving.mirror and not _flops(task))

    def _worth(self, buffer: int) -> float:
        return self.sizes[buffer] / self.seconds[self.makers[buffer]]

    # -- choices

    def within(self, limit: int) -> Choice | None:
        """The fastest choice found whose peak is at most `limit`; None if there is none."""
        levels = self.prefixes(_LEVELS)
        low, high, best = 0, len(levels), None
        while low < high:
            middle = (low + high) // 2
            found = self._fastest(levels[middle], limit)
            if found is None:
                low = middle + 1
            else:
                high, best = middle, found
        return best

    def _fastest(self, allowed: Sequence[int], limit: int) -> Choice | None:
        found = [c for c in self._spans(allowed) if c.peak <= limit]
        return min(found, key=lambda c: (c.seconds, c.peak), default=None)

    def smallest(self, levels: Sequence[Sequence[int]]) -> Choice:
        """The choice with the lowest peak among sets of candidates."""
        found = (c for allowed in levels for c in self._spans(allowed))
        return min(found, key=lambda c: (c.peak, c.seconds))

    def thrifty(self) -> Choice:
        """The choice with the lowest peak among those that cost next to nothing."""
        most, low, high = _THRIFT * sum(self.seconds), 0, len(self.candidates)
        best = self.play(frozenset())
        while low < high:
            middle = (low + high + 1) // 2
            found = self._spans(self.candidates[:middle], 1)[0]
            if found.seconds > most:
                high = middle - 1
                continue
            low, best = middle, min(best, found, key=lambda c: c.peak)
        return best

    def prefixes(self, count: int) -> list[list[int]]:
        """About `count` sets of candidates, each in the next; the last one has them all."""
        step = max(1, len(self.candidates) // count)
        ends = [*range(len(self.wanted), len(self.candidates), step), len(self.candidates)]
        return [self.candidates[:end] for end in ends]

    def _spans(self, allowed: Sequence[int], count: int = _SPANS) -> list[Choice]:
        """Choices among `allowed` with segments of up to `count` sizes."""
        total = float(sum(self.sizes[b] for b in allowed))
        ordered = sorted(allowed, key=self.makers.__getitem__)
        tried, found = set(), []
        for k in range(count):
            dropped = self._drop(ordered, total / 1.7**k)
            if dropped not in tried:
                tried.add(dropped)
                found.append(self.play(dropped))
        return found

    def _drop(self, ordered: Sequence[int], span: float) -> frozenset[int]:
        """What is dropped when nothing may need more than `span` bytes of dropped values."""
        needs: dict[int, set[int]] = {}
        for buffer in ordered:
            sources = [needs[b] for b in self.reads[self.makers[buffer]] if b in needs]
            chain = set().union(*sources)
            if chain and sum(self.sizes[b] for b in chain) + self.sizes[buffer] > span:
                continue
            chain.add(buffer)
            needs[buffer] = chain
        return frozenset(needs)

    def play(self, dropped: frozenset[int]) -> Choice:
        """Peak and cost of a choice. Each value is computed again right before its first reader."""
        steps: list[int] = []
        made: set[int] = set()
        for number, task in enumerate(self.order):
            if task.phase:
                for buffer in self.reads[number]:
                    if buffer in dropped and self.makers[buffer] not in made:
                        self._again(self.makers[buffer], dropped, made, steps)
            steps.append(number)
        return Choice(
            self._peak(steps, dropped), sum(self.seconds[t] for t in made), dropped, steps
        )

    def _again(self, task: int, dropped: frozenset[int], made: set[int], steps: list[int]) -> None:
        """Appends a task and what it needs again."""
        stack = [task]
        while stack:
            at = stack[-1]
            missing = [
                self.makers[b]
                for b in self.reads[at]
                if b in dropped and self.makers[b] not in made
            ]
            if missing and at not in made:
                stack += missing
                continue
            stack.pop()
            if at not in made:
                made.add(at)
                steps.append(~at)

    def _peak(self, steps: Sequence[int], dropped: frozenset[int]) -> int:
        """Largest sum of live bytes; buffers of repeated tasks have negative numbers."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for pos, step in enumerate(steps):
            task, again = (~step, True) if step < 0 else (step, False)
            late = again or self.order[task].phase
            for buffer in self.writes[task]:
                key = ~buffer.number if again else buffer.number
                first.setdefault(key, pos)
                last[key] = pos
            for number in self.reads[task]:
                last[~number if late and number in dropped else number] = pos
        change = [0] * (len(steps) + 1)
        for key, pos in first.items():
            change[pos] += self.sizes[key if key >= 0 else ~key]
            change[last[key] + 1] -= self.sizes[key if key >= 0 else ~key]
        for pos, step in enumerate(steps):
            self._overwrite(step, pos, change, dropped, last)
        most = live = 0
        for pos, step in enumerate(steps):
            live += change[pos]
            most = max(most, live + self.spaces[~step if step < 0 else step])
        return most

    def _overwrite(
        self, step: int, pos: int, change: list[int], dropped: frozenset[int], last: dict[int, int]
    ) -> None:
        """A result that takes over an operand is not a second buffer in this step."""
        task, again = (~step, True) if step < 0 else (step, False)
        late = again or self.order[task].phase
        taken: set[int] = set()
        for target, sources in self.takes[task]:
            for source in sources:
                key = ~source if late and source in dropped else source
                if key in taken or last.get(key) != pos or self.sizes[source] < target.nbytes:
                    continue
                taken.add(key)
                change[pos] -= target.nbytes
                change[pos + 1] += target.nbytes
                break


def _numbers(uses: Sequence[Use]) -> list[int]:
    """Buffers of the arena, each once."""
    return list(dict.fromkeys(u.buffer.number for u in uses if u.buffer.slot is None))


def _pairs(task: Task) -> list[tuple[Buffer, list[int]]]:
    """Results that may take over operands, and which."""
    reads, writes = [u.desc for u in task.reads], [u.desc for u in task.writes]
    allowed = kernel_pairs(task.kernel, task.op, reads, writes)
    found = []
    for at, use in enumerate(task.writes):
        if use.buffer.slot is not None or use.epoch:
            continue
        sources = [
            b
            for b in _numbers(task.reads)
            if all((at, k) in allowed for k, u in enumerate(task.reads) if u.buffer.number == b)
        ]
        if sources:
            found.append((use.buffer, sources))
    return found


def _repeatable(task: Task) -> bool:
    """Whether running the task once more, later, gives the same results."""
    node = task.node
    if node is None or task.phase or task.op is not node.op or node.mutated or node.subgraphs:
        return False
    drawn = node.op is not None and node.op.random and DRAW in node.attrs
    if has_effect(node) and not drawn:
        return False
    return all(u.epoch == len(u.buffer.writers) - 1 for u in task.reads)


def _seconds(task: Task) -> float:
    """A rough time of a step."""
    moved = sum(u.buffer.nbytes for u in (*task.reads, *task.writes))
    return 1e-6 + moved / _BANDWIDTH + _flops(task) / _FLOPS


def _flops(task: Task) -> int:
    """Two for each multiplication of a convolution or matrix product."""
    kind = task.op.name.removeprefix("blocked_")
    if kind not in ("conv", "matmul"):
        return 0
    result, weight = task.writes[0].desc.shape, task.reads[1].desc.shape
    if kind == "conv":
        return 2 * math.prod(result) * math.prod(weight[1:])
    data = task.reads[0].desc.shape
    return 2 * math.prod(result) * (data[-1] if data[-2] == result[-2] else data[-2])


# -- the new graph


def rebuilt(graph: Graph, model: Model, choice: Choice) -> Graph:
    """The graph in which the backward phase reads new nodes instead of the dropped values.

    `Graph.meta` tells the order of its nodes: that of the choice, with new nodes in their places.
    """
    writer = _Writer(graph, {model.values[b] for b in choice.dropped})
    for step in choice.steps:
        node = model.order[~step if step < 0 else step].node
        if node is not None:
            writer.place(writer.again(node) if step < 0 else node)
    return writer.graph()


class _Writer:
    """Nodes of the new graph in the order in which they run."""

    def __init__(self, graph: Graph, dropped: set[Value]) -> None:
        self.old = graph
        self.dropped = dropped
        self.nodes = graph.nodes()
        self.late = backward_nodes(graph, self.nodes)
        self.copies: dict[Node, Node] = {}  # node of phase 0 -> its repetition
        self.new: dict[Node, Node] = {}  # node of phase 1 -> on its new inputs
        self.placed: dict[Node, None] = {}

    def again(self, node: Node) -> Node:
        """The repetition of a node; what it needs again must have one already."""
        found = self.copies.get(node)
        if found is None:
            inputs = [self.moved(v) for v in node.inputs]
            attrs = {**node.attrs, AGAIN: "1"}
            found = self.copies[node] = Node(
                node.op, node.name, inputs, dict(node.params), attrs, node.types, (), node.origin
            )
        return found

    def moved(self, value: Value) -> Value:
        """The value that the backward phase reads instead of this one of phase 0."""
        node = value.node
        if value in self.dropped:
            return self.again(node)[value.index]
        if node.op is None or node.op.name not in FREE:
            return value
        inner = self.moved(node.inputs[0])
        if inner == node.inputs[0]:
            return value
        if node not in self.copies:
            self.copies[node] = with_inputs(node, [inner])
        return self.copies[node][value.index]

    def place(self, node: Node) -> None:
        """Puts a node, given as in the old graph or as a repetition, after all that it needs."""
        stack = [node]
        while stack:
            at = self.current(stack[-1])
            missing = [v.node for v in at.inputs if v.node not in self.placed]
            if missing:
                stack += missing
                continue
            stack.pop()
            self.placed[at] = None

    def current(self, node: Node) -> Node:
        """A node on its new inputs."""
        if node not in self.late:
            return node
        found = self.new.get(node)
        if found is None:
            inputs = [self._input(v) for v in node.inputs]
            found = self.new[node] = with_inputs(node, inputs)
        return found

    def _input(self, value: Value) -> Value:
        return (
            self.current(value.node)[value.index] if value.node in self.late else self.moved(value)
        )

    def graph(self) -> Graph:
        """The finished graph."""
        for node in self.nodes:  # those without a step of their own
            self.place(node)
        late = {old[k]: new[k] for old, new in self.new.items() for k in range(len(old.types))}
        made = with_heads(self.old, late)
        used = set(made.nodes())
        made.meta[ORDER] = tuple(n for n in self.placed if n in used)
        return made
