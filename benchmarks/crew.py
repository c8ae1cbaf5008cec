"""Several processes that measure one thing together: a rival's driver and its members.

The driver starts a member per rank (and helpers such as servers) and tells all of them the case;
each member answers with its seconds, of which the longest counts. Members connect over a Unix
socket whose place stands in the environment.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Client, Listener

PLACE = "MIXFLOW_BENCH_CREW"
SECONDS = 120
#: Elements (float32) of the array that goes round, by case.
SIZES = {
    "4 kB": 1_000,
    "0.4 MB": 100_000,
    "4 MB": 1_000_000,
    "40 MB": 10_000_000,
    "100 MB": 25_000_000,
}


def repeats(size):
    """Round trips of one measurement."""
    return max(3, min(100, 20_000_000 // size))


class Crew:
    """The driver's side.

    Args:
        members: how many processes will connect.
        start: called with the environment that members need; gives the processes to end at last.
    """

    def __init__(self, members, start):
        self._folder = tempfile.mkdtemp(prefix="bench-crew-")
        place = os.path.join(self._folder, "place")
        self._key = secrets.token_hex(16)
        with Listener(place, authkey=self._key.encode()) as listener:
            self._ended = start({PLACE: f"{place},{self._key}"})
            listener._listener._socket.settimeout(SECONDS)
            self._members = [listener.accept() for _ in range(members)]

    def measure(self, case):
        """Seconds of one round trip: that of the slowest member."""
        for member in self._members:
            member.send(case)
        found = []
        for member in self._members:
            if not member.poll(SECONDS):
                raise SystemExit(f"a member of the crew is silent in '{case}'")
            found.append(member.recv())
        return max(found)

    def close(self):
        """Ends every process."""
        for member in self._members:
            with contextlib.suppress(OSError):
                member.send("")
        for process in self._ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            if process.poll() is None:
                process.kill()
                process.wait(5)
        shutil.rmtree(self._folder, ignore_errors=True)


def cases(make):
    """`CASES` of a rival: one crew, started with the first case, for all of them."""
    made = []

    def build(name):
        def builder():
            if not made:
                made.append(make())
                threading.Thread(target=_close_at_end, args=[made[0]]).start()
            return lambda: made[0].measure(name)

        return builder

    return {name: build(name) for name in SIZES}


def _close_at_end(crew):
    """Ends the crew when the driver's main thread has."""
    threading.main_thread().join()
    crew.close()


def free_port():
    """A TCP port of this host that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def python(program, environment):
    """A process that runs a file with this Python and dies with this process."""
    return subprocess.Popen(
        [sys.executable, program],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )


def die_with_parent():
    """In a new process: it ends with the one that started it, however that ends."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def serve(prepare):
    """A member's side: ``prepare(size)`` gives a function that makes one round trip."""
    place, _, key = os.environ[PLACE].partition(",")
    driver = Client(place, authkey=key.encode())
    ready = {}
    while case := driver.recv():
        size = SIZES[case]
        if case not in ready:
            ready[case] = prepare(size)
            ready[case](0)
        took = []
        for step in range(repeats(size)):
            began = time.perf_counter()
            ready[case](step)
            took.append(time.perf_counter() - began)
        driver.send(statistics.median(took))


def store_trips(mx, store):
    """`prepare` for `serve`: a fresh gradient goes to the servers, the new value comes back.

    Args:
        mx: mixflow or mxnet, whose interfaces are the same here.
        store: of the job.
    """

    def prepare(size):
        store.init(size, mx.nd.zeros((size,)))
        gradient, value = mx.nd.zeros((size,)), mx.nd.zeros((size,))

        def trip(step):
            gradient[:] = step
            store.pushpull(size, gradient, out=value)
            value.wait_to_read()

        return trip

    return prepare
