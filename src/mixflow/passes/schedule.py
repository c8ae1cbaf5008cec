"""From a graph of primitives to tasks on buffers: what order, memory and the plan work on.

Hazard: in the graph a mutation is a pure node; here it becomes a write to storage that others may
still want to read. Each buffer therefore counts its contents (epochs): all readers of one epoch
come before the writer of the next. Where the data flow forbids that order, a copy is inserted:
first the new value goes to storage of its own and is copied over, then, if that is not enough,
the old value is copied away before the write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import dtype as dtypes
from ..errors import GraphError
from ..ir import Desc, Graph, Node, Operator, TensorType, Value, primitive
from .lower import DRAW

#: Primitives that only rename storage.
FREE = frozenset({"reshape", "identity"})
#: Attribute of nodes that compute a dropped value again; key of `Graph.meta` for an order of nodes.
AGAIN, ORDER = "__again__", "order"
#: Key of `Graph.meta`: the phase of each node, where they are more than forward and backward.
PIECES = "pieces"
#: (operator, parameters, input descriptors, output descriptors) -> kernel
Prepare = Callable[[Operator, dict[str, Any], list[Desc], list[Desc]], Any]


class Buffer:
    """Storage of one or more values.

    Attributes:
        nbytes: its size.
        slot: where it is; None for the arena until the memory pass has placed it.
        writers: task that made each content; epoch 0 of an argument has none.
        readers: tasks that read each content.
    """

    __slots__ = (
        "first",
        "last",
        "moved",
        "nbytes",
        "number",
        "offset",
        "readers",
        "shared",
        "slot",
        "writers",
    )

    def __init__(self, nbytes: int, number: int, slot: tuple[Any, ...] | None = None) -> None:
        self.nbytes = nbytes
        self.number = number
        self.slot = slot
        self.writers: list[Task | None] = [None]
        self.readers: list[list[Task]] = [[]]
        self.first = self.last = -1
        self.offset = -1
        self.shared: Buffer | None = None
        self.moved: tuple[Buffer, int] | None = None

    def root(self) -> Buffer:
        """The buffer whose bytes this one uses (in-place reuse)."""
        at = self
        while at.shared is not None:
            at = at.shared
        return at


@dataclass(slots=True)
class Use:
    """A content of a buffer, seen with a shape and dtype."""

    buffer: Buffer
    epoch: int
    desc: Desc

    def now(self) -> Use:
        """The same content after moves of its buffer."""
        use = self
        while use.buffer.moved is not None:
            use = Use(*use.buffer.moved, use.desc)
        return use


def _natural(label: str) -> list[tuple[str, int]]:
    """Sorts numbers in a text by their value."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", label)]


def draw_order(labels: Iterable[str]) -> list[str]:
    """Labels of draws, each once, in the order of their numbers."""
    return sorted(set(labels), key=_natural)


@dataclass(eq=False)
class Task:
    """One step to be: a kernel with its operands."""

    op: Operator
    params: dict[str, Any]
    reads: list[Use]
    writes: list[Use]
    label: str
    phase: int
    index: int
    kernel: Any = None
    draw: str | None = None
    after: set[int] = field(default_factory=set)  #: tasks that come first for memory's sake
    pos: int = -1
    origin: str = ""  #: label of the user's node
    node: Node | None = None  #: what it computes, or what it makes a copy for
    steady: bool = False  #: left out while what it makes of parameters is kept (pass keep)
    prepared: tuple[int, int] | None = None  #: (offset, bytes) of kept weights


@dataclass
class Schedule:
    """Tasks (in data order at first), and the buffers of arguments."""

    tasks: list[Task]
    buffers: list[Buffer]
    arg_descs: list[Desc]
    arg_access: list[str]
    outputs: list[int]  #: argument index of each graph output
    num_scalars: int
    draws: list[str]  #: label of each draw slot


def desc_of(type: TensorType, device: tuple[int, int]) -> Desc:
    """Plain descriptor of a known type."""
    shape: Any = type.shape or ()
    return Desc(dtypes.code(type.dtype), tuple(shape), 0, device)


def kernel_pairs(
    kernel: Any, op: Operator, reads: list[Desc], writes: list[Desc]
) -> set[tuple[int, int]]:
    """(output, input) pairs that may be one memory: the kernel's word, else the record's."""
    stated = getattr(kernel, "inplace", None)
    if stated is not None:
        return {(o, i) for o, i in stated}
    pairs = set(op.reuse)
    if op.elementwise or op.name == "fused":
        pairs |= {(o, i) for o in range(len(writes)) for i in range(len(reads))}
    return {
        (o, i)
        for o, i in pairs
        if o < len(writes)
        and i < len(reads)
        and reads[i].shape == writes[o].shape
        and reads[i].dtype == writes[o].dtype
    }


