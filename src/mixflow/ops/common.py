"""What the operator files share: `define`, rules for dtypes and shapes, small helpers on Values.

An operator is written as a function from ir Values to ir Values::

    @define("L2Normalization", params=(...), shapes=same_shape, dtypes="T->T")
    def _l2_normalization(data, *, eps, mode): ...

`define` makes the record from it: the function's docstring becomes the operator's, MXNet's
further names come from `aliases.py`, the infer rule is put together from `shapes` and `dtypes`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..dtype import is_float
from ..errors import DTypeError, ShapeError
from ..ir import Operator, TensorType, Value, binary, constant, emit, get, register, variable
from ..ir.params import Kind
from .aliases import ALIASES
from .primitives.rules import along, broadcast_to

Dims = tuple["int | None", ...]
Shapes = list["Dims | None"]
#: (parameters, shapes of inputs, shapes of outputs) -> the same lists with more filled in.
ShapeRule = Callable[[dict[str, Any], Shapes, Shapes], tuple[Shapes, Shapes]]

Compose = Callable[..., Any]

__all__ = [
    "Compose",
    "DTypeRule",
    "Dims",
    "Fraction",
    "Positive",
    "ShapeRule",
    "Shapes",
    "along",
    "axes_of",
    "axis_of",
    "broadcast_shape",
    "broadcast_to",
    "cast",
    "concatenated",
    "define",
    "expand",
    "filled",
    "first_same",
    "iota",
    "known",
    "less",
    "make_infer",
    "merge",
    "need",
    "number",
    "permute",
    "reduce",
    "reshape",
    "same_shape",
    "select",
    "show",
    "size",
    "sliced",
    "zeros_like",
]


def _fraction(value: Any) -> float:
    number = float(value)
    if not 0.0 <= number <= 1.0:
        raise ValueError("not within 0 and 1")
    return number


def _positive(value: Any) -> int:
    number = int(value)
    if number != float(value) or number <= 0:
        raise ValueError("not a positive whole number")
    return number


Fraction = Kind("float in [0, 1]", _fraction, lambda v: f"{v:g}")
Positive = Kind("int > 0", _positive)


def define(
    name: str,
    *,
    shapes: ShapeRule | None = None,
    dtypes: str | Callable[[dict[str, Any]], str] = "T...->T...",
    **fields: Any,
) -> Callable[[Compose], Compose]:
    """Registers the decorated function as the composition of operator `name`.

    Args:
        shapes: rule for shapes, both directions. None: forward only, by running the composition.
        dtypes: rule for dtypes, see `DTypeRule`; or a function of the parameters to it.
        fields: fields of the record.
    """

    def wrap(compose: Compose) -> Compose:
        fields.setdefault("doc", inspect.getdoc(compose) or "")
        fields.setdefault("aliases", ALIASES.get(name, ()))
        infer = make_infer(name, shapes, dtypes)
        register(Operator(name=name, infer=infer, compose=_distinct(name, compose), **fields))
        return compose

    return wrap


def _distinct(name: str, compose: Compose) -> Compose:
    """`compose` whose outputs are never its inputs themselves, and whose errors name `name`.

    The next version of a mutated input may be that input: nothing changed.
    """

    def composed(*inputs: Value, **params: Any) -> Any:
        try:
            made = compose(*inputs, **params)
        except ShapeError as error:
            raise ShapeError(_label(name, error, [v.type for v in inputs])) from None
        except DTypeError as error:
            raise DTypeError(_label(name, error, [v.type for v in inputs])) from None
        values = (made,) if isinstance(made, Value) else tuple(made)
        operator = get(name)
        count = len(operator.output_names(params)) if operator.mutates else len(values)
        fixed = tuple(
            emit("identity", v) if i < count and v in inputs else v for i, v in enumerate(values)
        )
        return fixed[0] if isinstance(made, Value) else fixed

    return composed


def _label(name: str, error: Exception, types: Sequence[TensorType]) -> str:
    """The error's text under this operator's name, with the input types once."""
    text = str(error)
    if text.startswith(f"[{name}]"):
        return text
    if text.startswith("[") and "] " in text:
        text = text.split("] ", 1)[1]
    shown = ", ".join(str(t) for t in types)
    return f"[{name}] {text}" if " inputs: " in text else f"[{name}] {text}; inputs: {shown}"


class DTypeRule:
    """Dtypes of an operator, written ``inputs->outputs``, items separated by commas.

    An item is a letter (equal letters are one dtype), ``*`` (any), ``~T`` (any; T if unknown),
    ``?T`` (float32 if T is a half-precision type, else T), ``@name`` (that parameter, T if None)
    or a dtype's name. ``...`` after the last item repeats it.
    """

    def __init__(self, text: str) -> None:
        left, right = text.split("->")
        self._sides = (self._items(left), self._items(right))

    @staticmethod
    def _items(side: str) -> list[str]:
        return [item.strip() for item in side.split(",") if item.strip()]

    @staticmethod
    def _expand(items: list[str], count: int) -> list[str]:
        if items and items[-1].endswith("..."):
            last = items[-1][:-3]
            return (items[:-1] + [last] * count)[:count]
        return items[:count]

    def __call__(
        self, params: dict[str, Any], ins: list[Any], outs: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Both lists with the unknown ones filled in where the rule fixes them.

        Raises:
            DTypeError: two dtypes that must be equal are not.
        """
        sides = [self._expand(s, len(t)) for s, t in zip(self._sides, (ins, outs), strict=True)]
        known: dict[str, Any] = {}
        for items, given in zip(sides, (ins, outs), strict=True):
            for item, dtype in zip(items, given, strict=True):
                if dtype is None or not (item.isupper() and len(item) == 1):
                    continue
                if known.setdefault(item, dtype) != dtype:
                    raise DTypeError(f"expected one dtype, got {known[item]} and {dtype}")
        filled = [
            [self._resolve(item, d, known, params) for item, d in zip(items, given, strict=True)]
            for items, given in zip(sides, (ins, outs), strict=True)
        ]
        return filled[0], filled[1]

    @staticmethod
    def _resolve(item: str, given: Any, known: dict[str, Any], params: dict[str, Any]) -> Any:
        if item == "*":
            return given
        if item[0] in "~?":
            if given is not None:
                return given
            base = known.get(item[1])
            return _statistics_dtype(base) if item[0] == "?" else base
        if item[0] == "@":
            want = params.get(item[1:]) or known.get("T")
        elif len(item) == 1:
            want = known.get(item)
        else:
            want = np.dtype(item)
        if given is not None and want is not None and given != want:
            raise DTypeError(f"expected dtype {want}, got {given}")
        return want if want is not None else given


