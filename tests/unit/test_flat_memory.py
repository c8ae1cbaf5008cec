"""Loops that never synchronise keep memory flat: the queue bound counts the bytes that only pending
tasks hold, whoever pushes and however many push at once."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator

import pytest
from core_support import native

import mixflow as mx
from mixflow import _rt

pytestmark = [
    pytest.mark.skipif(native is None, reason="needs the compiled core"),
    pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc"),
]

MB = 1 << 20
QUEUE = 16 * MB
#: Over the bound: one array per producer that waits in its push, the pool's free blocks, Python.
ALLOWED = 64 * MB


@pytest.fixture(autouse=True)
def small_queue() -> Iterator[None]:
    if _rt.core.name != "native":
        pytest.skip("runs on the compiled core")
    mx.nd.waitall()
    gc.collect()
    _rt.core.empty_pool()
    with mx.config.override(engine="threaded", queue_bytes=QUEUE):
        yield
        mx.nd.waitall()


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth_during(step: Callable[[], None], count: int) -> tuple[int, int]:
    """Largest growth, in bytes, of resident memory and of live arrays over `count` steps."""
    for _ in range(100):
        step()
    mx.nd.waitall()
    _rt.core.reset_peak()
    live, before, peak = _rt.core.storage_statistics()["live_bytes"], resident(), 0
    for i in range(count):
        step()
        if i % 256 == 0:
            peak = max(peak, resident())
    peak = max(peak, resident())
    mx.nd.waitall()
    return peak - before, _rt.core.storage_statistics()["peak_bytes"] - live


def update_step(floats: int) -> Callable[[], None]:
    w, g, a = mx.nd.zeros((floats,)), mx.nd.ones((floats,)), mx.nd.ones((floats,))

    def step() -> None:
        nonlocal w
        w -= 0.5 * g
        b = a + 1
        del b

    return step


def test_updates_of_large_arrays() -> None:
    rss, live = growth_during(update_step(MB // 4), 1500)
    assert live <= QUEUE + 4 * MB, f"{live} bytes of arrays lived at once"
    assert rss < ALLOWED, f"resident memory grew by {rss} bytes"


def test_many_updates() -> None:
    """50,000 steps; without the bound they would hold 6 GB."""
    rss, live = growth_during(update_step(16384), 50_000)
    assert live <= QUEUE + MB, f"{live} bytes of arrays lived at once"
    assert rss < ALLOWED, f"resident memory grew by {rss} bytes"


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_million_updates() -> None:
    rss, live = growth_during(update_step(65536), 1_000_000)
    assert live <= QUEUE + MB, f"{live} bytes of arrays lived at once"
    assert rss < ALLOWED, f"resident memory grew by {rss} bytes"


def test_chain_of_new_arrays() -> None:
    """Each step replaces the array that it reads: nothing but the queue holds the old ones."""
    a = mx.nd.zeros((65536,))

    def step() -> None:
        nonlocal a
        a = a + 1

    rss, live = growth_during(step, 5000)
    assert a.asnumpy()[0] == 5100
    assert live <= QUEUE + MB and rss < ALLOWED, (live, rss)


def test_bound_holds_with_many_producers() -> None:
    producers, floats = 8, 65536
    failures: list[BaseException] = []

    def produce() -> None:
        try:
            a = mx.nd.ones((floats,))
            for _ in range(400):
                b = a * 2
                a -= b
        except BaseException as error:
            failures.append(error)

    mx.nd.waitall()
    _rt.core.reset_peak()
    live, before = _rt.core.storage_statistics()["live_bytes"], resident()
    threads = [threading.Thread(target=produce) for _ in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not failures and not any(thread.is_alive() for thread in threads)
    peak = _rt.core.storage_statistics()["peak_bytes"] - live
    own = producers * 3 * floats * 4  # what each producer holds or has just made
    assert peak <= QUEUE + own, f"{peak} bytes of arrays lived at once"
    assert resident() - before < ALLOWED
