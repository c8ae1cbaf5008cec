"""The core's protocol (`mixflow._rt`), tested on every core that this process can load."""

from __future__ import annotations

import contextlib
import gc
import threading
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from core_support import (
    CPU,
    add,
    add_one,
    desc,
    empty,
    fail,
    kernel_or,
    plan,
    step,
    vector,
)

from mixflow import _rt
from mixflow.errors import MXNetError


@pytest.fixture
def threaded(core: Any) -> Any:
    if core.name != "native" or core.engine_kind() != "threaded":
        pytest.skip("needs tasks that run beside the caller")
    return core


# -- arrays

DTYPES = [
    np.float32,
    np.float64,
    np.float16,
    np.uint8,
    np.int8,
    np.int32,
    np.int64,
    np.bool_,
    ml_dtypes.bfloat16,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_numpy_round_trip(core: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    source = np.ones(shape, dtype)
    array = core.from_numpy(source, CPU)
    back = array.to_numpy()
    assert back.dtype == source.dtype and back.shape == shape
    np.testing.assert_array_equal(back, source)
    assert (array.shape, array.size, array.ndim) == (shape, source.size, len(shape))
    assert array.device == CPU
    target = core.empty(shape, array.dtype_code, CPU)
    target.copy_from_numpy(source)
    np.testing.assert_array_equal(target.to_numpy(), source)


def test_copies_are_independent(core: Any) -> None:
    source = np.zeros(4, np.float32)
    array = core.from_numpy(source, CPU)
    source[0] = 7
    array.to_numpy()[1] = 7
    assert not array.to_numpy().any()


def test_views_share_storage(core: Any) -> None:
    base = core.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4), CPU)
    row = base.view(4, (4,))
    np.testing.assert_array_equal(row.to_numpy(), [4, 5, 6, 7])
    assert row.shares_storage(base) and row.storage_id() == base.storage_id()
    before = base.version
    row.copy_from_numpy(np.zeros(4, np.float32))
    assert base.version > before and row.version == base.version
    assert not base.to_numpy()[1].any() and base.to_numpy()[2, 3] == 11
    inner = row.view(1, (2,))
    assert inner.shares_storage(base)
    for offset, shape in [(9, (4,)), (-1, (4,))]:
        with pytest.raises(MXNetError, match=r"expected"):
            base.view(offset, shape)


def test_bad_copies_are_errors(core: Any) -> None:
    array = empty(core)
    with pytest.raises(MXNetError):
        array.copy_from_numpy(np.zeros(4, np.float64))
    with pytest.raises(MXNetError):
        array.copy_from_numpy(np.zeros(5, np.float32))


def test_dlpack_both_ways_shares_memory(core: Any) -> None:
    array = vector(core)
    shared = np.from_dlpack(array)
    np.testing.assert_array_equal(shared, array.to_numpy())
    source = np.arange(3, dtype=np.float32)
    made = core.from_dlpack(source.__dlpack__())
    source[1] = 9
    np.testing.assert_array_equal(made.to_numpy(), [0, 9, 2])
    assert array.__dlpack_device__() == (1, 0)


def test_autograd_slot_does_not_leak_cycles(core: Any) -> None:
    class Tape:
        pass

    array, tape = vector(core), Tape()
    assert array.autograd is None
    array.autograd = tape
    tape.array = array
    assert array.autograd is tape
    import weakref

    alive = weakref.ref(tape)
    del array, tape
    gc.collect()
    assert alive() is None


def test_shared_mapping_is_seen_by_both(core: Any) -> None:
    import os

    name = f"/mixflow-test-{os.getpid()}-{core.name}-{core.engine_kind()}"
    first = core.shared_empty(name, (4,), 0, True)
    second = core.shared_empty(name, (4,), 0, False)
    first.copy_from_numpy(np.arange(4, dtype=np.float32))
    np.testing.assert_array_equal(second.to_numpy(), [0, 1, 2, 3])


# -- plans


