"""What the processes of test_processes.py do: ``process_child.py SCENARIO SEED``.

Each scenario leaves work pending on the engine and ends the process in its own way. `EXPECTED`
gives its exit status (negative: killed by that signal) and what its stderr must contain ('' =
nothing at all). ``process_child.py forks SEED COUNT`` runs the scenarios in forked children.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from typing import Any

import mixflow as mx
from mixflow import _rt
from mixflow.ndarray.dispatch import miss

SIZE = 64
EXPECTED = {
    "exit": (0, ""),
    "sys_exit_while_recording": (3, ""),
    "os_exit": (5, ""),
    "unhandled": (1, "ZeroDivisionError"),
    "unraised_error": (0, ""),
    "callbacks_at_exit": (0, ""),
    "daemon_producers": (0, ""),
    "daemon_in_python": (0, ""),
    "stuck_callback": (0, ""),
    "fork": (0, ""),
    "fork_among_producers": (0, ""),
    "fork_in_callback": (0, ""),
    "pool_fork": (0, ""),
    "pool_spawn": (0, ""),
    "interrupt_wait": (0, ""),
    "interrupt_wait_unhandled": (-signal.SIGINT, "KeyboardInterrupt"),
    "interrupt_push": (0, ""),
    "interrupt_work": (0, ""),
    "terminate": (-signal.SIGTERM, ""),
}
SLOW = ("stuck_callback",)  #: waits for the deadline of the exit, 10 s
#: Scenarios that can run in a forked child.
FORKED = [
    name for name in EXPECTED if name not in ("pool_spawn", "interrupt_wait_unhandled", *SLOW)
]


def pending(count: int = 50) -> Any:
    """An array on which `count` additions and two slow callbacks are pending."""
    a = mx.nd.zeros((SIZE,))
    _rt.core.push(lambda: time.sleep(0.01), [], [a], "slow")
    for _ in range(count):
        a += 1
    big = mx.nd.ones((256, 256))
    for _ in range(random.randrange(4)):
        big = mx.nd.dot(big, big) * 1e-3
    _rt.core.push(lambda: time.sleep(0.01), [a], [], "slow")
    return a


def check(array: Any, expected: float) -> None:
    got = array.asnumpy()
    assert (got == expected).all(), f"expected {expected}, got {got}"


def child_status(pid: int) -> int:
    """Exit status of a child that must end within the deadline."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 99


# -- ends


def scenario_exit() -> None:
    pending()


def scenario_sys_exit_while_recording() -> None:
    x = mx.nd.ones((SIZE,))
    x.attach_grad()
    with mx.autograd.record():
        y = (x * x).sum()
        pending()
        y.backward()
        sys.exit(3)


def scenario_os_exit() -> None:
    pending()
    os._exit(5)


def scenario_unhandled() -> None:
    with mx.autograd.record():
        pending()
        raise ZeroDivisionError("of the test")


def scenario_unraised_error() -> None:
    def fail() -> None:
        raise ValueError("nobody waits for this")

    a = pending()
    _rt.core.push(fail, [], [a], "failing")
    a += 1


def scenario_callbacks_at_exit() -> None:
    a = pending()
    inner = _rt.core.fresh_handle(a)

    def body() -> None:
        time.sleep(0.005)
        check(inner + 1, float(inner.asnumpy()[0]) + 1)

    for _ in range(5):
        _rt.core.push(body, [], [a], "body")


def scenario_daemon_producers() -> None:
    def produce() -> None:
        a = mx.nd.zeros((SIZE,))
        while True:
            a += 1
            if float(mx.nd.sum(a).asnumpy().reshape(-1)[0]) < 0:
                break

    for _ in range(3):
        threading.Thread(target=produce, daemon=True).start()
    time.sleep(0.05 * random.random())
    pending()


def scenario_daemon_in_python() -> None:
    """A daemon thread is in Python code that the core has called when the interpreter goes."""
    inside = threading.Event()

    def slow_miss(*call: Any) -> Any:
        inside.set()
        end = time.monotonic() + 0.1 + 0.1 * random.random()
        while time.monotonic() < end:
            pass  # wants the GIL all the time
        return miss(*call)

    def produce() -> None:
        a = mx.nd.zeros((SIZE, 3))
        while True:
            a = a + a

    _rt.core.set_miss_handler(slow_miss)
    threading.Thread(target=produce, daemon=True).start()
    inside.wait()
    if random.random() < 0.5:
        time.sleep(0.2)  # then in `a + a`: the number protocol has a way of its own


def scenario_stuck_callback() -> None:
    def body() -> None:
        while True:
            time.sleep(0.001)

    _rt.core.push(body, [], [pending()], "stuck")


# -- forks


def scenario_fork() -> None:
    a = pending(50)
    pid = os.fork()
    for _ in range(30):
        a += 1
    check(a, 80)
    pending()
    if pid == 0:
        sys.exit(7)
    assert child_status(pid) == 7


