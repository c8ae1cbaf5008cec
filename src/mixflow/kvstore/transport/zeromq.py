"""A server's loop: ZeroMQ, and `local` channels on one host. `link` is the workers' side.

The hazard: sockets belong to one thread, and peers may be gone for good without a word. So one
thread owns all sockets and the logic that is served; a peer that has gone costs nothing but what
was sent to it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from ...errors import FormatError
from ...extras import load
from ..protocol.merging import Arena
from ..protocol.messages import Applied, Fetch, Message, Received, Replicate
from ..server.lanes import Desk
from . import boards, local, parcels
from .doorkeeper import Doorkeeper
from .faults import Faults, Mangler
from .link import Call, Link, as_frames, milliseconds
from .peers import Peers
from .segments import Blocks, SharedArena

__all__ = ["Call", "Link", "Logic", "Server"]

#: How long the word that a push has arrived may wait for another message to the same peer; from
#: another host, that of a push of so many bytes does not: its sender's window may be full.
HOLD_SECONDS = 0.02
HOLD_BYTES = 256 << 10


class Logic(Protocol):
    """What a server serves: a shard, or a host's merger."""

    def handle(self, message: Message, now: float) -> list[tuple[str, Message]]:
        """Serves one message and returns what to send."""

    def tick(self, now: float) -> list[tuple[str, Message]]:
        """Does what is due and returns what to send."""

    name: str
    #: Set by the server: it calls `finish`.
    deferring: bool

    def finish(self) -> list[tuple[str, Message]]:
        """Does what could wait until the rest was sent; returns what to send."""

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""

    def move_values(self, arena: Arena) -> None:
        """Keeps values in another arena from now on."""

    def lost(self, name: str, now: float) -> None:
        """The connection of a peer of this host has ended."""

    def use_desk(self, desk: Desk) -> None:
        """Boards may be opened from now on (see `lanes`)."""

    def serve_boards(
        self, ready: Sequence[tuple[int, int]], now: float
    ) -> list[tuple[str, Message]]:
        """Takes what boards have come to; returns what to send. Called before `handle`."""