def test_native_and_host_steps_alternate(core: Any) -> None:
    double = kernel_or(core, "add", 2, add)
    slots = [("arg", 0), ("arena", 0, 16), ("arena", 64, 16), ("arg", 1)]
    steps = [
        step(double, [slots[0], slots[0]], [slots[1]]),
        step(add_one, [slots[1]], [slots[2]]),
        step(double, [slots[2], slots[2]], [slots[3]]),
    ]
    made = plan(core, steps, "r w", arena_bytes=128)
    assert made.steps == 3 and made.arena_bytes >= 128
    out = empty(core)
    made.run([vector(core), out])
    np.testing.assert_array_equal(out.to_numpy(), [2, 6, 10, 14])
    bound = made.bind([vector(core), out], core.Arena(CPU))
    for _ in range(5):
        bound.run()
    out.wait_to_read()
    assert bound.executed_steps() == 15


def test_scalars_constants_and_absent_buffers(core: Any) -> None:
    def weigh(ins: list[Any], outs: list[Any], rng: tuple[int, int]) -> None:
        assert ins[2] is None and ins[0].shape == ()
        outs[0][...] = ins[0] * ins[1]

    inputs = [("scalar", 0, 0), ("const", vector(core)), ("null",)]
    made = plan(core, [step(weigh, inputs, [("arg", 0)])], "w", num_scalars=1)
    out = empty(core)
    made.run([out], [2.5])
    np.testing.assert_array_equal(out.to_numpy(), [0, 2.5, 5, 7.5])
    with pytest.raises(MXNetError, match="scalars"):
        made.run([out])


def test_scalars_convert_to_every_dtype(core: Any) -> None:
    seen: list[Any] = []
    values = [1.5, -2.75, 65504.0, 1e-7]

    def note(ins: list[Any], outs: list[Any], rng: tuple[int, int]) -> None:
        seen.extend(np.array(x) for x in ins)

    codes = {2: np.dtype(np.float16), 12: np.dtype(ml_dtypes.bfloat16), 1: np.dtype(np.float64)}
    for code, dtype in codes.items():
        seen.clear()
        inputs = [("scalar", i, code) for i in range(4)]
        one = step(note, inputs, [("arg", 0)])
        one.input_descs = [desc(dtype=code)] * 4
        out = empty(core)
        plan(core, [one], "w", num_scalars=4).run([out], values)
        out.wait_to_read()
        assert [x.dtype for x in seen] == [dtype] * 4
        np.testing.assert_array_equal(np.array(seen), np.array(values).astype(dtype))


def test_nested_plans(core: Any) -> None:
    twice = [
        step(add_one, [("arg", 0)], [("arena", 0, 16)]),
        step(add_one, [("arena", 0, 16)], [("arg", 1)]),
    ]
    inner = plan(core, twice, "r w", arena_bytes=64)
    outer = plan(
        core,
        [
            step(inner, [("arg", 0)], [("arena", 0, 16)]),
            step(inner, [("arena", 0, 16)], [("arg", 1)]),
        ],
        "r w",
        arena_bytes=64,
    )
    out = empty(core)
    outer.run([vector(core), out])
    np.testing.assert_array_equal(out.to_numpy(), [4, 5, 6, 7])


def test_phases_share_an_arena_and_notice_another_user(core: Any) -> None:
    steps = [
        step(add_one, [("arg", 0)], [("arena", 0, 16)]),
        step(add_one, [("arena", 0, 16)], [("arg", 1)]),
    ]
    made = plan(core, steps, "r w", arena_bytes=64, phase_ends=[1, 2], label="net")
    other = plan(core, steps, "r w", arena_bytes=64, label="intruder")
    arena, a, out = core.Arena(CPU), vector(core), empty(core)
    bound = made.bind([a, out], arena)
    bound.run(phase=0)
    before = out.version
    bound.run(phase=1)
    assert out.version == before + 1
    np.testing.assert_array_equal(out.to_numpy(), [2, 3, 4, 5])
    bound.run(phase=0)
    other.run([a, out], (), arena)
    with pytest.raises(MXNetError, match="intruder"):
        bound.run(phase=1)
        out.wait_to_read()
    with pytest.raises(MXNetError, match="arena"):
        made.run([a, out])