def _statistics_dtype(dtype: Any) -> Any:
    if dtype is not None and is_float(dtype) and dtype.itemsize == 2:
        return np.dtype(np.float32)
    return dtype


def make_infer(
    name: str, shapes: ShapeRule | None, dtypes: str | Callable[[dict[str, Any]], str]
) -> Any:
    """The infer rule of operator `name` from its two parts."""
    fixed = DTypeRule(dtypes) if isinstance(dtypes, str) else None

    def infer(
        params: dict[str, Any], ins: list[TensorType], outs: list[TensorType]
    ) -> tuple[list[TensorType], list[TensorType]]:
        try:
            rule = fixed or DTypeRule(dtypes(params))  # type: ignore[operator]
            in_dtypes, out_dtypes = rule(params, [t.dtype for t in ins], [t.dtype for t in outs])
            typed = [t._replace(dtype=d) for t, d in zip(ins, in_dtypes, strict=True)]
            if shapes is None:
                in_shapes = [t.shape for t in ins]
                out_shapes = _composed_shapes(name, params, typed, len(outs))
            else:
                in_shapes, out_shapes = shapes(
                    params, [t.shape for t in ins], [t.shape for t in outs]
                )
            out_shapes = [merge(a, t.shape) for a, t in zip(out_shapes, outs, strict=True)]
            in_shapes = [merge(a, t.shape) for a, t in zip(in_shapes, ins, strict=True)]
        except ShapeError as error:
            raise ShapeError(_label(name, error, ins)) from None
        except DTypeError as error:
            raise DTypeError(_label(name, error, ins)) from None
        return (
            [t._replace(shape=s) for t, s in zip(typed, in_shapes, strict=True)],
            [
                t._replace(shape=s, dtype=d)
                for t, s, d in zip(outs, out_shapes, out_dtypes, strict=True)
            ],
        )

    return infer


def _composed_shapes(
    name: str, params: dict[str, Any], ins: list[TensorType], count: int
) -> Shapes:
    """Output shapes found by running the composition, unknown unless all inputs are known."""
    if any(t.shape is None or None in t.shape for t in ins):
        return [None] * count
    operator = get(name)
    default = np.dtype(np.float32)
    inputs = [variable(f"x{i}", t._replace(dtype=t.dtype or default)) for i, t in enumerate(ins)]
    mode = {"train": False} if operator.needs_mode else {}
    assert operator.compose is not None
    made = operator.compose(*inputs, **params, **mode)
    values = (made,) if isinstance(made, Value) else tuple(made)
    return [v.type.shape for v in values[:count]]


# Shapes -------------------------------------------------------------------------------------


def merge(a: Dims | None, b: Dims | None) -> Dims | None:
    """What two partial shapes of one value say together.

    Raises:
        ShapeError: they contradict each other.
    """
    if a is None or b is None:
        return b if a is None else a
    if len(a) != len(b):
        raise ShapeError(f"expected shape {show(a)}, got {show(b)}")
    out = []
    for x, y in zip(a, b, strict=True):
        if x is not None and y is not None and x != y:
            raise ShapeError(f"expected shape {show(a)}, got {show(b)}")
        out.append(y if x is None else x)
    return tuple(out)


def show(shape: Dims | None) -> str:
    """A partial shape as text, ? for what is unknown."""
    if shape is None:
        return "?"
    return "(" + ", ".join("?" if d is None else str(d) for d in shape) + ")"


def need(condition: Any, text: str) -> None:
    """Raises ShapeError(text) unless `condition`."""
    if not condition:
        raise ShapeError(text)


