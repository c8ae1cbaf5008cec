"""Where the processes of a job find each other: the part that MXNet's scheduler played.

Servers register their addresses (again after each restart) and workers ask for them. Small JSON
messages over ZeroMQ; every one carries a proof of the job's token, and what does not is dropped.
Tensors never pass here.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...errors import MixflowError
from ...extras import load
from ..server.plan import SnapshotPlan
from .doorkeeper import proof

POLL_MS = 100
#: A longer message is nobody's: its connection ends before there is room for it.
MOST_BYTES = 16 << 20


@dataclass
class Roll:
    """What is known of a job's processes, kept by the rendezvous' thread; the job's own thread
    reads it and sets `backups`, `gone`, `leaving` and `plan`.

    `servers` holds incarnation, address and storage; `synced` who has everything of a server;
    `backups` who shall (None: not chosen yet); `gone` the last incarnation of a server that has
    ended: nobody is sent to its address any more. `start` is what a worker needs to know of the
    job's start. `steps` holds what workers have last said, `shares` the parts of the data that
    newcomers have.
    """

    num_workers: int
    num_servers: int
    options: Mapping[str, Any]
    start: Mapping[str, Any] = field(default_factory=dict)
    plan: SnapshotPlan | None = None
    servers: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    backups: dict[str, str] | None = None
    synced: dict[str, tuple[str, str]] = field(default_factory=dict)
    lives: dict[int, int] = field(default_factory=dict)
    nonces: dict[int, str] = field(default_factory=dict)
    take_usage: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda _: {}
    hosts: dict[int, str] = field(default_factory=dict)
    leaving: set[int] = field(default_factory=set)
    gone: dict[str, int] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    shares: dict[int, int] = field(default_factory=dict)

    def share_of(self, rank: int) -> int:
        """Which of the `num_workers` parts of the data a worker has: those of the start have that
        of their rank."""
        return self.shares.get(rank, rank % self.num_workers)

    def deal(self, rank: int, others: Sequence[int]) -> None:
        """Gives a newcomer the part of the data that the fewest others have."""
        held = [self.share_of(other) for other in others]
        self.shares[rank] = min(range(self.num_workers), key=lambda share: held.count(share))

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request; a bad one gets an 'error'."""
        kinds: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "register": self._register,
            "hello": self._hello,
            "beat": self._beat,
            "servers": lambda _: self._servers(),
            "usage": self.take_usage,
        }
        what = str(request.get("what"))
        if what not in kinds:
            return {"error": f"[rendezvous] expected one of {sorted(kinds)}, got {what!r}"}
        try:
            return kinds[what](request)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            return {"error": f"[rendezvous] expected a whole '{what}', got {error!r}"}

    def _register(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name, life = str(request["name"]), int(request["incarnation"])
        if life < self.servers.get(name, (0,))[0]:
            # A process whose place was taken.
            return {"marks": [], "backup": None, "alone": False}
        if request["address"]:
            self.servers[name] = (life, str(request["address"]), str(request["storage"]))
        if request["synced"]:
            backup, storage = request["synced"]
            self.synced[name] = (str(backup), str(storage))
        marks = self._planned(name, int(request["version"]), request)
        backups = self.backups or {}
        backup_name = backups.get(name)
        known = self.servers.get(backup_name) if backup_name else None
        backup_at = [backup_name, known[1], known[2]] if known else None
        alone = self.backups is not None and backup_name is None
        return {**marks, "backup": backup_at, "alone": alone}

    def _planned(self, who: str, step: int, request: Mapping[str, Any]) -> dict[str, Any]:
        if self.plan is None:
            return {"marks": []}
        return self.plan.beat(
            who,
            step,
            time.monotonic(),
            saved=[int(n) for n in request["saved"]],
            late=[int(n) for n in request["late"]],
            states=bool(request.get("states")),
        )

    def _beat(self, request: Mapping[str, Any]) -> dict[str, Any]:
        rank, step = int(request["rank"]), int(request["step"])
        marks = self._planned(f"worker{rank}", step, request)
        self.steps[rank] = step
        return {**marks, "leave": rank in self.leaving}

    def addresses(self) -> dict[str, str]:
        """Where those servers are that have registered and live, by name in their order. Any
        thread."""
        known = dict(self.servers)
        there = [n for n, (life, *_) in known.items() if life > self.gone.get(n, -1)]
        return {n: known[n][1] for n in sorted(there, key=lambda name: (len(name), name))}

    def _servers(self) -> dict[str, Any]:
        found = self.addresses()
        missing = [n for n in map("server{}".format, range(self.num_servers)) if n not in found]
        return {"servers": None if missing else found, "missing": missing}

    def _hello(self, request: Mapping[str, Any]) -> dict[str, Any]:
        rank, nonce = int(request["rank"]), str(request["nonce"])
        asked, agreed = str(request["consistency"]), self.options["policy"][0]
        if asked != agreed:
            return {
                "error": f"[kvstore] expected a store of this job's consistency '{agreed}', got "
                f"'{asked}'; start it with 'mixflow launch --consistency {asked}'"
            }
        known = self.nonces.get(rank)
        if known != nonce:  # a new life of this worker, not a repeated request
            self.nonces[rank] = nonce
            self.lives[rank] = self.lives.get(rank, -1) + 1
        self.hosts[rank] = host = str(request.get("host", ""))
        return {
            **self._servers(),
            "neighbours": sum(h == host for r, h in self.hosts.items() if r != rank),
            "complete": len(self.hosts) >= self.num_workers,
            "life": self.lives[rank],
            "share": self.share_of(rank),
            "num_workers": self.num_workers,
            "options": dict(self.options),
            "start": dict(self.start),
        }


class Answers(Protocol):
    """Whoever answers the requests that come to an address."""

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request; a bad one gets an 'error'. Never blocks."""


class Rendezvous:
    """Serves a `Roll` (or a control endpoint) on a thread until `close`.

    Args:
        roll: the job.
        address: where to bind; a '*' takes a free port.
        token: of the job; every message must carry the proof that its sender has it.
    """

    def __init__(self, roll: Answers, address: str = "tcp://127.0.0.1:*", token: str = "") -> None:
        zmq = load("zmq", "kvstore")
        self.roll = roll
        self.token = token or secrets.token_hex(16)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        self._socket.bind(address)
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mixflow-rendezvous", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        expected = proof(self.token).encode()
        try:
            while not self._stopped.is_set():
                if not self._socket.poll(POLL_MS):
                    continue
                frames = self._socket.recv_multipart()
                # Anybody may send anything here: it must not end the thread.
                with contextlib.suppress(ValueError, AttributeError, RecursionError):
                    request = json.loads(frames[-1])
                    if secrets.compare_digest(str(request.get("proof")).encode(), expected):
                        answer = self._answer(request) | {"number": request.get("number")}
                        self._socket.send_multipart([*frames[:-1], json.dumps(answer).encode()])
        finally:
            self._socket.close()  # else the context would wait for it

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self.roll.answer(request)
        except Exception as error:  # of ours; whoever asks must not wait for it
            what = str(request.get("what"))
            return {"error": f"[rendezvous] expected an answer to {what!r:.80}, got {error!r}"}

    def close(self) -> None:
        """Ends the thread. Safe to call twice."""
        self._stopped.set()
        self._thread.join(5)
        if not self._thread.is_alive():
            self._context.term()


class Enquirer:
    """Asks a rendezvous. Not thread-safe.

    Args:
        address, token: the rendezvous.
        name: who asks.
        alive: whether somebody may still answer; asked after each second without a word.

    Raises:
        MixflowError: by `ask`, an address that is none.
    """

    def __init__(
        self, address: str, token: str, name: str, alive: Callable[[], bool] = lambda: True
    ) -> None:
        self._zmq = load("zmq", "kvstore")
        self._context = self._zmq.Context()
        self._address, self._token, self._name = address, token, name
        self._alive = alive
        self._number = 0
        self._socket: Any = None

    def ask(self, what: str, deadline: float, **fields: Any) -> dict[str, Any]:
        """One request, repeated every second.

        Raises:
            MixflowError: refused, or no answer within `deadline` seconds.
        """
        self._number += 1
        request = {
            "what": what,
            "proof": proof(self._token),
            "name": self._name,
            "number": self._number,
            **fields,
        }
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            answer = self._try(request, min(1.0, max(0.0, end - time.monotonic())))
            if answer is not None:
                if "error" in answer:
                    raise MixflowError(str(answer["error"]))
                return answer
            if not self._alive():
                break
        raise MixflowError(
            f"[kvstore] expected the job's rendezvous at {self._address} to answer '{what}' within "
            f"{deadline:g} s, got nothing; is the launcher alive?"
        )

    def _try(self, request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        if self._socket is None:
            self._socket = self._connected()
        self._socket.send(json.dumps(request).encode())
        end = time.monotonic() + seconds
        while self._socket.poll(max(0, int((end - time.monotonic()) * 1000))):
            with contextlib.suppress(ValueError, AttributeError):
                answer: dict[str, Any] = json.loads(self._socket.recv())
                if answer.get("number") == request["number"]:
                    return answer
        return None

    def _connected(self) -> Any:
        socket = self._context.socket(self._zmq.DEALER)
        socket.setsockopt(self._zmq.LINGER, 0)
        try:
            socket.connect(self._address)
        except self._zmq.ZMQError as error:
            socket.close()
            raise MixflowError(
                f"[kvstore] expected the address of a job's rendezvous, got {self._address} "
                f"({error})"
            ) from None
        return socket

    def wait_for_servers(self, what: str, deadline: float, **fields: Any) -> dict[str, Any]:
        """Asks until all servers have registered.

        Raises:
            MixflowError: they have not within `deadline` seconds.
        """
        end = time.monotonic() + deadline
        while True:
            answer = self.ask(what, max(0.1, end - time.monotonic()), **fields)
            if answer.get("servers") is not None:
                return answer
            if time.monotonic() > end:
                raise MixflowError(
                    f"[kvstore] expected all servers to start within {deadline:g} s, got nothing "
                    f"of {', '.join(answer['missing'])}"
                )
            time.sleep(0.05)

    def close(self) -> None:
        """Closes the socket. Safe to call twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._context.term()
