"""The functions of `mx.nd`, generated from the operator records as closures.

Hazard: this is the hot path of every imperative call. Checked parameters are cached by what the
caller passed, so that a repeated call does one dictionary look-up and one call of the core.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from .. import _rt, ir, ops  # noqa: F401 - ops fills the registry
from ..context import Context
from ..errors import MixflowError, MXNetError, ParamError, describe_unknown

_CACHE_LIMIT = 4096
_SKIPPED = frozenset(("out", "name", "ctx"))


def full_input_names(op: ir.Operator) -> tuple[str, ...]:
    """Every tensor input that the operator takes for some choice of its parameters, in order."""
    if not callable(op.inputs):
        return op.inputs
    base: dict[str, Any] = {p.name: 1 if p.default is ir.REQUIRED else p.default for p in op.params}
    best = _names_or_none(op, base) or ()
    for p in op.params:
        for choice in _choices(p):
            found = _names_or_none(op, {**base, p.name: choice}) or ()
            best = found if len(found) > len(best) else best
    return best


def _names_or_none(op: ir.Operator, params: dict[str, Any]) -> tuple[str, ...] | None:
    try:
        return tuple(op.input_names(params))
    except (TypeError, ValueError, KeyError, AttributeError):
        return None


def _choices(p: ir.Param) -> list[Any]:
    if p.kind is ir.Bool:
        return [True, False]
    if p.kind.name.startswith("{"):
        return p.kind.name.strip("{}").split(", ")
    return []


def call_signature(op: ir.Operator) -> inspect.Signature:
    """Signature of the generated function: tensors, parameters, then out and name."""
    kind: Any = inspect.Parameter
    taken: set[str] = set()
    if op.variadic is not None:
        head, style = [kind("data", kind.VAR_POSITIONAL)], kind.KEYWORD_ONLY
        taken.add(op.variadic)
    else:
        style = kind.POSITIONAL_OR_KEYWORD
        names = full_input_names(op)
        head = [kind(n, style, default=None) for n in names]
        taken.update(names)
    tail = [
        kind(p.name, style, default=None if p.default is ir.REQUIRED else p.default)
        for p in op.params
        if p.name not in taken and p.name not in _SKIPPED
    ]
    ends = [kind(n, kind.KEYWORD_ONLY, default=None) for n in ("out", "name")]
    return inspect.Signature([*head, *tail, *ends])


def _frozen(value: Any) -> Any:
    """A hashable twin of a parameter given as a list or array."""
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(v) for v in value)
    if hasattr(value, "tolist") and not isinstance(value, _rt.core.Array):
        return _frozen(value.tolist())
    return value


def device_of(ctx: Any) -> tuple[int, int] | None:
    """The core's device of a Context, or of its text ``cpu(1)``; None stays None."""
    if ctx is None or ctx == "":
        return None
    if isinstance(ctx, str):
        head, _, index = ctx.partition("(")
        ctx = Context(head, int(index.rstrip(")") or 0) if index else 0)
    return ctx.key  # type: ignore[no-any-return]


