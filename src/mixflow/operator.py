"""Operators written in Python: `CustomOp`, `CustomOpProp`, `register` (``mx.operator``).

Hazard: `forward` and `backward` run on the engine's python lane while their task holds the tags of
its arrays. They therefore get fresh handles over the same memory: waiting for them, or computing
with them, cannot wait for the task itself, and the task ends when all that they pushed has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import _rt
from . import dtype as dtypes
from . import ndarray as nd
from . import symbol as sym
from .autograd.scopes import pause
from .autograd.tape import Entry, Output, Saved
from .context import Context
from .errors import MixflowError, ParamError, ShapeError
from .ir import Desc, TensorType, get
from .ndarray import NDArray
from .ops.custom import Options, Types, enter, kind_of
from .symbol.register import make

__all__ = ["CustomOp", "CustomOpProp", "get_all_registered_operators", "register"]


class CustomOp:
    """Base of operators written in Python. One object serves one use in a graph."""

    def forward(
        self,
        is_train: bool,
        req: Sequence[str],
        in_data: Sequence[NDArray],
        out_data: Sequence[NDArray],
        aux: Sequence[NDArray],
    ) -> None:
        """Computes the outputs, with `assign`.

        Args:
            is_train: training mode.
            req: how to store each output: 'write', 'add', 'null'.
            in_data, out_data, aux: inputs, outputs and states; valid until the call ends.
        """
        raise NotImplementedError

    def backward(
        self,
        req: Sequence[str],
        out_grad: Sequence[NDArray],
        in_data: Sequence[NDArray],
        out_data: Sequence[NDArray],
        in_grad: Sequence[NDArray],
        aux: Sequence[NDArray],
    ) -> None:
        """Computes the gradients of the inputs, with `assign`."""
        raise NotImplementedError

    def assign(self, dst: NDArray, req: str, src: Any) -> None:
        """Stores `src` in `dst` as `req` says."""
        if req in ("write", "inplace"):
            dst[:] = src
        elif req == "add":
            dst[:] += src
        elif req != "null":
            raise ParamError(f"[assign] expected write, inplace, add or null, got {req!r}")


class CustomOpProp:
    """Base of the descriptions of custom operators: names, shapes, and how to make one.

    Args:
        need_top_grad: whether `backward` reads the gradients of the outputs (losses do not).
    """

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad

    def list_arguments(self) -> list[str]:
        """Names of the inputs."""
        return ["data"]

    def list_outputs(self) -> list[str]:
        """Names of the outputs."""
        return ["output"]

    def list_auxiliary_states(self) -> list[str]:
        """Names of the states."""
        return []

    def infer_shape(self, in_shape: list[Any]) -> Any:
        """(shapes of the inputs, of the outputs, of the states); the last may be left out."""
        return in_shape, [in_shape[0]] * len(self.list_outputs()), []

    def infer_type(self, in_type: list[Any]) -> Any:
        """(dtypes of the inputs, of the outputs, of the states); the last may be left out."""
        first = in_type[0]
        states = [first] * len(self.list_auxiliary_states())
        return [first] * len(in_type), [first] * len(self.list_outputs()), states

    def declare_backward_dependency(
        self, out_grad: list[int], in_data: list[int], out_data: list[int]
    ) -> list[int]:
        """Numbers of the arrays that `backward` reads; mixflow always hands all of them."""
        heads = out_grad if self.need_top_grad_ else []
        return [*heads, *in_data, *out_data]

    def create_operator(self, ctx: Context, in_shapes: list[Any], in_dtypes: list[Any]) -> CustomOp:
        """The operator for one use."""
        return CustomOp()


class _Kind:
    """A `CustomOpProp` as the graph sees it (`ops.custom.CustomKind`)."""

    def __init__(self, name: str, prop: CustomOpProp) -> None:
        self.name = name
        self.prop = prop
        self.arguments = tuple(prop.list_arguments())
        self.states = tuple(prop.list_auxiliary_states())
        self.outputs = tuple(prop.list_outputs())

    def infer(self, ins: Types, outs: Types) -> tuple[Types, Types]:
        """See `ops.custom.CustomKind`."""
        found, count = self._types(ins), len(ins)
        return found[:count], found[count:]

    def _types(self, ins: Types) -> Types:
        count = len(self.arguments)
        data, states = ins[:count], ins[count:]
        shapes = self._asked("shape", [list(t.shape or ()) for t in data], data)
        kinds = self._asked("type", [t.dtype and np.dtype(t.dtype).type for t in data], data)
        return [
            TensorType(
                known.shape if shape is None else _shape(shape),
                known.dtype if kind is None else dtypes.canonical(kind),
            )
            for known, shape, kind in zip(
                [*data, *states, *[TensorType()] * len(self.outputs)], shapes, kinds, strict=True
            )
        ]

    def _asked(self, what: str, given: list[Any], data: Types) -> list[Any]:
        """What the user's rule says of inputs, states, outputs; None where it cannot say."""
        lost = [t.dtype is None if what == "type" else not _full(t) for t in data]
        nothing = [None] * (len(data) + len(self.states) + len(self.outputs))
        if data and lost[0]:
            return nothing
        try:
            made = getattr(self.prop, f"infer_{what}")(given)
        except Exception as error:
            if any(lost):
                return nothing
            raise ShapeError(
                f"[Custom] expected infer_{what} of '{self.name}' to accept {given}, got "
                f"{type(error).__name__}: {error}"
            ) from error
        return self._sorted(what, made)

    def _sorted(self, what: str, made: Any) -> list[Any]:
        parts = [list(p) for p in made]
        if len(parts) == 2:
            parts.append([])
        wanted = (len(self.arguments), len(self.outputs), len(self.states))
        if len(parts) != 3 or tuple(map(len, parts)) != wanted:
            raise ShapeError(
                f"[Custom] expected infer_{what} of '{self.name}' to give {wanted} entries for "
                f"inputs, outputs, states, got {[len(p) for p in parts]}"
            )
        return [*parts[0], *parts[2], *parts[1]]

    def call(self, ins: Types, outs: Types) -> _Call:
        """See `ops.custom.CustomKind`."""
        return _Call(self, ins)


