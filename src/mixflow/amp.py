"""Mixed precision under MXNet's names (``mxnet.contrib.amp``).

Two ways. `init` (or ``mx.config.update(precision="bfloat16")``, or the argument `precision` of
`Module`, `bind` and `simple_bind`) lets the graph compiler choose: symbol, parameters and files
stay float32, see docs/precision.md. `convert_symbol` and `convert_model` write the casts into the
symbol, as MXNet does: then the user says what runs narrow, on every processor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import config
from . import dtype as dtypes
from .backends import default_backend
from .errors import ParamError, UnknownNameError, describe_unknown
from .ir import Node, Operator, Value, get, names, topological
from .ndarray import NDArray
from .symbol import Symbol

TARGETS = ("bfloat16", "float16")

#: Operators that are worth a narrow dtype.
_NARROW = ("Convolution", "Deconvolution", "FullyConnected", "RNN")
#: Operators that take several tensors of one dtype: of mixed inputs the narrow ones are widened.
_WIDEST = [
    "Concat",
    "add_n",
    "stack",
    "where",
    "dot",
    "batch_dot",
    "elemwise_add",
    "elemwise_sub",
    "elemwise_mul",
    "elemwise_div",
    "broadcast_add",
    "broadcast_sub",
    "broadcast_mul",
    "broadcast_div",
    "broadcast_maximum",
    "broadcast_minimum",
    "broadcast_equal",
    "broadcast_not_equal",
    "broadcast_greater",
    "broadcast_greater_equal",
    "broadcast_lesser",
    "broadcast_lesser_equal",
    "broadcast_logical_and",
    "broadcast_logical_or",
    "broadcast_logical_xor",
    "_maximum",
    "_minimum",
]
#: Operators that keep the dtype of their data: moves, pooling, cheap activations, norms whose
#: statistics are float32 anyway.
_EITHER = [
    "BatchNorm",
    "Pooling",
    "Pad",
    "Flatten",
    "Reshape",
    "transpose",
    "SwapAxis",
    "expand_dims",
    "squeeze",
    "slice",
    "slice_axis",
    "slice_like",
    "SliceChannel",
    "Crop",
    "reverse",
    "tile",
    "repeat",
    "broadcast_to",
    "broadcast_like",
    "broadcast_axis",
    "Dropout",
    "BlockGrad",
    "identity",
    "Activation",
    "LeakyReLU",
    "abs",
    "relu",
    "tanh",
    "sigmoid",
    "clip",
    "sqrt",
    "_plus_scalar",
    "_minus_scalar",
    "_rminus_scalar",
    "_mul_scalar",
    "_div_scalar",
    "_maximum_scalar",
    "_minimum_scalar",
    "UpSampling",
    "SequenceMask",
    "SequenceLast",
    "SequenceReverse",
    "shuffle",
    "_shuffle",
    "Cast",
    "amp_cast",
]
#: (operator, parameter, values) that need float32 after all.
_CONDITIONAL = [
    ("Activation", "act_type", ["softrelu"]),
    ("LeakyReLU", "act_type", ["elu", "selu"]),
]
_LOSSES = [
    "SoftmaxOutput",
    "LinearRegressionOutput",
    "LogisticRegressionOutput",
    "MAERegressionOutput",
]


def _target(name: Any) -> str:
    text = "bfloat16" if name == dtypes.bfloat16 else str(name)
    if text not in TARGETS:
        raise ParamError(f"[amp] expected target_dtype among {', '.join(TARGETS)}, got {name!r}")
    return text


def _known(wanted: Iterable[str]) -> list[str]:
    table = names()
    return list({table[n].name: n for n in wanted if n in table}.values())


def list_lp16_ops(target_dtype: str) -> list[str]:
    """Operators that `convert_symbol` runs in the narrow dtype."""
    _target(target_dtype)
    return _known(_NARROW)


def list_fp32_ops(target_dtype: str) -> list[str]:
    """Operators that get float32: every one that no other list names."""
    _target(target_dtype)
    others = {*_NARROW, *_WIDEST, *_EITHER}
    listed = {get(n).name for n in _known(others)}
    public = {name: op for name, op in names().items() if not op.internal}
    return sorted(n for n, op in public.items() if n == op.name and op.name not in listed)


def list_lp16_fp32_ops(target_dtype: str) -> list[str]:
    """Operators that run in the dtype of their data."""
    _target(target_dtype)
    return _known(_EITHER)


def list_conditional_fp32_ops(target_dtype: str) -> list[tuple[str, str, list[str]]]:
    """(operator, parameter, values): operators that get float32 for these values."""
    _target(target_dtype)
    return [(op, key, list(values)) for op, key, values in _CONDITIONAL]


def list_widest_type_cast(target_dtype: str) -> list[str]:
    """Operators whose inputs are brought to the widest of their dtypes."""
    _target(target_dtype)
    return _known(_WIDEST)


def list_loss_output_functions(target_dtype: str) -> list[str]:
    """Operators that compute a loss; they get float32."""
    _target(target_dtype)
    return _known(_LOSSES)


def list_lp16_use_fp32_params(target_dtype: str) -> dict[str, list[str]]:
    """Inputs that stay float32 although the data is narrow, by operator."""
    _target(target_dtype)
    return {"BatchNorm": ["gamma", "beta", "moving_mean", "moving_var"]}


def is_supported(target_dtype: str = "bfloat16") -> bool:
    """Whether the processor multiplies this dtype in instructions made for it."""
    name = _target(target_dtype)
    return dtypes.canonical(name) in getattr(default_backend(), "narrow_dtypes", ())


def init(
    target_dtype: str = "float16",
    target_precision_ops: Sequence[str] | None = None,
    conditional_fp32_ops: Any = None,
    fp32_ops: Sequence[str] | None = None,
) -> None:
    """Graphs that are bound from now on run in mixed precision, for the whole process.

    The same as ``mx.config.update(precision=target_dtype)``; on a processor without instructions
    for the dtype it has no effect besides a warning in the log.

    Args:
        target_dtype: 'bfloat16' or 'float16'.
        target_precision_ops, conditional_fp32_ops, fp32_ops: must be None; the compiler chooses.

    Raises:
        ParamError: another dtype, or lists of operators.
    """
    name = _target(target_dtype)
    if any(given is not None for given in (target_precision_ops, conditional_fp32_ops, fp32_ops)):
        raise ParamError(
            "[amp.init] expected no lists of operators, got some; "
            "use amp.convert_symbol to say which operators run narrow"
        )
    config.update(precision=name)


class _Lists:
    """Which operators of a conversion get what."""

    def __init__(self, target: str, narrow: Any, wide: Any, conditional: Any) -> None:
        self.narrow = self._operators(list_lp16_ops(target) if narrow is None else narrow)
        self.wide = self._operators(list_fp32_ops(target) if wide is None else wide)
        self.widest = self._operators(list_widest_type_cast(target))
        given = list_conditional_fp32_ops(target) if conditional is None else conditional
        self.conditional = [
            (get(op).name, key, {str(v) for v in values}) for op, key, values in given
        ]
        both = self.narrow & self.wide if narrow is not None and wide is not None else set()
        if both:
            raise ParamError(f"[amp] expected each operator in one list, got {sorted(both)} in two")
        if narrow is not None:
            self.wide -= self.narrow
        elif wide is not None:
            self.narrow -= self.wide

    @staticmethod
    def _operators(given: Iterable[str]) -> set[str]:
        return {get(name).name for name in given}

    def kind(self, node: Node) -> str:
        """'narrow', 'wide', 'widest' or 'either'."""
        op = node.op
        assert op is not None
        for name, key, values in self.conditional:
            if name == op.name and str(node.params.get(key)) in values:
                return "wide"
        for kind, members in (("narrow", self.narrow), ("wide", self.wide)):
            if op.name in members:
                return kind
        return "widest" if op.name in self.widest else "either"


class _Conversion:
    """One walk over a symbol's graph."""

    def __init__(self, target: str, lists: _Lists, excluded: set[str], optional: bool) -> None:
        self.target = dtypes.canonical(target)
        self.lists = lists
        self.excluded = excluded
        self.optional = optional
        self.new: dict[Value, Value] = {}
        self.narrow: set[Value] = set()  #: new values in the target dtype
        self.casts: dict[tuple[Value, str], Value] = {}
        self.cast_op: Operator = get("amp_cast")
        self.stored: set[str] = set()  #: parameters that are kept in the target dtype

    def run(self, heads: Sequence[Value]) -> list[Value]:
        """The converted heads."""
        order = topological(heads)
        if self.optional:
            self.stored = self._storable(order)
        for node in order:
            self._convert(node)
        return [self.new[v] for v in heads]

    def _storable(self, order: Sequence[Node]) -> set[str]:
        """Variables that only narrow operators read, and not as their data."""
        seen: dict[Node, bool] = {}
        for node in order:
            if node.op is None:
                continue
            narrow = self._kind(node) == "narrow"
            for k, value in enumerate(node.inputs):
                if value.node.op is None:
                    seen[value.node] = seen.get(value.node, True) and narrow and k > 0
        return {n.name for n, fits in seen.items() if fits}

    def _kind(self, node: Node) -> str:
        return "wide" if node.name in self.excluded else self.lists.kind(node)

    def _convert(self, node: Node) -> None:
        if node.op is None:
            made = node
            if node.name in self.stored:
                attrs = {**node.attrs, "__dtype__": str(dtypes.code(self.target))}
                made = Node(None, node.name, attrs=attrs, kind=node.kind)
                self.narrow.add(Value(made, 0))
            self.new[Value(node, 0)] = Value(made, 0)
            return
        kind = self._kind(node)
        inputs = self._inputs(node, kind)
        made = Node(
            node.op,
            node.name,
            inputs,
            dict(node.params),
            dict(node.attrs),
            subgraphs=node.subgraphs,
        )
        self.new.update(zip(node.values, made.values, strict=True))
        if kind == "narrow":
            self.narrow.update(made.values)
        elif kind != "wide" and inputs and inputs[0] in self.narrow:
            first = node.op.name == "BatchNorm"
            self.narrow.update(made.values[:1] if first else made.values)

    def _inputs(self, node: Node, kind: str) -> list[Value]:
        inputs = [self.new[v] for v in node.inputs]
        kept = set(node.mutated)
        low = [v in self.narrow for v in inputs]
        for k, value in enumerate(inputs):
            if k in kept:
                continue
            if kind == "narrow" and not low[k]:
                inputs[k] = self._cast(value, self.target.name)
            elif low[k] and (kind == "wide" or (kind == "widest" and not all(low))):
                inputs[k] = self._cast(value, "float32")
        return inputs

    def _cast(self, value: Value, dtype: str) -> Value:
        found = self.casts.get((value, dtype))
        if found is None:
            label = f"{value.node.name}_{value.index}_amp_cast_{dtype}"
            params = self.cast_op.check_params({"dtype": dtype})
            found = Value(Node(self.cast_op, label, [value], params), 0)
            self.casts[value, dtype] = found
            if dtype != "float32":
                self.narrow.add(found)
        return found


