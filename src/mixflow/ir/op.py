"""The operator record and the one registry of operators.

An operator is one record in one file of ``ops/``. It has exactly one of

- ``compose(*inputs, **params)``: builds it from other operators, over typed ir Values;
- ``primitive = True``: implemented by backends under the record's name.

Everything else in the library (``mx.nd``, ``mx.sym``, gradients, backends, tests, docs) is
derived from the record.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import GraphError, ParamError, UnknownNameError, describe_unknown
from .params import REQUIRED, Keywords, Param
from .types import TensorType

if TYPE_CHECKING:
    from .graph import Node, Value

#: Types of inputs and outputs, any of them partial, to the same lists with more filled in.
InferRule = Callable[
    [dict[str, Any], list[TensorType], list[TensorType]], tuple[list[TensorType], list[TensorType]]
]
#: (node, gradients of its outputs, None where nothing flows) -> gradients of its inputs.
VjpRule = Callable[["Node", "list[Value | None]"], "Sequence[Value | None]"]
Names = tuple[str, ...] | Callable[[dict[str, Any]], tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator.

    Attributes:
        name: canonical name; MXNet's where MXNet has the operator.
        inputs: names of the tensor inputs in order, or a function of the parameters. A variadic
            operator has `variadic` set to the parameter that counts its inputs ('num_args').
        params: typed parameters in MXNet's order.
        outputs: names of all outputs, or a function of the parameters; default ('output',).
        visible: number of outputs that users see (a prefix), an int or a function of the
            parameters; None = all.
        infer: shape and dtype rule, both directions. May be None for a composition whose inputs
            must be fully known: its composition is then run on them.
        compose: builds the operator from others (takes ir Values, then parameters by keyword) and
            returns a Value or a tuple: the outputs, then the next version of each mutated input.
            With `needs_mode` it also gets ``train=bool``.
        primitive: implemented by backends.
        vjp: gradient rule; a composition has one only where its gradient is not that of its
            formula. Graph algebra: differentiable again.
        mutates: names of inputs that get a new version (auxiliary states, optimizer states), or a
            function of the parameters.
        aux: of these, the ones that `Symbol.list_auxiliary_states` lists; or a function.
        reuse: (output, input) index pairs that may share memory.
        differentiable: 'twice', 'once' or 'no'.
        nondiff: names of inputs through which no gradient flows (labels, indices).
        optional: how many inputs of a primitive, the last ones, may be left out.
        random: takes a draw number; never merged, folded or duplicated.
        needs_mode: behaves differently under training (Dropout, BatchNorm).
        elementwise: one output element depends on the same element of each (broadcast) input;
            such primitives can stand in a fused program.
        host: of a primitive that is Python code by nature (CustomOp): (params, input descriptors,
            output descriptors) -> HostCall. It has effects, so it is never merged or folded.
        internal: not shown in mx.nd / mx.sym (primitives without a public twin).
        namespace: '' for mx.nd, else 'random', 'linalg', 'contrib', 'image', '_internal'.
        doc: docstring with shapes.
    """

    name: str
    inputs: Names = ("data",)
    params: tuple[Param, ...] = ()
    outputs: Names = ("output",)
    visible: int | Callable[[dict[str, Any]], int] | None = None
    infer: InferRule | None = None
    compose: Callable[..., Any] | None = None
    primitive: bool = False
    vjp: VjpRule | None = None
    mutates: Names = ()
    aux: Names = ()
    reuse: tuple[tuple[int, int], ...] = ()
    differentiable: str = "twice"
    nondiff: tuple[str, ...] = ()
    optional: int = 0
    random: bool = False
    needs_mode: bool = False
    elementwise: bool = False
    host: Callable[..., Any] | None = None
    internal: bool = False
    variadic: str | None = None
    namespace: str = ""
    aliases: tuple[str, ...] = ()
    doc: str = ""
    id: int = field(default=-1, compare=False)

    def __repr__(self) -> str:
        return f"<operator {self.name}>"

    def input_names(self, params: dict[str, Any]) -> tuple[str, ...]:
        """Names of the inputs for these parameters."""
        return self.inputs(params) if callable(self.inputs) else self.inputs

    def output_names(self, params: dict[str, Any]) -> tuple[str, ...]:
        """Names of all outputs, hidden ones included."""
        return self.outputs(params) if callable(self.outputs) else self.outputs

    def visible_count(self, params: dict[str, Any]) -> int:
        """How many outputs users see."""
        if self.visible is None:
            return len(self.output_names(params))
        return self.visible(params) if callable(self.visible) else self.visible

    def mutated_indices(self, params: dict[str, Any]) -> tuple[int, ...]:
        """Positions of the mutated inputs."""
        if not self.mutates:
            return ()
        names = self.input_names(params)
        mutated = self.mutates(params) if callable(self.mutates) else self.mutates
        return tuple(names.index(n) for n in mutated if n in names)

    def aux_names(self, params: dict[str, Any]) -> tuple[str, ...]:
        """Names of the inputs that are auxiliary states."""
        return self.aux(params) if callable(self.aux) else self.aux

    def param(self, name: str) -> Param | None:
        """The parameter of this name."""
        return next((p for p in self.params if p.name == name), None)

    def check_params(self, given: dict[str, Any]) -> dict[str, Any]:
        """Typed values of every parameter, in the record's order, defaults filled in.

        Strings are accepted for every type (MXNet programs pass them).

        Raises:
            ParamError: unknown, missing or ill-typed parameter.
        """
        result = {}
        given = self._gathered(given)
        for p in self.params:
            value = given.get(p.name, p.default)
            if value is REQUIRED:
                raise ParamError(f"[{self.name}] expected parameter '{p.name}', got none")
            result[p.name] = p.check(self.name, value)
        unknown = [k for k in given if k not in result]
        if unknown:
            names = [p.name for p in self.params]
            raise ParamError(f"[{self.name}] expected parameters among {names}, got '{unknown[0]}'")
        return result

    def _gathered(self, given: dict[str, Any]) -> dict[str, Any]:
        """With unknown names gathered in the parameter of kind `Keywords`, if there is one."""
        free = next((p.name for p in self.params if p.kind is Keywords), None)
        if free is None:
            return given
        known = {p.name for p in self.params}
        more = {k: v for k, v in given.items() if k not in known}
        kept = {k: v for k, v in given.items() if k in known}
        return {**kept, free: (*kept.get(free, ()), *more.items())} if more else kept


