"""A worker's link to its servers: over ZeroMQ, and by `local` channels on one host.

The hazard: a ZeroMQ socket belongs to one thread, and a peer may be gone for good without a word.
So one thread owns the sockets; callers run the worker's logic (`Client`) under a lock, send by
local channels themselves, and wait on events with deadlines. Requests are repeated by `Client`, so
that a connection may break, and a server come back at another address, at any time.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ...errors import FormatError, MixflowError
from ...extras import load
from ..protocol.client import Client, Ticket
from ..protocol.messages import Applied, Array, Message, Opened, Push, Received
from . import boards, local, parcels
from .doorkeeper import present
from .faults import Faults, Mangler
from .lane import Lane
from .segments import BIG_BYTES, Blocks

#: Bytes of pushes on their way to a server before the next waits for its turn by priority.
WINDOW_BYTES = 8 << 20
IDLE_SECONDS = 0.5
SILENT_SECONDS = 0.3


def milliseconds(times: list[float | None], now: float) -> int:
    """Time to poll: until the first of some times, at most `IDLE_SECONDS`."""
    known = [t - now for t in times if t is not None]
    return max(0, min(int(min([*known, IDLE_SECONDS]) * 1000) + 1, int(IDLE_SECONDS * 1000)))


def as_frames(entry: tuple[str, Message]) -> tuple[str, list[Any]]:
    """A message that is sent late, as bytes: what it refers to changes meanwhile."""
    to, message = entry
    return to, [bytes(part) for part in parcels.pack([message])]


class Call:
    """A request on its way through a `Link`: wait for it, or be told."""

    def __init__(self, what: str, settled: bool = False) -> None:
        self.what = what
        self.settled = settled
        self.ticket: Ticket | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Call], None]] = []

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    def finish(self, ticket: Ticket) -> None:
        """Ends the call, and tells those who asked for it."""
        with self._lock:
            self.ticket = ticket
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def then(self, callback: Callable[[Call], None]) -> None:
        """Calls `callback` when the call has ended (at once if it has), on whatever thread ends
        it."""
        with self._lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback(self)

    def wait(self, deadline: float) -> Ticket:
        """The ticket, when the call has ended.

        Raises:
            MixflowError: it failed, or did not end within `deadline` seconds.
        """
        if not self._done.wait(deadline) or self.ticket is None:
            raise MixflowError(
                f"[kvstore] expected '{self.what}' to end within {deadline:g} s, got no answer"
            )
        self.ticket.raise_error()
        return self.ticket


class Link:
    """A worker's connection to its servers. Thread-safe.

    Callers run `Client` under a lock and send to servers of this host at once, by their own
    channels; a thread receives, repeats, and does everything that concerns ZeroMQ.

    Args:
        client: the worker's logic.
        addresses: where each server is.
        faults: faults on the messages that are sent.
        find: asks where the servers are now; called on a thread of its own when one has been
            silent for `SILENT_SECONDS`.
        host: name of this host; servers of another name are not taken for local ones.
        lost: called, on the link's thread, when a channel to a server of this host has ended.
        by_boards: whether boards may take the place of messages to servers of this host.
        token: of the job, for servers that ask for it.

    Attributes:
        sent_bytes, received_bytes: over ZeroMQ: what leaves the host and comes to it, if all
            servers of this host have a channel.
        local_bytes: what has gone to servers of this host, arrays in shared memory included.
    """

    def __init__(
        self,
        client: Client,
        addresses: Mapping[str, str],
        faults: Faults | None = None,
        find: Callable[[], Mapping[str, str]] | None = None,
        host: str = "",
        lost: Callable[[str], None] | None = None,
        by_boards: bool = True,
        token: str = "",
    ) -> None:
        self.client = client
        self._token = token
        self._find = find
        self._lost = lost
        self._host = host
        self._finding = threading.Lock()
        self._asked_at = 0.0
        self.sent_bytes = self.received_bytes = 0
        self._zmq = load("zmq", "kvstore")
        self._context = self._zmq.Context()
        self._addresses = dict(addresses)
        self._sockets: dict[str, Any] = {}
        self._blocks = Blocks()
        self._channels: dict[str, local.Channel] = {}
        self._mangler = Mangler(faults or Faults())
        self._lock = threading.Lock()
        self._waiting: list[tuple[Call, Ticket]] = []
        self._outgoing: dict[str, list[tuple[int, int, Message]]] = {}
        self._flying: dict[str, dict[int, int]] = {}
        self._order = itertools.count()
        self._moved: list[str] = []
        self._poller: Any = None
        self._closed = False
        self._wakes_at = 0.0
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        os.set_blocking(self._wake_in, False)
        #: Boards of servers of this host; None where nothing may go by them.
        self.lane: Lane | None = None
        plain = client.via is None and self._mangler.faults == Faults()
        if by_boards and plain and boards.available():
            self.lane = Lane(client, self._wake_in)
            client.offers = True
            client.before_push = self._yield_boards
        for server, address in self._addresses.items():
            self._open_channel(server, address)
        self._thread = threading.Thread(target=self._run, name="mixflow-kvstore", daemon=True)
        self._thread.start()

    def _open_channel(self, server: str, address: str) -> None:
        old = self._channels.pop(server, None)
        if old is not None:
            old.close()
            if self.lane is not None:
                self.lane.lost(server)
        if self._mangler.faults.rate:
            return
        made = local.connect(address, self._blocks, self._host)
        if made is not None:
            self._channels[server] = made
        self._poller = None

    def near(self, server: str) -> bool:
        """Whether a server is on this host and has a channel."""
        return server in self._channels

    @property
    def local_bytes(self) -> int:
        """Bytes sent to servers of this host."""
        boards = self.lane.nbytes if self.lane else 0
        return boards + sum(channel.sent_bytes for channel in self._channels.values())

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """Bytes sent and received in all, those between processes of this host included."""
        boards = self.lane.nbytes if self.lane else 0
        channels = self._channels.values()
        return local.moved(channels, self.sent_bytes + boards, self.received_bytes + boards)

    def staged(self, values: Array) -> Array:
        """A copy of a flat array that may be pushed: in shared memory if a server is near and the
        array is big. It is kept until nothing refers to it."""
        if not self._channels or values.nbytes < BIG_BYTES:
            return values.copy()
        with self._lock:
            made = self._blocks.empty(values.size, values.dtype)
        np.copyto(made, values)
        return made

    def call(
        self, what: str, make: Callable[[Client, float], Ticket], settled: bool = False
    ) -> Call:
        """Runs ``make(client, now)``, sends what it wants sent, and returns at once.

        The call ends when its ticket is done, or `settled`.

        Raises:
            MixflowError: the link is closed.
        """
        call = Call(what, settled)
        with self._lock:
            if self._closed:
                raise MixflowError(f"[kvstore] expected an open store for '{what}', got a closed")
            self._leave_boards()
            if self.lane is not None:
                self.lane.follow()
            try:
                ticket = make(self.client, time.monotonic())
            except MixflowError as error:
                ticket = Ticket(error=str(error))
            self._waiting.append((call, ticket))
            self._send_all()
            self._wake_if_late()
            ended = self._ended()
        _finish(ended)
        return call

    def route(self, keys: tuple[Any, ...]) -> Any:
        """How an exchange of some keys (`dist.Key`) goes by boards; None: by messages."""
        if self.lane is None:
            return None
        with self._lock:
            return self.lane.route(keys)

    def follow_boards(self) -> None:
        """Lets `client` know of every step that went by boards."""
        with self._lock:
            self._leave_boards()
            if self.lane is not None:
                self.lane.follow()

    def _yield_boards(self, slices: Iterable[str]) -> None:
        """Some slices are about to be pushed by messages. Needs the lock."""
        assert self.lane is not None
        self.lane.retire(slices)
        self._leave_boards()

    def _leave_boards(self) -> None:
        """Goes on by messages where boards are over. Needs the lock."""
        if self.lane is None or not self.lane.in_trouble:
            return
        for failed, ticket in self.lane.leave(time.monotonic()):
            call = Call("exchange")
            call.then(partial(_detoured, failed))
            self._waiting.append((call, ticket))

    def _wake_if_late(self) -> None:
        """Wakes the thread when there is something to do before it looks by itself."""
        due = self.client.next_time()
        remote = any(q for s, q in self._outgoing.items() if s not in self._channels)
        if remote or (due is not None and due < self._wakes_at):
            self._wakes_at = 0.0
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_in, b"x")

    def move(self, server: str, address: str) -> None:
        """A server is at another address now."""
        with self._lock:
            self._addresses[server] = address
            self._flying.pop(server, None)
            self._open_channel(server, address)
            self._moved.append(server)
            self.client.repeat_soon(server, time.monotonic())
            self._wake()

    def settle(self, deadline: float) -> None:
        """Waits until every request, unconfirmed pushes included, is over.

        Raises:
            MixflowError: some are not within `deadline` seconds.
        """
        end = time.monotonic() + deadline
        while self.client.pending or (self.lane is not None and self.lane.unconfirmed()):
            if time.monotonic() > end:
                raise MixflowError(
                    f"[kvstore] expected all pushes to be confirmed within {deadline:g} s, got "
                    f"{self.client.pending} that are not"
                )
            time.sleep(1e-3)

    def close(self, deadline: float = 5.0) -> None:
        """Ends the thread; calls that have not ended fail. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._wake()
        self._thread.join(deadline)
        if self.lane is not None:
            self.lane.close()
        if not self._thread.is_alive():
            os.close(self._wake_in)
            os.close(self._wake_out)
            self._context.term()

    def _run(self) -> None:
        try:
            while not self._closed:
                ready = self._poll()
                with self._lock:
                    self._receive_all(ready)
                    self._leave_boards()
                    self.client.tick(time.monotonic())
                    self._look_for_silent()
                    self._send_all()
                    ended = self._ended()
                _finish(ended)
        finally:
            with self._lock:
                waiting, self._waiting = self._waiting, []
            for call, _ in waiting:
                call.finish(
                    Ticket(
                        error=f"[kvstore] expected an open store, got it closed in '{call.what}'"
                    )
                )
            for socket in (*self._sockets.values(), *self._channels.values()):
                socket.close()

    def _look_for_silent(self) -> None:
        now = time.monotonic()
        due = self._find is not None and now - self._asked_at > SILENT_SECONDS
        if due and self.client.silent(now, SILENT_SECONDS) and not self._finding.locked():
            self._asked_at = now
            threading.Thread(target=self._find_again, daemon=True).start()

    def _find_again(self) -> None:
        """Asks for the addresses; one that has changed is connected to anew."""
        with self._finding, contextlib.suppress(MixflowError):
            assert self._find is not None
            for server, address in self._find().items():
                if self._addresses.get(server) != address:
                    self.move(server, address)

    def _poll(self) -> dict[Any, int]:
        """Waits for something to do; gives what is ready to be read."""
        with self._lock:
            poller = self._pollers()
            now = time.monotonic()
            free = self._mangler.busy_until(now) if any(self._outgoing.values()) else None
            times = [self.client.next_time(), self._mangler.next_time, free]
            if self._find is not None and self.client.silent(now, 0.0):
                times.append(now + SILENT_SECONDS)  # else it is only looked for at a repeat
            wait = milliseconds(times, now)
            self._wakes_at = now + wait / 1000
        return dict(poller.poll(wait))

    def _pollers(self) -> Any:
        """The poller of all sockets; made anew when they have changed."""
        if self._poller is None:
            self._poller = self._zmq.Poller()
            self._poller.register(self._wake_out, self._zmq.POLLIN)
            for socket in self._sockets.values():
                self._poller.register(socket, self._zmq.POLLIN)
            for channel in self._channels.values():
                self._poller.register(channel.number, self._zmq.POLLIN)
        return self._poller

    def _receive_all(self, ready: Mapping[Any, int]) -> None:
        if self._wake_out in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_out, 4096)
        for server, channel in list(self._channels.items()):
            self._receive_local(server, channel)
        for server, socket in self._sockets.items():
            if socket in ready:
                self._receive(server, socket)

    def _receive_local(self, server: str, channel: local.Channel) -> None:
        while (messages := channel.receive()) is not None:
            for message in messages:
                if isinstance(message, Opened):
                    if self.lane is not None:
                        self.lane.opened(server, channel.number, message)
                else:
                    self.client.handle(message, time.monotonic())
        if not channel.open:
            channel.close()
            if self.lane is not None:
                self.lane.lost(server)
            del self._channels[server]
            self._poller = None
            if self._lost is not None and not self._closed:
                self._lost(server)

    def _receive(self, server: str, socket: Any) -> None:
        with contextlib.suppress(self._zmq.Again):
            while True:
                found = socket.recv_multipart(self._zmq.DONTWAIT, copy=False)
                frames = [frame.buffer for frame in found]
                self.received_bytes += sum(len(f) for f in frames)
                with contextlib.suppress(FormatError):
                    for message in parcels.unpack(frames):
                        if isinstance(message, (Received, Applied)):
                            self._flying.get(server, {}).pop(message.number, None)
                        self.client.handle(message, time.monotonic())

    def _ended(self) -> list[tuple[Call, Ticket]]:
        """Takes the calls that have ended."""
        ended: list[tuple[Call, Ticket]] = []
        waiting: list[tuple[Call, Ticket]] = []
        for call, ticket in self._waiting:
            over = ticket.settled if call.settled else ticket.done
            (ended if over else waiting).append((call, ticket))
        self._waiting = waiting
        return ended

    def _send_all(self) -> None:
        now = time.monotonic()
        for server, message in self.client.take_outgoing():
            channel = self._channels.get(server)
            if channel is not None and self._sent_local(server, channel, message, now):
                continue
            entry = (-getattr(message, "priority", 0), next(self._order), message)
            heapq.heappush(self._outgoing.setdefault(server, []), entry)
        if threading.current_thread() is self._thread:
            self._send_remote(now)

    def _sent_local(
        self, server: str, channel: local.Channel, message: Message, now: float
    ) -> bool:
        """Sends by a channel; False when it has to go over ZeroMQ."""
        copies = self._mangler.put((server, message), now, bytes_of=as_frames)
        for sent, _ in enumerate(copies):
            if not channel.send([message]):
                return bool(sent)
        return True

    def _send_remote(self, now: float) -> None:
        while self._moved:
            old = self._sockets.pop(self._moved.pop(), None)
            if old is not None:
                old.close()
                self._poller = None
        for server, waiting in self._outgoing.items():
            flying = self._flying.setdefault(server, {})
            for number in [n for n in flying if not self.client.is_open(n)]:
                del flying[number]  # failed, or confirmed without a word of its arrival
            while (
                waiting
                and sum(flying.values()) < WINDOW_BYTES
                and self._mangler.busy_until(now) is None
            ):
                self._send_next(server, waiting, now)
        for to, copy in self._mangler.due(now):
            self._send(to, copy)

    def _send_next(self, server: str, waiting: list[tuple[int, int, Message]], now: float) -> None:
        message = heapq.heappop(waiting)[2]
        frames = parcels.pack([message])
        size = sum(len(f) for f in frames)
        if isinstance(message, Push):
            self._flying[server][message.number] = size
        for to, copy in self._mangler.put((server, frames), now):
            for _, sent in self._mangler.take_time((to, copy), size, now):
                self._send(to, sent)

    def _send(self, server: str, frames: list[Any]) -> None:
        if server not in self._sockets:
            socket = self._context.socket(self._zmq.DEALER)
            socket.setsockopt(self._zmq.LINGER, 0)
            socket.setsockopt_string(self._zmq.IDENTITY, self.client.name)
            present(socket, self._token)
            socket.connect(self._addresses[server])
            self._sockets[server] = socket
            self._poller = None
        self.sent_bytes += sum(len(f) for f in frames)
        # A full queue loses the message; it is repeated like any other that got lost. Copied: to
        # send a buffer as it is, pyzmq needs a thread of its own, which it can't start at exit.
        with contextlib.suppress(self._zmq.Again):
            self._sockets[server].send_multipart(frames, self._zmq.DONTWAIT, copy=True)


def _detoured(failed: Any, call: Call) -> None:
    """An exchange has ended by messages."""
    assert call.ticket is not None
    failed.payload.ended(call.ticket, failed)


def _finish(ended: list[tuple[Call, Ticket]]) -> None:
    """Tells the callers, without any lock held."""
    for call, ticket in ended:
        call.finish(ticket)
