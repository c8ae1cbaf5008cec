"""Random tapes over several contexts, with functions and custom operators, against differences."""

import os
import threading

import numpy as np
import pytest

import mixflow as mx
from mixflow import autograd, nd

COUNT = 400 if os.environ.get("MIXFLOW_FULL_COUNTS") else 40


class Square(autograd.Function):
    def forward(self, x):
        self.save_for_backward(x)
        return x * x

    def backward(self, grad):
        return 2 * self.saved_tensors[0] * grad


class Sine(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], nd.array(np.sin(in_data[0].asnumpy()), dtype="float64"))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * in_data[0].cos())


@mx.operator.register("test_tapes_sine")
class SineProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Sine()


def in_place(a):
    made = a * 1.0
    made += 0.25
    return made


STEPS = [
    lambda a, b, rng: a + b,
    lambda a, b, rng: (a * b).tanh(),
    lambda a, b, rng: a.as_in_context(mx.cpu(int(rng.integers(0, 3)))),
    lambda a, b, rng: Square()(a).tanh(),
    lambda a, b, rng: nd.Custom(a, op_type="test_tapes_sine"),
    lambda a, b, rng: a[::-1] * 0.5,
    lambda a, b, rng: in_place(a),
    lambda a, b, rng: nd.concat(a, b, dim=0)[1 : 1 + a.shape[0]],
    lambda a, b, rng: (a.sum() * b).sigmoid(),
]


def program(seed, leaves):
    """A random computation with one number as its result."""
    rng = np.random.default_rng(seed)
    values = list(leaves)
    for _ in range(rng.integers(4, 16)):
        kind = rng.integers(0, len(STEPS))
        a, b = (values[rng.integers(len(values))] for _ in range(2))
        values.append(STEPS[kind](a, b.as_in_context(a.context), rng))
    total = values[-1].as_in_context(mx.cpu(0)).sum()
    for value in values[-4:-1]:
        total = total + value.as_in_context(mx.cpu(0)).square().sum()
    return total


def arrays(values):
    return [nd.array(v, dtype="float64", ctx=mx.cpu(k)) for k, v in enumerate(values)]


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_tape(seed):
    rng = np.random.default_rng(1000 + seed)
    values = [rng.normal(size=3) for _ in range(2)]
    leaves = arrays(values)
    for x in leaves:
        x.attach_grad()
    with autograd.record():
        total = program(seed, leaves)
    total.backward()
    for k, x in enumerate(leaves):
        for at in range(3):
            sides = []
            for move in (1e-6, -1e-6):
                moved = [v.copy() for v in values]
                moved[k][at] += move
                sides.append(program(seed, arrays(moved)).asscalar())
            wanted = (sides[0] - sides[1]) / 2e-6
            np.testing.assert_allclose(x.grad.asnumpy()[at], wanted, rtol=1e-4, atol=1e-6)


def test_threads_record_tapes_of_their_own():
    failures = []

    def work(first):
        try:
            for seed in range(first, first + 8):
                test_random_tape(seed)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(5000 + 100 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
