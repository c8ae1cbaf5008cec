"""A worker's part in a job: its connection, when it takes part, and how it ends.

The hazard: a worker that dies must be missed, one that is done must not, and one that comes back
must go on where the servers are. So a worker joins and leaves by messages that are numbered over
its lives, an end by an error is no leave, and the steps that it has done are what the servers say.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from ...errors import MixflowError, MXNetError
from ...optimizer import Optimizer
from ..base import KVStore
from ..host.host_merger import NAME as MERGER
from ..host.host_merger import address_of, ensure
from ..options import StoreOptions, policy_of
from ..protocol.client import EPOCHS, Client, Ticket
from ..protocol.compression import Compression
from ..protocol.messages import Report
from ..protocol.policy import Backup, Sync
from ..protocol.program import RESTARTED, RESUMED
from ..protocol.tenures import Change, changes_of, total
from ..server.snapshot import Snapshot
from ..transport.local import host_id, is_there, name_of
from ..transport.rendezvous import Enquirer
from ..transport.segments import available
from ..transport.zeromq import Link
from ..utilisation import Sampler, start_sampler
from .pulse import Pulse, State

if TYPE_CHECKING:
    from .lease import Lease

#: Seconds that a job's servers may take to start, and that its workers are waited for to know who
#: shares a host.
START_SECONDS = 60.0
NEIGHBOUR_SECONDS = 3.0


class Member(KVStore):
    """What a store of several workers is but for its keys.

    Args:
        name: the name it was created with.
        rank, num_workers: this worker's number, and how many there are.
        addresses: where each server is, by name; the first is the directory.
        options: policy, deadlines, faults.
        life: how often this worker was started before in this job.
        find: asks where the servers are now; called when one has been silent for long.
        host: name of this host: servers of the same name are reached through shared memory.
        merger: makes sure that this host has a merger, and gives its address: pushes and pulls go
            through it. None: straight to the servers.
        resumed: whether the servers have started from a snapshot.
        token: of the job, for servers that ask for it.

    `first_step` tells how many steps this worker had done before it was started again, and
    `steps_to_skip` how many of them `Module.fit` has not let go by yet. `restored` is what this
    worker had saved in the snapshot that the job has started from (see `step_done`), or None.
    """

    restored: dict[str, Any] | None = None
    #: Of the job; '' outside of one.
    _secret = ""
    _part: int | None = None

    def __init__(
        self,
        name: str,
        rank: int,
        num_workers: int,
        addresses: Mapping[str, str],
        options: StoreOptions | None = None,
        life: int = 0,
        find: Callable[[], Mapping[str, str]] | None = None,
        host: str = "",
        merger: Callable[[], str] | None = None,
        resumed: bool = False,
        token: str = "",
    ) -> None:
        self.options = options or StoreOptions()
        self._name, self._rank, self._num_workers = name, rank, num_workers
        self._servers = list(addresses)
        self._keys: dict[Any, Any] = {}
        self._homes: dict[str, str] = {}
        self._compression: Compression | None = None
        self._optimizer: Optimizer | None = None
        self._sent_rate: float | None = None
        #: What this run of the program may repeat until its first push.
        self._again = RESTARTED if life else RESUMED if resumed else ""
        self._barriers = itertools.count(1)
        self._turns = (0, 0)  # the step after which it was at a barrier last, and how often then
        self._epoch = itertools.count(EPOCHS * life)
        client = Client(
            f"worker{rank}",
            rank,
            self._homes.__getitem__,
            self.options.policy,
            repeat=self.options.repeat,
            deadline=2 * self.options.deadline,
            # Numbers of an earlier life must not be taken for this one's.
            first_number=life << 32,
        )
        self._merger = merger
        if merger is not None:
            addresses = {**addresses, MERGER: merger()}
            client.via = MERGER
        options = self.options
        self._link = Link(
            client,
            addresses,
            options.faults,
            find,
            host,
            self._lost,
            by_boards=options.boards,
            token=token,
        )
        self._closed = False
        self._sampler: Sampler | None = None
        self._resumed = resumed
        self._pulse: Pulse | None = None
        self._lease: Lease | None = None
        self._known_changes: dict[str, Any] = {}
        self.first_step = self.steps_to_skip = self._take_part(client, life)

    def _take_part(self, client: Client, life: int) -> int:
        """Joins; a restarted worker goes on with the step that the servers lack."""
        expected = self._rank < self._num_workers
        if life == 0 and expected and not self._resumed:
            if client.via:  # the servers expect it from the start
                self._join([client.via], 0, next(self._epoch))
            return 0
        rounds = self.options.policy.rounds
        reports = self._reports()
        # A newcomer that died before all servers knew it is one still: it has pushed nothing. One
        # that was given up comes back as one: the others have gone on.
        known = all(self._rank in dict(report.members) for report in reports.values())
        if known and (expected or (life and client.has_joined(reports))):
            first = client.resume(reports, rounds=rounds)
            self._join(self._peers(), first, next(self._epoch))
            return self._after_rounds(client, first) if rounds else first
        first = client.newcomer(reports, rounds=rounds)
        self._join(self._servers, first, next(self._epoch))
        # Rounds may have been closed meanwhile; now that every server waits for this worker, none
        # is, and the latest that was reached is where it can begin at all of them.
        latest = client.newcomer(self._reports(), rounds=True) if rounds else first
        if latest > first:
            self._join(self._servers, latest, next(self._epoch))
        if client.via:
            self._join([client.via], latest, next(self._epoch))
        return latest

    def changes_before(self, step: int, first: int | None = None) -> list[Change]:
        """Changes of the job's members that take effect before a step, the same for all workers
        (see `tenures`); this worker's earlier steps are waited for.

        Args:
            step: of this worker, over all its lives.
            first: those from this step on; None: of `step` alone.

        Raises:
            MixflowError: the store is not synchronous: steps of workers are not ordered.
        """
        if not isinstance(self.options.policy, Sync):
            raise MixflowError(
                "[kvstore] expected a store of 'dist_sync' to follow its members, got "
                f"'{self._name}': its workers' steps have no common order"
            )
        if step > self.first_step:
            self._wait_for_pushes()
        brief = self._wait("members", lambda c, now: c.ask(self._servers, now, brief=True)).reports
        if first is None and total(brief) == self._known_changes:
            return []
        found = changes_of(self._reports(), max(step, self.first_step))
        if all(change.before <= step for change in found):
            self._known_changes = total(brief)
        lowest = step if first is None else first
        own = Change(self._rank, True, step)  # it begins a step before the others know it
        return [c for c in found if lowest <= c.before <= step or c == own]

    def _after_rounds(self, client: Client, first: int) -> int:
        """Where a worker goes on that joins again at step `first`: later, if it had been given up
        and rounds were closed without it until now; its pushes would be taken for seen."""
        if client.resume(self._reports(), rounds=True) <= first:
            return first
        latest = client.newcomer(self._reports(), rounds=True)
        self._join(self._peers(), latest, next(self._epoch))
        return latest

    def _reports(self) -> Mapping[str, Report]:
        return self._wait("resume", lambda c, now: c.ask(self._servers, now)).reports

    def _join(self, peers: list[str], first: int, epoch: int) -> None:
        self._wait("join", lambda c, now: c.join(peers, first, epoch, now))

    def _peers(self) -> list[str]:
        """All that must know whether this worker takes part."""
        return [*self._servers, *([MERGER] if self._merger else [])]

    def _lost(self, server: str) -> None:
        """A connection inside of this host has ended. A merger is replaced; what it had comes to
        the next one when it shows that it is another."""
        if server == MERGER and not self._closed:
            threading.Thread(target=self._replace_merger, daemon=True).start()

    def _replace_merger(self) -> None:
        assert self._merger is not None
        with contextlib.suppress(MXNetError):
            self._link.move(MERGER, self._merger())
            self._join([MERGER], self.first_step, 0)

    # -- what it is

    @property
    def type(self) -> str:
        """Name it was created with."""
        return self._name

    @property
    def rank(self) -> int:
        """Number of this worker."""
        return self._rank

    @property
    def num_workers(self) -> int:
        """Number of workers that the job was started with."""
        return self._num_workers

    @property
    def part_index(self) -> int:
        """Which of `num_workers` parts of the data this worker trains on: that of its rank, and
        for a worker that has joined a running job the one that the fewest others have."""
        return self._rank % self._num_workers if self._part is None else self._part

    @property
    def step(self) -> int:
        """Steps of this worker that are done, earlier lives included (see `step_done`)."""
        return self._pulse.step if self._pulse is not None else self.first_step

    @property
    def parts_per_update(self) -> int:
        """Pushes that one update sums: gradients are means over as many batches."""
        policy = self.options.policy
        if isinstance(policy, Backup):
            return min(policy.take, self._num_workers)
        return self._num_workers if policy.rounds else 1

    # -- together

    def barrier(self) -> None:
        """Waits for all live workers. One that was started again is at the barriers that come after
        its first push; the others do not wait for it at those of the step that it goes on with.

        Raises:
            MixflowError: one did not come within the deadline; the text names it.
        """
        count, step = next(self._barriers), self._pushed_steps()
        turn = self._turns[1] + 1 if self._turns[0] == step else 1
        self._turns = (step, turn)
        self._wait("barrier", lambda c, now: c.enter(self._servers[0], count, step, turn, now))

    _barrier = barrier

    def _pushed_steps(self) -> int:
        """Steps that were pushed, earlier lives included, whether or not they have left yet."""
        return self.first_step + max((k.steps for k in self._keys.values()), default=0)

    def _wait(self, what: str, make: Callable[[Client, float], Ticket]) -> Ticket:
        return self._link.call(what, make).wait(3 * self.options.deadline)

    @classmethod
    def from_environment(cls, name: str) -> Self:
        """The store of the worker that a launcher has started.

        Raises:
            MixflowError: not inside a job, or its servers do not start within the deadline.
        """
        uri, port, rank, token = _environment(name)
        host = os.environ.get("DMLC_NODE_HOST", "")
        enquirer = Enquirer(f"tcp://{uri}:{port}", token, f"worker{rank}")
        try:
            found = _hello(enquirer, rank, policy_of(name).name)
        except BaseException:
            enquirer.close()
            raise
        options = StoreOptions.from_json(found["options"])
        task = {
            "address": address_of(hashlib.blake2b(token.encode(), digest_size=8).hexdigest(), host),
            "host": host,
            "servers": found["servers"],
            "options": found["options"],
            "rendezvous": f"tcp://{uri}:{port}",
            "token": token,
        }

        def merger() -> str:
            ensure(task)
            return str(task["address"])

        made = cls(
            name,
            rank,
            int(found["num_workers"]),
            found["servers"],
            options,
            int(found["life"]),
            lambda: enquirer.wait_for_servers("servers", options.deadline)["servers"],
            host,
            merger if _merges(found, host) else None,
            bool(found["start"]["snapshot"]),
            token,
        )
        made._part, made._secret = int(found["share"]), token
        made._sampler = start_sampler(
            f"tcp://{uri}:{port}", token, f"worker{rank}", options.sample_period, made._bytes
        )
        made._follow(found["start"], f"tcp://{uri}:{port}", token)
        atexit.register(made._close_at_exit)
        return made

    def _bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        return self._link.moved_bytes

    def _follow(self, start: Mapping[str, Any], address: str, token: str) -> None:
        """Hears of snapshots from now on, and reads what this worker had saved in the one that
        the job has started from."""
        self._pulse = Pulse(
            address,
            token,
            self._rank,
            rounds=self.options.policy.rounds,
            folder=str(start["folder"]),
            every=int(start["every"]),
            step=self.first_step,
        )
        if start["snapshot"]:
            self.restored = Snapshot(start["snapshot"]).worker(self._rank)

    def step_done(self, state: State | None = None) -> bool:
        """Ends a step of this worker, after its pushes: the moment at which it may leave the job,
        and at which its part of a snapshot is taken.

        Args:
            state: called where a snapshot is due: plain values (JSON) to be found in `restored`
                after a return to it, and under 'arrays' tensors by name.

        Returns:
            Whether to go on; False: this worker was asked to leave, and should come to its end.
            A snapshot that can't be written is told on standard error.
        """
        if self._pulse is None:
            return True
        if self._pulse.step_done(state) and self._lease is not None:
            self._lease.deposit()
        return not self._pulse.leave

    def _close_at_exit(self) -> None:
        """A program that ended by an error does not leave the job: it is started again, and the
        others must not go on without its part."""
        if getattr(sys, "last_value", None) is not None:
            self.abandon()
            return
        try:
            self._wait_for_pushes()
            self.close()
        except Exception as error:
            # An error in an exit hook leaves the exit code 0: the job would take it for an end.
            sys.stdout.flush()
            print(f"mixflow: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    def abandon(self) -> None:
        """Ends the connection without a word: to the servers the worker is lost, not done."""
        self._closed = True
        if self._lease is not None:
            self._lease.abandon()
        if self._pulse is not None:
            self._pulse.close()
        self._link.close()
        self._end_sampler()

    def _end_sampler(self) -> None:
        if self._sampler:
            self._sampler.close()

    def _end_lease(self) -> None:
        """Gives the state back, if this worker holds it."""
        if self._lease is not None:
            self._lease.end()
            self._lease = None

    def _wait_for_pushes(self) -> None:
        """The last pushes may still wait for their gradients, unknown to the link.

        Raises:
            MixflowError: a push or pull of a key has failed.
        """
        for known in self._keys.values():
            known.tag.wait()

    def _settle(self) -> None:
        """Waits until every push so far is made and confirmed: what is set now is for later ones.

        Raises:
            MixflowError: some are not within the deadline.
        """
        with contextlib.suppress(MXNetError):  # an error of a pull; it is raised where it is read
            self._wait_for_pushes()
        self._link.settle(2 * self.options.deadline)

    def close(self) -> None:
        """Waits until every push is made and confirmed, and leaves the job. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self._end_lease()
            self._settle()
            epoch = next(self._epoch)
            self._wait("leave", lambda c, now: c.leave(self._peers(), epoch, now))
        finally:
            if self._pulse is not None:
                self._pulse.close()
            self._link.close()
            self._end_sampler()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _environment(name: str) -> tuple[str, str, int, str]:
    """Host and port of the rendezvous, this worker's rank and the job's token.

    Raises:
        MixflowError: they are not there, or no number.
    """
    found = {
        "DMLC_PS_ROOT_URI": os.environ.get("DMLC_PS_ROOT_URI", ""),
        "DMLC_PS_ROOT_PORT": os.environ.get("DMLC_PS_ROOT_PORT", ""),
        "DMLC_WORKER_ID": os.environ.get("DMLC_WORKER_ID", ""),
        "MIXFLOW_JOB_TOKEN": os.environ.get("MIXFLOW_JOB_TOKEN", ""),
    }
    missing = [each for each, value in found.items() if not value]
    uri, port, rank, token = found.values()
    if missing or not rank.isdecimal():
        wrong = f"no {missing[0]}" if missing else f"DMLC_WORKER_ID {rank!r:.80}"
        raise MixflowError(
            f"[kvstore] expected '{name}' inside a job, got {wrong}; start the program with "
            "'mixflow launch -n WORKERS -s SERVERS python PROGRAM'"
        )
    return uri, port, int(rank), token


def _hello(enquirer: Enquirer, rank: int, policy: str) -> dict[str, Any]:
    """What the rendezvous knows of the job, once the servers are there; who the neighbours are is
    worth a short wait for slow starters."""
    said = {
        "rank": rank,
        "nonce": uuid.uuid4().hex,
        "consistency": policy,
        "host": host_id(os.environ.get("DMLC_NODE_HOST", "")),
    }
    end = time.monotonic() + NEIGHBOUR_SECONDS
    while True:
        found = enquirer.wait_for_servers("hello", START_SECONDS, **said)
        if found["complete"] or time.monotonic() > end:
            return found
        time.sleep(0.02)


def _merges(found: Mapping[str, Any], host: str) -> bool:
    """Whether this host's pushes are worth a merger: it has several workers, and a server is on
    another host. Servers of this host merge what comes to them by shared memory."""
    far = any(not is_there(name_of(address, host)) for address in found["servers"].values())
    return available() and far and int(found["neighbours"]) > 0
