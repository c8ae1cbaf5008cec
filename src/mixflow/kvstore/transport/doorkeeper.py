"""Who may connect to a server: processes that know the job's token.

The hazard: a server's port is open to whoever reaches its host, and one message of a stranger that
joins the job holds up all rounds. So ZeroMQ asks for a proof of the token when a connection is
made (its mechanism PLAIN, RFC 27: once per connection, nothing per message), and hands no byte of
another peer on. The proof travels as it is: it keeps strangers out, not those who listen on the
wire; they never see the token itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from typing import Any

#: Where ZeroMQ asks, inside of a context (RFC 27).
_PLACE = "inproc://zeromq.zap.01"
_NAME = b"mixflow"
_POLL_MS = 100


def proof(token: str) -> str:
    """What shows that somebody has a job's token. Networks see this and never the token, with
    which code is sealed (`program`)."""
    return hashlib.sha256(b"mixflow job " + token.encode()).hexdigest()


def present(socket: Any, token: str) -> None:
    """Lets a socket prove a token to what it will connect to; '' proves none."""
    if token:
        socket.plain_username = _NAME
        socket.plain_password = proof(token).encode()


class Doorkeeper:
    """Answers ZeroMQ's questions about who has come, on a thread until `close`.

    Args:
        zmq, context: the library, and a context whose bound sockets have one token.
        token: what a peer must show; '': nobody is asked.
    """

    def __init__(self, zmq: Any, context: Any, token: str) -> None:
        self._zmq, self._proof = zmq, proof(token).encode()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        if not token:
            return
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_PLACE)
        self._thread = threading.Thread(target=self._run, name="mixflow-doorkeeper", daemon=True)
        self._thread.start()

    def guard(self, socket: Any) -> None:
        """Lets a socket that is not bound yet ask for the token."""
        if self._thread is not None:
            socket.plain_server = True

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                if self._socket.poll(_POLL_MS):
                    self._socket.send_multipart(self._answer(self._socket.recv_multipart()))
        finally:
            self._socket.close()

    def _answer(self, question: list[bytes]) -> list[bytes]:
        """ZeroMQ asks: version, number, domain, address, identity, mechanism, name, password."""
        version, number, *_, mechanism = question[:6]
        shown = question[7] if mechanism == b"PLAIN" and len(question) == 8 else b""
        good = secrets.compare_digest(shown, self._proof)
        status = [b"200", b"OK"] if good else [b"400", b"expected a proof of the job's token"]
        return [version, number, *status, b"", b""]

    def close(self) -> None:
        """Ends the thread. Safe to call twice."""
        self._stopped.set()
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # its own thread
                self._thread.join(5)
