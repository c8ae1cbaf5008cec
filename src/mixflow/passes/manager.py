"""Passes as records, and a manager that runs them in order.

A pass states what it needs and what it provides; the manager refuses an order in which a need is
not met. The verifier runs after every pass in the scope `verified` and with MIXFLOW_VERIFY=1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from .. import config
from ..errors import GraphError
from ..ir import Graph
from ..ir.verify import verify

_verifying = False


@dataclass(frozen=True)
class Pass:
    """One step Graph -> Graph.

    Attributes:
        name: file name of the pass.
        run: a pure function.
        needs: properties that the graph must have.
        provides: properties that the result has besides those it had.
    """

    name: str
    run: Callable[[Graph], Graph]
    needs: frozenset[str] = frozenset()
    provides: frozenset[str] = frozenset()


@contextmanager
def verified(on: bool = True) -> Iterator[None]:
    """Scope in which the verifier runs after every pass."""
    global _verifying
    old, _verifying = _verifying, on
    try:
        yield
    finally:
        _verifying = old


def run_passes(graph: Graph, passes: Sequence[Pass], has: frozenset[str] = frozenset()) -> Graph:
    """Runs passes in order.

    Args:
        has: properties of `graph`.

    Raises:
        GraphError: a need is not met, or (verifying) a pass broke an invariant; names the pass.
    """
    for step in passes:
        missing = step.needs - has
        if missing:
            raise GraphError(
                f"[{step.name}] expected a graph with {', '.join(sorted(step.needs))}, "
                f"got one without {', '.join(sorted(missing))}"
            )
        graph = step.run(graph)
        has = has | step.provides
        if _verifying or config.current().verify:
            _verify(step, graph, has)
    return graph


def _verify(step: Pass, graph: Graph, has: frozenset[str]) -> None:
    try:
        verify(graph, typed="typed" in has, primitives="primitives" in has)
    except GraphError as error:
        raise GraphError(f"{error}; after the pass {step.name}") from None
