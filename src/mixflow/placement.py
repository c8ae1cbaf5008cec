"""Placement: which context each node of a bound symbol runs on, by groups, constraints or cost.

Hazard: a group that is misspelt, or a constraint on a node that does not exist, would silently put
everything on one context. So every name is checked, and `Executor.placement` says what came of it.

`simple_bind(ctx, group2ctx={'dev1': mx.cpu(1)})` places groups as MXNet does;
`simple_bind([mx.cpu(0), mx.cpu(1)], placement='auto')` chooses by cost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import _rt, config
from .backends import default_backend
from .context import Context
from .errors import ParamError, UnknownNameError, describe_unknown
from .ir import Graph, Node, Value
from .passes import cost
from .passes.auto_model import Wishes, modelled
from .passes.auto_place import Estimate, Model, search
from .passes.infer import Types
from .passes.joint import forward_graph, joint_graph
from .passes.pipeline import finish, scheduled
from .passes.place import GROUP, Device, Places, by_label, grouped
from .passes.placed import Link
from .passes.schedule import Task

COSTS = ("measured", "estimated")
#: A context, the contexts among which may be chosen, or the name of a node to stay with.
Constraint = Context | Sequence[Context] | str
_CPU = (1, 0)
_bandwidth: list[float] = []


@dataclass(frozen=True)
class Auto:
    """Placement by cost: ``simple_bind([mx.cpu(0), mx.cpu(1)], placement=Auto(...))``.

    Args:
        constraints: by name of the node: a context, contexts among which may be chosen, or the
            name of a node whose context it takes. Groups of `group2ctx` are constraints too.
        costs: 'measured': each kernel is timed once, and remembered; 'estimated': by arithmetic
            and bytes, the same on every machine (always so in deterministic mode).
        bandwidth: of copies between contexts, in bytes per second; None = measured once.
        latency: seconds until a copy has begun and its reader has been woken.

    Raises:
        ParamError: a value out of range.
    """

    constraints: Mapping[str, Constraint] = field(default_factory=dict)
    costs: str = "measured"
    bandwidth: float | None = None
    latency: float = Link.latency

    def __post_init__(self) -> None:
        if self.costs not in COSTS:
            raise ParamError(
                f"[placement] expected costs among {', '.join(COSTS)}, got {self.costs!r}"
            )
        if self.latency < 0 or (self.bandwidth is not None and self.bandwidth <= 0):
            raise ParamError(
                "[placement] expected a latency of at least 0 and a bandwidth above 0, got "
                f"{self.latency} and {self.bandwidth}"
            )

    def link(self) -> Link:
        """Cost of copies; the bandwidth is measured where it is not given."""
        if self.bandwidth is not None or self.estimated:
            return Link(self.latency, self.bandwidth or Link.bandwidth)
        return Link(self.latency, measured_bandwidth())

    @property
    def estimated(self) -> bool:
        """Whether nothing is measured: asked for, deterministic mode, or no compiled core."""
        deterministic = config.current().deterministic
        return self.costs == "estimated" or deterministic or _rt.core.name != "native"


class Load(NamedTuple):
    """What one context does in a step."""

    context: Context
    nodes: int  #: operators of the symbol
    seconds: float  #: that it computes
    nbytes: int  #: variables, gradients and values kept for the backward phase, estimated


class Copy(NamedTuple):
    """What is copied from one context to another in a step."""

    name: str  #: the node that makes it; 'input' for a variable
    source: Context
    target: Context
    nbytes: int


@dataclass(frozen=True)
class Report:
    """What a placement costs, by its timeline. Printed, it is a table.

    Attributes:
        nodes: context of each operator by name.
        loads: by context.
        copies: in a step, forward and backward.
        makespan: estimated seconds of a step.
        single: estimated seconds with one context for whatever is not tied to another.
        critical_path: names of the nodes whose waiting for each other makes the makespan.
        costs: 'measured' or 'estimated'.
    """

    nodes: dict[str, Context]
    loads: list[Load]
    copies: list[Copy]
    makespan: float
    single: float
    critical_path: list[str]
    costs: str

    @property
    def bytes_copied(self) -> int:
        """Bytes of all copies of a step."""
        return sum(c.nbytes for c in self.copies)

    def __str__(self) -> str:
        lines = [f"{'context':<12}{'nodes':>7}{'ms':>10}{'MB kept':>10}"]
        for load in self.loads:
            lines.append(
                f"{load.context!r:<12}{load.nodes:>7}{1000 * load.seconds:>10.3f}"
                f"{load.nbytes / 1e6:>10.2f}"
            )
        return "\n".join([*lines, self.summary()])

    def summary(self) -> str:
        """Makespan, copies and critical path as text."""
        return (
            f"step {1000 * self.makespan:.3f} ms ({self.costs}), on one context "
            f"{1000 * self.single:.3f} ms; {len(self.copies)} copies, "
            f"{self.bytes_copied / 1e6:.2f} MB\n"
            f"critical path: {_shortened(self.critical_path)}"
        )


def _shortened(names: Sequence[str]) -> str:
    """A path of names, its middle left out where it is long."""
    if len(names) > 16:
        names = [*names[:8], f"({len(names) - 14} more)", *names[-6:]]
    return " -> ".join(names)


@dataclass
class Case:
    """A symbol that is being bound.

    Attributes:
        graph: the symbol's.
        types: of its values.
        requests: 'write', 'add' or 'null' by argument; no gradient at all = prediction.
        narrow: for mixed precision, see `finish`.
    """

    graph: Graph
    types: Types
    requests: Mapping[str, str]
    narrow: Any = None

    def model(self, wishes: Wishes, auto: Auto) -> Model:
        """Units and tasks, with their times on an even share of the cores."""
        wanted = {n: r for n, r in self.requests.items() if r != "null"}
        if wanted:
            lowered, _ = joint_graph(self.graph, self.types, wanted)
        else:
            lowered = forward_graph(self.graph, self.types, train=False)
        backend = default_backend()
        ready = finish(lowered, backend=backend, narrow=self.narrow)
        threads = max(1, _rt.core.threads() // len(wishes.devices))
        _, tasks = scheduled(ready, backend, _CPU, threads)
        seconds = [_seconds(t, auto.estimated, threads) for t in tasks]
        return modelled(self.graph, self.types, wanted, tasks, seconds, wishes, auto.link())


def _seconds(task: Task, estimated: bool, threads: int) -> float:
    if not estimated:
        return cost.measured(task)
    ins, outs = [u.desc for u in task.reads], [u.desc for u in task.writes]
    return cost.estimated(task.op.name, ins, outs, threads)


def measured_bandwidth() -> float:
    """Bytes per second of a copy between two contexts of this machine; measured once."""
    if not _bandwidth:
        source = _rt.core.empty((1 << 20,), 0, _CPU)
        target = _rt.core.empty((1 << 20,), 0, (1, 1))
        times = []
        for _ in range(5):
            target.wait_to_write()
            began = time.perf_counter()
            _rt.core.copy_array(source, target)
            target.wait_to_read()
            times.append(time.perf_counter() - began)
        _bandwidth.append((4 << 20) / min(times))
    return _bandwidth[0]


class Placement:
    """Where the nodes of a symbol run; made by `resolve`.

    Attributes:
        labels: device by name of the operator.
        devices: that are used, sorted.
        default: of what belongs to no node.
        link: cost of copies.
    """

    def __init__(self, nodes: Mapping[Node, Device], default: Device, case: Case) -> None:
        self._nodes = dict(nodes)
        self._case = case
        self.labels = by_label(nodes)
        self.default = default
        self.devices = tuple(sorted(set(nodes.values())))
        self.link = Link()
        self._report: Report | None = None

    def where(self, value: Value) -> Device:
        """Device of a value of the symbol."""
        return self._nodes.get(value.node, self.default)

    def places(self, inputs: tuple[Device, ...], outputs: tuple[Device, ...]) -> Places:
        """For the passes: the placement, with the devices of bound arrays."""
        return Places(self.labels, inputs, outputs, self.default)

    @property
    def only(self) -> Context:
        """The context where everything is, if it is one."""
        return Context.from_key(self.devices[0])

    def report(self) -> Report:
        """Costs of the placement. Times kernels that were not timed before, and waits."""
        if self._report is None:
            auto = Auto()
            model = self._case.model(Wishes(self.devices), auto)
            ones = [[d] * len(model.units) for d in self.devices]
            single = min(model.evaluate(c).makespan for c in ones)
            # Nodes without a task of their own were joined; what has one says where a unit is.
            choice = [self.labels.get(u.labels[0], self.default) for u in model.units]
            self.keep(model, choice, model.evaluate(choice), single, auto)
        assert self._report is not None
        return self._report

    def keep(
        self,
        model: Model,
        choice: Sequence[Device],
        estimate: Estimate,
        single: float,
        auto: Auto,
    ) -> None:
        """Makes the report of what was found."""
        self.link = model.link
        names = [u.labels[0] for u in model.units]
        used = sorted({*self.devices, *choice})
        loads = []
        for device in used:
            kept = sum(u.nbytes for u, d in zip(model.units, choice, strict=True) if d == device)
            count = sum(d == device for d in self.labels.values())
            busy = estimate.busy.get(device, 0.0)
            loads.append(Load(Context.from_key(device), count, busy, kept))
        copies = [
            Copy("input" if u < 0 else names[u], Context.from_key(a), Context.from_key(b), n)
            for u, a, b, n in estimate.copies
        ]
        self._report = Report(
            {n: Context.from_key(d) for n, d in self.labels.items()},
            loads,
            copies,
            estimate.makespan,
            single,
            [names[u] for u in estimate.critical],
            "estimated" if auto.estimated else "measured",
        )


def resolve(
    case: Case,
    contexts: Sequence[Context],
    group2ctx: Any,
    request: Any,
    variables: Mapping[str, Device] | None = None,
    memory_limit: int | None = None,
) -> Placement:
    """Where the nodes of a symbol run.

    Args:
        contexts: the default one first; those among which 'auto' chooses.
        group2ctx: context by name of a group, or None.
        request: None, 'auto', an `Auto`, or constraints by name of the node.
        variables: devices of variables that are given.
        memory_limit: most bytes on each context, for 'auto'.

    Raises:
        ParamError: no placement for several contexts, or values of a wrong kind.
        UnknownNameError: a group or a node that does not exist.
    """
    auto = Auto() if request == "auto" else request if isinstance(request, Auto) else None
    constraints = auto.constraints if auto is not None else request or {}
    if not isinstance(constraints, Mapping):
        raise ParamError(
            "[bind] expected placement None, 'auto', mx.placement.Auto(...) or constraints by "
            f"name, got {request!r}"
        )
    if auto is None and len(contexts) > 1:
        raise ParamError(
            f"[bind] expected one context, got {len(contexts)}; pass placement='auto' to choose "
            "among several, or split the batch with Module(context=...)"
        )
    default = contexts[0].key
    nodes = {n.name: n for n in case.graph.nodes()}
    fixed = {nodes[n]: d for n, d in (variables or {}).items()}
    wishes = _wishes(nodes, constraints, tuple(c.key for c in contexts))
    groups = _groups(group2ctx)
    if auto is None:
        return _given(case, groups, default, fixed, wishes)
    return _chosen(case, groups, default, fixed, wishes, auto, memory_limit)


def _groups(group2ctx: Any) -> dict[str, Device]:
    if group2ctx is None:
        return {}
    good = isinstance(group2ctx, Mapping) and all(
        isinstance(c, Context) for c in group2ctx.values()
    )
    if not good:
        raise ParamError(f"[bind] expected group2ctx to map names to contexts, got {group2ctx!r}")
    return {str(n): c.key for n, c in group2ctx.items()}


def _wishes(
    nodes: Mapping[str, Node], constraints: Mapping[str, Any], devices: tuple[Device, ...]
) -> Wishes:
    """Constraints, checked."""
    made = Wishes(tuple(dict.fromkeys(devices)))
    for name, value in constraints.items():
        for known in (name, *([value] if isinstance(value, str) else [])):
            if known not in nodes:
                raise UnknownNameError(describe_unknown("node", known, list(nodes)))
        if isinstance(value, str):
            made.together.append((name, value))
            continue
        listed = [value] if isinstance(value, Context) else value
        wrong = not isinstance(listed, (list, tuple)) or not listed
        if wrong or not all(isinstance(c, Context) for c in listed):
            raise ParamError(
                f"[placement] expected a context, contexts or a node's name for '{name}', "
                f"got {value!r}"
            )
        made.allowed[name] = tuple(c.key for c in listed)
    return made


def _given(
    case: Case,
    groups: Mapping[str, Device],
    default: Device,
    fixed: dict[Node, Device],
    wishes: Wishes,
) -> Placement:
    """Groups and constraints, with nothing to choose."""
    names = {n.name: n for n in case.graph.nodes()}
    for name, allowed in wishes.allowed.items():
        fixed.setdefault(names[name], allowed[0])
    for name, other in wishes.together:
        found = grouped(case.graph, groups, default, fixed)
        fixed[names[name]] = found[names[other]]
    return Placement(grouped(case.graph, groups, default, fixed), default, case)


def _chosen(
    case: Case,
    groups: Mapping[str, Device],
    default: Device,
    fixed: Mapping[Node, Device],
    wishes: Wishes,
    auto: Auto,
    memory_limit: int | None,
) -> Placement:
    """By cost, within groups and constraints."""
    order = case.graph.nodes()
    if groups:
        grouped(case.graph, groups, default, {})  # unknown groups are errors
    for node in order:
        if node in fixed:
            wishes.allowed[node.name] = (fixed[node],)
        elif groups and GROUP in node.attrs:
            wishes.allowed.setdefault(node.name, (groups[node.attrs[GROUP]],))
    model = case.model(wishes, auto)
    devices = sorted({*wishes.devices, *(d for u in model.units for d in u.allowed)})
    found = search(model, devices, memory_limit)
    where = {n: d for u, d in zip(model.units, found.choice, strict=True) for n in u.labels}
    placed: dict[Node, Device] = {}
    for node in order:
        if node.op is not None:
            placed[node] = where[node.origin]
            for value in node.inputs:  # a variable lies where it is first read
                if value.node.op is None:
                    placed.setdefault(value.node, placed[node])
    for node in order:
        if node.op is None and node.name in wishes.allowed:
            placed[node] = wishes.allowed[node.name][0]
        placed.setdefault(node, default)
    made = Placement(placed, default, case)
    made.keep(model, found.choice, found.estimate, found.single, auto)
    return made