def _full(t: TensorType) -> bool:
    return t.shape is not None and None not in t.shape


def _shape(given: Any) -> tuple[int, ...] | None:
    """A user's shape: no entries stand for an unknown one, 0 for an unknown dimension."""
    return tuple(int(d) or None for d in given) or None  # type: ignore[misc]


class _Call:
    """One use of a custom operator; its `CustomOp` is made at the first run."""

    def __init__(self, kind: _Kind, ins: Types) -> None:
        self.kind = kind
        self._ins = ins[: len(kind.arguments)]
        self._made: CustomOp | None = None

    def operator(self, device: tuple[int, int]) -> CustomOp:
        """The user's object."""
        if self._made is None:
            shapes = [list(t.shape or ()) for t in self._ins]
            kinds = [np.dtype(t.dtype).type for t in self._ins]
            context = Context.from_key(device)
            self._made = self.kind.prop.create_operator(context, shapes, kinds)
        return self._made

    def run_forward(
        self,
        train: bool,
        data: Sequence[NDArray],
        states: Sequence[NDArray],
        outs: Sequence[NDArray],
        device: tuple[int, int],
    ) -> None:
        """The user's `forward` on arrays that are free to use."""
        with pause(train_mode=train):
            self.operator(device).forward(
                is_train=train,
                req=["write"] * len(outs),
                in_data=list(data),
                out_data=list(outs),
                aux=list(states),
            )

    def run_backward(
        self,
        heads: Sequence[NDArray],
        data: Sequence[NDArray],
        outs: Sequence[NDArray],
        states: Sequence[NDArray],
        grads: Sequence[NDArray],
        device: tuple[int, int],
    ) -> None:
        """The user's `backward`."""
        with pause(train_mode=True):
            self.operator(device).backward(
                req=["write"] * len(grads),
                out_grad=list(heads),
                in_data=list(data),
                out_data=list(outs),
                in_grad=list(grads),
                aux=list(states),
            )

    def forward(self, train: bool, inputs: Sequence[Desc]) -> Callable[..., None]:
        """See `ops.custom.CustomCall`."""
        count, made = len(self.kind.arguments), len(self.kind.outputs)
        device = _device(inputs)

        def run(ins: Sequence[Any], outs: Sequence[Any], key: tuple[int, int]) -> None:
            data, states = _borrowed(ins[:count], device), _borrowed(outs[made:], device)
            self.run_forward(train, data, states, _borrowed(outs[:made], device), device)

        return run

    def backward(self, inputs: Sequence[Desc]) -> Callable[..., None]:
        """See `ops.custom.CustomCall`."""
        count, made = len(self.kind.arguments), len(self.kind.outputs)
        device = _device(inputs)

        def run(ins: Sequence[Any], outs: Sequence[Any], key: tuple[int, int]) -> None:
            arrays = _borrowed(ins, device)
            heads, data = arrays[:made], arrays[made : made + count]
            results = arrays[made + count : 2 * made + count]
            states, grads = arrays[2 * made + count :], _borrowed(outs, device)
            self.run_backward(heads, data, results, states, grads, device)

        return run


