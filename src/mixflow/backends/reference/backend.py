"""ReferenceBackend, and an interpreter of primitive graphs for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import GraphError, UnknownNameError, describe_unknown
from ...ir import Desc, Graph, Operator, Value
from .common import KERNELS, Array, Kernel, stored


def find(name: str) -> Kernel:
    """The kernel of a primitive.

    Raises:
        UnknownNameError: none is known.
    """
    found = KERNELS.get(name)
    if found is None:
        raise UnknownNameError(describe_unknown("primitive", name, list(KERNELS)))
    return found


def compute(
    name: str, params: Mapping[str, Any], ins: Sequence[Array], key: tuple[int, int] = (0, 0)
) -> list[Array]:
    """Results of one primitive before they are rounded to their declared dtypes.

    Floating-point exceptions are silent, as on every backend: inf and NaN say it.
    """
    with np.errstate(all="ignore"):
        return [np.asarray(r) for r in find(name)(ins, params, key)]


class ReferenceBackend:
    """NumPy kernels for every primitive, as host calls; a `Backend`.

    A host call may be given outputs that share memory with inputs: results are complete before
    they are stored. It is stateless, so calls may run at the same time.
    """

    name = "reference"

    def prepare(
        self,
        op: Operator,
        params: dict[str, Any],
        inputs: Sequence[Desc],
        outputs: Sequence[Desc],
        threads: int = 0,
    ) -> Any:
        """A `HostCall`: fn(ins, outs, (seed, draw)).

        `outs` are the outputs, then the next version of each mutated input, whose buffer is the
        input's own.

        Raises:
            UnknownNameError: no such primitive.
        """
        if op.host is not None:
            return op.host(params, inputs, outputs)
        run = find(op.name)
        fixed = dict(params)

        def call(ins: Sequence[Any], outs: Sequence[Any], key: tuple[int, int]) -> None:
            given = [x for x in ins if x is not None]
            with np.errstate(all="ignore"):
                for out, result in zip(outs, run(given, fixed, key), strict=True):
                    if out is not None:
                        np.copyto(out, result, casting="unsafe")

        call.__name__ = call.__qualname__ = op.name
        return call

    def is_native(self, kernel: Any) -> bool:
        """Never."""
        return False


def evaluate(graph: Graph, feeds: Mapping[Value, Array], seed: int = 0) -> list[Array]:
    """Values of the outputs, then of the updates, of a typed graph of primitives.

    Args:
        graph: every node is a primitive or a variable.
        feeds: an array for each variable.
        seed: key of the random draws, which are numbered in order of execution.

    Raises:
        GraphError: a variable has no value, or a node is not a primitive.
    """
    known: dict[Value, Array] = {}
    draw = 0
    for node in graph.nodes():
        if node.op is None:
            if node[0] not in feeds:
                raise GraphError(f"[{node.name}] expected a value for every variable, got none")
            known[node[0]] = np.asarray(feeds[node[0]])
            continue
        if not node.op.primitive:
            raise GraphError(f"[{node.op.name}] expected a graph of primitives; lower it first")
        results = compute(node.op.name, node.params, [known[v] for v in node.inputs], (seed, draw))
        draw += node.op.random
        for value, result in zip(node.values, results, strict=True):
            with np.errstate(all="ignore"):
                known[value] = stored(result, value.dtype)
    return [known[v] for v in (*graph.outputs, *(new for new, _ in graph.updates))]
