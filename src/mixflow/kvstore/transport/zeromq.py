"""ZeroMQ between processes: a server's loop, and a worker's link to its servers.

The hazard: a socket belongs to one thread, and a peer may be gone for good without a word. So each
side has one thread that owns its sockets and its pure logic (`Shard` or `Client`); callers reach it
through a queue and wait on events with deadlines. Requests are repeated by `Client`, so that a
connection may break, and a server come back at another address, at any time.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import FormatError, MixflowError
from ...extras import load
from .. import wire
from ..client import Client, Ticket
from ..messages import Fetch, Message, Push, Received, Replicate
from .faults import Faults, Mangler
from .peers import Peers

#: Bytes of pushes on their way to a server before the next waits for its turn by priority.
WINDOW_BYTES = 8 << 20
IDLE_SECONDS = 0.5
SILENT_SECONDS = 1.0


def _milliseconds(times: list[float | None], now: float) -> int:
    """Time to poll: until the first of some times, at most `IDLE_SECONDS`."""
    known = [t - now for t in times if t is not None]
    return max(0, min(int(min([*known, IDLE_SECONDS]) * 1000) + 1, int(IDLE_SECONDS * 1000)))


class Server:
    """Serves a shard on a socket. `run` blocks until `stop`, which any thread may call.

    Args:
        shard: the shard's logic (a `Shard` or a `ReplicatedShard`).
        address: where to bind; 'tcp://host:*' takes a free port (see `address`).
        faults: faults on the messages that are sent.
    """

    def __init__(self, shard: Any, address: str, faults: Faults | None = None) -> None:
        self.shard = shard
        self.sent_bytes = self.received_bytes = 0
        self._zmq = load("zmq", "kvstore")
        self._context = self._zmq.Context()
        self._socket = self._context.socket(self._zmq.ROUTER)
        self._socket.setsockopt(self._zmq.LINGER, 0)
        # A worker that was restarted comes with its old name over a new connection.
        self._socket.setsockopt(self._zmq.ROUTER_HANDOVER, 1)
        self._socket.bind(address)
        self.address: str = self._socket.getsockopt_string(self._zmq.LAST_ENDPOINT)
        self._mangler = Mangler(faults or Faults())
        self._stopped = threading.Event()
        #: Other servers, for what this one sends of itself.
        self.peers = Peers(self._zmq, self._context, shard.name)

    def run(self) -> None:
        """Serves until `stop`. Closes its sockets at the end."""
        try:
            while not self._stopped.is_set():
                poller = self._zmq.Poller()
                for socket in (self._socket, *self.peers.sockets()):
                    poller.register(socket, self._zmq.POLLIN)
                times = [self.shard.next_deadline(), self._mangler.next_time]
                for socket, _ in poller.poll(_milliseconds(times, time.monotonic())):
                    self._receive(socket, 1 if socket is self._socket else 0)
                now = time.monotonic()
                self._send_all(self.shard.tick(now), now)
                for late in self._mangler.due(now):
                    self._send(*late)
        finally:
            self._socket.close()
            self.peers.close()
            self._context.term()

    def stop(self) -> None:
        """Ends `run` within `IDLE_SECONDS`."""
        self._stopped.set()

    def _receive(self, socket: Any, skip: int) -> None:
        """Takes what has come; `skip` frames in front name the sender."""
        with contextlib.suppress(self._zmq.Again):
            while True:
                found = socket.recv_multipart(self._zmq.DONTWAIT, copy=False)
                frames = [frame.buffer for frame in found[skip:]]
                self.received_bytes += sum(len(f) for f in frames)
                # What can't be read can't be answered: whoever sent it will time out.
                with contextlib.suppress(FormatError):
                    message = wire.decode(frames)
                    now = time.monotonic()
                    self._send_all(self.shard.handle(message, now), now)

    def _send_all(self, outgoing: list[tuple[str, Message]], now: float) -> None:
        for to, message in outgoing:
            frames = wire.encode(message)
            if self._mangler.faults.delay:
                frames = [bytes(frame) for frame in frames]
            to_peer = isinstance(message, (Replicate, Fetch))
            for copy in self._mangler.put((to, frames, to_peer), now):
                self._send(*copy)

    def _send(self, to: str, frames: list[Any], to_peer: bool) -> None:
        self.sent_bytes += sum(len(f) for f in frames)
        if to_peer:
            self.peers.send(to, frames)
            return
        # Copied by ZeroMQ: the arrays are the shard's own and change with its next message.
        self._socket.send_multipart([to.encode(), *frames], copy=True)


class Call:
    """A request on its way through a `Link`: wait for it, or be told."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.ticket: Ticket | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Call], None]] = []

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    def finish(self, ticket: Ticket) -> None:
        """Ends the call (by the link's thread)."""
        with self._lock:
            self.ticket = ticket
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def then(self, callback: Callable[[Call], None]) -> None:
        """Calls `callback` when the call has ended (at once if it has), on the link's thread."""
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
    """A worker's connection to its servers: one thread that owns sockets and `Client`.

    Args:
        client: the worker's logic.
        addresses: where each server is.
        faults: faults on the messages that are sent.
        find: asks where the servers are now; called on a thread of its own when one has been
            silent for `SILENT_SECONDS`.
    """

    def __init__(
        self,
        client: Client,
        addresses: Mapping[str, str],
        faults: Faults | None = None,
        find: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self.client = client
        self._find = find
        self._finding = threading.Lock()
        self._asked_at = 0.0
        self.sent_bytes = self.received_bytes = 0
        self._zmq = load("zmq", "kvstore")
        self._context = self._zmq.Context()
        self._addresses = dict(addresses)
        self._sockets: dict[str, Any] = {}
        self._mangler = Mangler(faults or Faults())
        self._queue: list[tuple[Call, Callable[[Client, float], Ticket]]] = []
        self._lock = threading.Lock()
        self._waiting: list[tuple[Call, Ticket]] = []
        self._outgoing: dict[str, list[tuple[int, int, Message]]] = {}
        self._flying: dict[str, dict[int, int]] = {}
        self._order = itertools.count()
        self._closed = False
        self._wake_in = self._context.socket(self._zmq.PAIR)
        self._wake_in.bind(f"inproc://wake{id(self)}")
        self._wake_out = self._context.socket(self._zmq.PAIR)
        self._wake_out.connect(f"inproc://wake{id(self)}")
        self._thread = threading.Thread(target=self._run, name="mixflow-kvstore", daemon=True)
        self._thread.start()

    def call(self, what: str, make: Callable[[Client, float], Ticket]) -> Call:
        """Runs ``make(client, now)`` on the link's thread; returns at once.

        Raises:
            MixflowError: the link is closed.
        """
        call = Call(what)
        with self._lock:
            if self._closed:
                raise MixflowError(f"[kvstore] expected an open store for '{what}', got a closed")
            self._queue.append((call, make))
            # The lock also keeps callers apart on the wake-up socket.
            self._wake_out.send(b"")
        return call

    def move(self, server: str, address: str) -> None:
        """A server is at another address now."""

        def change(client: Client, now: float) -> Ticket:
            self._addresses[server] = address
            old = self._sockets.pop(server, None)
            if old is not None:
                old.close()
            self._flying.pop(server, None)
            return Ticket()

        self.call(f"move {server}", change)

    def settle(self, deadline: float) -> None:
        """Waits until every request, unconfirmed pushes included, is over.

        Raises:
            MixflowError: some are not within `deadline` seconds.
        """
        end = time.monotonic() + deadline
        while self._queue or self.client.pending:
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
            self._wake_out.send(b"")
        self._thread.join(deadline)
        self._wake_out.close()
        if not self._thread.is_alive():
            self._context.term()

    def _run(self) -> None:
        try:
            while not self._closed:
                self._poll()
                self._take_calls()
                self.client.tick(time.monotonic())
                self._look_for_silent()
                self._send_all()
                self._finish_calls()
        finally:
            for call, _ in self._queue + self._waiting:
                call.finish(
                    Ticket(
                        error=f"[kvstore] expected an open store, got it closed in '{call.what}'"
                    )
                )
            for socket in self._sockets.values():
                socket.close()
            self._wake_in.close()

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

    def _poll(self) -> None:
        poller = self._zmq.Poller()
        poller.register(self._wake_in, self._zmq.POLLIN)
        for socket in self._sockets.values():
            poller.register(socket, self._zmq.POLLIN)
        times = [self.client.next_time(), self._mangler.next_time]
        ready = dict(poller.poll(_milliseconds(times, time.monotonic())))
        if self._wake_in in ready:
            with contextlib.suppress(self._zmq.Again):
                while True:
                    self._wake_in.recv(self._zmq.DONTWAIT)
        for server, socket in self._sockets.items():
            if socket in ready:
                self._receive(server, socket)

    def _receive(self, server: str, socket: Any) -> None:
        with contextlib.suppress(self._zmq.Again):
            while True:
                found = socket.recv_multipart(self._zmq.DONTWAIT, copy=False)
                frames = [frame.buffer for frame in found]
                self.received_bytes += sum(len(f) for f in frames)
                with contextlib.suppress(FormatError):
                    message = wire.decode(frames)
                    if isinstance(message, Received):
                        self._flying.get(server, {}).pop(message.number, None)
                    self.client.handle(message, time.monotonic())

    def _take_calls(self) -> None:
        with self._lock:
            calls, self._queue = self._queue, []
        for call, make in calls:
            try:
                ticket = make(self.client, time.monotonic())
            except MixflowError as error:
                ticket = Ticket(error=str(error))
            self._waiting.append((call, ticket))

    def _finish_calls(self) -> None:
        still = []
        for call, ticket in self._waiting:
            if ticket.done:
                call.finish(ticket)
            else:
                still.append((call, ticket))
        self._waiting = still

    def _send_all(self) -> None:
        for server, message in self.client.take_outgoing():
            entry = (-getattr(message, "priority", 0), next(self._order), message)
            heapq.heappush(self._outgoing.setdefault(server, []), entry)
        now = time.monotonic()
        for server, waiting in self._outgoing.items():
            flying = self._flying.setdefault(server, {})
            for number in [n for n in flying if not self.client.is_open(n)]:
                del flying[number]  # failed, or confirmed without a word of its arrival
            while waiting and sum(flying.values()) < WINDOW_BYTES:
                message = heapq.heappop(waiting)[2]
                frames = wire.encode(message)
                if isinstance(message, Push):
                    flying[message.number] = sum(len(f) for f in frames)
                for to, copy in self._mangler.put((server, frames), now):
                    self._send(to, copy)
        for to, copy in self._mangler.due(now):
            self._send(to, copy)

    def _send(self, server: str, frames: list[Any]) -> None:
        if server not in self._sockets:
            socket = self._context.socket(self._zmq.DEALER)
            socket.setsockopt(self._zmq.LINGER, 0)
            socket.setsockopt_string(self._zmq.IDENTITY, self.client.name)
            socket.connect(self._addresses[server])
            self._sockets[server] = socket
        self.sent_bytes += sum(len(f) for f in frames)
        # A full queue loses the message; it is repeated like any other that got lost. Copied: to
        # send a buffer as it is, pyzmq needs a thread of its own, which it can't start at exit.
        with contextlib.suppress(self._zmq.Again):
            self._sockets[server].send_multipart(frames, self._zmq.DONTWAIT, copy=True)