def _device(descs: Sequence[Desc]) -> tuple[int, int]:
    return tuple(descs[0].device) if descs else (1, 0)  # type: ignore[return-value]


def _borrowed(views: Sequence[Any], device: tuple[int, int]) -> list[NDArray]:
    return [_rt.core.borrow_numpy(v, device) for v in views]


def register(reg_name: str) -> Callable[[type], type]:
    """Decorator that registers a subclass of `CustomOpProp` under a name.

    Args:
        reg_name: what `op_type` of ``mx.nd.Custom`` and ``mx.sym.Custom`` says.
    """

    def wrap(prop_class: type) -> type:
        if not (isinstance(prop_class, type) and issubclass(prop_class, CustomOpProp)):
            raise ParamError(f"[register] expected a subclass of CustomOpProp, got {prop_class!r}")
        _registered[reg_name] = prop_class
        make: Callable[..., CustomOpProp] = prop_class
        enter(reg_name, lambda options: _Kind(reg_name, make(**dict(options))))
        return prop_class

    return wrap


_registered: dict[str, type] = {}


def get_all_registered_operators() -> list[str]:
    """Names of the registered custom operators."""
    return list(_registered)


# -- mx.sym.Custom and mx.nd.Custom


def _split(op_type: Any, kwargs: dict[str, Any], kind: type) -> tuple[dict[str, Any], Options]:
    if not isinstance(op_type, str):
        raise ParamError(f"[Custom] expected op_type as a string, got {op_type!r}")
    tensors = {k: kwargs.pop(k) for k in list(kwargs) if isinstance(kwargs[k], kind)}
    return tensors, tuple(sorted((k, str(v)) for k, v in kwargs.items()))


def _gathered(names: Sequence[str], args: Sequence[Any], given: dict[str, Any]) -> dict[str, Any]:
    if len(args) > len(names):
        raise ParamError(f"[Custom] expected at most {len(names)} inputs, got {len(args)}")
    inputs = dict(zip(names, args, strict=False))
    for key, value in given.items():
        if key not in names or key in inputs:
            raise ParamError(f"[Custom] expected inputs {list(names)} once each, got '{key}'")
        inputs[key] = value
    return inputs


def _custom_symbol(
    *args: sym.Symbol,
    op_type: str | None = None,
    name: str | None = None,
    attr: dict[str, str] | None = None,
    **kwargs: Any,
) -> sym.Symbol:
    """An operator written in Python as a node of a graph.

    Args:
        args, kwargs: its inputs by position or name (missing ones become variables), and the
            options of its `CustomOpProp`, which gets them as strings.
        op_type: name it was registered with.
        name, attr: of the node.
    """
    given, options = _split(op_type, kwargs, sym.Symbol)
    kind = kind_of(str(op_type), options)
    inputs = _gathered((*kind.arguments, *kind.states), args, given)
    params = {"op_type": op_type, "options": options}
    return make(get("Custom"), "custom", inputs, params, name, attr)


def _custom_array(
    *args: NDArray, op_type: str | None = None, out: Any = None, **kwargs: Any
) -> Any:
    """Runs an operator written in Python; pushed like any other, and followed by autograd.

    Args:
        args, kwargs: its inputs and states by position or name, and the options of its
            `CustomOpProp`, which gets them as strings.
        op_type: name it was registered with.
        out: array or list of arrays to write to.

    Returns:
        One array, or a list.
    """
    kwargs.pop("name", None)
    given, options = _split(op_type, kwargs, NDArray)
    kind = kind_of(str(op_type), options)
    names = (*kind.arguments, *kind.states)
    by_name = _gathered(names, args, given)
    missing = [n for n in names if n not in by_name]
    if missing:
        raise ParamError(f"[Custom] expected inputs {list(names)}, got none for '{missing[0]}'")
    inputs = [by_name[n] for n in names]
    outs = _results(kind, inputs, out)
    call = _Call(kind, [_type(a) for a in inputs])  # type: ignore[arg-type]
    _run_imperative(call, inputs, outs)
    if out is not None:
        return out
    return outs[0] if len(outs) == 1 else outs