def test_wrong_arguments_name_the_argument(core: Any) -> None:
    made = plan(core, [step(add_one, [("arg", 0)], [("arg", 1)])], "r w")
    with pytest.raises(MXNetError, match="argument 1"):
        made.run([vector(core), empty(core, 5)])
    with pytest.raises(MXNetError, match="argument 0"):
        made.bind([core.empty((4,), 1, CPU), empty(core)])
    with pytest.raises(MXNetError, match="argument 0"):
        made.run([core.empty((4,), 0, (1, 1)), empty(core)])
    with pytest.raises(MXNetError, match="expected 2"):
        made.run([vector(core)])


# -- draws


def test_draw_numbers_are_taken_at_push(core: Any) -> None:
    seen: list[tuple[int, int]] = []

    def note(ins: list[Any], outs: list[Any], rng: tuple[int, int]) -> None:
        seen.append((int(rng[0]), int(rng[1])))

    slots = [("arg", 0)]
    made = plan(core, [step(note, [], slots, draw=0), step(note, [], slots, draw=1)], "w")
    assert made.num_draws == 2
    core.seed(7, CPU)
    out = empty(core)
    assert [made.run([out]), made.run([out])] == [0, 2]
    made.run([out], draws=[40, 50])
    out.wait_to_read()
    assert seen == [(7, 0), (7, 1), (7, 2), (7, 3), (7, 40), (7, 50)]
    assert tuple(core.rng_state(CPU)) == (7, 4)
    core.set_rng_state((9, 100), CPU)
    assert made.run([out]) == 100
    assert tuple(core.take_draws(5, CPU)) == (9, 102)
    assert tuple(core.rng_state(CPU)) == (9, 107)
    core.seed(0)
    assert tuple(core.rng_state(CPU)) == (0, 0)


# -- engine


def test_tags_are_released_after_their_last_step(threaded: Any) -> None:
    core = threaded
    go, entered = threading.Event(), threading.Event()

    def block(ins: list[Any], outs: list[Any], rng: tuple[int, int]) -> None:
        entered.set()
        assert go.wait(30)
        outs[0][...] = 1

    steps = [
        step(add_one, [("arg", 0)], [("arg", 1)]),
        step(block, [("arg", 1)], [("arg", 2)]),
    ]
    a, early, late = vector(core), empty(core), empty(core)
    plan(core, steps, "r w w").run([a, early, late])
    assert entered.wait(30)
    a.copy_from_numpy(np.zeros(4, np.float32))  # would wait for ever if step 0 still held it
    go.set()
    np.testing.assert_array_equal(late.to_numpy(), 1)
    np.testing.assert_array_equal(early.to_numpy(), [1, 2, 3, 4])


def test_trace_lists_tasks(core: Any) -> None:
    made = plan(core, [step(add_one, [("arg", 0)], [("arg", 1)])], "r w", label="traced")
    a, out = vector(core), empty(core)
    core.start_trace()
    made.run([a, out])
    core.wait_all()
    events = [e for e in core.stop_trace() if e["name"] == "traced"]
    assert len(events) == 1
    assert events[0]["start_ns"] <= events[0]["end_ns"]
    assert len(events[0]["reads"]) == 1 and len(events[0]["writes"]) == 1
    assert not events[0]["failed"] and not events[0]["skipped"]


def test_errors_stay_until_a_write_replaces_them(core: Any) -> None:
    bad = plan(core, [step(fail, [("arg", 0)], [("arg", 1)], label="bad_op")], "r w")
    good = plan(core, [step(add_one, [("arg", 0)], [("arg", 1)])], "r w")
    a, broken, behind = vector(core), empty(core), empty(core)
    bad.run([a, broken])
    good.run([broken, behind])  # skipped: inherits the error
    for array in (broken, behind):
        with pytest.raises(MXNetError, match=r"went wrong.*bad_op"):
            array.to_numpy()
    np.testing.assert_array_equal(a.to_numpy(), [0, 1, 2, 3])
    good.run([a, broken])
    np.testing.assert_array_equal(broken.to_numpy(), [1, 2, 3, 4])
    behind.copy_from_numpy(np.ones(4, np.float32))
    np.testing.assert_array_equal(behind.to_numpy(), 1)


