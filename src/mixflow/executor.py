"""Executor: a symbol bound to arrays.

Hazard: activations live in the arena between forward and backward. The arena has one owner at a
time; if another executor that shares it runs in between, backward says so instead of computing
with its bytes. There is one plan per (is_train, requested gradients, monitored), made when needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from . import _rt
from . import dtype as dtypes
from . import ndarray as nd
from .backends import default_backend
from .context import Context, current_context
from .errors import GraphError, ParamError, ShapeError, UnknownNameError, describe_unknown
from .ir import Graph, TensorType, Value
from .ndarray import NDArray
from .passes.cache import cached_plan
from .passes.infer import Types, infer
from .passes.joint import REQUESTS, forward_graph, joint_graph
from .passes.pipeline import build_plan, finish, scheduled
from .passes.plan import CompiledPlan
from .passes.strategies import strategies
from .symbol.infer import given_values, partial_shape
from .symbol.late import install
from .symbol.symbol import Symbol, output_names

_FLOAT = np.dtype(np.float32)


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
        arg_dict, grad_dict, aux_dict: arrays by name; `grad_dict` holds None where no gradient is
            asked for.
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
    ) -> None:
        self._symbol = symbol
        self._ctx = ctx
        self.arg_dict = dict(args)
        self.aux_dict = dict(aux)
        self._grad_req = {n: grad_req.get(n, "null") for n in self.arg_dict}
        self.grad_dict = {n: grads.get(n) for n in self.arg_dict}
        for name, array in self.grad_dict.items():
            if array is None:
                self._grad_req[name] = "null"
        self._types = types
        self._arena = arena if arena is not None else _rt.core.Arena(ctx.key)
        self._graph = symbol.graph()
        self._programs: dict[Any, _Program] = {}
        self._outputs: list[NDArray] | None = None
        self._ones: list[NDArray] | None = None
        self._pending: _Program | None = None
        self._monitor: tuple[Callable[[str, NDArray], None], bool] | None = None

    # -- what is bound

    @property
    def ctx(self) -> Context:
        """Where it runs."""
        return self._ctx

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
            self._outputs = [self._empty(self._types[v]) for v in self._symbol.heads]
        return self._outputs

    def _empty(self, type: TensorType) -> NDArray:
        shape: Any = type.shape
        made: Any = _rt.core.empty(shape, dtypes.code(type.dtype), self._ctx.key)
        return made  # type: ignore[no-any-return]

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
        arrays = [*self.arg_dict.values(), *self.aux_dict.values()]
        if backward:
            arrays += self._heads()
            for value in watched:
                kind = self._types[value]
                arrays.append(nd.zeros(kind.shape, self._ctx, dtype=kind.dtype))
            arrays += [g for n in requests if (g := self.grad_dict[n]) is not None]
        types, asked = tuple(self._types[v] for v in graph.inputs), tuple(requests.items())
        key = (types, asked, train, backward, self._ctx.key, _rt.core.threads())
        make = partial(self._plan, graph, requests, train, backward)
        compiled = cached_plan(graph.outputs, key, make)
        outputs = [*self._output_arrays(), *(self._empty(self._types[v]) for v in watched)]
        bound = compiled.plan.bind([*arrays, *outputs], self._arena)
        return _Program(compiled, bound, outputs, count)

    def _plan(
        self, graph: Graph, requests: dict[str, str], train: bool, backward: bool
    ) -> CompiledPlan:
        if backward:
            lowered, _ = joint_graph(graph, self._types, requests, train=train)
        else:
            lowered = forward_graph(graph, self._types, train=train)
        label = f"{self._symbol.name or 'group'} ({'training' if backward else 'forward'})"
        backend = default_backend()
        ready = finish(lowered, backend=backend)
        return build_plan(ready, backend, self._ctx.key, "arena", 0, label)

    def _heads(self) -> list[NDArray]:
        """Head gradients: arrays of ones until the user gives others."""
        if self._ones is None:
            self._ones = []
            for value in self._symbol.heads:
                found = self._types[value]
                self._ones.append(nd.ones(found.shape, self._ctx, dtype=found.dtype))
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
        backward = bool(is_train) and any(r != "null" for r in self._grad_req.values())
        program = self._program(bool(is_train), backward)
        program.bound.run((), 0)
        self._pending = program if backward else None
        if self._monitor is not None:
            self._report(program)
        return self.outputs

    def _feed(self, name: str, value: Any) -> None:
        if name not in self.arg_dict:
            raise UnknownNameError(describe_unknown("argument", name, list(self.arg_dict)))
        target = self.arg_dict[name]
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
        if not any(r != "null" for r in self._grad_req.values()):
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
            if getattr(self, "_heads_changed", False):
                for target in targets:
                    target[:] = 1.0
                self._heads_changed = False
            return
        given = [out_grads] if isinstance(out_grads, NDArray) else list(out_grads)
        if len(given) != len(targets):
            raise ShapeError(f"[backward] expected {len(targets)} head gradients, got {len(given)}")
        for target, grad in zip(targets, given, strict=True):
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
        for given, bound in ((arg_params, self.arg_dict), (aux_params or {}, self.aux_dict)):
            for name, array in given.items():
                if name in bound:
                    _copy_checked(name, array, bound[name])
                elif not allow_extra_params:
                    raise UnknownNameError(describe_unknown("parameter", name, list(bound)))

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
            self._symbol, self._ctx, args, grads, self._grad_req, aux, types, self._arena
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


def _copy_checked(name: str, source: NDArray, target: NDArray) -> None:
    if tuple(source.shape) != tuple(target.shape):
        raise ShapeError(
            f"[copy_params_from] expected shape {tuple(target.shape)} for '{name}', "
            f"got {tuple(source.shape)}"
        )
    if source.dtype != target.dtype:
        source = source.astype(target.dtype)
    source.copyto(target)


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


# -- binding


def bound_types(
    symbol: Symbol, shapes: Mapping[str, Any], types: Mapping[str, Any] | None
) -> Types:
    """Types of every value for given input shapes; dtypes that nothing fixes are float32.

    Raises:
        ShapeError, DTypeError, UnknownNameError: from inference.
    """
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


def _requests(symbol: Symbol, grad_req: Any) -> dict[str, str]:
    names = symbol.list_arguments()
    if isinstance(grad_req, str):
        requests = dict.fromkeys(names, grad_req)
    elif isinstance(grad_req, Mapping):
        requests = {n: grad_req.get(n, "null") for n in names}
    else:
        given = list(grad_req)
        if len(given) != len(names):
            raise ParamError(f"[bind] expected {len(names)} grad_req, got {len(given)}")
        requests = dict(zip(names, given, strict=True))
    for name, request in requests.items():
        if request not in REQUESTS:
            raise ParamError(
                f"[bind] expected grad_req among {', '.join(REQUESTS)}, "
                f"got '{request}' for '{name}'"
            )
    return requests


def _distinct(symbol: Symbol) -> None:
    names = symbol.list_inputs()
    if len(set(names)) < len(names):
        twice = [n for n in dict.fromkeys(names) if names.count(n) > 1]
        raise GraphError(f"[bind] expected distinct argument names, got '{twice[0]}' twice")


def simple_bind(
    symbol: Symbol,
    ctx: Context | None = None,
    grad_req: Any = "write",
    type_dict: Mapping[str, Any] | None = None,
    stype_dict: Any = None,
    group2ctx: Any = None,
    shared_arg_names: Sequence[str] | None = None,
    shared_exec: Executor | None = None,
    shared_buffer: dict[str, NDArray] | None = None,
    **kwargs: Any,
) -> Executor:
    """Infers all shapes, makes zeroed arrays and binds them.

    Args:
        ctx: context, default the current one.
        grad_req: 'write', 'add' or 'null', for all, as list or by name.
        type_dict: dtypes by name.
        shared_exec: executor whose arena, and arrays of equal name and type, are used.
        shared_buffer: arrays by name to take and to add to.
        **kwargs: shapes of the inputs.
    """
    ctx = Context(ctx) if ctx is not None else current_context()
    _distinct(symbol)
    requests = _requests(symbol, grad_req)
    types = bound_types(symbol, kwargs, type_dict)
    aux_names = set(symbol.list_auxiliary_states())
    args: dict[str, NDArray] = {}
    grads: dict[str, NDArray | None] = {}
    aux: dict[str, NDArray] = {}
    for value in symbol.graph().inputs:
        name, kind = value.node.name, types[value]
        old = _shared(
            shared_exec, shared_buffer, "aux_dict" if name in aux_names else "arg_dict", name, kind
        )
        array = old if old is not None else nd.zeros(kind.shape, ctx, dtype=kind.dtype)
        (aux if name in aux_names else args)[name] = array
        if shared_buffer is not None and name not in aux_names:
            shared_buffer.setdefault(name, array)
        if name not in aux_names and requests[name] != "null":
            old = _shared(shared_exec, None, "grad_dict", name, kind)
            grads[name] = old if old is not None else nd.zeros(kind.shape, ctx, dtype=kind.dtype)
    arena = shared_exec._arena if shared_exec is not None else None
    return Executor(symbol, ctx, args, grads, requests, aux, types, arena)


def _shared(
    executor: Executor | None,
    buffer: Mapping[str, NDArray] | None,
    kind: str,
    name: str,
    type: TensorType,
) -> NDArray | None:
    for source in (getattr(executor, kind, None), buffer):
        found = source.get(name) if source is not None else None
        if (
            found is not None
            and tuple(found.shape) == type.shape
            and np.dtype(found.dtype) == type.dtype
        ):
            return found
    return None


def _by_name(what: str, names: Sequence[str], given: Any, partial: bool) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        missing = [n for n in names if n not in given]
        if missing and not partial:
            raise UnknownNameError(f"[bind] expected {what} '{missing[0]}', got none")
        return {n: given[n] for n in names if n in given}
    items = list(given)
    if len(items) != len(names):
        raise ParamError(
            f"[bind] expected {len(names)} {what}s ({', '.join(names)}), got {len(items)}"
        )
    return {n: a for n, a in zip(names, items, strict=True) if a is not None}


def bind(
    symbol: Symbol,
    ctx: Context | None = None,
    args: Any = None,
    args_grad: Any = None,
    grad_req: Any = "write",
    aux_states: Any = None,
    group2ctx: Any = None,
    shared_exec: Executor | None = None,
) -> Executor:
    """Binds given arrays.

    Args:
        args, aux_states: arrays as list or by name, all of them.
        args_grad: arrays for the gradients; those left out are not computed.

    Raises:
        ShapeError, DTypeError: arrays that do not fit the symbol.
        UnknownNameError, ParamError: arrays missing.
    """
    ctx = Context(ctx) if ctx is not None else current_context()
    _distinct(symbol)
    requests = _requests(symbol, grad_req)
    arguments = _by_name("argument", symbol.list_arguments(), args, False)
    states = _by_name("auxiliary state", symbol.list_auxiliary_states(), aux_states, False)
    for name in (*symbol.list_arguments(), *symbol.list_auxiliary_states()):
        if name not in arguments and name not in states:
            raise UnknownNameError(f"[bind] expected an array for '{name}', got none")
    grads = _by_name("gradient", symbol.list_arguments(), args_grad, True)
    everything = {**arguments, **states}
    types = bound_types(
        symbol,
        {n: a.shape or None for n, a in everything.items()},
        {n: a.dtype for n, a in everything.items()},
    )
    for name, grad in grads.items():
        if tuple(grad.shape) != tuple(arguments[name].shape):
            raise ShapeError(
                f"[bind] expected a gradient of shape {tuple(arguments[name].shape)} for '{name}', "
                f"got {tuple(grad.shape)}"
            )
    arena = shared_exec._arena if shared_exec is not None else None
    return Executor(symbol, ctx, arguments, grads, requests, states, types, arena)


def evaluate(symbol: Symbol, ctx: Context | None = None, **kwargs: NDArray) -> list[NDArray]:
    """Outputs of the symbol for given arrays."""
    return bind(symbol, ctx, kwargs, grad_req="null", aux_states=kwargs).forward()


class _NoKernels:
    """Stands for a backend where only sizes count."""

    def prepare(self, *_: Any) -> None:
        """No kernel."""


def memory_report(symbol: Symbol, for_training: bool = True, **shapes: Any) -> dict[str, int]:
    """See `Symbol.memory_report`."""
    types = bound_types(symbol, shapes, None)
    graph = symbol.graph()
    if for_training:
        requests = {n: "write" for n in symbol.list_arguments() if n not in shapes}
        lowered, _ = joint_graph(graph, types, requests)
    else:
        lowered = forward_graph(graph, types, train=False)
    device = current_context().key
    _, order = scheduled(finish(lowered, fuse=False), _NoKernels(), device, 0)
    report = strategies(order)
    backend = default_backend()
    compiled = build_plan(finish(lowered, backend=backend), backend, device, "arena", 0)
    report["arena"] = compiled.memory["arena"]
    report["lower_bound"] = compiled.memory["lower_bound"]
    names = ("none", "inplace", "coshare", "both", "arena", "lower_bound", "lower_bound_unfused")
    return {n: report[n] for n in names}


install("bind", bind)
install("simple_bind", simple_bind)
install("eval", evaluate)
install("memory_report", memory_report)
