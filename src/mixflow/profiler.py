"""Where the time of a plan goes: seconds, arithmetic and traffic of every step, and their limits.

Hazard: on a shared machine single runs say little; each step counts with its fastest run. A share
of a limit is only as good as the limit, so that is measured, not taken from a data sheet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import _rt
from . import ndarray as nd
from .context import cpu
from .executor import Executor
from .passes import cost
from .passes.plan import CompiledPlan, Step
from .symbol.symbol import Symbol


@dataclass(frozen=True)
class Limits:
    """What the machine can do at most.

    Attributes:
        flops: float32 operations per second, in registers.
        nbytes: bytes read and written per second, by arrays larger than the caches.
    """

    flops: float
    nbytes: float

    def shares(self, flops: float, nbytes: float, seconds: float) -> tuple[float, float]:
        """Shares of the arithmetic and of the memory-traffic limit that some work reaches.

        Above 1 where Winograd saves multiplications, or the caches save traffic.
        """
        seconds = max(seconds, 1e-12)
        return flops / seconds / self.flops, nbytes / seconds / self.nbytes


def machine_limits(threads: int = 0) -> Limits:
    """Measures the limits of this machine, for about half a second; waits for all work first.

    Args:
        threads: 0 = the whole core budget.
    """
    _rt.core.wait_all()
    return Limits(*_rt.core.measure_peak(threads or _rt.core.threads()))


@dataclass(frozen=True)
class StepProfile:
    """One step of a plan.

    Attributes:
        label: primitive, the user's node, input shapes.
        op: the primitive.
        implementation: of the kernel.
        seconds: fastest run.
        flops: of convolutions and matrix products, else 0.
        nbytes: of inputs and outputs together.
    """

    label: str
    op: str
    implementation: str
    seconds: float
    flops: int
    nbytes: int


def profile(executor: Executor, is_train: bool = False, repeat: int = 3) -> list[StepProfile]:
    """Profiles of the steps of an executor's plan, in the order in which they run.

    Args:
        executor: bound arrays with the values that matter (zeros are as good as others).
        is_train: training mode, backward included.
        repeat: runs.
    """
    runs = [executor.profile(is_train) for _ in range(repeat)]
    steps = executor.plan(is_train).steps
    return [
        _row(step, min(times)) for step, times in zip(steps, zip(*runs, strict=True), strict=True)
    ]


def _row(step: Step, seconds: float) -> StepProfile:
    name = getattr(step.kernel, "implementation", "python")
    return StepProfile(step.label, step.op, name, seconds, _flops(step), _nbytes(step))


def work(plan: CompiledPlan) -> tuple[int, int]:
    """Arithmetic and traffic of one run of a plan, backward included.

    Returns:
        Operations of its convolutions and matrix products, counted as direct convolution does;
        bytes of the inputs and outputs of all steps, as if nothing stayed in a cache between two.
    """
    return sum(map(_flops, plan.steps)), sum(map(_nbytes, plan.steps))


def _nbytes(step: Step) -> int:
    return cost.moved(step.input_descs, step.output_descs)


def _flops(step: Step) -> int:
    return cost.flops(step.op, step.input_descs, step.output_descs)


def by_primitive(rows: Sequence[StepProfile]) -> list[tuple[str, int, float]]:
    """(primitive, steps, seconds), the costliest first."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        found[row.op].append(row.seconds)
    table = [(name, len(times), sum(times)) for name, times in found.items()]
    return sorted(table, key=lambda entry: -entry[2])


def bind_random(symbol: Symbol, shapes: Mapping[str, Sequence[int]]) -> Executor:
    """A symbol bound for training on random data, with small random parameters.

    Args:
        shapes: of the inputs that fix all others, by name.
    """
    given = {*shapes, "softmax_label"}
    requests = {n: "null" if n in given else "write" for n in symbol.list_arguments()}
    executor: Any = symbol.simple_bind(cpu(), grad_req=requests, **shapes)
    for key, array in executor.arg_dict.items():
        if key != "softmax_label":
            array[:] = nd.random.normal(0.0, 0.05, shape=array.shape)
    for key, array in executor.aux_dict.items():
        array[:] = 1.0 if key.endswith("var") else 0.0
    bound: Executor = executor
    return bound
