"""A runnable small version of mixflow: `python docs/tour.py` trains a tiny net twice.

It needs NumPy and threads only. Each part names the folder that holds the real one. Read it from
the top: engine, arrays, graph, operators, passes, plan, executor, imperative calls, tape, training.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Numbers = np.ndarray
Params = tuple[tuple[str, Any], ...]

# ---- 1. Engine (csrc/engine) -------------------------------------------------------------------
# Hazard: a task runs later, on another thread. It may touch memory only when all earlier writes of
# what it reads, and all earlier accesses of what it writes, are done.


class Tag:
    """Stands for one resource. `accesses`: (task, writes) in push order, ended tasks dropped."""

    def __init__(self) -> None:
        self.accesses: list[tuple[Task, bool]] = []
        self.error: BaseException | None = None  # of the last task that should have written it

    def granted(self) -> list[Task]:
        """The write at the front, or all reads in front of the first write."""
        if self.accesses and self.accesses[0][1]:
            return [self.accesses[0][0]]
        reads = takewhile(lambda access: not access[1], self.accesses)
        return [task for task, _ in reads]


@dataclass(eq=False)
class Task:
    """A call with the tags that it reads and writes. `missing`: tags that do not grant it yet."""

    run: Callable[[], None]
    reads: list[Tag]
    writes: list[Tag]
    always: bool
    missing: set[Tag] = field(default_factory=set)


class Engine:
    """Runs tasks on worker threads. `push` returns at once; any thread may call it."""

    def __init__(self, workers: int = 2) -> None:
        self._lock = threading.Lock()  # one lock for all tags: a push joins all its queues at once
        self._ready: queue.Queue[Task] = queue.Queue()
        for _ in range(workers):
            threading.Thread(target=self._work, daemon=True).start()

    def push(
        self,
        run: Callable[[], None],
        reads: Sequence[Tag],
        writes: Sequence[Tag],
        always: bool = False,
    ) -> None:
        """Queues a task behind the earlier accesses of its tags; `always`: even after an error."""
        read = [t for t in dict.fromkeys(reads) if t not in writes]
        task = Task(run, read, list(dict.fromkeys(writes)), always)
        with self._lock:
            for tag in (*task.reads, *task.writes):
                tag.accesses.append((task, tag in task.writes))
                if task not in tag.granted():
                    task.missing.add(tag)
            if not task.missing:
                self._ready.put(task)

    def _work(self) -> None:
        while True:
            task = self._ready.get()
            # After a failed write there is nothing to read: pass the error on instead.
            error = next((t.error for t in task.reads if t.error is not None), None)
            if error is None or task.always:
                try:
                    task.run()
                except Exception as raised:
                    error = raised
            self._end(task, error)

    def _end(self, task: Task, error: BaseException | None) -> None:
        with self._lock:
            for tag in task.writes:
                tag.error = error
            for tag in (*task.reads, *task.writes):
                tag.accesses = [a for a in tag.accesses if a[0] is not task]
                for other in tag.granted():
                    if tag in other.missing:
                        other.missing.remove(tag)
                        if not other.missing:
                            self._ready.put(other)

    def wait(self, tag: Tag) -> None:
        """Blocks until everything pushed to the tag so far is done; raises its error."""
        done = threading.Event()
        self.push(done.set, [tag], [], always=True)
        done.wait()
        if tag.error is not None:
            raise tag.error


engine = Engine()

# ---- 2. Arrays (csrc/plan/array, ndarray/) -----------------------------------------------------


class Array:
    """Memory with a tag. The values may still be on their way; `numpy` waits for them."""

    def __init__(self, shape: Shape) -> None:
        self.data = np.zeros(shape)
        self.tag = Tag()
        self.version = 0  # grows with each write: the tape compares it
        self.grad: Array | None = None

    @property
    def shape(self) -> Shape:
        return self.data.shape

    def numpy(self) -> Numbers:
        engine.wait(self.tag)
        return self.data.copy()


def array(values: Any) -> Array:
    made = Array(np.shape(values))
    made.data[...] = values
    return made


# ---- 3. Graph (ir/) ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Node:
    """One operator applied to values; a variable has no operator. Never changed once made."""

    op: str
    inputs: tuple[Node, ...]
    params: Params
    shape: Shape


def variable(shape: Shape) -> Node:
    return Node("", (), (), shape)


def emit(op: str, *inputs: Node, **params: Any) -> Node:
    shape = OPS[op].shape(*(n.shape for n in inputs), **params)
    return Node(op, inputs, tuple(sorted(params.items())), shape)


def topological(outputs: Iterable[Node]) -> list[Node]:
    """What the outputs need, inputs first. What nobody needs is not in it: pruning is free."""
    found: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node not in found:
            for source in node.inputs:
                visit(source)
            found[node] = None

    for output in outputs:
        visit(output)
    return list(found)


# ---- 4. Operators: one record each (ops/, backends/reference) ----------------------------------


@dataclass(frozen=True)
class Op:
    """shape rule, and a kernel or a composition; `vjp` is graph algebra, so differentiable again.

    kernel(out, *inputs, **params) writes `out`; `inplace` says that `out` may be its first input.
    """

    shape: Callable[..., Shape]
    kernel: Callable[..., Any] | None = None
    compose: Callable[..., Node] | None = None
    vjp: Callable[[Node, Node], Sequence[Node | None]] | None = None
    inplace: bool = False


def sum_to(value: Node, shape: Shape) -> Node:
    """Undoes broadcasting in a gradient."""
    return value if value.shape == shape else emit("sum_to", value, shape=shape)


def matmul(out: Numbers, a: Numbers, b: Numbers, ta: bool = False, tb: bool = False) -> None:
    np.matmul(a.T if ta else a, b.T if tb else b, out=out)


def matmul_vjp(n: Node, dy: Node) -> list[Node]:
    # dy (m, n); a (m, k), b (k, n): da = dy b', db = a' dy. Only the plain and the tb form occur.
    a, b = n.inputs
    if dict(n.params).get("tb"):
        return [emit("matmul", dy, b), emit("matmul", dy, a, ta=True)]
    return [emit("matmul", dy, b, tb=True), emit("matmul", a, dy, ta=True)]


def sum_kernel(out: Numbers, x: Numbers, shape: Shape) -> None:
    lead = x.ndim - len(shape)
    axes = [*range(lead), *(lead + i for i, n in enumerate(shape) if n != x.shape[lead + i])]
    out[...] = x.sum(axis=tuple(axes), keepdims=True).reshape(shape)


def softmax(out: Numbers, x: Numbers) -> None:
    np.exp(x - x.max(axis=1, keepdims=True), out=out)
    out /= out.sum(axis=1, keepdims=True)


def loss_vjp(n: Node, _: Node) -> list[Node | None]:
    # Not the gradient of its formula: the operator stands for softmax with cross entropy.
    data, label = n.inputs
    error = emit("add", emit("softmax", data), emit("scale", label, by=-1.0))
    return [emit("scale", error, by=1.0 / label.shape[0]), None]


OPS: dict[str, Op] = {
    "add": Op(
        np.broadcast_shapes, lambda out, a, b: np.add(a, b, out=out), inplace=True,
        vjp=lambda n, dy: [sum_to(dy, i.shape) for i in n.inputs],
    ),
    "multiply": Op(
        np.broadcast_shapes, lambda out, a, b: np.multiply(a, b, out=out), inplace=True,
        vjp=lambda n, dy: [
            sum_to(emit("multiply", dy, n.inputs[1 - i]), n.inputs[i].shape) for i in (0, 1)
        ],
    ),
    "scale": Op(
        lambda x, by: x, lambda out, x, by: np.multiply(x, by, out=out), inplace=True,
        vjp=lambda n, dy: [emit("scale", dy, **dict(n.params))],
    ),
    "relu": Op(
        lambda x: x, lambda out, x: np.maximum(x, 0, out=out), inplace=True,
        vjp=lambda n, dy: [emit("multiply", dy, emit("step", n.inputs[0]))],
    ),
    "step": Op(
        lambda x: x, lambda out, x: np.greater(x, 0, out=out, casting="unsafe"), inplace=True,
        vjp=lambda n, dy: [None],
    ),
    "full": Op(lambda shape, value: shape, lambda out, shape, value: out.fill(value)),
    "sum_to": Op(
        lambda x, shape: shape, sum_kernel,
        vjp=lambda n, dy: [emit("add", dy, emit("full", shape=n.inputs[0].shape, value=0.0))],
    ),
    "matmul": Op(
        lambda a, b, ta=False, tb=False: (a[1] if ta else a[0], b[0] if tb else b[1]),
        matmul, vjp=matmul_vjp,
    ),
    "softmax": Op(lambda x: x, softmax),
    "dense": Op(
        lambda x, w, b: (x[0], w[0]),
        compose=lambda x, w, b: emit("add", emit("matmul", x, w, tb=True), b),
    ),
    "softmax_output": Op(
        lambda x, label: x, compose=lambda x, label: emit("softmax", x), vjp=loss_vjp
    ),
    "sgd_update": Op(
        lambda w, g, lr: w, inplace=True,
        compose=lambda w, g, lr: emit("add", w, emit("scale", g, by=-lr)),
    ),
}  # fmt: skip

# ---- 5. Passes: pure functions from graph to graph (passes/) -----------------------------------


def rewrite(outputs: Sequence[Node], change: Callable[[Node], Node]) -> list[Node]:
    """Every node rebuilt on its changed inputs, then changed itself."""
    new: dict[Node, Node] = {}
    for node in topological(outputs):
        inputs = tuple(new[i] for i in node.inputs)
        same = inputs == node.inputs
        new[node] = change(node if same else Node(node.op, inputs, node.params, node.shape))
    return [new[o] for o in outputs]


def lower(outputs: Sequence[Node], keep_vjp: bool = False) -> list[Node]:
    """Compositions become primitives; with `keep_vjp` those with a gradient of their own stay."""

    def change(node: Node) -> Node:
        op = OPS[node.op] if node.op else None
        if op is None or op.compose is None or (keep_vjp and op.vjp is not None):
            return node
        return op.compose(*node.inputs, **dict(node.params))

    return rewrite(outputs, change)


def gradient(head: Node, wrt: Sequence[Node]) -> list[Node]:
    """Gradients of sum(head): from the head backwards, adding up where paths meet."""
    grads: dict[Node, Node] = {head: emit("full", shape=head.shape, value=1.0)}
    for node in reversed(topological([head])):
        vjp = OPS[node.op].vjp if node.op else None
        if node not in grads or vjp is None:
            continue
        for source, grad in zip(node.inputs, vjp(node, grads[node]), strict=True):
            if grad is not None:
                grads[source] = emit("add", grads[source], grad) if source in grads else grad
    return [grads.get(w) or emit("full", shape=w.shape, value=0.0) for w in wrt]


def simplify(outputs: Sequence[Node]) -> list[Node]:
    """Equal nodes become one (the softmax of the loss is computed once, not twice)."""
    seen: dict[Any, Node] = {}
    return rewrite(
        outputs,
        lambda n: n if not n.op else seen.setdefault((n.op, n.inputs, n.params), n),
    )


def memory(order: Sequence[Node], kept: set[Node]) -> tuple[dict[Node, int], int, int]:
    """Offset of every internal value in one arena, arena size and lower bound, in elements.

    Hazard: two values may share bytes only when one is dead before the other is born.
    """
    last = {source: at for at, node in enumerate(order) for source in node.inputs}
    offsets: dict[Node, int] = {}
    free: list[tuple[int, int]] = []  # (offset, size)
    size = bound = 0
    for at, node in enumerate(order):
        dying = [i for i in dict.fromkeys(node.inputs) if i in offsets and last[i] == at]
        live = sum(int(np.prod(n.shape)) for n in offsets if last[n] >= at)
        if node.op and node not in kept:
            need = int(np.prod(node.shape))
            over = dying[0] if dying and dying[0] is node.inputs[0] else None
            if (
                over
                and OPS[node.op].inplace
                and over.shape == node.shape
                and node.inputs.count(over) == 1
            ):
                offsets[node] = offsets[over]
                dying.remove(over)
            else:
                live += need
                fits = [block for block in free if block[1] == need]
                offsets[node] = fits[0][0] if fits else size
                free[:] = [block for block in free if not fits or block != fits[0]]
                size += 0 if fits else need
            last.setdefault(node, at)
        free += [(offsets[i], int(np.prod(i.shape))) for i in dying]
        bound = max(bound, live)
    return offsets, size, bound


# ---- 6. Plan (csrc/plan) -----------------------------------------------------------------------


class Plan:
    """Flat steps over numbered arguments (inputs, then outputs) and one arena; phases of outputs.

    A run is one engine task per phase. The arena has a tag of its own: it carries what the forward
    phase leaves for the backward phase.
    """

    def __init__(self, inputs: Sequence[Node], phases: Sequence[Sequence[Node]]) -> None:
        outputs = simplify(lower([o for phase in phases for o in phase]))
        order = [n for n in topological(outputs) if n.op]
        self.slots = {n: i for i, n in enumerate([*inputs, *outputs])}
        self.offsets, self.size, self.bound = memory(order, set(outputs))
        self.unshared = sum(int(np.prod(n.shape)) for n in order if n not in self.slots)
        self.arena, self.tag = np.zeros(self.size), Tag()
        first = set(topological(outputs[: len(phases[0])]))  # closed, so it stands first in order
        self.steps = [[n for n in order if n in first], [n for n in order if n not in first]]

    def run(self, args: Sequence[Array], phase: int = 0) -> None:
        """Pushes one phase; returns at once."""
        made = {self.slots[n] for n in self.steps[phase] if n in self.slots}
        for number in made:
            args[number].version += 1
        arrays = [a.data for a in args]

        def view(node: Node) -> Numbers:
            if node in self.slots:
                return arrays[self.slots[node]]
            at = self.offsets[node]
            return self.arena[at : at + int(np.prod(node.shape))].reshape(node.shape)

        def run() -> None:
            for node in self.steps[phase]:
                kernel = OPS[node.op].kernel
                assert kernel is not None
                kernel(view(node), *(view(i) for i in node.inputs), **dict(node.params))

        reads = [a.tag for i, a in enumerate(args) if i not in made]
        engine.push(run, reads, [*(args[i].tag for i in made), self.tag])


# ---- 7. Executor: a declared graph bound to arrays (executor.py) --------------------------------


class Executor:
    """forward and backward of one head, planned together on one arena."""

    def __init__(self, head: Node, inputs: dict[Node, Array], wrt: Sequence[Node]) -> None:
        mapped = lower([head], keep_vjp=True)[0]
        self.plan = Plan(list(inputs), [[mapped], gradient(mapped, wrt)])
        self.output = Array(head.shape)
        self.grads = [Array(w.shape) for w in wrt]
        self.args = [*inputs.values(), self.output, *self.grads]

    def forward(self) -> Array:
        self.plan.run(self.args, 0)
        return self.output

    def backward(self) -> list[Array]:
        self.plan.run(self.args, 1)
        return self.grads


# ---- 8. Imperative calls: the same plans, cached (ndarray/) -------------------------------------


@cache
def call_plan(op: str, shapes: tuple[Shape, ...], params: Params) -> Plan:
    inputs = [variable(s) for s in shapes]
    return Plan(inputs, [[emit(op, *inputs, **dict(params))]])


def invoke(op: str, *inputs: Array, out: Array | None = None, **params: Any) -> Array:
    shapes = tuple(a.shape for a in inputs)
    result = out or Array(OPS[op].shape(*shapes, **params))
    key = tuple(sorted(params.items()))
    call_plan(op, shapes, key).run([*inputs, result])
    if tape is not None:
        tape.append((op, key, inputs, result, [a.version for a in inputs]))
    return result


# ---- 9. Tape: recorded calls are a graph (autograd/) --------------------------------------------

Entry = tuple[str, Params, tuple[Array, ...], Array, list[int]]
tape: list[Entry] | None = None
backward_plans: dict[Any, Plan] = {}


def record() -> None:
    global tape
    tape = []


def backward(head: Array) -> None:
    """Fills `.grad` of the leaves. A tape of the same structure reuses its plan."""
    global tape
    entries, tape = tape or [], None
    numbers: dict[int, int] = {}  # id of an array -> its number on the tape
    leaves: list[Array] = []
    structure = []
    for op, params, inputs, output, versions in entries:
        for source, version in zip(inputs, versions, strict=True):
            if id(source) not in numbers:
                numbers[id(source)] = len(numbers)
                leaves.append(source)
            if source.version != version:
                raise RuntimeError(f"[{op}] expected its input as recorded, got newer values")
        structure.append((op, params, tuple(numbers[id(a)] for a in inputs)))
        numbers[id(output)] = len(numbers)
    wanted = [i for i, leaf in enumerate(leaves) if leaf.grad is not None]
    key = (tuple(structure), tuple(a.shape for a in leaves), tuple(wanted), numbers[id(head)])
    if key not in backward_plans:
        nodes: dict[int, Node] = {}
        inputs_ = [nodes.setdefault(numbers[id(a)], variable(a.shape)) for a in leaves]
        for (op, params, sources), entry in zip(structure, entries, strict=True):
            nodes[numbers[id(entry[3])]] = emit(op, *(nodes[s] for s in sources), **dict(params))
        top = lower([nodes[numbers[id(head)]]], keep_vjp=True)[0]
        backward_plans[key] = Plan(inputs_, [gradient(top, [inputs_[i] for i in wanted])])
    backward_plans[key].run([*leaves, *(leaves[i].grad for i in wanted)])  # type: ignore[list-item]


# ---- 10. Training, declared and imperative ------------------------------------------------------


def data() -> tuple[Numbers, Numbers]:
    """Points of the plane; the class says whether both coordinates have one sign."""
    points = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    return points, np.eye(2)[(points.prod(axis=1) > 0).astype(int)]


def initial() -> list[Array]:
    draw = np.random.default_rng(1).normal
    shapes: list[Shape] = [(16, 2), (16,), (2, 16), (2,)]
    return [array(draw(0, 0.7, s) if len(s) > 1 else np.zeros(s)) for s in shapes]


def train_declared(steps: int) -> tuple[list[Numbers], float, Plan]:
    """The graph is planned once; updates are imperative calls, ordered by the engine alone."""
    points, labels = data()
    weights = initial()
    x, y = variable(points.shape), variable(labels.shape)
    w = [variable(a.shape) for a in weights]
    hidden = emit("relu", emit("dense", x, w[0], w[1]))
    head = emit("softmax_output", emit("dense", hidden, w[2], w[3]), y)
    values = [array(points), array(labels), *weights]
    executor = Executor(head, dict(zip([x, y, *w], values, strict=True)), w)
    for _ in range(steps):
        executor.forward()
        for weight, grad in zip(weights, executor.backward(), strict=True):
            invoke("sgd_update", weight, grad, out=weight, lr=0.5)
    right = executor.forward().numpy().argmax(1) == labels.argmax(1)
    return [a.numpy() for a in weights], float(right.mean()), executor.plan


def train_imperative(steps: int) -> list[Numbers]:
    """The same training with a tape."""
    points, labels = (array(a) for a in data())
    weights = initial()
    for weight in weights:
        weight.grad = Array(weight.shape)
    for _ in range(steps):
        record()
        hidden = invoke("relu", invoke("dense", points, weights[0], weights[1]))
        head = invoke("softmax_output", invoke("dense", hidden, weights[2], weights[3]), labels)
        backward(head)
        for weight in weights:
            assert weight.grad is not None
            invoke("sgd_update", weight, weight.grad, out=weight, lr=0.5)
    return [a.numpy() for a in weights]


def main(steps: int = 500) -> float:
    """Trains both ways, compares the weights and returns the accuracy."""
    declared, accuracy, plan = train_declared(steps)
    imperative = train_imperative(steps)
    same = all(np.allclose(a, b) for a, b in zip(declared, imperative, strict=True))
    print(f"accuracy {accuracy:.3f}; both ways give the same weights: {same}")
    print(f"arena {plan.size} numbers, lower bound {plan.bound}, without sharing {plan.unshared}")
    print(f"backward plans: {len(backward_plans)}")
    assert same
    return accuracy


if __name__ == "__main__":
    main()
