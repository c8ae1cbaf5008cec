"""Executor: a symbol bound to arrays.

Hazard: activations live in the arena between forward and backward. The arena has one owner at a
time; if another executor that shares it runs in between, backward says so instead of computing
with its bytes. There is one plan per (is_train, requested gradients, monitored), made when needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _rt, config
from . import dtype as dtypes
from . import ndarray as nd
from .backends import default_backend
from .context import Context
from .errors import GraphError, ParamError, ShapeError, UnknownNameError, describe_unknown
from .ir import Graph, TensorType, Value
from .ndarray import NDArray
from .passes.cache import cached_plan, cached_types
from .passes.infer import Types, infer
from .passes.joint import forward_graph, joint_graph
from .passes.pipeline import build_plan, finish
from .passes.plan import CompiledPlan
from .passes.precision import requested, served
from .passes.recompute import Saving
from .symbol.infer import given_values, partial_shape
from .symbol.symbol import Symbol, output_names

if TYPE_CHECKING:
    from .passes.place import Places
    from .placement import Placement, Report

_FLOAT = np.dtype(np.float32)
Feeds = Sequence[tuple[int, NDArray]]


class _Program:
    """A plan with its arrays."""

    def __init__(
        self, compiled: CompiledPlan, bound: Any, outputs: list[NDArray], seen: int
    ) -> None:
        self.compiled = compiled
        self.bound = bound
        self.outputs = outputs
        self.seen = seen  #: leading outputs that are the symbol's; the rest are monitored


class Executor:
    """Runs a symbol forward and backward on arrays that stay the same from run to run.

    Made by `Symbol.bind` and `Symbol.simple_bind`. Not thread-safe.

    Attributes:
        grad_dict, aux_dict: arrays by name; `grad_dict` holds None where no gradient is asked for.
        arg_arrays, grad_arrays, aux_arrays: the same in list order.
        outputs: stable arrays, filled by `forward`.
    """

    def __init__(
        self,
        symbol: Symbol,
        ctx: Context,
        args: Mapping[str, NDArray],
        grads: Mapping[str, NDArray | None],
        grad_req: Mapping[str, str],
        aux: Mapping[str, NDArray],
        types: Types,
        arena: Any = None,
        memory_limit: int | None = None,
        precision: str | None = None,
        placement: Placement | None = None,
    ) -> None:
        self._symbol = symbol
        self._ctx = ctx
        self._placement = placement
        spread = placement is not None and len(placement.devices) > 1
        self._placed = placement if spread else None  # where it runs on several contexts
        self._args = dict(args)
        self.aux_dict = dict(aux)
        self._grad_req = {n: grad_req.get(n, "null") for n in self._args}
        self.grad_dict = {n: grads.get(n) for n in self._args}
        for name, array in self.grad_dict.items():
            if array is None:
                self._grad_req[name] = "null"
        self._wants_gradients = any(r != "null" for r in self._grad_req.values())
        self._types = types
        self._arena = arena if arena is not None else self._new_arena()
        self._memory_limit = memory_limit
        self._precision = requested(precision)
        self._graph = symbol.graph()
        self._programs: dict[Any, _Program] = {}
        self._outputs: list[NDArray] | None = None
        self._ones: list[NDArray] | None = None
        self._heads_changed = False
        self._aliased: Feeds = ()  # what the last run read in place of arguments
        self._seen = False  # somebody has handles of the arguments
        self._pending: _Program | None = None
        self._monitor: tuple[Callable[[str, NDArray], None], bool] | None = None

    def _new_arena(self) -> Any:
        if self._placed is None:
            return _rt.core.Arena(self._ctx.key)
        from .passes.placed import Arenas

        return Arenas()

    # -- what is bound

    @property
    def placement(self) -> Report | None:
        """Where the nodes run and what that costs, by estimate; None where nobody asked for it.

        The first look at a placement by groups times the kernels, and waits for all work.
        """
        return None if self._placement is None else self._placement.report()

    @property
    def ctx(self) -> Context:
        """Where it runs."""
        return self._ctx

    @property
    def arg_dict(self) -> dict[str, NDArray]:
        """Arguments by name. Whoever has seen them finds each batch copied into them."""
        self._seen = True
        self._settle()
        return self._args

    def _settle(self) -> None:
        """Copies what the last run read in place of arguments into these."""
        fed, self._aliased = self._aliased, ()
        arrays = list(self._args.values()) if fed else []
        for index, source in fed:
            source.copyto(arrays[index])

    @property
    def arg_arrays(self) -> list[NDArray]:
        """Arguments in list order."""
        return list(self.arg_dict.values())

    @property
    def grad_arrays(self) -> list[NDArray | None]:
        """Gradients in list order of the arguments."""
        return list(self.grad_dict.values())

    @property
    def aux_arrays(self) -> list[NDArray]:
        """Auxiliary states in list order."""
        return list(self.aux_dict.values())

    @property
    def outputs(self) -> list[NDArray]:
        """Outputs of the last forward."""
        return list(self._output_arrays())

    @property
    def output_dict(self) -> dict[str, NDArray]:
        """Outputs by name."""
        return dict(zip(self._symbol.list_outputs(), self.outputs, strict=True))

    def _output_arrays(self) -> list[NDArray]:
        if self._outputs is None:
            self._outputs = [self._empty(v) for v in self._symbol.heads]
        return self._outputs

    def _empty(self, value: Value) -> NDArray:
        type = self._types[value]
        shape: Any = type.shape
        made: Any = _rt.core.empty(shape, dtypes.code(type.dtype), self._where(value).key)
        return made  # type: ignore[no-any-return]

    def _where(self, value: Value) -> Context:
        """Context of a value of the symbol."""
        placed = self._placed
        return self._ctx if placed is None else Context.from_key(placed.where(value))

    @property
    def precision(self) -> str:
        """'float32', or the narrow float of the products: what is used, not what was asked for.

        A processor without instructions for the narrow float computes in float32.
        """
        narrow = served(self._precision, default_backend())
        return "float32" if narrow is None else self._precision

    # -- plans

    def _program(self, train: bool, backward: bool) -> _Program:
        key = (train, backward, self._monitor is not None)
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = self._compile(train, backward)
        return found

    def _watched(self) -> list[Value]:
        if self._monitor is None:
            return []
        internals = self._symbol.get_internals().heads
        return [v for v in internals if self._monitor[1] or v.node.op is not None]

    def _compile(self, train: bool, backward: bool) -> _Program:
        count, watched = len(self._symbol.heads), self._watched()
        graph = Graph(self._graph.inputs, (*self._symbol.heads, *watched))
        requests = {n: r for n, r in self._grad_req.items() if r != "null"} if backward else {}
        arrays = [*self._args.values(), *self.aux_dict.values()]
        if backward:
            arrays += self._heads()
            for value in watched:
                kind = self._types[value]
                arrays.append(nd.zeros(kind.shape, self._where(value), dtype=kind.dtype))
            arrays += [g for n in requests if (g := self.grad_dict[n]) is not None]
        types, asked = tuple(self._types[v] for v in graph.inputs), tuple(requests.items())
        saving = wanted_saving(self._symbol, self._memory_limit)
        where = (self._ctx.key, _rt.core.threads(), config.current().deterministic)
        how = (saving, self._precision, id(default_backend()))
        outputs = [*self._output_arrays(), *(self._empty(v) for v in watched)]
        places = self._places(arrays, outputs)
        key = (types, asked, train, backward, where, how, places and places.key)
        make = partial(self._plan, graph, requests, train, backward, saving, places)
        compiled = cached_plan(graph.outputs, key, make)
        bound = compiled.plan.bind([*arrays, *outputs], self._arena)
        return _Program(compiled, bound, outputs, count)

    def _plan(
        self,
        graph: Graph,
        requests: dict[str, str],
        train: bool,
        backward: bool,
        saving: Saving,
        places: Places | None,
    ) -> CompiledPlan:
        if backward:
            lowered, _ = joint_graph(graph, self._types, requests, train=train)
        else:
            lowered = forward_graph(graph, self._types, train=train)
        label = f"{self._symbol.name or 'group'} ({'training' if backward else 'forward'})"
        backend = default_backend()
        narrow = served(self._precision, backend)
        if places is not None:
            return self._plan_placed(lowered, places, narrow, label)
        ready = finish(lowered, backend=backend, narrow=narrow)
        keep = not train and not backward
        return build_plan(ready, backend, self._ctx.key, "arena", 0, label, saving, keep)

    def _places(self, arrays: Sequence[NDArray], outputs: Sequence[NDArray]) -> Places | None:
        """Where nodes and bound arrays are; None where there is one context."""
        placed = self._placed
        if placed is None:
            return None
        found = [tuple(a.device for a in part) for part in (arrays, outputs)]
        return placed.places(found[0], found[1])

    def _plan_placed(self, graph: Graph, places: Places, narrow: Any, label: str) -> CompiledPlan:
        from .passes.placed import compile_placed

        assert self._placed is not None
        made = compile_placed(
            graph, places, default_backend(), narrow=narrow, link=self._placed.link, label=label
        )
        limit = self._memory_limit
        for device in places.devices if limit is not None else ():
            need = made.plan.bytes_on(device)
            if need > (limit or 0):
                raise ParamError(
                    f"[bind] expected internal arrays of at most {limit} bytes on each context, "
                    f"got {need} on {Context.from_key(device)}; values are not computed again "
                    "where there are several contexts"
                )
        return made

    def _heads(self) -> list[NDArray]:
        """Head gradients: arrays of ones until the user gives others."""
        if self._ones is None:
            self._ones = []
            for value in self._symbol.heads:
                found = self._types[value]
                self._ones.append(nd.ones(found.shape, self._where(value), dtype=found.dtype))
        return self._ones

    # -- running

    def forward(self, is_train: bool = False, **kwargs: Any) -> list[NDArray]:
        """Computes the outputs. Does not wait for them.

        Args:
            is_train: training mode: dropout drops, moving statistics move, `backward` may follow.
            **kwargs: arrays copied into the arguments of these names first.

        Raises:
            UnknownNameError, ShapeError: for kwargs.
        """
        for name, value in kwargs.items():
            self._feed(name, value)
        self._forward(bool(is_train), None)
        return self.outputs

    def _forward(self, train: bool, feeds: Feeds | None) -> None:
        """`forward` with arrays by position of the argument."""
        backward = train and self._wants_gradients
        fed = {index for index, _ in feeds or ()}
        self._aliased = [pair for pair in self._aliased if pair[0] not in fed]
        self._settle()
        program = self._program(train, backward)
        if backward or not self._may_alias(feeds):
            program.bound.run((), 0, None, feeds)
        else:
            program.bound.run((), 0, None, feeds, True)
            self._aliased = feeds or ()
        self._pending = program if backward else None
        if self._monitor is not None:
            self._report(program)

    def _forward_backward(self, feeds: Feeds | None) -> None:
        """Both phases in training mode as one task, with head gradients of ones."""
        if self._monitor is not None or not self._wants_gradients:
            self._forward(True, feeds)
            return self.backward()
        self._set_heads(None)
        self._pending = None
        if self._may_alias(feeds):
            self._program(True, True).bound.run((), -1, None, feeds, True)
            self._aliased = feeds or ()
        else:
            self._settle()
            self._program(True, True).bound.run((), -1, None, feeds)

    def _may_alias(self, feeds: Feeds | None) -> bool:
        """Whether a run may read feeds where they are: no later phase needs them, nobody looks."""
        return bool(feeds) and not self._seen and self._placed is None

    def _feed(self, name: str, value: Any) -> None:
        if name not in self._args:
            raise UnknownNameError(describe_unknown("argument", name, list(self._args)))
        target = self._args[name]
        if tuple(np.shape(value)) != tuple(target.shape):
            raise ShapeError(
                f"[forward] expected shape {tuple(target.shape)} for '{name}', "
                f"got {tuple(np.shape(value))}"
            )
        if isinstance(value, NDArray):
            value.copyto(target)
        else:
            target[:] = value

    def _report(self, program: _Program) -> None:
        assert self._monitor is not None
        callback = self._monitor[0]
        for value, array in zip(self._watched(), program.outputs[program.seen :], strict=True):
            callback(output_names(value), array)

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """Computes the requested gradients of the last ``forward(is_train=True)``.

        Args:
            out_grads: one array per output, or one array; None = ones (losses ignore them).
            is_train: must be true.

        Raises:
            GraphError: no such forward, or its values were used already.
            MXNetError: another user of the arena ran in between.
        """
        if not self._wants_gradients:
            return
        if self._pending is None or not is_train:
            raise GraphError(
                "[backward] expected a forward(is_train=True) before each backward, got none"
            )
        program, self._pending = self._pending, None
        self._set_heads(out_grads)
        program.bound.run((), 1)

    def _set_heads(self, out_grads: Any) -> None:
        targets = self._heads()
        if out_grads is None:
            if self._heads_changed:
                for target in targets:
                    target[:] = 1.0
                self._heads_changed = False
            return
        given = [out_grads] if isinstance(out_grads, NDArray) else list(out_grads)
        if len(given) != len(targets):
            raise ShapeError(f"[backward] expected {len(targets)} head gradients, got {len(given)}")
        for target, grad in zip(targets, given, strict=True):
            if grad is not None and not isinstance(grad, NDArray):
                raise TypeError(
                    f"[backward] expected NDArrays as head gradients, got {type(grad).__name__}"
                )
            if grad is not None and tuple(grad.shape) != tuple(target.shape):
                raise ShapeError(
                    f"[backward] expected a head gradient of shape {tuple(target.shape)}, "
                    f"got {tuple(grad.shape)}"
                )
            target[:] = 1.0 if grad is None else grad
        self._heads_changed = True

    def executed_steps(self) -> int:
        """Plan steps executed so far, over all runs. Waits for all work."""
        _rt.core.wait_all()
        return sum(p.bound.executed_steps() for p in self._programs.values())

    def plan(self, is_train: bool = False) -> CompiledPlan:
        """The compiled plan of a mode, for figures and tests."""
        backward = is_train and any(r != "null" for r in self._grad_req.values())
        return self._program(is_train, backward).compiled

    def profile(self, is_train: bool = False) -> list[float]:
        """One run of a mode's plan, backward included, with a clock at every step; waits.

        Returns:
            Seconds of each step, in the order of ``plan(is_train).steps``.
        """
        backward = is_train and any(r != "null" for r in self._grad_req.values())
        bound = self._program(is_train, backward).bound
        found: list[float] = bound.profile((), 0)
        return found + (bound.profile((), 1) if backward else [])

    # -- parameters and shapes

    def copy_params_from(
        self,
        arg_params: Mapping[str, NDArray],
        aux_params: Mapping[str, NDArray] | None = None,
        allow_extra_params: bool = False,
    ) -> None:
        """Copies arrays into the arguments and states of the same names.

        Raises:
            UnknownNameError: a name that is not bound, unless `allow_extra_params`.
            ShapeError: another shape.
        """
        pairs = []  # everything is checked before anything is written
        for given, bound in ((arg_params, self.arg_dict), (aux_params or {}, self.aux_dict)):
            for name, array in given.items():
                if name in bound:
                    _check_copy(name, array, bound[name])
                    pairs.append((array, bound[name]))
                elif not allow_extra_params:
                    raise UnknownNameError(describe_unknown("parameter", name, list(bound)))
        for source, target in pairs:
            same = source.dtype == target.dtype
            (source if same else source.astype(target.dtype)).copyto(target)

    def reshape(
        self, partial_shaping: bool = False, allow_up_sizing: bool = False, **kwargs: Any
    ) -> Executor:
        """An executor for other input shapes that shares arrays and arena with this one.

        Args:
            partial_shaping: arguments that are not named may change their shape too.
            allow_up_sizing: arrays may become larger (new memory).
            **kwargs: new shapes.

        Raises:
            ShapeError: a change that the flags do not allow.
        """
        dtypes_ = {n: a.dtype for n, a in self.arg_dict.items()}
        types = bound_types(self._symbol, kwargs, dtypes_)
        args: dict[str, NDArray] = {}
        grads: dict[str, NDArray | None] = {}
        aux: dict[str, NDArray] = {}
        for value in self._graph.inputs:
            name, shape = value.node.name, types[value].shape
            old = self.arg_dict.get(name, self.aux_dict.get(name))
            assert old is not None
            changed = tuple(old.shape) != shape
            if changed and name not in kwargs and not partial_shaping:
                raise ShapeError(
                    f"[reshape] expected '{name}' of shape {tuple(old.shape)}, got {shape}; "
                    "set partial_shaping=True to allow it"
                )
            (args if name in self.arg_dict else aux)[name] = _resized(
                name, old, shape, allow_up_sizing
            )
            grad = self.grad_dict.get(name)
            if grad is not None:
                grads[name] = _resized(name, grad, shape, allow_up_sizing)
        return Executor(
            self._symbol,
            self._ctx,
            args,
            grads,
            self._grad_req,
            aux,
            types,
            self._arena,
            self._memory_limit,
            self._precision,
            self._placement,
        )

    def set_monitor_callback(
        self, callback: Callable[[str, NDArray], None] | None, monitor_all: bool = False
    ) -> None:
        """Calls ``callback(name, array)`` for every operator's output after each forward.

        Args:
            callback: None ends it.
            monitor_all: inputs too.
        """
        self._monitor = None if callback is None else (callback, monitor_all)
        self._programs = {k: p for k, p in self._programs.items() if not k[2]}

    def debug_str(self) -> str:
        """The steps of the inference plan as text."""
        return "\n".join(step.label for step in self.plan().steps)


def _check_copy(name: str, source: NDArray, target: NDArray) -> None:
    if tuple(source.shape) != tuple(target.shape):
        raise ShapeError(
            f"[copy_params_from] expected shape {tuple(target.shape)} for '{name}', "
            f"got {tuple(source.shape)}"
        )


def _resized(name: str, old: NDArray, shape: Any, allow_up_sizing: bool) -> NDArray:
    """`old` with another shape: the same memory where it is large enough."""
    if tuple(old.shape) == tuple(shape):
        return old
    size = int(np.prod(shape, dtype=np.int64))
    if size <= old.size:
        return old.view(0, shape)  # type: ignore[no-any-return]
    if not allow_up_sizing:
        raise ShapeError(
            f"[reshape] expected at most {old.size} elements for '{name}', got {size}; "
            "set allow_up_sizing=True to allow new memory"
        )
    return nd.zeros(shape, old.context, dtype=old.dtype)


def wanted_saving(symbol: Symbol, memory_limit: int | None) -> Saving:
    """What a symbol's attributes, the configuration and a limit of bytes ask of recomputation."""
    forced = frozenset(
        node.name
        for node in symbol.graph().nodes()
        if node.attrs.get("__force_mirroring__", "").lower() in ("true", "1")
    )
    return Saving(memory_limit, forced, config.current().mirror, memory_limit is None)