#: Names that programs and files use. MXNet's `softmax` and `Cast`/`cast` stand here.
_public: dict[str, Operator] = {}
#: Names that graphs of primitives use; some of them (`softmax`, `cast`, `reshape`, `pad`) are also
#: MXNet's name of a composition with other parameters, hence two tables.
_primitives: dict[str, Operator] = {}
_by_id: list[Operator] = []


def register(operator: Operator) -> Operator:
    """Adds a record to the registry under its name and aliases, and numbers it.

    A primitive is found by `primitive(name)`; it is also a public name unless it is `internal`.

    Raises:
        GraphError: the name is taken, or the record is not exactly one of compose and primitive.
    """
    if operator.primitive == (operator.compose is not None):
        raise GraphError(f"[{operator.name}] expected exactly one of compose and primitive")
    tables = [_primitives] if operator.primitive else []
    if not (operator.primitive and operator.internal):
        tables.append(_public)
    object.__setattr__(operator, "id", len(_by_id))
    for table in tables:
        for name in (operator.name, *operator.aliases):
            if name in table:
                raise GraphError(f"[{operator.name}] expected a free name, got '{name}' twice")
            table[name] = operator
    _by_id.append(operator)
    return operator


def get(name: str) -> Operator:
    """The operator of a name or alias as programs and files mean it; else the primitive.

    Raises:
        UnknownNameError: no such operator; the text lists the nearest names.
    """
    found = _public.get(name) or _primitives.get(name)
    if found is None:
        raise UnknownNameError(describe_unknown("operator", name, list(_public)))
    return found


def primitive(name: str) -> Operator:
    """The primitive of a name, else the public operator: what `emit(name)` means.

    Raises:
        UnknownNameError: as `get`.
    """
    return _primitives.get(name) or get(name)


def by_id(number: int) -> Operator:
    """The operator that `register` numbered so."""
    return _by_id[number]


def all_operators() -> list[Operator]:
    """Every record, in order of registration."""
    return list(_by_id)


def names() -> dict[str, Operator]:
    """Every name and alias that `get` knows."""
    return {**_primitives, **_public}


def signature(operator: Operator) -> inspect.Signature:
    """Python signature of the generated imperative function: tensors, parameters, out, name."""
    kind: Any = inspect.Parameter
    if operator.variadic is not None:
        head = [kind("data", kind.VAR_POSITIONAL)]
        style = kind.KEYWORD_ONLY
    else:
        names = operator.input_names({p.name: p.default for p in operator.params})
        head = [kind(n, kind.POSITIONAL_OR_KEYWORD, default=None) for n in names]
        style = kind.POSITIONAL_OR_KEYWORD
    tail = [
        kind(p.name, style, default=None if p.default is REQUIRED else p.default)
        for p in operator.params
        if p.name != operator.variadic
    ]
    ends = [kind(n, kind.KEYWORD_ONLY, default=None) for n in ("out", "name")]
    return inspect.Signature([*head, *tail, *ends])