def _converted(
    sym: Symbol,
    target_dtype: str,
    narrow: Any,
    wide: Any,
    conditional: Any,
    excluded: Sequence[str] | None,
    optional: bool,
) -> tuple[Symbol, set[str]]:
    target = _target(target_dtype)
    known = [n.name for n in sym.nodes()]
    for name in excluded or ():
        if name not in known:
            raise UnknownNameError(describe_unknown("symbol", name, known))
    lists = _Lists(target, narrow, wide, conditional)
    work = _Conversion(target, lists, set(excluded or ()), optional)
    heads = work.run(sym.heads)
    return Symbol(heads), work.stored


def convert_symbol(
    sym: Symbol,
    target_dtype: str = "float16",
    target_dtype_ops: Sequence[str] | None = None,
    fp32_ops: Sequence[str] | None = None,
    conditional_fp32_ops: Any = None,
    excluded_sym_names: Sequence[str] | None = None,
    data_names: Sequence[str] | None = None,
    cast_optional_params: bool = False,
) -> Symbol:
    """The same network with `amp_cast` nodes around what runs in the narrow dtype.

    Arguments keep their names. On a processor without instructions for the dtype the values are
    the same: products are computed in float32 and rounded.

    Args:
        sym: network in float32.
        target_dtype: 'bfloat16' or 'float16'.
        target_dtype_ops: operators that run narrow; None = `list_lp16_ops`.
        fp32_ops: operators that get float32; None = `list_fp32_ops`.
        conditional_fp32_ops: (operator, parameter, values); None = `list_conditional_fp32_ops`.
        excluded_sym_names: nodes that get float32 whatever their operator.
        data_names: no meaning here; inputs are cast where they are read.
        cast_optional_params: parameters that only narrow operators read are declared narrow
            themselves, instead of cast at each use.

    Raises:
        ParamError: another dtype, or an operator in two lists.
        UnknownNameError: an operator or node that does not exist.
    """
    made, _ = _converted(
        sym,
        target_dtype,
        target_dtype_ops,
        fp32_ops,
        conditional_fp32_ops,
        excluded_sym_names,
        cast_optional_params,
    )
    return made


