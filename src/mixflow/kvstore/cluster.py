"""A job: its rendezvous, server and worker processes, and what happens when one of them dies.

The hazard is a process that is left behind, or one that is waited for though it is gone. Every
process is held by a pipe or a parent-death signal; the job ends within its deadlines whatever
happens; a worker that is lost for good is taken out of the servers' rounds.

`Spawner` starts processes: on this host (`LocalSpawner`) or by Ray (`ray_cluster.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..errors import MixflowError, ParamError
from .client import Client
from .options import StoreOptions
from .rendezvous import Rendezvous, Roll
from .transport.zeromq import Link
from .utilisation import Collector, to_json

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.05


class Process(Protocol):
    """A process somewhere. `exit_code` does not block; None while it runs."""

    def exit_code(self) -> int | None:
        """Its code, or None while it runs."""

    def kill(self) -> None:
        """Ends it at once."""


class Spawner(Protocol):
    """Starts the processes of a job. `host` is this process's address for them."""

    @property
    def host(self) -> str:
        """Where the job's rendezvous can be reached."""

    def server(self, task: dict[str, Any]) -> Process:
        """A server shard of this task (see `serve`)."""

    def worker(self, rank: int, command: Sequence[str], env: dict[str, str]) -> Process:
        """A worker: the user's command with these environment names set."""

    def close(self) -> None:
        """Ends every process that it has started."""


class LocalProcess:
    """A child of this process; it dies with it."""

    def __init__(self, child: subprocess.Popen[Any]) -> None:
        self._child = child

    def exit_code(self) -> int | None:
        """Its code, or None while it runs."""
        return self._child.poll()

    def kill(self) -> None:
        """SIGKILL; waits for the end."""
        self._child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(5)
        if self._child.stdin:
            self._child.stdin.close()

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._child.pid


def _die_with_parent() -> None:
    """Runs in the child: SIGKILL when the thread that made it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class LocalSpawner:
    """Processes on this host."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self._all: list[LocalProcess] = []

    def server(self, task: dict[str, Any]) -> LocalProcess:
        """See `Spawner`."""
        command = [sys.executable, "-m", "mixflow.kvstore.serve"]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, preexec_fn=_die_with_parent, start_new_session=True
        )
        assert child.stdin is not None
        child.stdin.write(json.dumps(task).encode() + b"\n")
        child.stdin.flush()
        return self._keep(child)

    def worker(
        self, rank: int, command: Sequence[str], env: dict[str, str], folder: str | None = None
    ) -> LocalProcess:
        """See `Spawner`; `folder` is the working folder."""
        child = subprocess.Popen(
            list(command),
            env={**os.environ, **env},
            cwd=folder,
            preexec_fn=_die_with_parent,
            start_new_session=True,
        )
        return self._keep(child)

    def _keep(self, child: subprocess.Popen[Any]) -> LocalProcess:
        made = LocalProcess(child)
        self._all.append(made)
        return made

    def close(self) -> None:
        """Kills what still runs."""
        for process in self._all:
            process.kill()


@dataclass
class JobOptions:
    """Options of a job.

    Args:
        workers, servers: how many of each.
        store: options of its store.
        worker_restarts, server_restarts: how often each may die and be started again.
        folder: where servers keep their committed state (default: a new folder in `/dev/shm`).
        deadline: seconds for the whole job; None: no bound.

    Raises:
        ParamError: no worker or no server.
    """

    workers: int = 1
    servers: int = 1
    store: StoreOptions = field(default_factory=StoreOptions)
    worker_restarts: int = 3
    server_restarts: int = 10
    folder: str = ""
    deadline: float | None = None

    def __post_init__(self) -> None:
        if self.workers < 1 or self.servers < 1:
            raise ParamError(
                f"[launch] expected at least one worker and one server, got {self.workers} and "
                f"{self.servers}"
            )


