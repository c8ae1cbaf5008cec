"""A server's connections to other servers: for what it sends without being asked.

Answers go back the way the question came; only `Replicate` and `Fetch` take these connections.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from .doorkeeper import present


class Peers:
    """One socket per other server. `at` may be called from any thread, the rest belongs to the
    server's own.

    Args:
        zmq, context: the library and the server's context.
        name: of the server itself.
        token: of the job.
    """

    def __init__(self, zmq: Any, context: Any, name: str, token: str = "") -> None:
        self._zmq, self._context, self._name, self._token = zmq, context, name, token
        self._addresses: dict[str, str] = {}
        self._sockets: dict[str, tuple[str, Any]] = {}
        self._lock = threading.Lock()

    def at(self, server: str, address: str) -> None:
        """A server is at this address now."""
        with self._lock:
            self._addresses[server] = address

    def send(self, server: str, frames: list[Any]) -> None:
        """Sends, or loses: what is not answered is sent again."""
        socket = self._socket(server)
        if socket is None:
            return
        with contextlib.suppress(self._zmq.Again):
            socket.send_multipart(frames, self._zmq.DONTWAIT, copy=True)

    def _socket(self, server: str) -> Any:
        with self._lock:
            address = self._addresses.get(server)
        known = self._sockets.get(server)
        if known and known[0] == address:
            return known[1]
        if known:
            known[1].close()
            del self._sockets[server]
        if address is None:
            return None
        socket = self._context.socket(self._zmq.DEALER)
        socket.setsockopt(self._zmq.LINGER, 0)
        socket.setsockopt_string(self._zmq.IDENTITY, self._name)
        present(socket, self._token)
        socket.connect(address)
        self._sockets[server] = (address, socket)
        return socket

    def sockets(self) -> list[Any]:
        """Sockets on which answers may come."""
        return [socket for _, socket in self._sockets.values()]

    def close(self) -> None:
        """Closes them all."""
        for _, socket in self._sockets.values():
            socket.close()
        self._sockets.clear()