def test_errors_name_operator_and_line(core: Any) -> None:
    bad = plan(core, [step(fail, [("arg", 0)], [("arg", 1)], label="bad_op(4)")], "r w")
    out = empty(core)
    bad.run([vector(core), out])
    with pytest.raises(MXNetError) as caught:
        out.wait_to_read()
    text = str(caught.value)
    assert "ValueError: went wrong" in text and "bad_op(4)" in text
    if core.name == "native":
        assert "test_core_contract.py:" in text


def test_wait_all_raises_the_oldest_error_once(core: Any) -> None:
    with contextlib.suppress(MXNetError):
        core.wait_all()
    bad = plan(core, [step(fail, [], [("arg", 0)], label="bad_op")], "w")
    out = empty(core)
    bad.run([out])
    with pytest.raises(MXNetError, match="bad_op"):
        core.wait_all()
    core.wait_all()
    out.copy_from_numpy(np.zeros(4, np.float32))


# -- callbacks


def test_callback_may_read_what_it_pushed(core: Any) -> None:
    made = plan(core, [step(add_one, [("arg", 0)], [("arg", 1)])], "r w")
    a, out = vector(core), empty(core)
    fresh_a, fresh_out = core.fresh_handle(a), core.fresh_handle(out)
    seen: list[Any] = []

    def body() -> None:
        made.run([fresh_a, fresh_out])
        seen.append(fresh_out.to_numpy())
        made.run([fresh_out, fresh_out])  # still pending when the body returns

    core.push(body, [a], [out], "body")
    np.testing.assert_array_equal(out.to_numpy(), [2, 3, 4, 5])
    np.testing.assert_array_equal(seen[0], [1, 2, 3, 4])


def test_callback_ends_after_what_it_pushed(threaded: Any) -> None:
    core = threaded
    go = threading.Event()

    def slow(ins: list[Any], outs: list[Any], rng: tuple[int, int]) -> None:
        assert go.wait(30)
        outs[0][...] = 5

    out = empty(core)
    fresh = core.fresh_handle(out)
    made = plan(core, [step(slow, [], [("arg", 0)])], "w")
    core.push(lambda: made.run([fresh]) and None, [], [out])
    threading.Timer(0.05, go.set).start()
    np.testing.assert_array_equal(out.to_numpy(), 5)


def test_nested_callbacks(core: Any) -> None:
    out, seen = vector(core), []
    made = plan(core, [step(add_one, [("arg", 0)], [("arg", 0)])], "rw")

    def level(handle: Any, depth: int) -> Any:
        def body() -> None:
            made.run([handle])
            if depth:
                core.push(level(core.fresh_handle(handle), depth - 1), [], [handle])
            seen.append(float(handle.to_numpy()[0]))

        return body

    core.push(level(core.fresh_handle(out), 4), [], [out])
    assert out.to_numpy()[0] == 5
    assert len(seen) == 5


def test_callback_errors_reach_the_written_arrays(core: Any) -> None:
    out = empty(core)

    def body() -> None:
        raise KeyError("lost")

    core.push(body, [], [out], "updater")
    with pytest.raises(MXNetError, match=r"lost.*updater"):
        out.to_numpy()
    out.copy_from_numpy(np.zeros(4, np.float32))


def test_errors_of_what_a_callback_pushed_reach_the_written_arrays(core: Any) -> None:
    if core.name == "pure":
        pytest.skip("the plain core reports only the body's own errors")
    out = empty(core)
    fresh = core.fresh_handle(out)
    bad = plan(core, [step(fail, [], [("arg", 0)], label="inner_op")], "w")
    core.push(lambda: bad.run([fresh]) and None, [], [out], "updater")
    with pytest.raises(MXNetError, match="inner_op"):
        out.to_numpy()
    out.copy_from_numpy(np.zeros(4, np.float32))


