"""mx.sym.*: one function per operator record, as closures with real signatures."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .. import attribute
from .. import name as naming
from ..errors import GraphError, ParamError, UnknownNameError
from ..ir import Node, Operator, Value, get, names, signature
from ..ir.json import hidden_key
from ..ir.json import param_strings as _strings
from .late import install
from .symbol import Symbol, _one

#: Initialisers that MXNet writes on automatic auxiliary variables.
_AUX_INIT = {"moving_mean": "zero", "moving_var": "one"}


def Variable(
    name: str,
    attr: dict[str, str] | None = None,
    shape: Any = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    dtype: Any = None,
    init: Any = None,
    stype: str | None = None,
    profiler_scope: str | None = None,
    **kwargs: str,
) -> Symbol:
    """A named input of a graph.

    Args:
        name: of the argument.
        attr: further attributes, strings.
        shape: hint; 0 stands for an unknown dimension.
        lr_mult, wd_mult: multipliers of learning rate and weight decay.
        dtype: hint.
        init: initializer (object with `dumps`, or its name) that overrides the default.
        stype: storage type.
        **kwargs: attributes of the form ``__key__``.
    """
    if not isinstance(name, str):
        raise ParamError(f"[Variable] expected a string as name, got {name!r}")
    attrs = {hidden_key(k): v for k, v in attribute.current().get(attr).items()}
    given = {
        "__shape__": None
        if shape is None
        else str(tuple(shape) if not isinstance(shape, int) else (shape,)),
        "__lr_mult__": lr_mult,
        "__wd_mult__": wd_mult,
        "__dtype__": None if dtype is None else _dtype_code(dtype),
        "__init__": _init_text(init),
        "__storage_type__": None if stype is None else _stype_code(stype),
        "__profiler_scope__": profiler_scope,
    }
    attrs.update({k: str(v) for k, v in given.items() if v is not None})
    for key, value in kwargs.items():
        if not (key.startswith("__") and key.endswith("__")):
            raise ParamError(f"[Variable] expected attributes of the form __key__, got '{key}'")
        attrs[key] = str(value)
    return Symbol([Value(Node(None, name, attrs=attrs), 0)])


var = Variable


def _dtype_code(dtype: Any) -> int:
    from .. import dtype as dtypes

    return dtypes.code(dtype)


def _stype_code(stype: str) -> int:
    known = {"default": 0, "row_sparse": 1, "csr": 2}
    if stype not in known:
        raise ParamError(f"[Variable] expected a storage type of {list(known)}, got '{stype}'")
    return known[stype]


def _init_text(init: Any) -> str | None:
    if init is None or isinstance(init, str):
        return init
    return str(init.dumps())


def make(
    op: Operator,
    hint: str,
    inputs: dict[str, Any] | list[Any],
    params: dict[str, Any],
    name: str | None = None,
    attr: dict[str, str] | None = None,
) -> Symbol:
    """A node with its missing inputs as automatic variables.

    Args:
        inputs: symbols by input name, or all in order for a variadic operator.
        params: values as users write them.
    """
    if op.variadic is not None and isinstance(inputs, list):
        params = {**params, op.variadic: params.get(op.variadic) or len(inputs)}
    checked = op.check_params(params)
    label = naming.current().get(name, hint)
    attrs = {hidden_key(k): str(v) for k, v in attribute.current().get(attr).items()}
    for key in attrs:
        if not (key.startswith("__") and key.endswith("__")):
            raise ParamError(f"[{op.name}] expected attributes of the form __key__, got '{key}'")
    if isinstance(inputs, list):
        names = op.input_names(checked)
        inputs = dict(zip(names, inputs, strict=False)) if len(inputs) <= len(names) else inputs
    if isinstance(inputs, list):
        values = [_one(s) for s in inputs]
    else:
        values = _complete(op, label, inputs, checked, attrs)
    node = Node(op, label, values, checked, attrs)
    return Symbol([Value(node, k) for k in range(op.visible_count(checked))])


def _complete(
    op: Operator, label: str, inputs: dict[str, Any], params: dict[str, Any], attrs: dict[str, str]
) -> list[Value]:
    wanted = op.input_names(params)
    for key in inputs:
        if key not in wanted:
            raise ParamError(
                f"[{op.name}] expected inputs {list(wanted)}, got '{key}' in '{label}'"
            )
    values = []
    aux = op.aux_names(params)
    for key in wanted:
        if inputs.get(key) is not None:
            values.append(_one(inputs[key]))
            continue
        own = {**_strings(Node(op, label, (), params)), **attrs}
        if key in aux and key in _AUX_INIT:
            own["__init__"] = json.dumps([_AUX_INIT[key], {}])
        values.append(Value(Node(None, f"{label}_{key}", attrs=own), 0))
    return values


def function(op: Operator, called: str) -> Callable[..., Symbol]:
    """The function ``mx.sym.<called>`` of a record."""
    params = [p.name for p in op.params if p.name != op.variadic]
    known = {p.name for p in op.params}
    hint = called.lower()

    def call(
        *args: Any,
        name: str | None = None,
        attr: dict[str, str] | None = None,
        out: Any = None,
        **kwargs: Any,
    ) -> Symbol:
        if out is not None:
            raise ParamError(f"[{op.name}] expected no 'out' for a symbol, got one")
        given = {k: kwargs.pop(k) for k in list(kwargs) if k in known}
        extra = {k: kwargs.pop(k) for k in list(kwargs) if k.startswith("__") and k.endswith("__")}
        attr = {**(attr or {}), **{k: str(v) for k, v in extra.items()}} or None
        if op.variadic is not None:
            symbols = _variadic(op, args, kwargs)
            return make(op, hint, symbols, given, name, attr)
        inputs, rest = _split(op, args, kwargs)
        for key, value in zip(params, rest, strict=False):
            given[key] = value
        return make(op, hint, inputs, given, name, attr)

    call.__name__ = call.__qualname__ = called
    call.__doc__ = op.doc
    call.__module__ = "mixflow.symbol"
    call.__signature__ = signature(op)  # type: ignore[attr-defined]
    return call


def _variadic(op: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    items = list(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else list(args)
    items += [kwargs.pop(k) for k in list(kwargs) if isinstance(kwargs[k], Symbol)]
    if kwargs:
        raise ParamError(f"[{op.name}] expected its parameters, got '{next(iter(kwargs))}'")
    return items


def _split(
    op: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], list[Any]]:
    """Inputs by name, and positional parameters behind them."""
    wanted = list(op.input_names({p.name: p.default for p in op.params}))
    inputs: dict[str, Any] = {}
    rest: list[Any] = []
    for number, value in enumerate(args):
        if number < len(wanted) and (value is None or isinstance(value, Symbol)):
            inputs[wanted[number]] = value
        elif isinstance(value, Symbol):
            raise ParamError(f"[{op.name}] expected {len(wanted)} inputs, got more")
        else:
            rest.append(value)
    for key in list(kwargs):
        value = kwargs.pop(key)
        if value is not None and not isinstance(value, Symbol):
            raise ParamError(
                f"[{op.name}] expected parameters {[p.name for p in op.params]}, got '{key}'"
            )
        if key in inputs:
            raise ParamError(f"[{op.name}] expected '{key}' once, got it twice")
        inputs[key] = value
    return inputs, rest


#: Python operator -> (operator of two symbols, of symbol and number) as MXNet's Python names them.
_ARITHMETIC = {
    "add": ("_Plus", "_PlusScalar", "elemwise_add", "_plus_scalar"),
    "subtract": ("_Minus", "_MinusScalar", "elemwise_sub", "_minus_scalar"),
    "rsubtract": ("", "_RMinusScalar", "", "_rminus_scalar"),
    "multiply": ("_Mul", "_MulScalar", "elemwise_mul", "_mul_scalar"),
    "divide": ("_Div", "_DivScalar", "elemwise_div", "_div_scalar"),
    "rdivide": ("", "_RDivScalar", "", "_rdiv_scalar"),
    "mod": ("_Mod", "_ModScalar", "_mod", "_mod_scalar"),
    "rmod": ("", "_RModScalar", "", "_rmod_scalar"),
    "power": ("_Power", "_PowerScalar", "_power", "_power_scalar"),
    "rpower": ("", "_RPowerScalar", "", "_rpower_scalar"),
    "equal": ("_equal",) * 1 + ("_equal_scalar", "_equal", "_equal_scalar"),
    "not_equal": ("_not_equal", "_not_equal_scalar", "_not_equal", "_not_equal_scalar"),
    "greater": ("_greater", "_greater_scalar", "_greater", "_greater_scalar"),
    "greater_equal": ("_greater_equal", "_greater_equal_scalar") * 2,
    "less": ("_lesser", "_lesser_scalar") * 2,
    "less_equal": ("_lesser_equal", "_lesser_equal_scalar") * 2,
}


def binary(kind: str, a: Symbol, b: Any) -> Symbol:
    """Arithmetic of symbols and numbers; names as MXNet gives them."""
    both, scalar, op_both, op_scalar = _ARITHMETIC[kind]
    if isinstance(b, Symbol):
        if not both:
            raise GraphError(f"[symbol] expected a number on the left of '{kind}', got a symbol")
        return make(
            get(op_both),
            both.lower(),
            [a, b]
            if get(op_both).variadic
            else dict(zip(get(op_both).input_names({}), (a, b), strict=True)),
            {},
        )
    if isinstance(b, bool) or not hasattr(b, "__float__"):
        raise ParamError(f"[symbol] expected a symbol or a number, got {type(b).__name__}")
    op = get(op_scalar)
    return make(op, scalar.lower(), {op.input_names({})[0]: a}, {"scalar": float(b)})


#: Operators that are also methods of Symbol, with the symbol as first input.
FLUENT = [
    "abs", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "argmax",
    "argmax_channel", "argmin", "argsort", "broadcast_axes", "broadcast_like", "broadcast_to",
    "cbrt", "ceil", "clip", "cos", "cosh", "degrees", "depth_to_space", "diag", "exp",
    "expand_dims", "expm1", "fix", "flatten", "flip", "floor", "log", "log10", "log1p", "log2",
    "log_softmax", "max", "mean", "min", "nanprod", "nansum", "norm", "one_hot", "ones_like",
    "pad", "pick", "prod", "radians", "rcbrt", "reciprocal", "relu", "repeat", "reshape",
    "reshape_like", "rint", "round", "rsqrt", "shape_array", "sigmoid", "sign", "sin", "sinh",
    "size_array", "slice", "slice_axis", "slice_like", "softmax", "softmin", "sort",
    "space_to_depth", "split", "split_v2", "sqrt", "square", "squeeze", "sum", "swapaxes", "take",
    "tan", "tanh", "tile", "topk", "transpose", "trunc", "zeros_like",
]  # fmt: skip


def _fluent(name: str) -> Callable[..., Any]:
    def method(self: Symbol, *args: Any, **kwargs: Any) -> Any:
        made = function(get(name), name)
        if name == "reshape" and args and not kwargs.get("shape"):
            shape = args[0] if isinstance(args[0], (tuple, list)) else args
            return made(self, shape=tuple(shape), **kwargs)
        return made(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"``mx.sym.{name}`` of this symbol."
    return method


def _astype(self: Symbol, dtype: Any) -> Symbol:
    """This symbol in another dtype (``mx.sym.Cast``)."""
    return function(get("Cast"), "Cast")(self, dtype=dtype)


def install_methods() -> None:
    """Gives Symbol its arithmetic and its operator methods."""
    install("binary", binary)
    setattr(Symbol, "astype", _astype)  # noqa: B010
    for name in FLUENT:
        if not hasattr(Symbol, name):
            setattr(Symbol, name, _fluent(name))


def populate(namespaces: dict[str, dict[str, Any]]) -> None:
    """Puts the generated functions into module dictionaries.

    Args:
        namespaces: '' and further names ('random', 'linalg', 'contrib', 'image', '_internal',
            'op') to the `__dict__` of the module that shows them.
    """
    for called, op in names().items():
        if op.internal:
            continue
        made = function(op, called)
        place, short = _place(op, called)
        namespaces["op"][called] = made
        if place in namespaces:
            namespaces[place].setdefault(short, made)
        if not called.startswith("_") and called not in namespaces[""]:
            namespaces[""][called] = made
        if called.startswith("_"):
            namespaces["_internal"][called] = made


def _place(op: Operator, called: str) -> tuple[str, str]:
    for prefix in ("random", "linalg", "contrib", "image", "sparse"):
        if called.startswith(f"_{prefix}_"):
            return prefix, called[len(prefix) + 2 :]
    if called.startswith("_"):
        return "_internal", called
    return op.namespace, called


__all__ = [
    "FLUENT",
    "UnknownNameError",
    "Variable",
    "binary",
    "function",
    "make",
    "populate",
    "var",
]
