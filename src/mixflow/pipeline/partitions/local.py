"""Executors as processes of this host.

Hazard: an executor that outlives its pool. It ends when its socket closes, and the kernel ends it
with the thread that started it, also while it computes or is stopped.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

from ...arguments import checked, whole
from ...errors import MixflowError
from . import framing
from .executors import Done, Event, Failed, Lost, Ready, Result

#: What an executor runs. First of all it asks the kernel for SIGKILL when the thread that started
#: it ends (Linux, PR_SET_PDEATHSIG), so that it ends even if it is stopped while it starts.
START = (
    "import sys, ctypes; sys.platform == 'linux' and ctypes.CDLL(None).prctl(1, 9); "
    "from mixflow.pipeline.partitions.executor import main; main()"
)
_END_SECONDS = 5.0
#: A message is sent in one piece: one that is not whole by then never will be.
_MESSAGE_SECONDS = 2.0


class Memories:
    """Memory of results that were used, for the next ones: fresh pages cost as much as a copy.

    Args:
        keep: how many wait at most.
    """

    def __init__(self, keep: int) -> None:
        self._keep, self._free = keep, list[int]()
        self._lock = threading.RLock()  # a result may be collected anywhere, also inside of it
        self._closed = False

    def take(self) -> int | None:
        """A handle that nobody uses; None: there is none."""
        with self._lock:
            return self._free.pop() if self._free else None

    def give(self, handle: int, again: bool) -> None:
        """Takes a handle back to be used again, or closes it."""
        with self._lock:
            if again and len(self._free) < self._keep and not self._closed:
                self._free.append(handle)
                return
        framing.closed([handle])

    def close(self) -> None:
        """Closes all that wait and all that will come."""
        with self._lock:
            self._closed = True
            framing.closed(self._free)
            self._free = []


@dataclass
class _Child:
    life: int
    process: subprocess.Popen[Any]
    connection: socket.socket


class LocalExecutors:
    """Processes of this host that compute with one thread each.

    Args:
        keep: memories of results that wait for their next use.
    """

    @checked(keep=whole(0))
    def __init__(self, keep: int = 2) -> None:
        self._children: dict[int, _Child] = {}
        self._memories = Memories(keep)
        self._selector = selectors.DefaultSelector()
        self._awake, self._alarm = socket.socketpair()
        self._awake.setblocking(False)
        self._alarm.setblocking(False)
        self._selector.register(self._awake, selectors.EVENT_READ, None)

    @property
    def pids(self) -> dict[int, int]:
        """Process numbers by place."""
        return {place: child.process.pid for place, child in list(self._children.items())}

    def spawn(self, place: int, life: int) -> None:
        """Starts a process. See `Executors`."""
        ours, theirs = socket.socketpair()
        ours.settimeout(_MESSAGE_SECONDS)
        # No preexec_fn: it would fork, and a fork waits until the engine is idle.
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "MIXFLOW_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._children[place] = _Child(life, process, ours)
        self._selector.register(ours, selectors.EVENT_READ, place)

    def compute(self, place: int, number: int, partition: str) -> None:
        """Sends a partition, with memory where some is free. See `Executors`."""
        memory = self._memories.take()
        # A child that is gone is found by the next `wait`.
        with contextlib.suppress(OSError):
            message = {"number": number, "partition": partition}
            framing.send(self._children[place].connection, message, memory)
        framing.closed([memory] if memory is not None else [])

    def stop(self, place: int) -> None:
        """SIGKILL, which also ends a stopped process. See `Executors`."""
        if place in self._children:
            self._children[place].process.kill()

    def wait(self, timeout: float | None) -> list[Event]:
        """See `Executors`."""
        events: list[Event] = []
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    while self._awake.recv(4096):
                        pass
            else:
                events.append(self._news(key.data))
        return events

    def wake(self) -> None:
        """See `Executors`."""
        with contextlib.suppress(OSError):
            self._alarm.send(b"!")

    def close(self) -> None:
        """Kills and collects every process. See `Executors`."""
        for child in self._children.values():
            child.process.kill()
        for place in list(self._children):
            self._bury(place)
        self._memories.close()
        self._selector.close()
        self._awake.close()
        self._alarm.close()

    def _news(self, place: int) -> Event:
        child = self._children[place]
        try:
            received = framing.receive(child.connection)
            if received is not None:
                return self._event(place, child.life, *received)
            problem = ""
        except (OSError, KeyError, TypeError, ValueError) as error:
            problem = f" ({error})"
        return Lost(place, child.life, self._bury(place) + problem)

    def _event(self, place: int, life: int, message: Any, handle: int | None) -> Event:
        if "done" in message and handle is not None:
            try:
                memory = framing.mapped(handle, message["bytes"], write=False)
                arrays = framing.arrays_in(memory, message["places"])
            except BaseException:
                framing.closed([handle])
                raise
            memories = self._memories
            result = Result(arrays, lambda again: memories.give(handle, again))
            return Done(place, life, message["done"], result)
        framing.closed([handle] if handle is not None else [])
        if "failed" in message:
            return Failed(place, life, message["failed"], message["error"])
        return Ready(place, life)

    def _bury(self, place: int) -> str:
        """Ends what is left of a process; says how it ended."""
        child = self._children.pop(place)
        self._selector.unregister(child.connection)
        child.connection.close()
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.process.wait(1.0)
        if code is None:
            child.process.kill()
            try:
                code = child.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                raise MixflowError(
                    f"[partitions] expected process {child.process.pid} to end within "
                    f"{_END_SECONDS:g} s of SIGKILL, got one that did not"
                ) from None
        if code < 0:
            return f"it was ended by {signal.Signals(-code).name}"
        return f"it ended with code {code}"
