"""Python code on the engine that waits: updaters, callbacks and operators written in Python, which
call `asnumpy`, push more work, nest and meet a full queue. Nothing may deadlock or lose an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mixflow as mx
from mixflow import _rt

pytestmark = pytest.mark.timeout(200)
SETTINGS = [("threaded", 1 << 16), ("threaded", 2), ("threaded", 1), ("serial", 1 << 16)]


@pytest.fixture(autouse=True, params=SETTINGS, ids=lambda s: f"{s[0]}-{s[1]}")
def settings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both engines, and queues that are full most of the time."""
    engine, tasks = request.param
    if _rt.core.name != "native" and engine == "threaded":
        pytest.skip("the plain core is serial")
    with mx.config.override(engine=engine, queue_tasks=tasks):
        yield
        mx.nd.waitall()


def push(body: Callable[..., None], reads: list[Any], writes: list[Any]) -> None:
    """`body(fresh reads..., fresh writes...)` as a task."""
    fresh = [_rt.core.fresh_handle(a) for a in (*reads, *writes)]
    _rt.core.push(lambda: body(*fresh), reads, writes, "body")


@mx.operator.register("deadlock_probe")
class ProbeProp(mx.operator.CustomOpProp):
    """2 x + depth, through `depth` further operators of this kind, each of which waits."""

    def __init__(self, depth: str = "0") -> None:
        super().__init__(need_top_grad=True)
        self.depth = int(depth)

    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
        return Probe(self.depth)


class Probe(mx.operator.CustomOp):
    def __init__(self, depth: int) -> None:
        self.depth = depth

    def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        x = in_data[0]
        assert np.isfinite(x.asnumpy()).all()
        if self.depth == 0:
            y = x * 2
        else:
            y = mx.nd.Custom(x, op_type="deadlock_probe", depth=self.depth - 1) + 1
        y.wait_to_read()
        mx.nd.waitall()
        self.assign(out_data[0], req[0], y)

    def backward(
        self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any
    ) -> None:
        gradient = mx.nd.array(out_grad[0].asnumpy() * 2)
        mx.nd.waitall()
        self.assign(in_grad[0], req[0], gradient)


def test_updater_that_waits() -> None:
    store = mx.kv.create("local")

    def update(key: Any, gradient: Any, weight: Any) -> None:
        assert np.isfinite(gradient.asnumpy()).all()
        weight -= 0.5 * gradient
        assert np.isfinite(weight.asnumpy()).all()

    store._set_updater(update)
    keys = [0, 1, 2]
    for key in keys:
        store.init(key, mx.nd.zeros((4,)))
    for _ in range(20):
        for key in keys:
            store.push(key, [mx.nd.ones((4,)), mx.nd.ones((4,))])
    out = mx.nd.zeros((4,))
    for key in keys:
        store.pull(key, out)
        np.testing.assert_array_equal(out.asnumpy(), -20)


def test_updater_as_a_task_that_waits() -> None:
    weight, gradient = mx.nd.zeros((4,)), mx.nd.ones((4,))

    def update(g: Any, w: Any) -> None:
        w -= float(g.asnumpy()[0]) * g
        w.wait_to_read()
        mx.nd.waitall()

    for _ in range(20):
        push(update, [gradient], [weight])
        gradient += 0
    np.testing.assert_array_equal(weight.asnumpy(), -20)


def test_nested_updaters() -> None:
    total = mx.nd.zeros((4,))

    def level(depth: int) -> Callable[[Any], None]:
        def body(t: Any) -> None:
            t += 1
            if depth:
                push(level(depth - 1), [], [t])
            t += 1
            assert t.asnumpy()[0] >= 2
            mx.nd.waitall()

        return body

    for _ in range(5):
        push(level(4), [], [total])
        total += 1
    np.testing.assert_array_equal(total.asnumpy(), 5 * 11)


def test_an_updater_runs_a_graph() -> None:
    x = mx.sym.Variable("x")
    executor = (x * 3 + 1).bind(mx.cpu(), {"x": mx.nd.ones((4,))})
    out = mx.nd.zeros((4,))

    def body(o: Any) -> None:
        o += executor.forward()[0]
        assert o.asnumpy()[0] % 4 == 0

    for _ in range(5):
        push(body, [], [out])
    np.testing.assert_array_equal(out.asnumpy(), 20)


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_custom_operators_that_wait(depth: int) -> None:
    x = mx.nd.ones((3,))
    results = [mx.nd.Custom(x, op_type="deadlock_probe", depth=depth) for _ in range(6)]
    for y in results:
        np.testing.assert_array_equal(y.asnumpy(), 2 + depth)


def test_custom_operators_in_a_graph_and_on_the_tape() -> None:
    x = mx.sym.Variable("x")
    y = x
    for _ in range(3):
        y = mx.sym.Custom(y + 1, op_type="deadlock_probe", depth=0)
    args, grads = {"x": mx.nd.ones((3,))}, {"x": mx.nd.zeros((3,))}
    executor = y.bind(mx.cpu(), args, grads)
    for _ in range(3):
        out = executor.forward(is_train=True)[0]
        executor.backward(mx.nd.ones((3,)))
        args["x"] -= 0 * grads["x"]
        np.testing.assert_array_equal(out.asnumpy(), 22)
        np.testing.assert_array_equal(grads["x"].asnumpy(), 8)
    a = mx.nd.ones((3,))
    a.attach_grad()
    with mx.autograd.record():
        b = mx.nd.Custom(a + 1, op_type="deadlock_probe", depth=0) * 3
    b.backward()
    np.testing.assert_array_equal(a.grad.asnumpy(), 6)


def test_everything_at_once_from_many_threads() -> None:
    failures: list[BaseException] = []

    def update(t: Any) -> None:
        t += 1
        assert t.asnumpy()[0] >= 1
        push(lambda inner: inner.wait_to_read(), [], [t])

    def work() -> None:
        try:
            total, x = mx.nd.zeros((3,)), mx.nd.ones((3,))
            for _ in range(10):
                push(update, [], [total])
                y = mx.nd.Custom(x, op_type="deadlock_probe", depth=1)
                total += y
            np.testing.assert_array_equal(total.asnumpy(), 40)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    assert not any(thread.is_alive() for thread in threads)
    assert not failures, failures


def test_an_error_in_a_nested_updater_is_raised_at_the_wait() -> None:
    out = mx.nd.zeros((4,))

    def inner(t: Any) -> None:
        raise ValueError("broken updater")

    def outer(t: Any) -> None:
        push(inner, [], [t])

    push(outer, [], [out])
    if _rt.core.name == "native":
        with pytest.raises(mx.MXNetError, match="broken updater"):
            out.asnumpy()
    out[:] = 1
    np.testing.assert_array_equal(out.asnumpy(), 1)