class Caller:
    """Packs the arguments of one operator for `core.invoke`."""

    __slots__ = ("_cache", "_defaults", "_param_names", "_runtime", "_static", "input_names", "op")

    def __init__(self, op: ir.Operator) -> None:
        self.op = op
        self.input_names = () if op.variadic is not None else full_input_names(op)
        self._param_names = [
            p.name for p in op.params if p.name != op.variadic and p.name not in _SKIPPED
        ]
        self._runtime = [(p.name, p) for p in op.params if p.runtime]
        self._static = [p.name for p in op.params]
        self._cache: dict[Any, tuple[tuple[Any, ...], int]] = {}
        self._defaults = {p.name: p.default for p in op.params if p.runtime}

    def params(
        self, given: dict[str, Any], count: int
    ) -> tuple[tuple[Any, ...], tuple[float, ...], int]:
        """(static parameters, scalars, number of inputs wanted) for checked keyword parameters."""
        scalars: tuple[float, ...] = ()
        if self._runtime:
            scalars = self._scalars(given)
        key = (count, *given.items()) if given else count
        try:
            found = self._cache.get(key)
        except TypeError:
            given = {k: _frozen(v) for k, v in given.items()}
            key = (count, *given.items())
            found = self._cache.get(key)
        if found is None:
            found = self._check(given, count)
            if len(self._cache) >= _CACHE_LIMIT:
                self._cache.clear()
            self._cache[key] = found
        return found[0], scalars, found[1]

    def _scalars(self, given: dict[str, Any]) -> tuple[float, ...]:
        values = []
        for name, p in self._runtime:
            value = given.pop(name, p.default)
            if type(value) is not float:
                if value is ir.REQUIRED:
                    raise ParamError(f"[{self.op.name}] expected parameter '{name}', got none")
                value = p.check(self.op.name, value)
            values.append(value)
        return tuple(values)

    def _check(self, given: dict[str, Any], count: int) -> tuple[tuple[Any, ...], int]:
        op = self.op
        full: dict[str, Any] = {**{n: 0.0 for n, _ in self._runtime}, **given}
        if op.variadic is not None:
            full.setdefault(op.variadic, count)
        unknown = [k for k in full if op.param(k) is None]
        if unknown:
            known = [*self.input_names, *self._param_names]
            raise ParamError(f"[{op.name}] {describe_unknown('parameter', unknown[0], known)}")
        checked = op.check_params(full)
        wanted = count if op.variadic is not None else len(op.input_names(checked))
        for name, _ in self._runtime:
            checked[name] = None
        return tuple(checked.values()), wanted

    def gather(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Takes the tensors out of args and kwargs; what is left in kwargs are parameters."""
        names = self.input_names
        total = len(names)
        if len(args) > total:
            extra = args[total:]
            if len(extra) > len(self._param_names):
                raise ParamError(
                    f"[{self.op.name}] expected at most {total + len(self._param_names)} "
                    f"positional arguments, got {len(args)}"
                )
            for name, value in zip(self._param_names, extra, strict=False):
                if name in kwargs:
                    raise ParamError(f"[{self.op.name}] expected '{name}' once, got it twice")
                kwargs[name] = value
            args = args[:total]
        inputs = [a for a in args if a is not None]
        if kwargs:
            for name in names[len(args) :]:
                value = kwargs.pop(name, None)
                if value is not None:
                    inputs.append(value)
        return inputs

    def sparse(
        self, inputs: Sequence[Any], params: Sequence[Any], scalars: Sequence[float], out: Any
    ) -> Any:
        """The call by the rules of sparse storage; NotImplemented where no array is sparse."""
        outs = out if isinstance(out, (list, tuple)) else [out]
        if not any(map(_is_sparse, (*inputs, *outs))):
            return NotImplemented
        given = dict(zip(self._static, params, strict=True))
        given.update(zip((name for name, _ in self._runtime), scalars, strict=True))
        if self.op.variadic is not None:
            given.pop(self.op.variadic, None)
        return _call_sparse(self.op, inputs, given, out)

    def complain(self, inputs: Sequence[Any], wanted: int) -> None:
        """Raises what is wrong with the inputs of a call that the core refused, if anything is."""
        for i, a in enumerate(inputs):
            if not isinstance(a, _rt.core.Array):
                name = self.input_names[i] if i < len(self.input_names) else f"input {i}"
                raise InputError(
                    f"[{self.op.name}] expected '{name}' as an NDArray, got {type(a).__name__}; "
                    "convert it with mx.nd.array"
                )
        if len(inputs) != wanted:
            raise InputError(
                f"[{self.op.name}] expected {wanted} inputs of {list(self.input_names)}, got "
                f"{len(inputs)}"
            )


def _no_sparse(value: Any) -> bool:
    return False


_is_sparse: Callable[[Any], bool] = _no_sparse
_call_sparse: Callable[..., Any] = _no_sparse


def set_sparse(is_sparse: Callable[[Any], bool], call: Callable[..., Any]) -> None:
    """Says what is a sparse array, and who serves calls with one: ``call(op, inputs, params,
    out)``."""
    global _is_sparse, _call_sparse
    _is_sparse, _call_sparse = is_sparse, call


class InputError(MixflowError, TypeError):
    """An operator got something that is no array, or the wrong number of arrays."""


def make_function(op: ir.Operator, public_name: str) -> Callable[..., Any]:
    """The imperative function of a record."""
    caller = Caller(op)
    maker = _variadic if op.variadic is not None else _fixed
    function = maker(op, caller)
    function.__name__ = function.__qualname__ = public_name
    function.__doc__ = op.doc
    function.__signature__ = call_signature(op)  # type: ignore[attr-defined]
    function.operator = op  # type: ignore[attr-defined]
    return function


def _fixed(op: ir.Operator, caller: Caller) -> Callable[..., Any]:
    invoke, op_id, total = _rt.core.invoke, op.id, len(caller.input_names)
    plain = not op.params
    creates = total == 0
    optional = callable(op.inputs)

    def function(*args: Any, out: Any = None, name: Any = None, **kwargs: Any) -> Any:
        device = None
        if creates:
            device = device_of(kwargs.pop("ctx", None)) or _default_device()
        if kwargs or len(args) != total or (optional and None in map(type_or_none, args)):
            inputs = caller.gather(args, kwargs)
        else:
            inputs = args  # type: ignore[assignment]
        params, scalars, wanted = (
            ((), (), total) if plain and not kwargs else caller.params(kwargs, len(inputs))
        )
        if len(inputs) != wanted:
            caller.complain(inputs, wanted)
        try:
            return invoke(op_id, inputs, params, scalars, out, device)
        except (TypeError, AttributeError, MXNetError):
            found = caller.sparse(inputs, params, scalars, out)
            if found is not NotImplemented:
                return found
            caller.complain(inputs, wanted)
            raise

    return function


def type_or_none(value: Any) -> Any:
    """None for None: lets `in` compare by identity instead of by an array's `==`."""
    return None if value is None else True


def _variadic(op: ir.Operator, caller: Caller) -> Callable[..., Any]:
    invoke, op_id = _rt.core.invoke, op.id

    def function(*data: Any, out: Any = None, name: Any = None, **kwargs: Any) -> Any:
        if len(data) == 1 and isinstance(data[0], (list, tuple)):
            data = tuple(data[0])
        if not data:
            raise InputError(f"[{op.name}] expected at least one input, got none")
        params, scalars, wanted = caller.params(kwargs, len(data))
        try:
            return invoke(op_id, data, params, scalars, out, None)
        except (TypeError, AttributeError, MXNetError):
            found = caller.sparse(data, params, scalars, out)
            if found is not NotImplemented:
                return found
            caller.complain(data, wanted)
            raise

    return function


def _default_device() -> tuple[int, int]:
    from ..context import current_context

    return current_context().key


_functions: dict[str, Callable[..., Any]] = {}


def function(name: str) -> Callable[..., Any]:
    """The imperative function of an operator's name or alias.

    Raises:
        UnknownNameError: no such operator.
    """
    found = _functions.get(name)
    if found is None:
        found = _functions[name] = make_function(ir.get(name), name)
    return found


_primitives: dict[str, Callable[..., Any]] = {}


def primitive(name: str) -> Callable[..., Any]:
    """The imperative function of a primitive: for the parts of NDArray that need no public one."""
    found = _primitives.get(name)
    if found is None:
        found = _primitives[name] = make_function(ir.primitive(name), name)
    return found


def fill(value: float, shape: tuple[int, ...], dtype: Any, out: Any, device: Any) -> Any:
    """The primitive `full` without the packing of parameters: the shortest way to zeros."""
    return _rt.core.invoke(_full_id(), (), (value, shape, dtype), (), out, device)


@cache
def _full_id() -> int:
    return ir.primitive("full").id


def registered(name: str) -> bool:
    """Whether a public operator of this name exists."""
    return name in _functions or name in ir.names()


_PREFIXES = {
    "_contrib_": "contrib",
    "_linalg_": "linalg",
    "_sparse_": "sparse",
    "_image_": "image",
    "_random_": "random",
}


def place(name: str) -> tuple[str, str]:
    """(namespace, public name) of an operator's name, by MXNet's prefixes."""
    for prefix, namespace in _PREFIXES.items():
        if name.startswith(prefix):
            return namespace, name[len(prefix) :]
    return ("_internal", name) if name.startswith("_") else ("", name)


def populate(spaces: dict[str, dict[str, Any]]) -> None:
    """Puts every public operator into the name spaces ('' is `mx.nd`), keeping what is there.

    The closures are made on first use of a name: `lazy` entries cost nothing at import.
    """
    for name, op in ir.names().items():
        if op.internal:
            continue
        space, short = place(name)
        spaces[space].setdefault(short, name)
        spaces["_internal"].setdefault(name, name)
        if op.namespace and op.namespace in spaces and space == "":
            spaces[op.namespace].setdefault(short, name)