def bound_types(
    symbol: Symbol, shapes: Mapping[str, Any], types: Mapping[str, Any] | None
) -> Types:
    """Types of every value for given input shapes; dtypes that nothing fixes are float32.

    Raises:
        ShapeError, DTypeError, UnknownNameError: from inference.
    """
    key = (repr(sorted(shapes.items())), repr(sorted((types or {}).items())))
    return cached_types(symbol.graph(), key, partial(_bound_types, symbol, shapes, types))


def _bound_types(
    symbol: Symbol, shapes: Mapping[str, Any], types: Mapping[str, Any] | None
) -> Types:
    known: Types = {
        v: TensorType(partial_shape(s)) for v, s in given_values(symbol, (), shapes).items()
    }
    names = set(symbol.list_inputs())
    given = {k: t for k, t in (types or {}).items() if k in names}
    for value, kind in given_values(symbol, (), given).items():
        known[value] = known.get(value, TensorType())._replace(dtype=dtypes.canonical(kind))
    graph = symbol.graph()
    for _ in range(2):
        found = infer(graph, known, partial=True)
        open_ = [v for v in graph.inputs if found[v].dtype is None]
        if not open_:
            break
        data = [v for v in open_ if v in known] or open_
        known.update({v: found[v]._replace(dtype=_FLOAT) for v in data})
    found = {
        v: t if t.dtype is not None or v.node.op is not None else t._replace(dtype=_FLOAT)
        for v, t in found.items()
    }
    return infer(graph, {v: found[v] for v in graph.inputs})