class Server:
    """Serves a shard on a socket. `run` blocks until `stop`, which any thread may call.

    Workers of the same host come by a local channel and send over ZeroMQ only what a channel can't
    carry; what is sent to them goes the same ways.

    Args:
        shard: the shard's logic (a `Shard` or a `ReplicatedShard`).
        address: where to bind; 'tcp://host:*' takes a free port (see `address`).
        faults: faults on the messages that are sent.
        host: name of this host; peers of another name are not taken for local ones.
        after: called at the end of each round of the loop.
        token: of the job; peers from elsewhere must show it. '': nobody is asked.
    """

    def __init__(
        self,
        shard: Logic,
        address: str,
        faults: Faults | None = None,
        host: str = "",
        after: Callable[[], None] = lambda: None,
        token: str = "",
    ) -> None:
        self.shard = shard
        shard.deferring = True
        self._after = after
        self.sent_bytes = self.received_bytes = 0
        self._zmq = load("zmq", "kvstore")
        self._context = self._zmq.Context()
        self._socket = self._context.socket(self._zmq.ROUTER)
        self._socket.setsockopt(self._zmq.LINGER, 0)
        # A worker that was restarted comes with its old name over a new connection.
        self._socket.setsockopt(self._zmq.ROUTER_HANDOVER, 1)
        self._doorkeeper = Doorkeeper(self._zmq, self._context, token)
        self._doorkeeper.guard(self._socket)
        self._socket.bind(address)
        self.address: str = self._socket.getsockopt_string(self._zmq.LAST_ENDPOINT)
        self._blocks = Blocks()
        self._listener = local.listen(self.address, host)
        self._peers: dict[int, local.Channel] = {}
        self._channels: dict[str, local.Channel] = {}
        self._held: dict[local.Channel, list[Message]] = {}
        self._held_far: dict[tuple[str, bool], list[Message]] = {}
        self._held_until: float | None = None
        self._mangler = Mangler(faults or Faults())
        self._stopped = threading.Event()
        self._posted: list[Callable[[float], list[tuple[str, Message]]]] = []
        self._lock = threading.Lock()
        self._wake_out, self._wake_in = os.pipe()
        for descriptor in (self._wake_out, self._wake_in):
            os.set_blocking(descriptor, False)
        #: Other servers, for what this one sends of itself.
        self.others = Peers(self._zmq, self._context, shard.name, token)
        self._polled: list[Any] = []
        if self._listener is not None:
            shard.move_values(SharedArena(self._blocks))
        self._boards: boards.ServerBoards | None = None
        if self._listener is not None and boards.available() and self._mangler.faults == Faults():
            self._boards = boards.ServerBoards(
                shard.name, self._blocks, lambda sender: self._channels.get(sender)
            )
            shard.use_desk(self._boards)

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """Bytes sent and received in all, those between processes of this host included."""
        boards = self._boards.nbytes if self._boards else 0
        channels = list(self._peers.values())
        return local.moved(channels, self.sent_bytes + boards, self.received_bytes + boards)

    def run(self) -> None:
        """Serves until `stop`. Closes its sockets at the end."""
        self._poller = self._zmq.Poller()
        self._poller.register(self._socket, self._zmq.POLLIN)
        self._poller.register(self._wake_out, self._zmq.POLLIN)
        if self._listener is not None:
            self._poller.register(self._listener, self._zmq.POLLIN)
        try:
            while not self._stopped.is_set():
                self._round()
        finally:
            for channel in self._peers.values():
                channel.close()
            if self._listener is not None:
                self._listener.close()
            self._socket.close()
            self.others.close()
            self._doorkeeper.close()
            self._context.term()
            os.close(self._wake_in)
            os.close(self._wake_out)

    def _round(self) -> None:
        times = [self.shard.next_deadline(), self._mangler.next_time, self._held_until]
        self._poll_others()
        for ready, _ in self._poll(milliseconds(times, time.monotonic())):
            if ready is self._socket:
                self._receive(ready, 1)
            elif ready in self._polled:
                self._receive(ready, 0)
            elif ready in self._peers:
                self._receive_local(self._peers[ready])
            elif ready == self._wake_out:
                os.read(self._wake_out, 4096)
            else:
                self._accept()
        now = time.monotonic()
        self._serve(self.shard.tick(now), now)
        self._do_posted(now)
        for late in self._mangler.due(now):
            self._send(*late)
        if self._held_until is not None and now >= self._held_until:
            self._flush(list(self._held))
            self._send_far(now, hold=False)
        for channel in [c for c in self._peers.values() if not c.open]:
            self._drop(channel)
        self._after()

    def _poll(self, wait: int) -> list[tuple[Any, int]]:
        """Waits for something to do; rounds on boards are served meanwhile."""
        if self._boards is None:
            return list(self._poller.poll(wait))
        found = list(self._poller.poll(0))
        # What is ready is asked for once more after the last message was sent and before the sleep:
        # ZeroMQ's descriptors tell of a change only.
        sockets = [self._socket, *self._polled]
        others = [s.getsockopt(self._zmq.FD) for s in sockets]
        others += [self._wake_out, self._listener.fileno()] if self._listener else []
        ready = self._boards.serve(others, list(self._peers), 0 if found else wait)
        now = time.monotonic()
        self._serve(self.shard.serve_boards(ready, now), now)
        return found

    def post(self, action: Callable[[float], list[tuple[str, Message]]]) -> None:
        """Runs ``action(now)`` on the server's thread and sends what it gives (thread-safe)."""
        with self._lock:
            self._posted.append(action)
        with contextlib.suppress(OSError):
            os.write(self._wake_in, b"x")

    def _do_posted(self, now: float) -> None:
        with self._lock:
            posted, self._posted = self._posted, []
        for action in posted:
            self._send_all(action(now), now)

    @property
    def peers(self) -> int:
        """Connections from this host."""
        return len(self._peers)

    def stop(self) -> None:
        """Ends `run` within `IDLE_SECONDS`."""
        self._stopped.set()

    def _poll_others(self) -> None:
        """Sockets to other servers come and go."""
        sockets = self.others.sockets()
        if sockets != self._polled:
            for socket in self._polled:
                self._poller.unregister(socket)
            for socket in sockets:
                self._poller.register(socket, self._zmq.POLLIN)
            self._polled = sockets

    def _accept(self) -> None:
        assert self._listener is not None
        channel = local.accept(self._listener, self._blocks)
        if channel is not None:
            self._peers[channel.number] = channel
            self._poller.register(channel.number, self._zmq.POLLIN)

    def _receive(self, socket: Any, skip: int) -> None:
        """Takes what has come; `skip` frames in front name the sender."""
        with contextlib.suppress(self._zmq.Again):
            while True:
                found = socket.recv_multipart(self._zmq.DONTWAIT, copy=False)
                frames = [frame.buffer for frame in found[skip:]]
                size = sum(len(f) for f in frames)
                self.received_bytes += size
                # What can't be read can't be answered: whoever sent it will time out.
                with contextlib.suppress(FormatError):
                    for message in parcels.unpack(frames):
                        now = time.monotonic()
                        self._serve(self.shard.handle(message, now), now, size < HOLD_BYTES)

    def _receive_local(self, channel: local.Channel) -> None:
        while (messages := channel.receive()) is not None:
            for message in messages:
                self._channels[message.sender] = channel
                now = time.monotonic()
                self._serve(self.shard.handle(message, now), now)

    def _drop(self, channel: local.Channel) -> None:
        self._poller.unregister(channel.number)
        del self._peers[channel.number]
        channel.close()
        self._held.pop(channel, None)
        for name in [n for n, c in self._channels.items() if c is channel]:
            self.shard.lost(name, time.monotonic())
        self._channels = {n: c for n, c in self._channels.items() if c is not channel}

    def _serve(self, outgoing: list[tuple[str, Message]], now: float, hold: bool = True) -> None:
        self._send_all(outgoing, now, hold)
        self._send_all(self.shard.finish(), now, hold)

    def _send_all(self, outgoing: list[tuple[str, Message]], now: float, hold: bool = True) -> None:
        """Sends messages; those for one peer as one datagram or parcel. `Received` alone is no
        reason to wake it: with `hold` it goes with the next one, or after `HOLD_SECONDS`."""
        for to, message in outgoing:
            channel = self._channels.get(to)
            if channel is not None:
                copies = self._mangler.put((to, message), now, bytes_of=as_frames)
                self._held.setdefault(channel, []).extend(message for _ in copies)
                continue
            to_peer = isinstance(message, (Replicate, Fetch))
            self._held_far.setdefault((to, to_peer), []).append(message)
        self._send_far(now, hold)
        if self._held or self._held_far:
            if self._held_until is None:
                self._held_until = now + HOLD_SECONDS
            self._flush(c for c, found in self._held.items() if not _only_received(found))

    def _send_far(self, now: float, hold: bool) -> None:
        """Sends what waits for peers of other hosts but, with `hold`, `Received` alone. Arrays are
        taken at once: they change with the shard's next message."""
        slow = self._mangler.faults.delay or self._mangler.faults.rate
        for (to, to_peer), messages in list(self._held_far.items()):
            if hold and _only_received(messages):
                continue
            del self._held_far[to, to_peer]
            parts = parcels.pack(_news(messages))
            if slow:
                parts = [bytes(part) for part in parts]
            size = sum(len(part) for part in parts)
            for copy in self._mangler.put((to, parts, to_peer), now):
                for sent in self._mangler.take_time(copy, size, now):
                    self._send(*sent)

    def _flush(self, channels: Iterable[local.Channel]) -> None:
        for channel in list(channels):
            messages = self._held.pop(channel)
            if not channel.send(messages):
                for message in messages:
                    self._send_by_name(channel, message)
        if not (self._held or self._held_far):
            self._held_until = None

    def _send_by_name(self, channel: local.Channel, message: Message) -> None:
        """Sends over ZeroMQ what a channel could not take."""
        if channel.open and channel.send([message]):
            return
        for name in [n for n, c in self._channels.items() if c is channel]:
            self._send(name, parcels.pack([message]))

    def _send(self, to: str, frames: list[Any], to_peer: bool = False) -> None:
        self.sent_bytes += sum(len(f) for f in frames)
        if to_peer:
            self.others.send(to, frames)
            return
        # Copied by ZeroMQ: the arrays are the shard's own and change with its next message.
        self._socket.send_multipart([to.encode(), *frames], copy=True)


def _only_received(messages: list[Message]) -> bool:
    return all(isinstance(message, Received) for message in messages)


def _news(messages: list[Message]) -> list[Message]:
    """Messages but for the word that a push has arrived, where another says more."""
    applied = {message.number for message in messages if isinstance(message, Applied)}
    return [m for m in messages if not (isinstance(m, Received) and m.number in applied)]