def test_host_call_may_use_arrays_on_its_views(core: Any) -> None:
    if not hasattr(core, "borrow_numpy"):
        pytest.skip("this core has no borrow_numpy")
    inner = plan(core, [step(add_one, [("arg", 0)], [("arg", 1)])], "r w")

    def custom(ins: list[Any], outs: list[Any], rng: tuple[int, int]) -> None:
        a, b = core.borrow_numpy(ins[0]), core.borrow_numpy(outs[0])
        inner.run([a, b])
        assert b.to_numpy()[0] == ins[0][0] + 1
        inner.run([b, b])

    steps = [
        step(custom, [("arg", 0)], [("arena", 0, 16)]),
        step(custom, [("arena", 0, 16)], [("arg", 1)]),
    ]
    out = empty(core)
    plan(core, steps, "r w", arena_bytes=64).run([vector(core), out])
    np.testing.assert_array_equal(out.to_numpy(), [4, 5, 6, 7])


def test_full_queue_with_callbacks_does_not_deadlock(core: Any) -> None:
    made = plan(core, [step(add_one, [("arg", 0)], [("arg", 0)])], "rw")
    out = vector(core, 0, 0, 0, 0)
    core.set_queue_limits(4, 1 << 30)
    try:
        for _ in range(50):
            handle = core.fresh_handle(out)

            def body(handle: Any = handle) -> None:
                for _ in range(6):  # more than the queue holds
                    made.run([handle])
                handle.to_numpy()

            core.push(body, [], [out])
            made.run([out])
        assert out.to_numpy()[0] == 350
    finally:
        core.set_queue_limits(1 << 16, 0)


def test_many_threads_push(core: Any) -> None:
    made = plan(
        core, [step(kernel_or(core, "add", 2, add), [("arg", 0), ("arg", 1)], [("arg", 0)])], "rw r"
    )
    one = vector(core, 1, 1, 1, 1)
    totals = [vector(core, 0, 0, 0, 0) for _ in range(4)]

    def work(mine: Any) -> None:
        for _ in range(200):
            made.run([mine, one])

    threads = [threading.Thread(target=work, args=(t,)) for t in totals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for total in totals:
        np.testing.assert_array_equal(total.to_numpy(), 200)


# -- storage


def test_memory_limit_is_a_clear_error(core: Any) -> None:
    core.wait_all()
    gc.collect()
    core.empty_pool()
    live = core.storage_statistics()["live_bytes"]
    core.set_memory_limit(live + (1 << 20))
    try:
        with pytest.raises(MXNetError, match=r"limit|memory"):
            made = plan(
                core,
                [step(add_one, [("arg", 0)], [("arg", 0)], shape=(1 << 20,))],
                "rw",
                shape=(1 << 20,),
            )
            big = empty(core, 1 << 20)
            made.run([big])
            big.wait_to_read()
    finally:
        core.set_memory_limit(0)


def test_unsynchronised_updates_keep_memory_flat(core: Any) -> None:
    size = 1 << 12
    made = plan(
        core, [step(add_one, [("arg", 0)], [("arg", 1)], shape=(size,))], "r w", shape=(size,)
    )
    a = core.from_numpy(np.zeros(size, np.float32), CPU)
    core.wait_all()
    core.reset_peak()
    before = core.storage_statistics()["peak_bytes"]
    for _ in range(2000):
        b = empty(core, size)
        made.run([a, b])
        a = b
    assert a.to_numpy()[0] == 2000
    assert core.storage_statistics()["peak_bytes"] - before < 200 * size * 4


def test_used_namespace_is_complete(core: Any) -> None:

    names = [n for n in vars(_rt.Core) if not n.startswith("_")]
    missing = [n for n in names if not hasattr(core, n)]
    assert not missing
    assert isinstance(SimpleNamespace(), SimpleNamespace)


def test_copy_between_devices_is_a_task(core: Any) -> None:
    a, b = vector(core, 1, 2, 3, 4), core.empty((4,), 0, (1, 1))
    core.copy_array(a, b)
    a.copy_from_numpy(np.zeros(4, np.float32))
    np.testing.assert_array_equal(b.to_numpy(), [1, 2, 3, 4])
    bad = plan(core, [step(fail, [], [("arg", 0)], label="broken")], "w")
    bad.run([a])
    core.copy_array(a, b)
    with pytest.raises(MXNetError, match="broken"):
        b.to_numpy()
    with pytest.raises(MXNetError, match=r"\[copy\] expected"):
        core.copy_array(b, empty(core, 3))
    a.copy_from_numpy(np.zeros(4, np.float32))