def _type(array: NDArray) -> TensorType:
    return TensorType(tuple(array.shape), np.dtype(array.dtype))


def _results(kind: Any, inputs: Sequence[NDArray], out: Any) -> list[NDArray]:
    ins = [_type(a) for a in inputs]
    wanted, outs = kind.infer(ins, [TensorType()] * len(kind.outputs))
    for known, found, name in zip(wanted, ins, (*kind.arguments, *kind.states), strict=True):
        if known != found:
            raise ShapeError(f"[Custom] expected {known} for '{name}' of {kind.name}, got {found}")
    if out is None:
        context = inputs[0].context if inputs else None
        return [nd.empty(t.shape, ctx=context, dtype=t.dtype) for t in outs]
    given = list(out) if isinstance(out, (list, tuple)) else [out]
    if [_type(a) for a in given] != outs:
        raise ShapeError(f"[Custom] expected out= of {outs}, got {[_type(a) for a in given]}")
    return given


def _run_imperative(call: _Call, inputs: Sequence[NDArray], outs: Sequence[NDArray]) -> None:
    count = len(call.kind.arguments)
    data, states = inputs[:count], inputs[count:]
    device = inputs[0].device if inputs else (1, 0)
    train = _rt.core.is_training()
    fresh = [[_rt.core.fresh_handle(a) for a in part] for part in (data, states, outs)]

    def forward() -> None:
        call.run_forward(train, *fresh, device)  # type: ignore[call-arg,arg-type]

    label = f"Custom {call.kind.name} {[tuple(a.shape) for a in inputs]}"
    _rt.core.push(forward, list(data), [*outs, *states], name=label)
    sources = [a.autograd for a in data]
    followed = _rt.core.is_recording() and any(s is not None for s in sources)
    entry = _entry(call, label, data, states, outs, sources) if followed else None
    for index, array in enumerate(outs):
        if entry is not None or isinstance(array.autograd, Output):
            array.autograd = None if entry is None else Output(entry, index)


def _entry(
    call: _Call,
    label: str,
    data: Sequence[NDArray],
    states: Sequence[NDArray],
    outs: Sequence[NDArray],
    sources: Sequence[Any],
) -> Entry:
    saved = [Saved(a.view(0, a.shape), a.version) for a in (*data, *states)]
    made = [Saved(a.view(0, a.shape), a.version) for a in outs]

    def backward(*heads: NDArray) -> list[NDArray | None]:
        ins = [s.handle for s in saved]
        results = [s.handle for s in made]
        return _push_backward(call, label, heads, ins, results)

    return Entry(None, label, sources, saved, made, python_backward=backward)


def _push_backward(
    call: _Call,
    label: str,
    heads: Sequence[NDArray],
    inputs: Sequence[NDArray],
    results: Sequence[NDArray],
) -> list[NDArray | None]:
    count = len(call.kind.arguments)
    grads = [nd.empty(a.shape, ctx=a.context, dtype=a.dtype) for a in inputs[:count]]
    parts = (heads, inputs[:count], results, inputs[count:], grads)
    fresh = [[_rt.core.fresh_handle(a) for a in part] for part in parts]

    def run() -> None:
        call.run_backward(*fresh, inputs[0].device)  # type: ignore[call-arg,arg-type]

    reads = [*heads, *inputs, *results]
    _rt.core.push(run, reads, list(grads), name=f"{label} (backward)")
    return [g if dtypes.is_float(np.dtype(g.dtype)) else None for g in grads]


def _install() -> None:
    for module, function in ((nd, _custom_array), (sym, _custom_symbol)):
        function.__name__ = function.__qualname__ = "Custom"
        for place in (module, module.op):
            setattr(place, "Custom", function)  # noqa: B010 - mypy knows no such member
    if get("Custom").compose is None:
        raise MixflowError("[Custom] expected its operator record, got none")


_install()
