"""A worker's side of the protocol: numbers requests, repeats them until they are answered.

The hazard: an answer that never comes says nothing of whether the request was carried out. So a
push keeps its gradients until `Applied` has confirmed them and is repeated as it was, with the
same parts, which servers count once; a server that restarted (its incarnation changed) gets again
all that it had not confirmed; and past the deadline the request ends with an error that names the
server.

Pure logic, like `server/shard.py`: `push`, `pull`, `handle` and `tick` return nothing and leave
what is to be sent in `take_outgoing`. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import MixflowError
from .messages import (
    SLOW_LINK,
    Applied,
    Array,
    Ask,
    Configure,
    Deposit,
    Done,
    Enter,
    Failed,
    FetchStates,
    Gradient,
    Init,
    Join,
    Kept,
    Leave,
    Lend,
    Message,
    Place,
    Placed,
    Pull,
    Push,
    PutStates,
    Query,
    Received,
    Refused,
    Report,
    States,
    Unknown,
    Values,
    join_name,
)
from .policy import Part, Policy

#: Repeat times after which a small question is asked again.
ASK_AFTER = 4
#: Changes of membership (see `Join`) that one life of a worker may number: it joins, joins again at
#: a later step, leaves; the last one is for whoever takes it out.
EPOCHS = 4


def _bytes(message: Message) -> int:
    if isinstance(message, Push):
        return sum(g.values.nbytes for g in message.gradients.values())
    arrays = message.values.values() if isinstance(message, (Init, PutStates, Deposit)) else ()
    return sum(array.nbytes for array in arrays)


@dataclass(slots=True)
class Ticket:
    """A request of the caller: done when every server has answered its part of it."""

    open: set[int] = field(default_factory=set)
    values: dict[str, Array] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    unconfirmed: set[int] = field(default_factory=set)
    refused: dict[str, tuple[Part, ...]] = field(default_factory=dict)
    recalled: bool = False
    error: str = ""
    missing: tuple[int, ...] = ()

    @property
    def done(self) -> bool:
        """Whether nothing is outstanding, or an error has ended it."""
        return bool(self.error) or not self.open

    @property
    def settled(self) -> bool:
        """Whether it is done and its pushes are confirmed or refused."""
        return bool(self.error) or not (self.open or self.unconfirmed)

    def raise_error(self) -> None:
        """Raises the error that ended the request, if one did.

        Raises:
            MixflowError: what the server or the deadline said.
        """
        if self.error:
            raise MixflowError(self.error)


@dataclass(slots=True)
class Request:
    """A message under way: to whom, since when, what is still to come.

    `heard`: when its server has answered something last, or `began`.
    """

    server: str
    message: Message
    ticket: Ticket
    began: float
    repeat_at: float
    wanted: set[str] = field(default_factory=set)
    unapplied: set[str] = field(default_factory=set)
    received: bool = False
    tries: int = 0
    heard: float = 0.0

    @property
    def over(self) -> bool:
        """Whether nothing more is to come."""
        return not self.wanted and not self.unapplied


class Client:
    """One worker (or one host's merger) towards the servers.

    `where` gives the server of a slice. Times are in seconds of any monotonic clock.

    With `via` set to a merger's name, pushes and pulls go to it instead of to the servers.
    """

    def __init__(
        self,
        name: str,
        worker: int,
        where: Callable[[str], str],
        policy: Policy,
        *,
        repeat: float = 1.0,
        deadline: float = 120.0,
        first_number: int = 0,
    ) -> None:
        self.name = name
        self.worker = worker
        self.policy = policy
        self.repeat = repeat
        self.deadline = deadline
        self.via: str | None = None
        #: Whether this worker would go on by boards (see `lanes`), and what is called before slices
        #: are pushed by messages: a slice goes one way at a time.
        self.offers = False
        self.before_push: Callable[[Iterable[str]], None] = lambda slices: None
        self.last: dict[str, int] = {}
        self.versions: dict[str, int] = {}
        self._first = 0
        self._where = where
        self._number = first_number
        self._requests: dict[int, Request] = {}
        self._incarnations: dict[str, int] = {}
        self._outgoing: list[tuple[str, Message]] = []
        #: Failed pushes: a server of this host may still read their gradients where they lie.
        self.abandoned: list[Message] = []

    def take_outgoing(self) -> list[tuple[str, Message]]:
        """What is to be sent, once."""
        found, self._outgoing = self._outgoing, []
        return found

    @property
    def pending(self) -> int:
        """Requests that are not over, pushes that wait for confirmation included."""
        return len(self._requests)

    def is_open(self, number: int) -> bool:
        """Whether something is still to come for a request."""
        return number in self._requests

    def next_time(self) -> float | None:
        """When `tick` next has something to do, or None."""
        return min((r.repeat_at for r in self._requests.values()), default=None)

    def init(self, values: Mapping[str, Array], now: float) -> Ticket:
        """Sets first values of slices."""
        ticket = Ticket()
        for server, keys in self._by_server(values).items():
            message = Init(self.name, self._next(), {key: values[key] for key in keys})
            self._start(server, message, ticket, now, wanted={"done"})
        return ticket

    def push(
        self,
        gradients: Mapping[str, Array | Gradient],
        now: float,
        *,
        pull: bool = False,
        priority: int = 0,
    ) -> Ticket:
        """Sends the next step of slices; with `pull`, the ticket ends with the new values.

        Without it the ticket is done at once: confirmation is awaited by `settled`.
        """
        coded = {
            key: values if isinstance(values, Gradient) else Gradient((), values)
            for key, values in gradients.items()
        }
        return self.push_coded(coded, now, pull=pull, priority=priority)

    def push_coded(
        self,
        gradients: Mapping[str, Gradient],
        now: float,
        *,
        pull: bool = False,
        priority: int = 0,
    ) -> Ticket:
        """`push` of values that may be coded; their parts are set here."""
        self.before_push(gradients)
        for key, gradient in gradients.items():
            step = self.last[key] = self.next_step(key)
            gradient.parts = (Part(self.worker, step),)
        return self.push_parts(gradients, now, pull=pull, priority=priority)

    def next_step(self, key: str) -> int:
        """Step of the next push of a slice."""
        return self.policy.next_step(self.last.get(key, self._first - 1), self.versions.get(key, 0))

    def went_on(self, key: str, last: int, version: int) -> None:
        """Steps of a slice up to `last` were pushed another way, and a version was read."""
        self.last[key] = max(self.last.get(key, last), last)
        self.versions[key] = max(self.versions.get(key, 0), version)

    def push_parts(
        self,
        gradients: Mapping[str, Gradient],
        now: float,
        *,
        pull: bool = False,
        priority: int = 0,
    ) -> Ticket:
        """Sends gradients whose parts are given: what a host has merged."""
        ticket = Ticket()
        for server, keys in self._by_server(gradients, self.via).items():
            chosen = {key: gradients[key] for key in keys}
            homes = self._homes(keys)
            message = Push(self.name, self._next(), chosen, pull, priority, homes, self.offers)
            wanted = set(keys) if pull else set()
            self._start(server, message, ticket, now, wanted=wanted, unapplied=set(keys))
        return ticket

    def pull(
        self,
        slices: Iterable[str],
        now: float,
        *,
        priority: int = 0,
        rows: Mapping[str, Array] | None = None,
    ) -> Ticket:
        """Asks for slices at this worker's clocks; for `rows` of them, as `Pull` says, if given."""
        clocks = {key: self.last.get(key, self._first - 1) + 1 for key in slices}
        return self.pull_at(self.worker, clocks, now, priority=priority, rows=rows)

    def pull_at(
        self,
        worker: int,
        clocks: Mapping[str, int],
        now: float,
        *,
        priority: int = 0,
        rows: Mapping[str, Array] | None = None,
    ) -> Ticket:
        """Asks for slices, or rows of them, at given clocks of a worker."""
        ticket = Ticket()
        for server, keys in self._by_server(clocks, self.via).items():
            chosen = {key: clocks[key] for key in keys}
            asked = {key: rows[key] for key in keys if key in rows} if rows else {}
            number = self._next()
            message = Pull(self.name, number, worker, chosen, priority, self._homes(keys), asked)
            self._start(server, message, ticket, now, wanted=set(keys))
        return ticket

    def tell(
        self, servers: Iterable[str], make: Callable[[str, int], Message], now: float
    ) -> Ticket:
        """Sends one control message to each server; done when all have answered."""
        ticket = Ticket()
        for server in servers:
            self._start(server, make(self.name, self._next()), ticket, now, wanted={"done"})
        return ticket

    def configure(
        self, servers: Iterable[str], setting: str, value: dict[str, Any], now: float
    ) -> Ticket:
        """Changes a setting on every server."""
        return self.tell(servers, lambda me, n: Configure(me, n, setting, value), now)

    def join(self, servers: Iterable[str], first: int, epoch: int, now: float) -> Ticket:
        """Takes part from step `first` on."""
        return self.tell(servers, lambda me, n: Join(me, n, self.worker, first, epoch), now)

    def leave(self, servers: Iterable[str], epoch: int, now: float) -> Ticket:
        """Ends. Only once nothing is `pending`: a restarted server could not ask again."""
        return self.tell(servers, lambda me, n: Leave(me, n, self.worker, epoch), now)

    def enter(self, server: str, count: int, step: int, turn: int, now: float) -> Ticket:
        """Waits at a barrier (see `Enter`) for all live workers."""
        return self.tell([server], lambda me, n: Enter(me, n, self.worker, count, step, turn), now)

    def ask(self, servers: Iterable[str], now: float, brief: bool = False) -> Ticket:
        """Asks every server for its `Report`."""
        return self.tell(servers, lambda me, n: Ask(me, n, brief), now)

    def place(self, server: str, keys: Mapping[str, tuple[Any, ...]], now: float) -> Ticket:
        """Asks where keys live: by key, elements, dtype, bytes per element."""
        return self.tell([server], lambda me, n: Place(me, n, dict(keys)), now)

    def fetch_states(self, slices: Iterable[str], now: float) -> Ticket:
        """Asks for the optimizer's states of slices; the ticket's values have `join_name`s."""
        ticket = Ticket()
        for server, keys in self._by_server(slices).items():
            message = FetchStates(self.name, self._next(), tuple(keys))
            self._start(server, message, ticket, now, wanted={"states"})
        return ticket

    def put_states(self, states: Mapping[str, Mapping[str, Array]], now: float) -> Ticket:
        """Sets the optimizer's states: by slice, by name."""
        ticket = Ticket()
        for server, keys in self._by_server(states).items():
            values = {join_name(k, name): a for k in keys for name, a in states[k].items()}
            message = PutStates(self.name, self._next(), values)
            self._start(server, message, ticket, now, wanted={"done"})
        return ticket

    def lend(self, servers: Iterable[str], lease: str, now: float) -> Ticket:
        """Asks to hold the state."""
        return self.tell(servers, lambda me, n: Lend(me, n, self.worker, lease), now)

    def deposit(
        self,
        servers: Iterable[str],
        lease: str,
        step: int,
        states: Mapping[str, Mapping[str, Array]],
        now: float,
        last: bool = False,
    ) -> Ticket:
        """Gives every server its part of the state that this worker holds: by slice, the value
        under '' and the optimizer's states. After the `last` one its next push is that of `step`.
        """
        ticket = Ticket()
        grouped = self._by_server(states)
        for server in servers:
            keys = grouped.get(server, ())
            values = {join_name(k, name): a for k in keys for name, a in states[k].items()}
            message = Deposit(self.name, self._next(), self.worker, lease, step, last, values)
            self._start(server, message, ticket, now, wanted={"done"})
        if last:
            self.last.update(dict.fromkeys(states, step - 1))
        return ticket

    def next_steps(self, slices: Iterable[str]) -> set[int]:
        """Steps that the next pushes of slices belong to."""
        return {self.last.get(key, self._first - 1) + 1 for key in slices}

    def handle(self, message: Message, now: float) -> None:
        """Takes an answer. One that belongs to no open request (a copy) is dropped."""
        incarnation = getattr(message, "incarnation", None)
        if incarnation is not None:
            self._see(message.sender, incarnation, now)
        request = self._requests.get(message.number)
        if request is None or request.server != message.sender:
            return
        request.heard = now
        self._answer(request, message, now)
        if request.over:
            self._requests.pop(message.number, None)
        if not request.wanted:
            request.ticket.open.discard(message.number)
        if not request.unapplied:
            request.ticket.unconfirmed.discard(message.number)

    def tick(self, now: float) -> None:
        """Repeats what is overdue; ends with an error what is past the deadline."""
        for number, request in list(self._requests.items()):
            if now - request.began > self.deadline:
                text = (
                    f"[kvstore worker {self.worker}] expected an answer of server "
                    f"'{request.server}' within {self.deadline:g} s, got none"
                )
                self._fail(number, request, text, ())
            elif now >= request.repeat_at:
                self._send(request, now)

    def _by_server(self, slices: Iterable[str], via: str | None = None) -> dict[str, list[str]]:
        grouped: dict[str, list[str]] = {}
        for key in slices:
            grouped.setdefault(via or self._where(key), []).append(key)
        return grouped

    def _homes(self, keys: Iterable[str]) -> dict[str, str]:
        """What a merger has to know."""
        return {key: self._where(key) for key in keys} if self.via else {}

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _start(
        self,
        server: str,
        message: Message,
        ticket: Ticket,
        now: float,
        *,
        wanted: set[str],
        unapplied: set[str] | None = None,
    ) -> None:
        request = Request(server, message, ticket, now, now, wanted, unapplied or set(), heard=now)
        self._requests[message.number] = request
        if wanted:
            ticket.open.add(message.number)
        if unapplied:
            ticket.unconfirmed.add(message.number)
        self._send(request, now)

    def _send(self, request: Request, now: float) -> None:
        # Longer each time, and longer for what takes long to send: a slow link is no lost message.
        message = self._light(request)
        wait = self.repeat * min(2**request.tries, 16) + _bytes(message) / SLOW_LINK
        if message is not request.message or isinstance(message, Pull):
            # Costs next to nothing: whether its answer was lost is known soon.
            wait = min(wait, ASK_AFTER * self.repeat)
        request.repeat_at = now + wait
        request.tries += 1
        self._outgoing.append((request.server, message))

    @staticmethod
    def _light(request: Request) -> Message:
        """What to send: of a push that has arrived, only the question of what became of it."""
        push = request.message
        if not request.received or not isinstance(push, Push):
            return push
        left = request.unapplied | request.wanted
        parts = {key: g.parts for key, g in push.gradients.items() if key in left}
        return Query(push.sender, push.number, parts, push.pull)

    def _see(self, server: str, incarnation: int, now: float) -> None:
        """Notices a restarted server: it has forgotten every request that it had not finished."""
        known = self._incarnations.get(server)
        if known is not None and incarnation > known:
            for request in self._requests.values():
                if request.server == server:
                    request.received = False
                    request.began = request.heard = now
                    request.tries = 0
                    self._send(request, now)
        self._incarnations[server] = max(incarnation, known or 0)

    def _answer(self, request: Request, message: Message, now: float) -> None:
        if isinstance(message, Values):
            self._store(request, message)
        elif isinstance(message, (Received, Applied)):
            # Known to be there: only ask, in case the server or its answer is lost.
            request.received = True
            request.repeat_at = now + ASK_AFTER * self.repeat
            if isinstance(message, Applied):
                request.unapplied -= set(message.slices)
        elif isinstance(message, Unknown):
            if request.received:  # else it was sent again already
                request.received = False
                request.tries = 0
                self._send(request, now)
        elif isinstance(message, States):
            request.ticket.values.update(message.values)
            request.wanted.clear()
        elif isinstance(message, Placed):
            request.ticket.entries.update(message.entries)
            request.wanted.clear()
        elif isinstance(message, Report):
            request.ticket.reports[message.sender] = message
            request.wanted.clear()
        elif isinstance(message, Done):
            request.wanted.clear()
        elif isinstance(message, Kept):
            request.ticket.recalled = request.ticket.recalled or message.recalled
            request.wanted.clear()
        elif isinstance(message, Refused):
            self._split(request, message, now)
        elif isinstance(message, Failed):
            self._fail(message.number, request, message.text, message.missing)

    def _store(self, request: Request, message: Values) -> None:
        for key, values in message.values.items():
            if key in request.wanted:
                request.wanted.discard(key)
                request.ticket.values[key] = values
                request.ticket.versions[key] = message.versions[key]
                self.versions[key] = max(self.versions.get(key, 0), message.versions[key])

    def _split(self, request: Request, message: Refused, now: float) -> None:
        """A merged gradient can't be taken apart here: whoever merged it reads of it in the
        ticket. A worker's own pushes hold one part and are never refused."""
        for key, seen in message.seen.items():
            request.unapplied.discard(key)
            request.wanted.discard(key)
            request.ticket.refused[key] = seen

    def _fail(self, number: int, request: Request, text: str, missing: tuple[int, ...]) -> None:
        if request.unapplied:
            self.abandoned.append(request.message)
        self._requests.pop(number, None)
        request.wanted.clear()
        request.unapplied.clear()
        request.ticket.error = text
        request.ticket.missing = missing

    def newcomer(self, reports: Mapping[str, Report], *, rounds: bool) -> int:
        """Sets the step of a worker that joins a job under way, and returns it: the latest one that
        a slice has come to. Under rounds it only holds if the slices stand still there: join, and
        ask again."""
        states = [state for report in reports.values() for state in report.slices.values()]
        clocks = [int(clock) for state in states for _, clock in state["clocks"]]
        versions = [int(state["version"]) for state in states]
        self._first = max(versions if rounds else clocks, default=0)
        return self._first

    def has_joined(self, reports: Mapping[str, Report]) -> bool:
        """Whether every slice knows this worker."""
        states = [state for report in reports.values() for state in report.slices.values()]
        return all(self.worker in dict(state["clocks"]) for state in states)

    def repeat_soon(self, server: str, now: float) -> None:
        """A server is at another place: what it has not answered is said again at the next tick."""
        for request in self._requests.values():
            if request.server == server:
                request.repeat_at, request.tries = now, 0

    def silent(self, now: float, seconds: float) -> bool:
        """Whether some request has been without any answer for so long; of a push that has arrived
        it is asked now and then what became of it, and each time there is an answer."""
        longer = seconds + 2 * ASK_AFTER * self.repeat
        return any(
            now - r.heard > (longer if r.received else seconds) for r in self._requests.values()
        )

    def resume(self, reports: Mapping[str, Report], *, rounds: bool) -> int:
        """Sets this worker's step from what the servers have of it, and returns it.

        It is the earliest step that some slice has not taken; pushes of it that another slice has
        already are known there by their parts and change nothing.
        """
        steps: dict[str, int] = {}
        for report in reports.values():
            for key, state in report.slices.items():
                self.versions[key] = int(state["version"])
                clocks = {int(w): int(c) for w, c in state["clocks"]}
                steps[key] = self.versions[key] if rounds else clocks.get(self.worker, 0)
        first = min(steps.values(), default=0)
        self._first = first
        return first
