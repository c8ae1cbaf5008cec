"""What steps cost."""

import numpy as np
import pytest
from graphs import tensor

from mixflow import _rt
from mixflow.backends import default_backend
from mixflow.ir import Desc, Graph, emit
from mixflow.passes import cost
from mixflow.passes.pipeline import optimize, scheduled


def desc(*shape):
    return Desc(0, shape)


def test_arithmetic():
    assert cost.flops("matmul", [desc(4, 5), desc(5, 6)], [desc(4, 6)]) == 2 * 4 * 5 * 6
    data, weight, out = desc(2, 3, 8, 8), desc(7, 3, 3, 3), desc(2, 7, 6, 6)
    work = 2 * 2 * 7 * 36 * 27
    assert cost.flops("conv", [data, weight], [out]) == work
    assert cost.flops("conv_data_grad", [out, weight], [data]) == work
    assert cost.flops("conv_weight_grad", [out, data], [weight]) == work
    assert cost.flops("exp", [data], [data]) == 0
    assert cost.moved([desc(3)], [desc(3), Desc(1, (2,))]) == 4 * 6 + 8 * 2


def test_estimates_grow_with_work_and_shrink_with_threads():
    def matmul(n, threads=1):
        return cost.estimated("matmul", [desc(n, n), desc(n, n)], [desc(n, n)], threads)

    assert matmul(512) > matmul(256) > cost.STEP
    assert matmul(512, 4) < matmul(512)


def tasks(*heads):
    graph = Graph(tuple(v for v in heads[0].node.inputs), heads)
    ready = optimize(graph, fuse=False)
    return scheduled(ready, default_backend(), (1, 0), 1)[1], ready


def test_a_kernel_is_timed_once(monkeypatch):
    x, y = tensor("x", (64, 64), np.float32), tensor("y", (64, 64), np.float32)
    (task,), ready = tasks(emit("matmul", x, y))
    cost.forget()
    calls = []
    run = cost._run
    monkeypatch.setattr(cost, "_run", lambda t: calls.append(t) or run(t))
    found = [cost.measured(task) for _ in range(3)]
    assert found[0] == found[1] == found[2] > 0
    native = _rt.core.name == "native"
    assert len(calls) == native
    node = next(n for n in ready.nodes() if n.op is not None)
    guess = cost.estimated("matmul", [desc(64, 64)] * 2, [desc(64, 64)])
    assert cost.known(node, (1, 0), 1) == (found[0] if native else pytest.approx(guess))
    cost.forget()
    assert cost.known(node, (1, 0), 1) == pytest.approx(guess)


def test_timing_takes_no_draw_numbers():
    made, _ = tasks(emit("add", tensor("x", (8,), np.float32), tensor("y", (8,), np.float32)))
    before = tuple(_rt.core.rng_state((1, 0)))
    assert all(cost.measured(t) > 0 for t in made)
    assert tuple(_rt.core.rng_state((1, 0))) == before
