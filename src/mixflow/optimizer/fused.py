"""All parameters' updates as one plan: one native call a step, in place.

The plan is built from the optimizer's update rules: one operator node per parameter, its runtime
numbers as scalars of the run. It is rebuilt when a rule changes its operator or static numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import ir
from ..backends import default_backend
from ..ndarray import NDArray
from ..passes.pipeline import compile_graph
from .optimizer import Optimizer, UpdateRule, state_list
from .updater import Updater


class FusedUpdate:
    """Updates a fixed list of (index, weight, gradient) in one run.

    Args:
        updater: holds the optimizer and the states.
        indices: index of each parameter for the optimizer.
        weights, grads: arrays; the plan of each context is bound to those that lie there.
        plans: keeps what was compiled, for other updates of arrays of the same kinds.
    """

    def __init__(
        self,
        updater: Updater,
        indices: Sequence[Any],
        weights: Sequence[NDArray],
        grads: Sequence[NDArray],
        plans: dict[Any, Any] | None = None,
    ) -> None:
        self._updater = updater
        self._compiled = {} if plans is None else plans
        self._indices = list(indices)
        self._weights = list(weights)
        self._grads = list(grads)
        self._plans: dict[Any, list[Any]] = {}  #: by signature
        self._state: Any = None  #: what the numbers were made of, where that can be told
        self._bound: list[Any] = []  #: by context
        self._numbers: list[float] = []

    @staticmethod
    def usable(optimizer: Optimizer, weights: Sequence[NDArray]) -> bool:
        """Whether every update is an operator call without float32 copies."""
        own = type(optimizer).update is Optimizer.update
        dense = all(w.stype == "default" for w in weights)
        plain = type(optimizer).update_multi_precision is Optimizer.update_multi_precision
        master = any(optimizer._needs_master(w) for w in weights)
        return own and plain and dense and not master

    def run(self) -> None:
        """One update of every parameter."""
        optimizer = self._updater.optimizer
        optimizer._update_count(self._indices)
        state = optimizer._rule_state()
        if state is None or state != self._state:
            self._prepare([optimizer.update_rule(i) for i in self._indices])
            self._state = state
        for bound in self._bound:
            bound.run(self._numbers)

    def foresee(self, runs: int) -> tuple[Any, list[list[float]], int | None] | None:
        """What the next `runs` would do, on one device, with the optimizer as it stands.

        Returns:
            The bound plan, its numbers by run, and for how many runs that holds; None: for all,
            with one list of numbers. Nothing where rules can't be asked for ahead.
        """
        optimizer = self._updater.optimizer
        if not optimizer.rule_reads:
            return None
        schedule, most = optimizer.lr_scheduler, optimizer.num_update
        before = {i: optimizer._counts[i] for i in self._indices if i in optimizer._counts}
        steady = schedule is None and optimizer._rule_state() is not None
        optimizer.lr_scheduler = copy.deepcopy(schedule)  # some have a state
        self._state = None
        numbers: list[list[float]] = []
        bound: Any = None
        try:
            for _ in range(1 if steady else runs):
                optimizer._update_count(self._indices)
                self._prepare([optimizer.update_rule(i) for i in self._indices])
                if bound is not None and bound is not self._bound[0]:
                    break
                bound = self._bound[0]
                numbers.append(self._numbers)
        finally:
            optimizer.lr_scheduler, optimizer.num_update = schedule, most
            for index in self._indices:
                optimizer._counts.pop(index, None)
            optimizer._counts.update(before)
        return bound, numbers, None if steady else len(numbers)

    def _prepare(self, rules: Sequence[UpdateRule]) -> None:
        """The numbers of a run, equal ones once, and the plan for them."""
        slots: dict[tuple[str, float], int] = {}
        signature = tuple(
            (
                rule.op,
                tuple(rule.params.items()),
                tuple(
                    (n, slots.setdefault((n, float(v)), len(slots)))
                    for n, v in rule.scalars.items()
                ),
            )
            for rule in rules
        )
        self._numbers = [value for _, value in slots]
        found = self._plans.get(signature)
        if found is None:
            devices = dict.fromkeys(w.device for w in self._weights)
            built = [self._build(signature, rules, slots, d) for d in devices]
            found = self._plans[signature] = built
        self._bound = found

    def _build(
        self,
        signature: Any,
        rules: Sequence[UpdateRule],
        slots: Mapping[tuple[str, float], int],
        device: tuple[int, int],
    ) -> Any:
        graph, arrays = self._graph(rules, slots, device)
        kinds = tuple((array.shape, np.dtype(array.dtype)) for array in arrays)
        kind = (signature, device, kinds)
        if kind not in self._compiled:
            self._compiled[kind] = compile_graph(graph, default_backend(), device=device).plan
        return self._compiled[kind].bind(arrays)

    def _graph(
        self,
        rules: Sequence[UpdateRule],
        slots: Mapping[tuple[str, float], int],
        device: tuple[int, int],
    ) -> tuple[ir.Graph, list[NDArray]]:
        """The joint graph of a device's parameters and the arrays of its arguments."""
        arguments: list[ir.Value] = []
        scalars = [
            ir.variable(f"{name}{number}", _NUMBER, "scalar") for (name, _), number in slots.items()
        ]
        arrays: list[NDArray] = []
        updates: list[tuple[ir.Value, ir.Value]] = []
        for number, rule in enumerate(rules):
            weight, grad = self._weights[number], self._grads[number]
            if weight.device != device:
                continue
            own = [weight, grad, *state_list(self._updater.state(self._indices[number], weight))]
            values = [_argument(f"p{number}_{k}", array) for k, array in enumerate(own)]
            numbers = {n: scalars[slots[n, float(v)]] for n, v in rule.scalars.items()}
            arguments += values
            arrays += own
            updates += _apply(rule, values, numbers)
        return ir.Graph((*arguments, *scalars), (), tuple(updates)), arrays


_NUMBER = ir.TensorType((), np.dtype(np.float64))


def _argument(name: str, array: NDArray) -> ir.Value:
    return ir.variable(name, ir.TensorType(array.shape, np.dtype(array.dtype)))


def _apply(
    rule: UpdateRule, values: list[ir.Value], numbers: dict[str, ir.Value]
) -> list[tuple[ir.Value, ir.Value]]:
    """(next version, variable) of the weight and of each state."""
    op = ir.get(rule.op)
    params = op.check_params({**rule.params, **dict.fromkeys(numbers, 0.0)})
    node = ir.Node(op, f"{rule.op}_{values[0].node.name}", values, {**params, **numbers})
    first = len(node.types) - len(node.mutated)
    states = [(node[first + k], values[i]) for k, i in enumerate(node.mutated)]
    return [(node[0], values[0]), *states]


__all__ = ["FusedUpdate"]
