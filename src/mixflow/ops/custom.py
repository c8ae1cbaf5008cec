"""`Custom`: operators written in Python (`mixflow.operator`), as host calls of a plan.

Hazard: the forward and the backward call of one node share the user's operator object and what it
keeps on itself. `Custom` therefore lowers to a primitive that carries a `CustomCall` of its own,
and the gradient rule hands the same one on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .. import dtype as dtypes
from ..errors import ParamError, UnknownNameError, describe_unknown
from ..ir import (
    Any_,
    Bool,
    Desc,
    Keywords,
    Node,
    Operator,
    Param,
    Str,
    TensorType,
    Value,
    emit,
    emit_node,
    register,
)

Options = tuple[tuple[str, str], ...]
Types = list[TensorType]


class CustomKind(Protocol):
    """A registered operator with its options."""

    arguments: tuple[str, ...]
    states: tuple[str, ...]
    outputs: tuple[str, ...]

    def infer(self, ins: Types, outs: Types) -> tuple[Types, Types]:
        """Types of inputs (arguments, then states) and outputs, as an operator's rule."""

    def call(self, ins: Types, outs: Types) -> CustomCall:
        """What the nodes of one use share."""


class CustomCall(Protocol):
    """One use of a custom operator in a graph; hashable by identity."""

    @property
    def kind(self) -> CustomKind:
        """Whose use it is."""

    def forward(self, train: bool, inputs: Sequence[Desc]) -> Callable[..., None]:
        """The host call: arguments and states in; outputs and states' next versions out."""

    def backward(self, inputs: Sequence[Desc]) -> Callable[..., None]:
        """The host call: output gradients, arguments, outputs, states in; gradients out."""


#: Makes the kind of an operator from its options; `mixflow.operator.register` fills it.
MAKERS: dict[str, Callable[[Options], CustomKind]] = {}
_kinds: dict[tuple[str, Options], CustomKind] = {}


def enter(name: str, maker: Callable[[Options], CustomKind]) -> None:
    """Registers an operator under a name; a second time replaces it."""
    MAKERS[name] = maker
    for key in [k for k in _kinds if k[0] == name]:
        del _kinds[key]


def kind_of(op_type: str, options: Options) -> CustomKind:
    """The kind of a registered operator.

    Raises:
        UnknownNameError: no such operator.
        ParamError: options that it does not take.
    """
    key = (op_type, options)
    if key not in _kinds:
        maker = MAKERS.get(op_type)
        if maker is None:
            raise UnknownNameError(describe_unknown("Custom", op_type, list(MAKERS)))
        try:
            _kinds[key] = maker(options)
        except TypeError as error:
            raise ParamError(
                f"[Custom] expected options that '{op_type}' takes, got {dict(options)} ({error})"
            ) from None
    return _kinds[key]


def _kind(params: dict[str, Any]) -> CustomKind | None:
    op_type = params.get("op_type")
    return kind_of(op_type, params.get("options", ())) if isinstance(op_type, str) else None


def _inputs(params: dict[str, Any]) -> tuple[str, ...]:
    found = _kind(params)
    return ("data",) if found is None else (*found.arguments, *found.states)


def _states(params: dict[str, Any]) -> tuple[str, ...]:
    found = _kind(params)
    return () if found is None else found.states


def _outputs(params: dict[str, Any]) -> tuple[str, ...]:
    found = _kind(params)
    return ("output",) if found is None else found.outputs


def _infer(params: dict[str, Any], ins: Types, outs: Types) -> tuple[Types, Types]:
    found = _kind(params)
    assert found is not None
    return found.infer(ins, outs)


def _compose(*inputs: Value, op_type: str, options: Options, train: bool) -> tuple[Value, ...]:
    found = kind_of(op_type, options)
    ins = [v.type for v in inputs]
    _, outs = found.infer(ins, [TensorType()] * len(found.outputs))
    node = emit_node(_FORWARD, *inputs, call=found.call(ins, outs), train=train)
    return node.values


def _forward_infer(params: dict[str, Any], ins: Types, outs: Types) -> tuple[Types, Types]:
    found: tuple[Types, Types] = params["call"].kind.infer(ins, outs)
    return found


def _backward_infer(params: dict[str, Any], ins: Types, outs: Types) -> tuple[Types, Types]:
    kind = params["call"].kind
    first = len(kind.outputs)
    return ins, ins[first : first + len(kind.arguments)]


def _vjp(node: Node, grads: list[Value | None]) -> list[Value | None]:
    call = node.params["call"]
    kind: CustomKind = call.kind
    outputs = node.values[: len(kind.outputs)]
    given = [
        emit("full", value=0.0, shape=v.shape, dtype=v.dtype) if g is None else g
        for v, g in zip(outputs, grads, strict=False)
    ]
    arguments = node.inputs[: len(kind.arguments)]
    after = node.values[len(kind.outputs) :]
    made = emit_node(_BACKWARD, *given, *arguments, *outputs, *after, call=call).values
    return [g if dtypes.is_float(v.dtype) else None for v, g in zip(arguments, made, strict=True)]


def _named(prefix: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{prefix}{n}" for n in names)


def _backward_inputs(params: dict[str, Any]) -> tuple[str, ...]:
    kind = params["call"].kind
    heads = _named("grad_", kind.outputs)
    return (*heads, *kind.arguments, *_named("out_", kind.outputs), *kind.states)


_CALL = Param("call", Any_, doc="CustomCall that the nodes of one use share")

_FORWARD = register(
    Operator(
        "custom_forward",
        inputs=lambda p: (*p["call"].kind.arguments, *p["call"].kind.states),
        params=(_CALL, Param("train", Bool, False, doc="mode")),
        outputs=lambda p: p["call"].kind.outputs,
        mutates=lambda p: p["call"].kind.states,
        infer=_forward_infer,
        primitive=True,
        internal=True,
        vjp=_vjp,
        host=lambda params, ins, outs: params["call"].forward(params["train"], ins),
        differentiable="once",
        doc="Runs `forward` of a custom operator.",
    )
)
_BACKWARD = register(
    Operator(
        "custom_backward",
        inputs=_backward_inputs,
        params=(_CALL,),
        outputs=lambda p: _named("grad_", p["call"].kind.arguments),
        infer=_backward_infer,
        primitive=True,
        internal=True,
        host=lambda params, ins, outs: params["call"].backward(ins),
        differentiable="no",
        doc="Runs `backward` of a custom operator.",
    )
)

register(
    Operator(
        "Custom",
        inputs=_inputs,
        params=(
            Param("op_type", Str, doc="name of the registered operator"),
            Param("options", Keywords, (), doc="its own options, strings"),
        ),
        outputs=_outputs,
        mutates=_states,
        aux=_states,
        infer=_infer,
        compose=_compose,
        needs_mode=True,
        differentiable="once",
        doc="""An operator written in Python, see `mixflow.operator`.

Args:
    data: its inputs, as its `list_arguments` and `list_auxiliary_states` name them.

Returns:
    What its `infer_shape` says.""",
    )
)