def convert_model(
    sym: Symbol,
    arg_params: Mapping[str, NDArray],
    aux_params: Mapping[str, NDArray],
    target_dtype: str = "float16",
    target_dtype_ops: Sequence[str] | None = None,
    fp32_ops: Sequence[str] | None = None,
    conditional_fp32_ops: Any = None,
    excluded_sym_names: Sequence[str] | None = None,
    cast_optional_params: bool = False,
) -> tuple[Symbol, dict[str, NDArray], dict[str, NDArray]]:
    """`convert_symbol`, and parameters that fit it.

    Args:
        arg_params, aux_params: arrays by name.
        cast_optional_params: parameters that only narrow operators read are returned narrow.

    Returns:
        The symbol, the parameters and the auxiliary states.

    Raises:
        ParamError, UnknownNameError: as `convert_symbol`.
    """
    made, stored = _converted(
        sym,
        target_dtype,
        target_dtype_ops,
        fp32_ops,
        conditional_fp32_ops,
        excluded_sym_names,
        cast_optional_params,
    )
    args = {n: a.astype(target_dtype) if n in stored else a for n, a in arg_params.items()}
    return made, args, dict(aux_params)


__all__ = [
    "convert_model",
    "convert_symbol",
    "init",
    "is_supported",
    "list_conditional_fp32_ops",
    "list_fp32_ops",
    "list_loss_output_functions",
    "list_lp16_fp32_ops",
    "list_lp16_ops",
    "list_lp16_use_fp32_params",
    "list_widest_type_cast",
]
