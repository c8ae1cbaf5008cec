"""Imperative calls of the core: cache, `out=`, recorder, flags and the number protocol."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from core_support import CORES, CPU, desc, plan, step, vector

from mixflow import _rt
from mixflow.errors import MXNetError

ADD, ADD_SCALAR, SPLIT, REVERSE, UPDATE, ADD_FREE = range(1_000_001, 1_000_007)


def add(ins: list[Any], outs: list[Any], rng: tuple[int, int]) -> None:
    np.add(ins[0], ins[1], out=outs[0])


def split(ins: list[Any], outs: list[Any], rng: tuple[int, int]) -> None:
    outs[0][...], outs[1][...] = ins[0] + 1, ins[0] + 2


def reverse(ins: list[Any], outs: list[Any], rng: tuple[int, int]) -> None:
    outs[0][...] = 0  # shows at once when output and input are one memory
    outs[0][...] = ins[0][::-1]


def update(ins: list[Any], outs: list[Any], rng: tuple[int, int]) -> None:
    outs[0][...] = ins[0] - ins[1]
    outs[1][...] = ins[0]


class Handler:
    """Prepares the operators of these tests and counts how often it was asked."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, op: int, params: Any, descs: Any, device: Any, training: bool) -> Any:
        self.calls.append((op, params, [tuple(d.shape) for d in descs], tuple(device), training))
        shape = tuple(descs[0].shape)
        a, b, c = ("arg", 0), ("arg", 1), ("arg", 2)
        steps = {
            ADD: (add, [a, b], [c], "r r w", 1, [(0, 0), (0, 1)]),
            ADD_FREE: (add, [a, b], [c], "r r w", 1, []),
            ADD_SCALAR: (add, [a, ("scalar", 0, 0)], [b], "r w", 1, [(0, 0)]),
            SPLIT: (split, [a], [b, c], "r w w", 1, []),  # the second output is hidden
            REVERSE: (reverse, [a], [b], "r w", 1, []),
            UPDATE: (update, [a, b], [a, c], "rw r w", 1, []),
        }
        fn, ins, outs, access, visible, inplace = steps[op]
        made = plan(
            self.core,
            [step(fn, ins, outs, shape=shape, label=f"op{op}")],
            access,
            shape=shape,
            num_scalars=int(op == ADD_SCALAR),
        )
        hidden = 2 if op == SPLIT else 1
        return SimpleNamespace(
            plan=made,
            out_descs=[desc(*shape)] * hidden,
            visible=visible,
            inplace=inplace,
            name=f"op{op}",
        )


def restore(core: Any) -> None:
    """Gives the process's core back to the package."""
    if core is not _rt.core:
        return
    from mixflow import autograd, ndarray

    core.set_array_class(ndarray.NDArray)
    core.set_recorder(autograd._recorder)
    ndarray.dispatch.install()
    ndarray._set_operator_ids()


@pytest.fixture(params=CORES, ids=[c[0] for c in CORES])
def core(request: pytest.FixtureRequest) -> Any:
    _, chosen, kind = request.param
    before = chosen.engine_kind()
    chosen.set_engine(kind)
    chosen.set_array_class(chosen.Array)
    chosen.clear_dispatch_cache()
    yield chosen
    chosen.wait_all()
    chosen.set_recording(False)
    chosen.set_training(False)
    chosen.clear_dispatch_cache()
    chosen.set_engine(before)
    restore(chosen)


@pytest.fixture
def handler(core: Any) -> Handler:
    made = Handler(core)
    core.set_miss_handler(made)
    return made


def call(core: Any, op: int, inputs: list[Any], **more: Any) -> Any:
    return core.invoke(
        op,
        inputs,
        more.get("params", ()),
        more.get("scalars", ()),
        more.get("out"),
        more.get("device"),
    )


def test_cache_is_keyed_by_the_signature(core: Any, handler: Handler) -> None:
    a, b = vector(core), core.from_numpy(np.ones(3, np.float32), CPU)
    misses = core.dispatch_misses()
    for _ in range(3):
        call(core, ADD, [a, a])
    assert len(handler.calls) == 1
    call(core, ADD, [b, b])
    call(core, ADD, [a, a], params=("x",))
    core.set_training(True)
    call(core, ADD, [a, a])
    assert [c[4] for c in handler.calls] == [False, False, False, True]
    assert [c[1] for c in handler.calls] == [(), (), ("x",), ()]
    assert core.dispatch_misses() - misses == 4
    core.set_training(False)
    core.clear_dispatch_cache()
    call(core, ADD, [a, a])
    assert len(handler.calls) == 5


def test_results_have_the_array_class_and_hidden_outputs_stay_hidden(
    core: Any, handler: Handler
) -> None:
    class Mine(core.Array):
        pass

    core.set_array_class(Mine)
    made = call(core, SPLIT, [vector(core)])
    assert type(made) is Mine
    np.testing.assert_array_equal(made.to_numpy(), [1, 2, 3, 4])
    assert type(made.view(0, (2,))) is Mine


def test_runtime_scalars_do_not_miss(core: Any, handler: Handler) -> None:
    for number in (1.0, 2.0, -3.5):
        made = call(core, ADD_SCALAR, [vector(core)], params=(None,), scalars=(number,))
        np.testing.assert_array_equal(made.to_numpy(), np.arange(4) + number)
    assert len(handler.calls) == 1


