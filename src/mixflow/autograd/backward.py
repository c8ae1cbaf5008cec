"""``backward()`` and ``grad()``: the tape's gradients as one cached plan.

The structure of the tape (which call reads which result) is hashed. A structure seen for the first
time runs call by call, on small plans that calls of one signature share: a tape that never comes
again costs no compilation of its own. From the second time on one plan is compiled for the whole
structure and runs with the arrays of each tape. An `autograd.Function` splits the tape:
the gradients of its outputs are computed, its Python code runs, and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .. import config, ir
from .. import ndarray as nd
from ..backends import default_backend
from ..context import Context
from ..errors import MixflowError, ShapeError
from ..ndarray import NDArray
from ..passes.pipeline import build_plan, optimize
from .tape import Call, Entry, Leaf, Output, Saved, Source, relabelled, substitute


@dataclass
class _Program:
    """A compiled segment of a tape."""

    plan: Any
    used: list[int]  # positions of the gathered inputs that the plan reads
    draws: list[tuple[int, str]]  # (position of the entry, label of the draw in its call)
    out_types: list[ir.TensorType]
    targets: list[Any]  # what each output is the gradient of: ('leaf', i) or ('out', entry, index)
    graph: ir.Graph = field(repr=False, default=None)  # type: ignore[assignment]


_programs: dict[Any, _Program] = {}
_steps: dict[Any, _Program] = {}  # of single calls, by (call, active, wanted, device)
_seen: dict[Any, None] = {}  # structures that have run once
_LIMIT = 512


def _keep(table: dict[Any, Any], key: Any, value: Any) -> None:
    """Adds to a bounded table: what never repeats must not pile up."""
    while len(table) >= _LIMIT:
        del table[next(iter(table))]
    table[key] = value


def _forget_kernels(old: config.Config, new: config.Config) -> None:
    """Kernels are chosen by rule or by timing, and for a number of threads: plans are made anew."""
    if (old.deterministic, old.threads) != (new.deterministic, new.threads):
        _programs.clear()
        _steps.clear()


config.on_change(_forget_kernels)


def tape_of(heads: Sequence[NDArray]) -> list[Entry]:
    """Entries that the heads come from, each after those it reads.

    Raises:
        MixflowError: a head is not on the tape, or its tape was released.
    """
    done: dict[int, Entry] = {}
    for head in heads:
        source = head.autograd
        if source is None:
            raise MixflowError(
                "[backward] expected an array computed under autograd.record() from arrays with "
                f"attach_grad(), got one of shape {head.shape} that was not"
            )
        if isinstance(source, Output):
            _visit(source.entry, done)
    return list(done.values())


def _visit(first: Entry, done: dict[int, Entry]) -> None:
    if id(first) in done:
        return
    stack = [(first, iter(first.sources))]
    entered = {id(first)}
    while stack:
        entry, rest = stack[-1]
        if entry.released:
            raise MixflowError(
                f"[backward] expected a tape that is still there, got {entry.name} ({entry.site}) "
                "released by an earlier backward; pass retain_graph=True to that one"
            )
        for source in rest:
            if isinstance(source, Output) and _is_new(source, done, entered):
                entered.add(id(source.entry))
                stack.append((source.entry, iter(source.entry.sources)))
                break
        else:
            done[id(entry)] = entry
            stack.pop()


def _is_new(source: Output, done: dict[int, Entry], entered: set[int]) -> bool:
    return id(source.entry) not in done and id(source.entry) not in entered


class Backward:
    """One run over a tape.

    Args:
        heads: arrays to differentiate; head_grads: of their shapes, None = ones.
        wanted: sources whose gradients are kept; None = every leaf.
        record: whether the computation itself goes on the tape (create_graph).
    """

    def __init__(
        self,
        heads: Sequence[NDArray],
        head_grads: Sequence[NDArray | None],
        wanted: Sequence[Source] | None,
        record: bool = False,
    ) -> None:
        self.entries = tape_of(heads)
        self.number = {id(e): i for i, e in enumerate(self.entries)}
        self.wanted = wanted
        self.record = record
        self.grads: dict[Any, NDArray] = {}
        self.leaves: list[Leaf] = []
        self._leaf_number: dict[int, int] = {}
        for entry in self.entries:
            for source in entry.sources:
                self._note_leaf(source)
        for head, grad in zip(heads, head_grads, strict=True):
            self._note_leaf(head.autograd)
            self._add(self._key(head.autograd), _head_grad(head, grad))

    def _note_leaf(self, source: Source) -> None:
        if isinstance(source, Leaf) and id(source) not in self._leaf_number:
            self._leaf_number[id(source)] = len(self.leaves)
            self.leaves.append(source)

    def _key(self, source: Source) -> Any:
        if isinstance(source, Leaf):
            return ("leaf", self._leaf_number[id(source)])
        if isinstance(source, Output):
            return ("out", self.number[id(source.entry)], source.index)
        return None

    def key_of(self, source: Source) -> Any:
        """Key of a source in the result of `run`; None when the heads do not depend on it."""
        known = isinstance(source, Leaf) and id(source) in self._leaf_number
        known |= isinstance(source, Output) and id(source.entry) in self.number
        return self._key(source) if known else None

    def _add(self, key: Any, grad: NDArray) -> None:
        self.grads[key] = grad if key not in self.grads else self.grads[key] + grad

    def _is_wanted(self, source: Source) -> bool:
        if self.wanted is None:
            return isinstance(source, Leaf) and source.grad_req != "null"
        return any(source is w or source == w for w in self.wanted)

    def run(self) -> dict[Any, NDArray]:
        """Gradients by key: ('leaf', number) or ('out', entry, index)."""
        end = len(self.entries)
        while end > 0:
            if self.entries[end - 1].call is None:
                end -= 1
                self._function(end)
                continue
            start = end - 1
            while start > 0 and self._joins(start - 1, end - 1):
                start -= 1
            self._segment(start, end)
            end = start
        return self.grads

    def _joins(self, position: int, last: int) -> bool:
        """Whether an entry can be in one plan with a later one: operator calls on one device."""
        entry, other = self.entries[position], self.entries[last]
        return entry.call is not None and entry.device == other.device

    def _function(self, position: int) -> None:
        """Python code: of an `autograd.Function`, a custom operator, a copy between contexts."""
        entry = self.entries[position]
        if self.record and not entry.recordable:
            raise MixflowError(
                f"[backward] expected operators with a second gradient under create_graph, got "
                f"{entry.name} ({entry.site}), whose gradient is Python code"
            )
        for saved in entry.inputs:
            saved.check(entry)
        grads = []
        for index, saved in enumerate(entry.outputs):
            found = self.grads.get(("out", position, index))
            grads.append(found if found is not None else nd.zeros_like(saved.handle))
        assert entry.python_backward is not None
        made = entry.python_backward(*grads)
        made = made if isinstance(made, (list, tuple)) else [made]
        _check_count(entry, made)
        for source, grad in zip(entry.sources, made, strict=True):
            if source is not None and grad is not None:
                self._add(self._key(source), grad)

    def _segment(self, start: int, end: int) -> None:
        entries = self.entries[start:end]
        present = [k for k in self.grads if k[0] == "out" and start <= k[1] < end]
        key = self._structure(entries, start, present)
        program = _programs.get(key)
        if program is None and key not in _seen and not self.record:
            _keep(_seen, key, None)
            for position in range(end - 1, start - 1, -1):
                self._step(position)
            return
        gathered = self._gather(entries, present)
        if program is None:
            program = self._compile(entries, start, present)
            _keep(_programs, key, program)
        self._check_versions(entries, program)
        outs = self._targets(program.targets, program.out_types, entries[0].device)
        arrays = [gathered[i] for i in program.used]
        scalars = [v for e in entries for v in e.scalars]
        draws = [entries[e].draw_number(label) for e, label in program.draws] or None
        program.plan.run([*arrays, *outs], scalars, draws=draws)
        if self.record:
            self._record(program, key, entries, gathered, outs, scalars)
        for target, array in zip(program.targets, outs, strict=True):
            if target in present:
                self.grads[target] = array
            else:
                self._add(target, array)

    def _step(self, position: int) -> None:
        """Gradients of one call."""
        entry = self.entries[position]
        assert entry.call is not None
        keys = [("out", position, k) for k in range(len(entry.outputs))]
        active = tuple(k for k, key in enumerate(keys) if key in self.grads)
        wanted = tuple(i for i in entry.call.differentiable_inputs if self.needs(entry.sources[i]))
        if not active or not wanted:
            return
        key = (entry.call.key, active, wanted, entry.device)
        program = _steps.get(key)
        if program is None:
            program = _compile_call(entry.call, active, wanted, entry.device)
            _keep(_steps, key, program)
        self._check_versions([entry], program)
        gathered = self._gather([entry], [keys[k] for k in active])
        targets = [self._key(entry.sources[i]) for i in program.targets]
        outs = self._targets(targets, program.out_types, entry.device)
        draws = [entry.draw_number(label) for _, label in program.draws] or None
        arrays = [gathered[i] for i in program.used]
        program.plan.run([*arrays, *outs], list(entry.scalars), draws=draws)
        for target, array in zip(targets, outs, strict=True):
            self._add(target, array)
        for k in active:
            if not self._is_wanted(Output(entry, k)):
                del self.grads[keys[k]]

    def needs(self, source: Source) -> bool:
        """Whether a gradient must flow to a source."""
        return isinstance(source, Output) or (source is not None and self._is_wanted(source))

    def _targets(
        self, targets: Sequence[Any], types: Sequence[ir.TensorType], device: tuple[int, int]
    ) -> list[NDArray]:
        """Arrays for the plan's results: a leaf's own gradient where it can be written at once."""
        outs: list[NDArray] = []
        for target, wanted in zip(targets, types, strict=True):
            direct = self._direct(target)
            if direct is None or any(direct is o for o in outs):
                direct = nd.empty(wanted.shape, ctx=Context.from_key(device), dtype=wanted.dtype)
            outs.append(direct)
        return outs

    def _direct(self, target: Any) -> NDArray | None:
        if self.wanted is not None or target[0] != "leaf" or target in self.grads:
            return None
        leaf = self.leaves[target[1]]
        if leaf.grad_req != "write" or leaf.grad.stype != "default":
            return None
        if leaf.grad.storage_id() in self._read_storages:
            return None
        found: NDArray = leaf.grad
        return found

    @cached_property
    def _read_storages(self) -> set[int]:
        """Storages that the backward pass may still read: no gradient goes there directly."""
        saved = (s.handle for e in self.entries for s in (*e.inputs, *e.outputs))
        dense = (a for a in self.grads.values() if a.stype == "default")
        return {a.storage_id() for a in (*saved, *dense)}

    def _structure(self, entries: Sequence[Entry], start: int, present: Sequence[Any]) -> Any:
        """Hashable form of a segment: calls, who feeds whom, what is asked."""
        rows = []
        for entry in entries:
            assert entry.call is not None
            links = tuple((self._key(s), self._is_wanted(s)) for s in entry.sources)
            rows.append((entry.call.key, links))
        return (start, entries[0].device, tuple(rows), tuple(present))

    def _gather(self, entries: Sequence[Entry], present: Sequence[Any]) -> list[Any]:
        arrays = [s.handle for e in entries for s in (*e.inputs, *e.outputs)]
        return arrays + [self.grads[k] for k in present]

    def _check_versions(self, entries: Sequence[Entry], program: _Program) -> None:
        saved = [(s, e) for e in entries for s in (*e.inputs, *e.outputs)]
        for position in program.used:
            if position < len(saved):
                one, entry = saved[position]
                one.check(entry)

    def _compile(self, entries: Sequence[Entry], start: int, present: Sequence[Any]) -> _Program:
        graph, targets = _Joint(self, entries, start, present).build()
        return _program(graph, targets, entries[0].device)

    def _record(
        self,
        program: _Program,
        key: Any,
        entries: Sequence[Entry],
        inputs: Sequence[Any],
        outs: Sequence[NDArray],
        scalars: Sequence[float],
    ) -> None:
        """Puts the backward computation itself on the tape, as one call."""
        sources: list[Source] = []
        for entry in entries:
            sources += entry.sources
            sources += [Output(entry, k) for k in range(len(entry.outputs))]
        sources += [a.autograd for a in inputs[len(sources) :]]
        call = Call(("backward", key), "backward", program.graph, len(inputs))
        made = Entry(
            call,
            "backward",
            sources,
            [Saved(a.view(0, a.shape), a.version) for a in inputs],
            [Saved(a.view(0, a.shape), a.version) for a in outs],
            scalars,
        )
        made.draws = {
            f"entry{n}|{label}": entries[n].draw_number(label) for n, label in program.draws
        }
        for index, array in enumerate(outs):
            array.autograd = Output(made, index)


def _compile_call(
    call: Call, active: tuple[int, ...], wanted: tuple[int, ...], device: tuple[int, int]
) -> _Program:
    """The program of one call's gradients; its targets are positions of inputs."""
    graph = call.backward(active, wanted)
    targets = [i for i, flowing in zip(wanted, graph.meta["flows"], strict=True) if flowing]
    return _program(relabelled(graph, "entry0"), targets, device)


