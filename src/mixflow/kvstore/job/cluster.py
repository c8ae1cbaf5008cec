"""A job: its rendezvous, server and worker processes, and what happens when one of them dies.

The hazard is a process that is waited for though it is gone, and state that is taken for kept
though it is lost. The job ends within its deadlines whatever happens. A process that died is
started again where its state lies; a host that is lost loses nothing when another stands by for
it (`replicas=1`); else the whole job goes back to its last snapshot, workers included, and says so.

`Spawner` starts processes: on this host (`spawner.LocalSpawner`) or by Ray (`ray_cluster.py`).
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import MixflowError, ParamError
from ..options import StoreOptions
from ..server import snapshot
from ..server.plan import BEAT_SECONDS, SnapshotOptions, SnapshotPlan
from ..server.snapshot import Snapshot
from ..transport.rendezvous import Rendezvous, Roll
from ..utilisation import Collector, to_json
from .removals import Removals
from .spawner import LocalSpawner, Process, Spawner

__all__ = ["Job", "JobOptions", "LocalSpawner", "Process", "Spawner"]

POLL_SECONDS = 0.05
#: Seconds that a job which has ended waits for its last snapshot to be whole.
LAST_SNAPSHOT_SECONDS = 10.0
#: What `Job.run` returns when somebody has stopped the job: that of a process ended by SIGTERM.
STOPPED = 143


@dataclass
class JobOptions:
    """Options of a job.

    Args:
        workers, servers: how many of each.
        store: options of its store.
        worker_restarts, server_restarts: how often each may die and be started again.
        deadline: seconds for the whole job; None: no bound.
        replicas: 1: what is confirmed lies on two hosts; 0: on one; None: 1 where servers have
            more than one host.
        snapshots: where and when they are taken.
        resume: start from the newest snapshot in that folder, if there is one.
        rollbacks: how often the job may go back to a snapshot.

    Raises:
        ParamError: no worker or no server, or values that do not fit together.
    """

    workers: int = 1
    servers: int = 1
    store: StoreOptions = field(default_factory=StoreOptions)
    worker_restarts: int = 3
    server_restarts: int = 10
    deadline: float | None = None
    replicas: int | None = None
    snapshots: SnapshotOptions = field(default_factory=SnapshotOptions)
    resume: bool = False
    rollbacks: int = 10

    def __post_init__(self) -> None:
        if self.workers < 1 or self.servers < 1:
            raise ParamError(
                f"[launch] expected at least one worker and one server, got {self.workers} and "
                f"{self.servers}"
            )
        if self.replicas not in (None, 0, 1):
            raise ParamError(f"[launch] expected 0 or 1 replicas, got {self.replicas}")
        if self.resume and not self.snapshots.folder:
            raise ParamError("[launch] expected a folder of snapshots to resume from, got none")


class Job:
    """Runs a command on several workers with their servers; see `run`.

    `events` tells what happened; `scale`, `stop` and `status` may be called from any thread.
    """

    def __init__(
        self, command: Sequence[str], options: JobOptions, spawner: Spawner | None = None
    ) -> None:
        self.options = options
        self.spawner = spawner or LocalSpawner()
        self.events: list[dict[str, Any]] = []
        self.workers: dict[int, Process] = {}
        self.servers: dict[str, Process] = {}
        self._command = list(command)
        self._restarts: dict[str, int] = {}
        self._incarnations: dict[str, int] = {}
        self._recovering: dict[str, str] = {}
        self._first_backups: dict[str, tuple[str, str]] = {}
        self._lost: set[str] = set()
        self._generation = -1
        self._next_rank = options.workers
        self._wanted: deque[int] = deque()
        self._size = options.workers
        self._refused = ""
        self._stopping = self._begun = False
        self._began = time.monotonic()
        self.usage = Collector(self._began)
        self._found: Snapshot | None = None
        self._rendezvous: Rendezvous | None = None
        self._roll: Roll | None = None
        self._removals: Removals | None = None
        self._done = False  # whether a worker has ended well
        self._code = 0  # of the job, once no worker is left

    @property
    def begun(self) -> bool:
        """Whether its processes have been started; it may have ended since."""
        return self._begun

    @property
    def rendezvous(self) -> Rendezvous:
        """Where the processes of the present generation meet."""
        assert self._rendezvous is not None
        return self._rendezvous

    @property
    def roll(self) -> Roll:
        """What is known of the processes."""
        assert self._roll is not None
        return self._roll

    def run(self) -> int:
        """Runs the job to its end: 0, the exit code of a worker that failed for good, or `STOPPED`.

        Raises:
            MixflowError: it did not end within its deadline, or can't go on.
            FormatError: the snapshot to resume from is damaged.
            ParamError: the folder of snapshots is another job's.
        """
        folder = self.options.snapshots.folder
        with contextlib.ExitStack() as after:
            after.callback(self.close)
            if folder:
                after.enter_context(snapshot.held(folder))
                self._look_for_snapshots(folder)
            self._begin()
            self._begun = True
            return self._watch()

    def report(self) -> dict[str, Any]:
        """What the job was, what happened, and what its processes have used, as plain values."""
        options = self.options
        return {
            "workers": options.workers,
            "servers": options.servers,
            "store": options.store.to_json(),
            "began": time.time() - (seconds := time.monotonic() - self._began),
            "seconds": seconds,
            "events": self.events,
            "utilisation": to_json(self.usage.samples(), options.store.sample_period),
        }

    def status(self) -> dict[str, Any]:
        """How the job is now, as plain values: see `mixflow status`. Never blocks."""
        workers = []
        for rank, process in sorted(list(self.workers.items())):  # of another thread
            step = self.roll.steps.get(rank)
            state = "starting" if step is None else "at work"
            if rank in self.roll.leaving:
                state = "leaving"
            said = {"rank": rank, "state": state, "step": step, "part": self.roll.share_of(rank)}
            workers.append(self._described(f"worker{rank}", process) | said)
        snapshots = [e["number"] for e in list(self.events) if e["what"] == "snapshot"]
        return {
            "seconds": time.monotonic() - self._began,
            "store": self.options.store.policy.name,
            "workers": workers,
            "servers": [self._described(n, p) for n, p in list(self.servers.items())],
            "returns": max(0, self._generation),
            "snapshot": snapshots[-1] if snapshots else None,
            "obeyed": not self._wanted,
            "refused": self._refused,
            "begun": self._begun,
        }

    def _described(self, name: str, process: Process) -> dict[str, Any]:
        restarts = self._restarts.get(name, 0)
        return {"name": name, "host": process.host, "pid": process.pid, "restarts": restarts}

    def stop(self) -> None:
        """Ends the job soon: every process is killed. Snapshots stay."""
        self._stopping = True

    def close(self) -> None:
        """Ends every process and removes what the job has left in memory."""
        self.spawner.close()
        self._end_meeting()

    def _end_meeting(self) -> None:
        if self._removals is not None:
            self._removals.close()
        if self._rendezvous is not None:
            self._rendezvous.close()

    # -- generations: a job begins again when it goes back to a snapshot

    def _look_for_snapshots(self, folder: str) -> None:
        """Finds what to resume; what another job has left is not removed by mistake."""
        if self.options.resume:
            self._found = self._newest()
            if self._found:
                self._note("resumed", "job", snapshot=self._found.number)
                _say(f"goes on from snapshot {self._found.number} in {folder}")
            else:
                _say(f"no whole snapshot in {folder}: the job begins at its first step")
        elif left := snapshot.complete(folder):
            raise ParamError(
                f"[launch] expected --resume or a folder without snapshots, got snapshot "
                f"{left[-1][0]} in {folder}; a job that begins anew would remove it"
            )

    def _newest(self) -> Snapshot | None:
        folder = self.options.snapshots.folder
        found = snapshot.newest(folder) if folder else None
        if found and found.policy != self.options.store.policy.name:
            raise ParamError(
                f"[launch] expected the consistency of the snapshot, '{found.policy}', got "
                f"'{self.options.store.policy.name}'"
            )
        if found and found.num_workers != self.options.workers:
            raise ParamError(
                f"[launch] expected -n {found.num_workers}, as in snapshot {found.number}, got "
                f"{self.options.workers}: it holds a data position of each worker; 'mixflow scale' "
                "changes their number once the job runs"
            )
        return found

    def _begin(self) -> None:
        """Starts all processes, from the snapshot that was found."""
        options, store = self.options, self.options.store
        number = self._found.number if self._found else 0
        if options.snapshots.folder:
            snapshot.forget_after(options.snapshots.folder, number)
        self._generation += 1
        rounds = store.policy.rounds
        plan = SnapshotPlan(options.snapshots, rounds, store.policy.name, options.workers, number)
        start = {
            "snapshot": str(self._found.folder) if self._found else "",
            "folder": options.snapshots.folder,
            "every": options.snapshots.versions,
        }
        roll = Roll(
            options.workers,
            options.servers,
            store.to_json(),
            start,
            plan,
            take_usage=self.usage.take,
        )
        self._roll = roll
        self._rendezvous = Rendezvous(roll, f"tcp://{self.spawner.address}:*")
        self._removals = Removals(store, self._rendezvous.token, self._all_servers)
        self._done, self._code = False, 0
        hosts = self.spawner.reserve(options.workers, options.servers)
        for each in range(options.servers):
            self._start_server(each, hosts[each])
        self._choose_backups()
        backups = self.roll.backups or {}
        self._first_backups = {n: (b, self.servers[b].host) for n, b in backups.items()}
        for rank in range(options.workers):
            self._start_worker(rank)
        if self._size != options.workers:
            self._wanted.appendleft(self._size)

    def _roll_back(self, why: str) -> None:
        """The job goes on from its last snapshot, or from its beginning."""
        for process in [*self.workers.values(), *self.servers.values()]:
            process.kill()
        self.workers.clear()
        self.servers.clear()
        self._recovering.clear()
        self._end_meeting()
        self.spawner.forget(str(self._generation))
        self._found = self._newest()
        where = f"snapshot {self._found.number}" if self._found else "its beginning"
        self._note("rolled back", "job", why=why, snapshot=self._found and self._found.number)
        _say(f"{why}: the job goes back to {where}")
        if not self._may_restart("job", self.options.rollbacks):
            raise MixflowError(
                f"[launch] expected the job to go on after {self.options.rollbacks} returns to a "
                f"snapshot, got another: {why}"
            )
        self._begin()

    # -- watching

    def _watch(self) -> int:
        end = self.options.deadline
        while self.workers:
            if end is not None and time.monotonic() - self._began > end:
                raise MixflowError(
                    f"[launch] expected the job to end within {end:g} s, got workers "
                    f"{sorted(self.workers)} that still run"
                )
            if self._stopping:
                self._note("stopped", "job")
                return STOPPED
            self._obey()
            self._look_after_servers()  # first: with a lost host all may begin again
            code = self._look_after_workers()
            if code:
                return code
            self._end_removals()
            self._take_snapshots()
            time.sleep(POLL_SECONDS)
        self._end_removals()
        self._end_snapshots()
        return self._code

    def _end_removals(self) -> None:
        assert self._removals is not None
        for rank in self._removals.tick():
            self._note("worker taken out", f"worker{rank}")

    def _end_snapshots(self) -> None:
        """Lets servers tell of what they have saved last."""
        began = time.monotonic()
        while self.options.snapshots.folder and time.monotonic() - began < LAST_SNAPSHOT_SECONDS:
            self._take_snapshots()
            assert self.roll.plan is not None
            if time.monotonic() - began > 3 * BEAT_SECONDS and not self.roll.plan.unfinished:
                return
            time.sleep(POLL_SECONDS)

    def _take_snapshots(self) -> None:
        assert self.roll.plan is not None
        at_work = [f"worker{rank}" for rank in self.workers]
        for number in self.roll.plan.tick(time.monotonic(), list(self.servers), at_work):
            self._note("snapshot", "job", number=number)

    def _look_after_workers(self) -> int:
        for rank, process in list(self.workers.items()):
            code = process.exit_code()
            if code is None:
                continue
            del self.workers[rank]
            self._note("worker ended", f"worker{rank}", code=code)
            if code == 0:
                self._done = True
                self.spawner.left(rank)
                continue
            if self._may_help(rank, code) and self._started_again(rank):
                continue
            if not self.options.store.give_up:
                return code
            self._give_up(rank, code)
        return 0

    def _give_up(self, rank: int, code: int) -> None:
        """Goes on without a worker. Where none has ended well, the last one's code is the job's."""
        self.spawner.left(rank)
        assert self._removals is not None
        self._removals.add(rank, self.roll.lives.get(rank, 0))
        if not self.workers and not self._done:
            self._code = code

    def _started_again(self, rank: int) -> bool:
        """Starts a worker again; False: there is no place for it, and the job goes on without.

        Raises:
            MixflowError: no place, and the job can't go on without it.
        """
        try:
            self._start_worker(rank)
        except MixflowError as error:
            if not self.options.store.give_up:
                raise
            self._note("worker not started", f"worker{rank}", why=str(error))
            return False
        return True

    def _look_after_servers(self) -> None:
        ended = {n: p for n, p in self.servers.items() if p.exit_code() is not None}
        if not ended:
            return
        hosts = self.spawner.hosts()
        for name, process in ended.items():
            self._is_recovering(name)
            self.roll.gone[name] = self._incarnations[name]
            self._note("server ended", name, code=process.exit_code())
            if not self._may_restart(name, self.options.server_restarts):
                raise MixflowError(
                    f"[launch] expected server '{name}' to live, got {process.exit_code()} after "
                    f"{self.options.server_restarts} restarts"
                )
            self._tell_of_restart(name, process.exit_code(), self.options.server_restarts)
        lost = {name for name, process in ended.items() if process.host not in hosts}
        for host in {ended[name].host for name in lost} - self._lost:
            self._lost.add(host)
            self._note("host lost", host)
        unsafe = [name for name in sorted(lost) if not self._stands_by(name, lost)]
        if unsafe:
            host = ended[unsafe[0]].host
            self._roll_back(f"the state of {', '.join(unsafe)} is lost with {host}")
            return
        for name, process in ended.items():
            number = int(name.removeprefix("server"))
            if name in lost:
                self._recovering.setdefault(name, (self.roll.backups or {})[name])
                self._start_server(number, self._emptiest(hosts, lost))
                lost = lost - {name}  # it has a place from now on
            else:
                self._start_server(number, process.host)
        self._choose_backups()

    def _emptiest(self, hosts: Sequence[str], lost: set[str]) -> str:
        """The host with the fewest servers."""
        held = [p.host for name, p in self.servers.items() if name not in lost]
        return min(hosts, key=lambda host: (held.count(host), hosts.index(host)))

    def _stands_by(self, name: str, lost: set[str]) -> bool:
        """Whether all that a lost server had confirmed lies with another that lives."""
        roll = self.roll
        backup = self._recovering.get(name) or (roll.backups or {}).get(name)
        if backup is None or backup in lost or backup not in roll.servers:
            return False
        if self._is_recovering(name):
            return True  # what it was fetching is there still
        if self._first_backups.get(name) == (backup, self.servers[backup].host):
            return True  # nothing was ever confirmed that this one does not have
        return roll.synced.get(name) == (backup, roll.servers[backup][2])

    def _is_recovering(self, name: str) -> bool:
        """Whether a server has not yet told that it serves."""
        ready = self.roll.servers.get(name, (-1,))[0] >= self._incarnations[name]
        if ready:
            self._recovering.pop(name, None)
        return name in self._recovering

    def _choose_backups(self) -> None:
        """Each server's stand-by: the next one that is on another host."""
        if self.options.replicas == 0:
            self.roll.backups = {}
            return
        names = list(self.servers)
        chosen: dict[str, str] = {}
        for at, name in enumerate(names):
            for other in names[at + 1 :] + names[:at]:
                if self.servers[other].host != self.servers[name].host:
                    chosen[name] = other
                    break
        if chosen != self.roll.backups and self.options.replicas == 1 and not chosen:
            self._note("no replicas", "job", why="all servers are on one host")
        self.roll.backups = chosen

    def _has_other_host(self, host: str) -> bool:
        """Whether a server on this host will have a stand-by: nothing is confirmed before."""
        others = [h for h in self.spawner.hosts() if h != host]
        return self.options.replicas != 0 and self.options.servers > 1 and bool(others)

    def _may_help(self, rank: int, code: int) -> bool:
        """Whether to start a worker again: not one that failed before it had joined the job, which
        would fail again (no such program, a wrong import, another consistency)."""
        if code > 0 and rank not in self.roll.lives:
            return False
        name, limit = f"worker{rank}", self.options.worker_restarts
        if not self._may_restart(name, limit):
            return False
        self._tell_of_restart(name, code, limit)
        return True

    def _may_restart(self, name: str, limit: int) -> bool:
        self._restarts[name] = self._restarts.get(name, 0) + 1
        return self._restarts[name] <= limit

    def _tell_of_restart(self, name: str, code: int | None, limit: int) -> None:
        _say(f"{name} ended with {code}: restart {self._restarts[name]} of at most {limit}")

    # -- joiners and leavers

    def scale(self, workers: int) -> None:
        """The job shall go on with so many workers: newcomers join, or those with the highest
        ranks leave after a step (see `Member.step_done`). A job that goes back to a snapshot begins
        with the number of its options again, and then comes to this one.

        Raises:
            ParamError: less than one.
        """
        if workers < 1:
            raise ParamError(f"[scale] expected at least one worker, got {workers}")
        self._refused = ""
        self._wanted.append(workers)

    def _obey(self) -> None:
        while self._wanted:
            self._scale(self._wanted[0])
            self._wanted.popleft()

    def _scale(self, workers: int) -> None:
        self._size = workers
        staying = [rank for rank in sorted(self.workers) if rank not in self.roll.leaving]
        for rank in staying[workers:]:
            self.roll.leaving.add(rank)
            self._note("asked to leave", f"worker{rank}")
        for _ in range(workers - len(staying)):
            rank, self._next_rank = self._next_rank, self._next_rank + 1
            self.roll.deal(rank, [r for r in self.workers if r not in self.roll.leaving])
            try:
                self._start_worker(rank)
            except MixflowError as error:
                # No room for one more is no reason to end the job.
                self._refused, self._size = str(error), len(self.workers)
                self._note("worker not started", f"worker{rank}", why=str(error))
                return

    # -- processes

    def _start_server(self, number: int, host: str) -> None:
        name, options = f"server{number}", self.options
        self._incarnations[name] = self._incarnations.get(name, -1) + 1
        recover = self._recovering.get(name, "")
        task = {
            "name": name,
            "number": number,
            "incarnation": self._incarnations[name],
            "rendezvous": self.rendezvous.address,
            "token": self.rendezvous.token,
            "folder": f"{self._generation}/{name}",
            "num_workers": options.workers,
            "num_servers": options.servers,
            "options": options.store.to_json(),
            "snapshot": str(self._found.folder) if self._found else "",
            "snapshot_folder": options.snapshots.folder,
            "snapshot_versions": options.snapshots.versions if options.snapshots.folder else 0,
            "stand_by": self._has_other_host(host),
            "recover": recover,
            "recover_address": self.roll.servers[recover][1] if recover else "",
        }
        self.servers[name] = self.spawner.server(task, host)
        more = {"recovers_from": recover} if recover else {}
        self._note("server started", name, host=self.servers[name].host, **more)

    def _start_worker(self, rank: int) -> None:
        self.roll.steps.pop(rank, None)
        self.workers[rank] = self.spawner.worker(rank, self._command, self._environment(rank))
        self._note("worker started", f"worker{rank}", host=self.workers[rank].host)

    def _environment(self, rank: int) -> dict[str, str]:
        """MXNet's names, and the job's token."""
        host, _, port = self.rendezvous.address.removeprefix("tcp://").rpartition(":")
        return {
            "DMLC_ROLE": "worker",
            "DMLC_PS_ROOT_URI": host,
            "DMLC_PS_ROOT_PORT": port,
            "DMLC_NUM_WORKER": str(self.options.workers),
            "DMLC_NUM_SERVER": str(self.options.servers),
            "DMLC_WORKER_ID": str(rank),
            "MIXFLOW_JOB_TOKEN": self.rendezvous.token,
        }

    def _all_servers(self) -> dict[str, str] | None:
        """Where they are, once all are there."""
        found = self.roll.addresses()
        return found if len(found) == self.options.servers else None

    def _note(self, what: str, who: str, **more: Any) -> None:
        self.events.append(
            {"time": time.monotonic() - self._began, "what": what, "who": who, **more}
        )


def _say(text: str) -> None:
    """On the launcher's terminal, or the log of a detached job."""
    print(f"mixflow: [launch] {text}", file=sys.stderr, flush=True)