class Job:
    """Runs a command on several workers with their servers; see `run`."""

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
        self._began = time.monotonic()
        self._own_folder = not options.folder
        self._folder = Path(options.folder or _memory_folder())
        store = options.store
        self.usage = Collector(self._began)
        self._rendezvous = Rendezvous(
            Roll(options.workers, options.servers, store.to_json(), take_usage=self.usage.take),
            f"tcp://{self.spawner.host}:*",
        )

    def run(self) -> int:
        """Runs the job to its end: 0, or the exit code of a worker that failed for good.

        Raises:
            MixflowError: it did not end within its deadline.
        """
        try:
            for number in range(self.options.servers):
                self._start_server(number)
            for rank in range(self.options.workers):
                self._start_worker(rank)
            return self._watch()
        finally:
            self.close()

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

    def close(self) -> None:
        """Ends every process and removes what the job has left in memory."""
        self.spawner.close()
        self._rendezvous.close()
        if self._own_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> int:
        end = self.options.deadline
        while self.workers:
            if end is not None and time.monotonic() - self._began > end:
                raise MixflowError(
                    f"[launch] expected the job to end within {end:g} s, got workers "
                    f"{sorted(self.workers)} that still run"
                )
            code = self._look_after_workers()
            if code:
                return code
            self._look_after_servers()
            time.sleep(POLL_SECONDS)
        return 0

    def _look_after_workers(self) -> int:
        for rank, process in list(self.workers.items()):
            code = process.exit_code()
            if code is None:
                continue
            del self.workers[rank]
            self._note("worker ended", f"worker{rank}", code=code)
            if code == 0:
                continue
            if self._may_help(rank, code):
                self._start_worker(rank)
            elif self.options.store.give_up:
                self._take_out(rank)
            else:
                return code
        return 0

    def _look_after_servers(self) -> None:
        for name, process in list(self.servers.items()):
            code = process.exit_code()
            if code is None:
                continue
            self._note("server ended", name, code=code)
            if not self._may_restart(name, self.options.server_restarts):
                raise MixflowError(
                    f"[launch] expected server '{name}' to live, got {code} after "
                    f"{self.options.server_restarts} restarts"
                )
            self._start_server(int(name.removeprefix("server")))

    def _may_help(self, rank: int, code: int) -> bool:
        """Whether to start a worker again: not one that failed before it had joined the job, which
        would fail again (no such program, a wrong import, another consistency)."""
        if code > 0 and rank not in self._rendezvous.roll.lives:
            return False
        return self._may_restart(f"worker{rank}", self.options.worker_restarts)

    def _may_restart(self, name: str, limit: int) -> bool:
        self._restarts[name] = self._restarts.get(name, 0) + 1
        return self._restarts[name] <= limit

    def _start_server(self, number: int) -> None:
        name = f"server{number}"
        task = {
            "name": name,
            "number": number,
            "bind": f"tcp://{self.spawner.host}:*",
            "rendezvous": self._rendezvous.address,
            "token": self._rendezvous.token,
            "folder": str(self._folder / name),
            "num_workers": self.options.workers,
            "num_servers": self.options.servers,
            "options": self.options.store.to_json(),
        }
        self.servers[name] = self.spawner.server(task)
        self._note("server started", name)

    def _start_worker(self, rank: int) -> None:
        self.workers[rank] = self.spawner.worker(rank, self._command, self._environment(rank))
        self._note("worker started", f"worker{rank}")

    def _environment(self, rank: int) -> dict[str, str]:
        """MXNet's names, and the job's token."""
        host, _, port = self._rendezvous.address.removeprefix("tcp://").rpartition(":")
        return {
            "DMLC_ROLE": "worker",
            "DMLC_PS_ROOT_URI": host,
            "DMLC_PS_ROOT_PORT": port,
            "DMLC_NUM_WORKER": str(self.options.workers),
            "DMLC_NUM_SERVER": str(self.options.servers),
            "DMLC_WORKER_ID": str(rank),
            "MIXFLOW_JOB_TOKEN": self._rendezvous.token,
        }

    def _take_out(self, rank: int) -> None:
        """Tells the servers that nothing more is expected of a worker."""
        addresses = {n: a for n, (_, a) in self._rendezvous.roll.servers.items()}
        client = Client(
            f"launcher{uuid.uuid4().hex}", rank, lambda key: "", self.options.store.policy
        )
        link = Link(client, addresses)
        life = self._rendezvous.roll.lives.get(rank, 0)
        try:
            call = link.call("leave", lambda c, now: c.leave(addresses, 2 * life + 1, now))
            call.wait(self.options.store.deadline)
        finally:
            link.close()
        self._note("worker taken out", f"worker{rank}")

    def _note(self, what: str, who: str, **more: Any) -> None:
        self.events.append(
            {"time": time.monotonic() - self._began, "what": what, "who": who, **more}
        )


def _memory_folder() -> str:
    """A new folder that lies in memory where the system has such a place."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    return tempfile.mkdtemp(prefix="mixflow-", dir=base)