def _program(graph: ir.Graph, targets: list[Any], device: tuple[int, int]) -> _Program:
    """Compiles a gradient graph; arrays that it does not read are no arguments of the plan."""
    arrays = [v for v in graph.inputs if v.node.kind != "scalar"]
    scalars = [v for v in graph.inputs if v.node.kind == "scalar"]
    ready = optimize(graph)
    bound = dict(zip(graph.inputs, ready.inputs, strict=True))
    reached = _read(ready)
    used = [i for i, v in enumerate(arrays) if bound[v] in reached]
    kept = [bound[arrays[i]] for i in used]
    final = ir.Graph((*kept, *(bound[v] for v in scalars)), ready.outputs, meta=ready.meta)
    compiled = build_plan(final, default_backend(), device, "arena", 0, "backward")
    draws = [_draw_position(label) for label in compiled.draws]
    return _Program(compiled.plan, used, draws, [v.type for v in graph.outputs], targets, graph)


def _check_count(entry: Entry, made: Sequence[Any]) -> None:
    if len(made) != len(entry.sources):
        raise MixflowError(
            f"[backward] expected {len(entry.sources)} gradients from {entry.name} ({entry.site}), "
            f"one for each input, got {len(made)}"
        )


def _read(graph: ir.Graph) -> set[ir.Value]:
    """Values that some node or output reads."""
    found = set(graph.outputs)
    for node in graph.nodes():
        found.update(node.inputs)
    return found