def test_out_is_written_and_returned(core: Any, handler: Handler) -> None:
    a, out = vector(core), core.empty((4,), 0, CPU)
    assert call(core, ADD, [a, a], out=out) is out
    np.testing.assert_array_equal(out.to_numpy(), [0, 2, 4, 6])
    before = a.version
    call(core, ADD, [a, a], out=a)
    assert a.version == before + 1
    np.testing.assert_array_equal(a.to_numpy(), [0, 2, 4, 6])


@pytest.mark.parametrize("op", [REVERSE, ADD_FREE])
def test_out_that_is_an_input_goes_through_a_temporary(
    core: Any, handler: Handler, op: int
) -> None:
    a = vector(core)
    inputs = [a] if op == REVERSE else [a, a]
    call(core, op, inputs, out=a)
    np.testing.assert_array_equal(a.to_numpy(), [3, 2, 1, 0] if op == REVERSE else [0, 2, 4, 6])


def test_out_that_overlaps_an_input_goes_through_a_temporary(core: Any, handler: Handler) -> None:
    base = core.from_numpy(np.arange(6, dtype=np.float32), CPU)
    low, high = base.view(0, (4,)), base.view(2, (4,))
    call(core, ADD, [low, low], out=high)  # in place is allowed, but only at the same offset
    np.testing.assert_array_equal(base.to_numpy(), [0, 1, 0, 2, 4, 6])
    call(core, REVERSE, [low], out=low)
    np.testing.assert_array_equal(base.to_numpy(), [2, 0, 1, 0, 4, 6])


def test_views_apart_need_no_temporary(core: Any, handler: Handler) -> None:
    base = core.from_numpy(np.arange(8, dtype=np.float32), CPU)
    call(core, REVERSE, [base.view(0, (4,))], out=base.view(4, (4,)))
    np.testing.assert_array_equal(base.to_numpy(), [0, 1, 2, 3, 3, 2, 1, 0])


def test_wrong_out_is_an_error(core: Any, handler: Handler) -> None:
    a = vector(core)
    for out in (core.empty((5,), 0, CPU), core.empty((4,), 1, CPU), [a, a]):
        with pytest.raises(MXNetError, match="expected"):
            call(core, ADD, [a, a], out=out)


def test_mutated_inputs(core: Any, handler: Handler) -> None:
    weight, gradient = vector(core), vector(core, 1, 1, 1, 1)
    before = weight.version
    made = call(core, UPDATE, [weight, gradient])
    assert weight.version == before + 1
    np.testing.assert_array_equal(weight.to_numpy(), [-1, 0, 1, 2])
    assert made.shape == (4,)


def test_recorder_sees_everything(core: Any, handler: Handler) -> None:
    seen: list[tuple[Any, ...]] = []
    core.set_recorder(lambda *call: seen.append(call))
    a = vector(core)
    call(core, SPLIT, [a])
    assert core.set_recording(True) is False and core.is_recording()
    a.copy_from_numpy(np.zeros(4, np.float32))
    made = call(core, SPLIT, [a], params=("p",))
    assert core.set_recording(False) is True
    call(core, SPLIT, [a])
    (op, params, scalars, inputs, outputs, draw, versions) = seen[0]
    assert len(seen) == 1 and op == SPLIT and params == ("p",) and not len(scalars)
    assert inputs[0] is a and outputs[0] is made and len(outputs) == 2
    assert list(versions) == [a.version] and isinstance(draw, int)


def test_flags_are_thread_local(core: Any) -> None:
    core.set_recording(True)
    core.set_training(True)
    seen = []
    thread = threading.Thread(target=lambda: seen.append((core.is_recording(), core.is_training())))
    thread.start()
    thread.join()
    assert seen == [(False, False)] and core.is_recording() and core.is_training()


def test_an_error_of_the_handler_is_the_callers(core: Any) -> None:
    def broken(*_: Any) -> Any:
        raise MXNetError("[op] expected something else")

    core.set_miss_handler(broken)
    with pytest.raises(MXNetError, match="something else"):
        call(core, ADD, [vector(core)])


def test_number_protocol(core: Any, handler: Handler) -> None:
    core.set_operator_ids({"add": (ADD, ()), "add_scalar": (ADD_SCALAR, (None,))})
    a = vector(core)
    np.testing.assert_array_equal((a + a).to_numpy(), [0, 2, 4, 6])
    for number in (2, 2.0, True + 1, np.float32(2), np.int64(2)):
        np.testing.assert_array_equal((a + number).to_numpy(), [2, 3, 4, 5])
    np.testing.assert_array_equal((2 + a).to_numpy(), [2, 3, 4, 5])
    same = a
    a += 1
    a += a
    assert a is same
    np.testing.assert_array_equal(a.to_numpy(), [2, 4, 6, 8])
    for other in ("text", None, [1, 2]):
        with pytest.raises(TypeError):
            a + other
    assert (a == None) is False  # noqa: E711
    assert isinstance(hash(a), int)


def test_sites_of_imperative_calls(core: Any, handler: Handler) -> None:
    if core.name != "native":
        pytest.skip("lines are interned by the compiled core")

    def bad(ins: list[Any], outs: list[Any], rng: tuple[int, int]) -> None:
        raise RuntimeError("no luck")

    def make(op: int, params: Any, descs: Any, device: Any, training: bool) -> Any:
        made = plan(core, [step(bad, [("arg", 0)], [("arg", 1)], label="luck float32(4,)")], "r w")
        return SimpleNamespace(plan=made, out_descs=[desc(4)], visible=1, inplace=[], name="luck")

    core.set_miss_handler(make)
    out = call(core, ADD, [vector(core)])
    with pytest.raises(MXNetError, match=r"no luck.*luck float32\(4,\).*test_core_dispatch.py:\d+"):
        out.to_numpy()
