"""Binding: from a symbol and shapes or arrays to an Executor, and what a binding would need.

Installs `Symbol.bind`, `simple_bind`, `eval` and `memory_report`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import config
from . import ndarray as nd
from .backends import default_backend
from .context import Context, current_context
from .errors import GraphError, ParamError, ShapeError, UnknownNameError
from .executor import Executor, bound_types, wanted_saving
from .ir import TensorType
from .ndarray import NDArray
from .passes.infer import Types
from .passes.joint import REQUESTS, forward_graph, joint_graph
from .passes.pipeline import build_plan, finish, scheduled
from .passes.precision import requested, served
from .passes.strategies import strategies
from .symbol.late import install
from .symbol.symbol import Symbol

if TYPE_CHECKING:
    from .placement import Placement


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


def _contexts(ctx: Any) -> list[Context]:
    """One context, or those among which a placement chooses."""
    if isinstance(ctx, (list, tuple)):
        if not ctx:
            raise ParamError("[bind] expected a context, or several in a list, got an empty list")
        return [Context(c) for c in ctx]
    return [Context(ctx) if ctx is not None else current_context()]


def _placement(
    symbol: Symbol,
    types: Types,
    requests: Mapping[str, str],
    contexts: Sequence[Context],
    wanted: tuple[Any, Any],
    variables: Mapping[str, NDArray] | None = None,
    limit: int | None = None,
    precision: str | None = None,
) -> Placement | None:
    """Where the nodes run; None (at no cost) where nobody asks for more than one context.

    Args:
        wanted: group2ctx and placement.
        variables: arrays that are given.
    """
    group2ctx, request = wanted
    if not group2ctx and request is None and len(contexts) == 1:
        return None
    from .placement import Case, resolve

    narrow = served(requested(precision), default_backend())
    case = Case(symbol.graph(), types, requests, narrow)
    lying = None if variables is None else {n: a.device for n, a in variables.items()}
    return resolve(case, contexts, group2ctx, request, lying, limit)


def _arena(shared: Executor | None, ctx: Context, placement: Placement | None) -> Any:
    """The arena, or arenas, of an executor whose memory is shared."""
    if shared is None:
        return None
    found, several = shared._arena, shared._placed is not None
    if placement is None or len(placement.devices) == 1:
        return found.on(ctx.key) if several else found
    if several:
        return found
    from .passes.placed import Arenas

    return Arenas({shared.ctx.key: found})


def simple_bind(
    symbol: Symbol,
    ctx: Context | Sequence[Context] | None = None,
    grad_req: Any = "write",
    type_dict: Mapping[str, Any] | None = None,
    stype_dict: Any = None,
    group2ctx: Any = None,
    shared_arg_names: Sequence[str] | None = None,
    shared_exec: Executor | None = None,
    shared_buffer: dict[str, NDArray] | None = None,
    memory_limit: int | str | None = None,
    precision: str | None = None,
    placement: Any = None,
    **kwargs: Any,
) -> Executor:
    """Infers all shapes, makes zeroed arrays and binds them.

    Args:
        ctx: context, default the current one; a list of contexts for ``placement='auto'``.
        grad_req: 'write', 'add' or 'null', for all, as list or by name.
        type_dict: dtypes by name.
        group2ctx: contexts by name of the group (attribute ``ctx_group``).
        shared_exec: executor whose arena, and arrays of equal name and type, are used.
        shared_buffer: arrays by name to take and to add to.
        memory_limit: most bytes of internal arrays, a number or text as '2G' or
            '1.5 GiB'; forward values are
            dropped and computed again in the backward phase until they fit. None = no limit.
        precision: 'float32', or 'bfloat16' for mixed precision; None = the configuration's.
        placement: 'auto' or `mx.placement.Auto`: nodes are spread over the contexts of `ctx` where
            that saves time; or constraints, contexts by name of the node. See `mx.placement`.
        **kwargs: shapes of the inputs.

    Raises:
        ShapeError, DTypeError, UnknownNameError, ParamError: shapes, dtypes, requests, groups or
            constraints that do not fit the symbol. A limit that cannot be met is found when a plan
            is made, at the first `forward`.
    """
    contexts = _contexts(ctx)
    limit = _limit(memory_limit)
    _distinct(symbol)
    requests = _requests(symbol, grad_req)
    types = bound_types(symbol, kwargs, type_dict)
    placed = _placement(
        symbol,
        types,
        requests,
        contexts,
        (group2ctx, placement),
        limit=limit,
        precision=precision,
    )
    home = contexts[0] if placed is None or len(placed.devices) > 1 else placed.only
    aux_names = set(symbol.list_auxiliary_states())
    args: dict[str, NDArray] = {}
    grads: dict[str, NDArray | None] = {}
    aux: dict[str, NDArray] = {}
    for value in symbol.graph().inputs:
        name, kind = value.node.name, types[value]
        where = home if placed is None else Context.from_key(placed.where(value))
        old = _shared(
            shared_exec,
            shared_buffer,
            "aux_dict" if name in aux_names else "arg_dict",
            name,
            kind,
            where,
        )
        array = old if old is not None else nd.zeros(kind.shape, where, dtype=kind.dtype)
        (aux if name in aux_names else args)[name] = array
        if shared_buffer is not None and name not in aux_names:
            shared_buffer.setdefault(name, array)
        if name not in aux_names and requests[name] != "null":
            old = _shared(shared_exec, None, "grad_dict", name, kind, where)
            grads[name] = old if old is not None else nd.zeros(kind.shape, where, dtype=kind.dtype)
    arena = _arena(shared_exec, home, placed)
    return Executor(
        symbol, home, args, grads, requests, aux, types, arena, limit, precision, placed
    )


def _limit(value: int | str | None) -> int | None:
    """Bytes of a memory limit; None where there is none."""
    try:
        return None if value is None else config.as_bytes(value) or None
    except ValueError:
        raise ParamError(
            f"[bind] expected a memory_limit in bytes, got {value!r}; write 2000000000, '2G' or "
            "'1.5 GiB'"
        ) from None


def _shared(
    executor: Executor | None,
    buffer: Mapping[str, NDArray] | None,
    kind: str,
    name: str,
    type: TensorType,
    where: Context,
) -> NDArray | None:
    for source in (getattr(executor, kind, None), buffer):
        found = source.get(name) if source is not None else None
        if (
            found is not None
            and tuple(found.shape) == type.shape
            and np.dtype(found.dtype) == type.dtype
            and found.device == where.key
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
    ctx: Context | Sequence[Context] | None = None,
    args: Any = None,
    args_grad: Any = None,
    grad_req: Any = "write",
    aux_states: Any = None,
    group2ctx: Any = None,
    shared_exec: Executor | None = None,
    memory_limit: int | str | None = None,
    precision: str | None = None,
    placement: Any = None,
) -> Executor:
    """Binds given arrays.

    Args:
        ctx, group2ctx, placement: see `simple_bind`; given arrays stay on their contexts.
        args, aux_states: arrays as list or by name, all of them.
        args_grad: arrays for the gradients; those left out are not computed.
        memory_limit: see `simple_bind`.
        precision: 'float32', or 'bfloat16' for mixed precision; None = the configuration's.

    Raises:
        ShapeError, DTypeError: arrays that do not fit the symbol.
        UnknownNameError, ParamError: arrays missing.
    """
    contexts = _contexts(ctx)
    limit = _limit(memory_limit)
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
    asked = {n: r if n in grads else "null" for n, r in requests.items()}
    wanted = (group2ctx, placement)
    placed = _placement(symbol, types, asked, contexts, wanted, everything, limit, precision)
    home = contexts[0] if placed is None or len(placed.devices) > 1 else placed.only
    arena = _arena(shared_exec, home, placed)
    return Executor(
        symbol, home, arguments, grads, requests, states, types, arena, limit, precision, placed
    )


def evaluate(symbol: Symbol, ctx: Context | None = None, **kwargs: NDArray) -> list[NDArray]:
    """Outputs of the symbol for given arrays."""
    return bind(symbol, ctx, kwargs, grad_req="null", aux_states=kwargs).forward()


class _NoKernels:
    """Stands for a backend where only sizes count."""

    def prepare(self, *_: Any) -> None:
        """No kernel."""


def memory_report(
    symbol: Symbol,
    for_training: bool = True,
    memory_limit: int | str | None = None,
    **shapes: Any,
) -> dict[str, int]:
    """See `Symbol.memory_report`."""
    types = bound_types(symbol, shapes, None)
    graph = symbol.graph()
    if for_training:
        requests = {n: "write" for n in symbol.list_arguments() if n not in shapes}
        lowered, _ = joint_graph(graph, types, requests)
    else:
        lowered = forward_graph(graph, types, train=False)
    device = current_context().key
    backend = default_backend()
    free = wanted_saving(symbol, None)
    narrow = served(requested(None), backend)
    unfused = finish(lowered, fuse=False, narrow=narrow)
    _, order = scheduled(unfused, _NoKernels(), device, 0)
    report = strategies(order)
    ready = finish(lowered, backend=backend, narrow=narrow)
    compiled = build_plan(ready, backend, device, "arena", 0, "plan", free)
    report["arena"] = compiled.memory["arena"]
    report["lower_bound"] = compiled.memory["lower_bound"]
    names = ("none", "inplace", "coshare", "both", "arena", "lower_bound", "lower_bound_unfused")
    limit = _limit(memory_limit)
    if limit is None:
        return {n: report[n] for n in names}
    saving = wanted_saving(symbol, limit)
    report["recomputed"] = build_plan(ready, backend, device, "arena", 0, "plan", saving).memory[
        "arena"
    ]
    return {n: report[n] for n in (*names, "recomputed")}


install("bind", bind)
install("simple_bind", simple_bind)
install("eval", evaluate)
install("memory_report", memory_report)