def known(shape: Dims | None) -> bool:
    """Whether every dimension is known."""
    return shape is not None and None not in shape


def same_shape(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """Every input and output has one shape."""
    shape: Dims | None = None
    for s in (*ins, *outs):
        shape = merge(shape, s)
    return [shape] * len(ins), [shape] * len(outs)


def first_same(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """First input and first output have one shape; nothing about the rest."""
    shape = merge(ins[0], outs[0])
    return [shape, *ins[1:]], [shape, *outs[1:]]


def broadcast_shape(params: dict[str, Any], ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """Forward: NumPy's broadcasting of two partial shapes."""
    a, b = ins
    if a is None or b is None:
        return ins, outs
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    return ins, [tuple(_broadcast_dim(x, y, a, b) for x, y in pairs)]


def _broadcast_dim(x: int | None, y: int | None, a: Dims, b: Dims) -> int | None:
    if x == 1:
        return y
    if y == 1 or x == y or y is None:
        return x
    if x is None:
        return y
    raise ShapeError(f"expected shapes that broadcast, got {show(a)} and {show(b)}")


def axis_of(axis: int, rank: int) -> int:
    """`axis` counted from the front.

    Raises:
        ShapeError: outside of the rank.
    """
    if not -rank <= axis < rank:
        raise ShapeError(f"expected an axis within {-rank} and {rank - 1}, got {axis}")
    return axis % rank


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Axes counted from the front, sorted, each once."""
    found = sorted(axis_of(a, rank) for a in ((axes,) if isinstance(axes, int) else axes))
    need(len(set(found)) == len(found), f"expected different axes, got {axes}")
    return tuple(found)


# Values -------------------------------------------------------------------------------------


def cast(value: Value, dtype: Any) -> Value:
    """`value` in `dtype`; no node if it has it."""
    return value if value.dtype == dtype else emit("cast", value, dtype=np.dtype(dtype))


def reshape(value: Value, shape: Iterable[int]) -> Value:
    """`value` in another shape of as many elements; no node if it has it."""
    shape = tuple(shape)
    if value.shape == shape:
        return value
    need(
        np.prod(shape, dtype=np.int64) == np.prod(value.shape, dtype=np.int64),
        f"expected a shape of {np.prod(value.shape, dtype=np.int64)} elements, got {show(shape)}",
    )
    return emit("reshape", value, shape=shape)


def permute(value: Value, axes: Iterable[int]) -> Value:
    """Axes in another order; no node if it is the same."""
    axes = tuple(axes)
    return value if axes == tuple(range(len(axes))) else emit("permute", value, axes=axes)


def expand(value: Value, axis: int) -> Value:
    """With one more axis of size 1 before `axis`."""
    return reshape(value, (*value.shape[:axis], 1, *value.shape[axis:]))


def filled(number: float, shape: Iterable[int], dtype: Any) -> Value:
    """A value of one number."""
    return constant(number, dtype, tuple(shape))


def number(given: Any, dtype: Any) -> Value:
    """A runtime number, float or 0-d value, as a 0-d value of `dtype`."""
    return cast(given, dtype) if isinstance(given, Value) else constant(given, dtype)


def zeros_like(value: Value) -> Value:
    """Zeros of the value's type."""
    return filled(0.0, value.shape, value.dtype)


def iota(count: int, dtype: Any = np.int32, start: float = 0.0, step: float = 1.0) -> Value:
    """start, start + step, ... as a vector of `count`."""
    return emit(
        "iota",
        start=float(start),
        step=float(step),
        repeat=1,
        shape=(count,),
        dtype=np.dtype(dtype),
    )


def reduce(kind: str, value: Value, axes: Iterable[int], keepdims: bool = False) -> Value:
    """reduce_sum, reduce_prod, reduce_max or reduce_min; no node without axes."""
    axes = tuple(sorted(axes))
    if not axes:
        return value
    return emit(f"reduce_{kind}", value, axes=axes, keepdims=keepdims)


def select(condition: Value, x: Any, y: Any) -> Value:
    """x where condition != 0, else y; one of x and y may be a number."""
    if not isinstance(x, Value):
        x = constant(x, y.dtype)
    if not isinstance(y, Value):
        y = constant(y, x.dtype)
    return emit("select", condition, x, y)


def less(a: Any, b: Any) -> Value:
    """1 where a < b, else 0, in the dtype of the inputs."""
    return binary("less", a, b)


def sliced(value: Value, axis: int, begin: int, end: int) -> Value:
    """value[begin:end] along one axis."""
    shape = value.shape
    return emit(
        "strided_slice",
        value,
        begin=tuple(begin if i == axis else 0 for i in range(len(shape))),
        end=tuple(end if i == axis else d for i, d in enumerate(shape)),
        step=(1,) * len(shape),
    )


def concatenated(values: Sequence[Value], axis: int) -> Value:
    """The values one after the other along `axis`; the value itself if it is alone."""
    if len(values) == 1:
        return values[0]
    return emit("concatenate", *values, axis=axis, num_args=len(values))


def size(shape: Iterable[int]) -> int:
    """Product of the dimensions."""
    total = 1
    for dim in shape:
        total *= dim
    return total