class ScheduleBuilder:
    """Builds the tasks; `levels` raises how much is copied for single mutations."""

    def __init__(
        self, graph: Graph, prepare: Prepare, device: tuple[int, int], levels: dict[Value, int]
    ) -> None:
        self.graph = graph
        self.prepare = prepare
        self.device = device
        self.levels = levels
        self.tasks: list[Task] = []
        self.buffers: list[Buffer] = []
        self.uses: dict[Value, Use] = {}
        self.mutations: dict[int, Value] = {}  # task index -> the new version that it writes
        self.saved: dict[tuple[int, int], Use] = {}  # (buffer, epoch) -> private copy
        self.phase1: set[Node] | None = None
        self.pieces: dict[Node, int] | None = graph.meta.get(PIECES)
        self.owner = _owned_versions(graph)
        self.order: Sequence[Node] = graph.meta.get(ORDER) or graph.nodes()
        if graph.phase_outputs is not None:
            heads = list(graph.outputs[: graph.phase_outputs])
            heads += [new for new, _ in graph.updates[: graph.phase_updates or 0]]
            from ..ir import topological

            first = set(topological(heads, graph.inputs))
            self.phase1 = {n for n in self.order if n not in first}
        self.result = Schedule([], [], [], [], [], 0, [])

    # -- buffers and tasks

    def buffer(self, nbytes: int, slot: tuple[Any, ...] | None = None) -> Buffer:
        """New storage."""
        made = Buffer(nbytes, len(self.buffers), slot)
        self.buffers.append(made)
        return made

    def argument(self, type: TensorType, access: str) -> Buffer:
        """Storage of the plan's next argument."""
        index = len(self.result.arg_descs)
        self.result.arg_descs.append(desc_of(type, self.device))
        self.result.arg_access.append(access)
        return self.buffer(type.nbytes, ("arg", index))

    def task(
        self,
        op: Operator,
        params: dict[str, Any],
        reads: list[Use],
        writes: list[Use],
        node: Node,
        phase: int,
        kernel: Any = None,
    ) -> Task:
        """A new task; its operands know it."""
        if kernel is None:
            kernel = self.prepare(op, params, [u.desc for u in reads], [u.desc for u in writes])
        made = Task(op, params, reads, writes, _label(node, op), phase, len(self.tasks), kernel)
        made.origin, made.node = node.origin, node
        for use in reads:
            use.buffer.readers[use.epoch].append(made)
        for use in writes:
            use.buffer.writers[use.epoch] = made
        self.tasks.append(made)
        return made

    def next_epoch(self, buffer: Buffer) -> int:
        """Number of a new content of the buffer."""
        buffer.writers.append(None)
        buffer.readers.append([])
        return len(buffer.writers) - 1

    def copy(self, source: Use, target: Buffer, epoch: int, node: Node, phase: int) -> Use:
        """A task that copies `source` into `target`; returns the copy's use."""
        made = Use(target, epoch, source.desc)
        self.task(primitive("copy"), {}, [source], [made], node, phase)
        return made

    # -- nodes

    def use(self, value: Value) -> Use:
        """Where a value is now."""
        return self.uses[value].now()

    def build(self) -> Schedule:
        """Tasks, buffers and arguments of the graph."""
        scalars, updated = 0, set(self.owner.values())
        for value in self.graph.inputs:
            if value.node.kind == "scalar":
                slot = ("scalar", scalars, dtypes.code(value.dtype))
                self.uses[value] = Use(self.buffer(0, slot), 0, desc_of(value.type, self.device))
                scalars += 1
                continue
            access = "rw" if value in updated else "r"
            self.uses[value] = Use(
                self.argument(value.type, access), 0, desc_of(value.type, self.device)
            )
        for node in self.order:
            self._node(node)
        self.result.num_scalars = scalars
        self._outputs()
        for task in self.tasks:
            task.reads = [u.now() for u in task.reads]
            task.writes = [u.now() for u in task.writes]
        self.result.tasks, self.result.buffers = self.tasks, self.buffers
        self._overwritten()
        self._number_draws()
        self._anti_dependencies()
        return self.result

    def _phase(self, node: Node) -> int:
        if self.pieces is not None:
            return self.pieces.get(node, 0)
        return 1 if self.phase1 is not None and node in self.phase1 else 0

    def _node(self, node: Node) -> None:
        if node.op is None:
            if Value(node, 0) not in self.uses:
                raise GraphError(
                    f"[plan] expected variable '{node.name}' among the inputs, got none"
                )
            return
        name = node.op.name
        if name in FREE:
            source = self.use(node.inputs[0])
            self.uses[node[0]] = Use(
                source.buffer, source.epoch, desc_of(node[0].type, self.device)
            )
        elif name == "cast" and self._is_scalar(node.inputs[0]):
            self._cast_scalar(node)
        elif name == "full" and node[0].shape == ():
            self._constant(node)
        elif name == "assign":
            self._assign(node)
        elif node.mutated:
            self._mutate(node)
        else:
            self._plain(node)

    def _is_scalar(self, value: Value) -> bool:
        slot = self.use(value).buffer.slot
        return slot is not None and slot[0] == "scalar"

    def _cast_scalar(self, node: Node) -> None:
        slot = self.use(node.inputs[0]).buffer.slot
        assert slot is not None
        desc = desc_of(node[0].type, self.device)
        self.uses[node[0]] = Use(self.buffer(0, (slot[0], slot[1], desc.dtype)), 0, desc)

    def _constant(self, node: Node) -> None:
        from .. import _rt

        array = np.full((), node.params["value"]).astype(node[0].dtype)
        slot = ("const", _rt.core.from_numpy(array, self.device))
        self.uses[node[0]] = Use(self.buffer(0, slot), 0, desc_of(node[0].type, self.device))

    def _plain(self, node: Node) -> None:
        assert node.op is not None
        writes = []
        for value in node.values:
            use = Use(self.buffer(value.type.nbytes), 0, desc_of(value.type, self.device))
            self.uses[value] = use
            writes.append(use)
        reads = [self.use(v) for v in node.inputs]
        made = self.task(node.op, dict(node.params), reads, writes, node, self._phase(node))
        made.draw = node.attrs.get(DRAW) if node.op.random else None

    # -- mutation

    def _assign(self, node: Node) -> None:
        """The next version of a variable is a value: written in place where the order allows it."""
        new = node[0]
        old, value = self.use(node.inputs[0]), self.use(node.inputs[1])
        target = old.buffer
        phase = self._phase(node)
        if new not in self.owner:  # nobody asked for the new version's storage: it is the value
            self.uses[new] = Use(value.buffer, value.epoch, old.desc)
            return
        level = self.levels.get(new, 0)
        if level == 0 and self._coalesce(node, old, value):
            return
        if level >= 2:
            self._save_readers(old, node, phase)
        epoch = self.next_epoch(target)
        source = Use(value.buffer, value.epoch, old.desc)
        self.mutations[len(self.tasks)] = new
        self.uses[new] = self.copy(source, target, epoch, node, phase)

    def _coalesce(self, node: Node, old: Use, value: Use) -> bool:
        """Lets the task that makes the value write straight into the variable's storage."""
        buffer, target = value.buffer, old.buffer
        writer = buffer.writers[0]
        fresh = buffer.slot is None and len(buffer.writers) == 1 and writer is not None
        if not fresh or buffer.nbytes != target.nbytes or old.epoch != len(target.writers) - 1:
            return False
        assert writer is not None
        if self._phase(node) != writer.phase:
            return False
        at = next(k for k, w in enumerate(writer.writes) if w.now().buffer is buffer)
        if not self._may_overwrite(writer, at, target):
            return False
        epoch = self.next_epoch(target)
        self._move(buffer, target, epoch)
        target.writers[epoch] = writer
        self.uses[node[0]] = Use(target, epoch, old.desc)
        self.mutations[writer.index] = node[0]
        return True

    def _may_overwrite(self, writer: Task, output: int, target: Buffer) -> bool:
        """Whether `writer` may write over what it reads of `target`, if it does."""
        if any(u.now().buffer is target for u in writer.writes):
            return False
        reads = [k for k, u in enumerate(writer.reads) if u.now().buffer is target]
        if not reads:
            return True
        pairs = kernel_pairs(
            writer.kernel,
            writer.op,
            [u.desc for u in writer.reads],
            [u.desc for u in writer.writes],
        )
        return all((output, k) in pairs for k in reads)

    def _move(self, buffer: Buffer, target: Buffer, epoch: int) -> None:
        """Everything that used `buffer` uses this epoch of `target` from now on."""
        target.readers[epoch].extend(buffer.readers[0])
        buffer.readers, buffer.writers = [[]], [None]
        buffer.moved = (target, epoch)

    def _save_readers(self, old: Use, node: Node, phase: int) -> None:
        """Gives the readers of the old content a private copy; later readers find it too."""
        key = (old.buffer.number, old.epoch)
        if key not in self.saved:
            self.saved[key] = Use(old.buffer, old.epoch, old.desc)

    # (readers are redirected in `_anti_dependencies`, when all are known)

    def _mutate(self, node: Node) -> None:
        """A primitive that writes a part of its variable: in place, or on a copy of it."""
        assert node.op is not None
        phase, reads = self._phase(node), [self.use(v) for v in node.inputs]
        first = len(node.types) - len(node.mutated)
        writes = []
        for value in node.values[:first]:
            use = Use(self.buffer(value.type.nbytes), 0, desc_of(value.type, self.device))
            self.uses[value] = use
            writes.append(use)
        for k, i in enumerate(node.mutated):
            new, old = node[first + k], reads[i]
            if not self._in_place(new, old):
                fresh = self.buffer(old.buffer.nbytes or new.type.nbytes)
                reads[i] = old = self.copy(old, fresh, 0, node, phase)
            elif self.levels.get(new, 0) >= 2:
                self._save_readers(old, node, phase)
            use = Use(old.buffer, self.next_epoch(old.buffer), old.desc)
            self.uses[new] = use
            writes.append(use)
            self.mutations[len(self.tasks)] = new
        self.task(node.op, dict(node.params), reads, writes, node, phase)

    def _in_place(self, new: Value, old: Use) -> bool:
        if old.epoch != len(old.buffer.writers) - 1:
            return False
        slot = old.buffer.slot
        if slot is None:
            return self.levels.get(new, 0) == 0
        return slot[0] == "arg" and new in self.owner

    # -- outputs and order constraints

    def _outputs(self) -> None:
        for number, value in enumerate(self.graph.outputs):
            use = self.use(value)
            phase = self._phase(value.node)
            if self.graph.phase_outputs is not None and number >= self.graph.phase_outputs:
                phase = 1
            target = self.argument(value.type, "w")
            assert target.slot is not None
            self.result.outputs.append(target.slot[1])
            desc = desc_of(value.type, self.device)
            buffer, writer = use.buffer, use.buffer.writers[0]
            if (
                buffer.slot is None
                and writer is not None
                and len(buffer.writers) == 1
                and writer.phase == phase
            ):
                self._move(buffer, target, 0)
                target.writers[0] = writer
            else:
                self.copy(Use(use.buffer, use.epoch, desc), target, 0, value.node, phase)

    def _overwritten(self) -> None:
        """Updated arguments that are never read before their first write are 'w'."""
        for buffer in self.buffers:
            if buffer.slot is None or buffer.slot[0] != "arg" or buffer.moved is not None:
                continue
            if len(buffer.writers) > 1 and not buffer.readers[0]:
                self.result.arg_access[buffer.slot[1]] = "w"

    def _number_draws(self) -> None:
        """Slots follow the labels, not the tasks, whose order layouts and fusion change."""
        self.result.draws = draw_order(t.draw for t in self.tasks if t.draw is not None)

    def _anti_dependencies(self) -> None:
        for buffer in self.buffers:
            for epoch in range(1, len(buffer.writers)):
                writer = buffer.writers[epoch]
                if writer is None:
                    continue
                if (buffer.number, epoch - 1) in self.saved:
                    self._redirect(buffer, epoch - 1, writer)
                before = [*buffer.readers[epoch - 1], buffer.writers[epoch - 1]]
                writer.after |= {t.index for t in before if t is not None and t is not writer}

    def _redirect(self, buffer: Buffer, epoch: int, writer: Task) -> None:
        """Readers of an epoch read a copy of it that is made before `writer` writes."""
        readers = [t for t in buffer.readers[epoch] if t is not writer]
        if not readers:
            return
        desc = next(
            u.desc for t in readers for u in t.reads if u.buffer is buffer and u.epoch == epoch
        )
        fresh = self.buffer(buffer.nbytes)
        buffer.readers[epoch] = [t for t in buffer.readers[epoch] if t is writer]
        op, phase = primitive("copy"), min(t.phase for t in (*readers, writer))
        source, made = Use(buffer, epoch, desc), Use(fresh, 0, desc)
        kernel = self.prepare(op, {}, [desc], [desc])
        task = Task(
            op, {}, [source], [made], f"copy({readers[0].label})", phase, len(self.tasks), kernel
        )
        self.tasks.append(task)
        buffer.readers[epoch].append(task)
        fresh.writers[0] = task
        for reader in readers:
            reader.reads = [
                Use(fresh, 0, u.desc) if u.buffer is buffer and u.epoch == epoch else u
                for u in reader.reads
            ]
            fresh.readers[0].append(reader)


def _owned_versions(graph: Graph) -> dict[Value, Value]:
    """Versions whose storage must be their variable's: version -> variable."""
    owned: dict[Value, Value] = {}
    for new, var in graph.updates:
        at = new
        while at != var and at.node.op is not None and at.index in at.node.aliases:
            owned[at] = var
            at = at.node.inputs[at.node.aliases[at.index]]
        if at != var:
            raise GraphError(f"[plan] expected an update that aliases '{var.node.name}', got {new}")
    return owned


def _label(node: Node, op: Operator) -> str:
    shapes = ", ".join(
        "x".join(map(str, v.shape)) or "scalar" for v in node.inputs if node.op is not None
    )
    where = f" {node.origin}" if node.origin not in (node.name, op.name) else ""
    again = " again" if AGAIN in node.attrs else ""
    return f"{op.name}{where} ({shapes}){again}"