def scenario_fork_among_producers() -> None:
    stop = threading.Event()
    totals = [mx.nd.zeros((SIZE,)) for _ in range(3)]
    counts = [0, 0, 0]

    def produce(i: int) -> None:
        noise = mx.nd.zeros((SIZE,))
        while not stop.is_set():
            totals[i] += 1
            noise = mx.nd.random.uniform(shape=(SIZE,)) + noise
            counts[i] += 1

    threads = [threading.Thread(target=produce, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    pids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:  # the other threads are not here
            b = mx.nd.random.uniform(shape=(SIZE,)) + mx.nd.ones((SIZE,))
            assert (b.asnumpy() >= 1).all()
            pending()
            os._exit(8) if random.random() < 0.5 else _leave(8)
        pids.append(pid)
        time.sleep(0.005)
    stop.set()
    for thread in threads:
        thread.join()
    for total, count in zip(totals, counts, strict=True):
        check(total, count)
    assert [child_status(pid) for pid in pids] == [8, 8, 8]


def _leave(status: int) -> None:
    """As `os._exit`, but after the engine's own end."""
    mx.nd.waitall()
    _rt.core.close()
    os._exit(status)


def scenario_fork_in_callback() -> None:
    seen = []

    def body() -> None:  # CPython reports an error of a fork hook and forks all the same: fork less
        seen.append(os.system("exit 4") >> 8)

    a = pending()
    _rt.core.push(body, [], [a], "system")
    check(a, 50)
    assert seen == [4]


def square_sum(n: int) -> float:
    """Work for a pool."""
    x = mx.nd.arange(n)
    return float((x * x).sum().asnumpy().reshape(-1)[0])


def _pool(method: str) -> None:
    a = pending()
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(square_sum, [3, 4, 5]) == [5.0, 14.0, 30.0]
    check(a, 50)


def scenario_pool_fork() -> None:
    _pool("fork")


def scenario_pool_spawn() -> None:
    _pool("spawn")


# -- signals


def _later(number: int) -> None:
    delay = 0.02 + 0.05 * random.random()
    timer = threading.Timer(delay, lambda: os.kill(os.getpid(), number))
    timer.daemon = True
    timer.start()


def scenario_interrupt_wait() -> None:
    go = threading.Event()
    a = pending()
    _rt.core.push(lambda: go.wait(60) and None, [], [a], "stuck")
    a += 1
    _later(signal.SIGINT)
    try:
        a.asnumpy()
    except KeyboardInterrupt:
        go.set()
    check(a, 51)


def scenario_interrupt_wait_unhandled() -> None:
    a = mx.nd.zeros((SIZE,))
    _rt.core.push(lambda: time.sleep(0.5), [], [a], "slow")
    _later(signal.SIGINT)
    a.asnumpy()


def scenario_interrupt_push() -> None:
    go = threading.Event()
    a = mx.nd.zeros((SIZE,))
    mx.config.update(queue_tasks=8)
    _rt.core.push(lambda: go.wait(60) and None, [], [a], "stuck")
    _later(signal.SIGINT)
    done = 0
    try:
        for _ in range(100):
            a += 1
            done += 1
    except KeyboardInterrupt:
        go.set()
    assert 0 < done < 100, f"pushed {done}"
    check(a, done)
    a += 1
    check(a, done + 1)


def scenario_interrupt_work() -> None:
    """Interrupts that come anywhere, several times."""
    caught = 0
    while caught < 3:
        try:
            _later(signal.SIGINT)
            while True:
                a = pending(10)
                with mx.autograd.record():
                    b = a * 2 + 1
                check(b, 21)
        except KeyboardInterrupt:
            caught += 1
    check(pending(10), 10)


def scenario_terminate() -> None:
    pending()
    _later(signal.SIGTERM)
    while True:
        pending()


# -- many forked children of one process


def forks(seed: int, count: int) -> None:
    """Children of a process whose engine is busy, two at a time; each runs one scenario."""
    names = [FORKED[(seed + i) % len(FORKED)] for i in range(count)]
    wrong = []
    for first in range(0, count, 2):
        batch = {}
        a = pending(20)
        for i in range(first, min(first + 2, count)):
            pid = os.fork()
            if pid == 0:
                random.seed(seed + i)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # some end by an unhandled error
                run(names[i])
                return
            batch[pid] = names[i]
        check(a, 20)
        for pid, name in batch.items():
            status = child_status(pid)
            if status != EXPECTED[name][0]:
                wrong.append((name, status))
    assert not wrong, wrong


def run(name: str) -> None:
    """Runs one scenario, to wherever it ends."""
    globals()[f"scenario_{name}"]()


def main() -> None:
    name, seed = sys.argv[1], int(sys.argv[2])
    random.seed(seed)
    # A shell starts background jobs with this signal ignored, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if name == "forks":
        forks(seed, int(sys.argv[3]))
    else:
        run(name)


if __name__ == "__main__":
    main()