def _draw_position(label: str) -> tuple[int, str]:
    """(position of the entry, label of the draw in its call) of a relabelled draw."""
    head, _, rest = label.partition("|")
    return int(head.removeprefix("entry")), rest


def _head_grad(head: NDArray, grad: NDArray | None) -> NDArray:
    if grad is None:
        return nd.ones(head.shape, ctx=head.context, dtype=head.dtype)
    if tuple(grad.shape) != tuple(head.shape):
        raise ShapeError(
            f"[backward] expected a head gradient of shape {head.shape}, got {grad.shape}"
        )
    return grad


class _Joint:
    """Builds the joint gradient graph of a segment."""

    def __init__(
        self, run: Backward, entries: Sequence[Entry], start: int, present: Sequence[Any]
    ) -> None:
        self.run = run
        self.entries = entries
        self.start = start
        self.inputs: list[ir.Value] = []
        self.scalars: list[ir.Value] = []
        self.terms: dict[Any, ir.Value] = {}
        self.saved: list[tuple[list[ir.Value], list[ir.Value]]] = []
        for number, entry in enumerate(entries):
            self.saved.append(
                (
                    [self._input(f"in{number}_{i}", s.handle) for i, s in enumerate(entry.inputs)],
                    [
                        self._input(f"out{number}_{i}", s.handle)
                        for i, s in enumerate(entry.outputs)
                    ],
                )
            )
        for k in present:
            self.terms[k] = self._input(f"grad_{'_'.join(map(str, k))}", run.grads[k])

    def _input(self, name: str, array: Any) -> ir.Value:
        value = ir.variable(name, ir.TensorType(tuple(array.shape), np.dtype(array.dtype)))
        self.inputs.append(value)
        return value

    def build(self) -> tuple[ir.Graph, list[Any]]:
        """(graph, target of each output)."""
        numbers = [
            [
                ir.variable(f"s{number}_{k}", v.type, "scalar")
                for k, v in enumerate(entry.call.graph.inputs[entry.call.tensors :])
            ]
            for number, entry in enumerate(self.entries)
            if entry.call is not None
        ]
        for number in range(len(self.entries) - 1, -1, -1):
            self._entry(number, numbers[number])
        targets = [k for k in self.terms if self._leaves_segment(k)]
        outputs = tuple(self.terms[k] for k in targets)
        scalars = [v for row in numbers for v in row]
        return ir.Graph((*self.inputs, *scalars), outputs), targets

    def _leaves_segment(self, key: Any) -> bool:
        if key[0] == "leaf":
            return self.run._is_wanted(self.run.leaves[key[1]])
        inside = key[1] >= self.start
        entry = self.run.entries[key[1]]
        asked = self.run.wanted is not None and self.run._is_wanted(Output(entry, key[2]))
        return not inside or asked

    def _entry(self, number: int, scalars: list[ir.Value]) -> None:
        entry = self.entries[number]
        assert entry.call is not None
        position = self.start + number
        active = tuple(k for k in range(len(entry.outputs)) if ("out", position, k) in self.terms)
        wanted = tuple(
            i for i in entry.call.differentiable_inputs if self.run.needs(entry.sources[i])
        )
        if not active or not wanted:
            return
        graph = relabelled(entry.call.backward(active, wanted), f"entry{number}")
        ins, outs = self.saved[number]
        grads = [self.terms[("out", position, k)] for k in active]
        mapping = dict(zip(graph.inputs, (*ins, *scalars, *outs, *grads), strict=True))
        made = iter(substitute(graph.outputs, mapping))
        for index, flowing in zip(wanted, graph.meta["flows"], strict=True):
            if flowing:
                self._add(self.run._key(entry.sources[index]), next(made))

    def _add(self, key: Any, value: ir.Value) -> None:
        self.terms[key] = value if key not in self.terms else self.terms[key] + value
