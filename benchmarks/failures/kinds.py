"""The kinds of failures: what a job is like, and what is done to it at a moment.

Each kind is a `Kind`: options of its job, the spawner, and `strike(run, draw)`, which runs beside
the job and returns when it has done its harm. Moments are drawn from a seeded generator: a step of
the training and some milliseconds after it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from mixflow.kvstore.job.spawner import LocalSpawner
from mixflow.kvstore.server import snapshot
from mixflow.kvstore.transport.faults import Faults

STEPS = 110  #: that the program makes
SNAPSHOT_STEPS = 15
#: Within so many seconds of its start a job is still being put together.
START_SECONDS = 2.5
WAIT_SECONDS = 60.0


class Apart(LocalSpawner):
    """Workers on a host of another name than the servers': they share a merger."""

    def worker(self, rank, command, env, folder=None):
        return super().worker(rank, command, {**env, "DMLC_NODE_HOST": "near"}, folder)


@dataclass
class Run:
    """One job under way: itself (None for the launcher's), its folder, what was done to it."""

    folder: Path
    job: Any = None
    moment: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def wait_for(self, what: Callable[[], Any]) -> Any:
        """Waits until something is so, and returns it."""
        for _ in range(int(200 * WAIT_SECONDS)):  # not by a clock: the run may be stopped meanwhile
            found = what()
            if found:
                return found
            time.sleep(0.005)
        raise TimeoutError(f"nothing has happened within {WAIT_SECONDS:g} s")

    def come_to(self, draw: random.Random, first: int = 1, last: int = STEPS - 8) -> None:
        """Waits for a moment: a step that some worker has done, and up to 30 ms more."""
        step, more = draw.randrange(first, last), 0.03 * draw.random()
        self.wait_for(lambda: max(map(len, lines_of(self.folder)), default=0) >= step)
        time.sleep(more)
        self.moment = f"step {step} + {1e3 * more:.0f} ms"

    def kill(self, *victims: str) -> None:
        """SIGKILL of processes by their names."""
        for name in victims:
            processes = self.job.servers if name.startswith("server") else self.job.workers
            key = name if name.startswith("server") else int(name.removeprefix("worker"))
            # It may have been replaced, or have ended, a moment ago: then there is nothing to kill.
            with contextlib.suppress(KeyError, ProcessLookupError):
                os.kill(processes[key].pid, signal.SIGKILL)
        self.moment += f", {' and '.join(victims)}"


def lines_of(folder: Path) -> list[list[str]]:
    """What the workers have written, a list of lines each."""
    return [path.read_text().splitlines() for path in sorted(folder.glob("steps*"))]


def mergers(token: str) -> list[int]:
    """Processes that merge for the workers of a job."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "mixflow.kvstore.host.serve_host" in (process.info["cmdline"] or []):
            with contextlib.suppress(psutil.Error):
                if process.environ().get("MIXFLOW_JOB_TOKEN") == token:
                    found.append(process.pid)
    return found


def worker(run: Run, draw: random.Random) -> None:
    run.come_to(draw)
    run.kill(f"worker{draw.randrange(2)}")


def server(run: Run, draw: random.Random) -> None:
    run.come_to(draw)
    run.kill(f"server{draw.randrange(2)}")


def pair(run: Run, draw: random.Random) -> None:
    """Two processes at once."""
    run.come_to(draw)
    run.kill(*draw.sample(["worker0", "worker1", "server0", "server1"], 2))


def merger(run: Run, draw: random.Random) -> None:
    run.come_to(draw, first=2)
    pids = run.wait_for(lambda: mergers(run.job.rendezvous.token))
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.moment += ", merger"


def start(run: Run, draw: random.Random) -> None:
    """While the job is being put together."""
    victim = draw.choice(["worker0", "worker1", "server0", "server1"])
    processes, key = ("servers", victim) if victim[0] == "s" else ("workers", int(victim[-1]))
    run.wait_for(lambda: key in getattr(run.job, processes))
    seconds = START_SECONDS * draw.random()
    time.sleep(seconds)
    run.moment = f"{seconds:.2f} s after its start"
    run.kill(victim)


def host(run: Run, draw: random.Random) -> None:
    """A host with a worker and a server."""
    run.come_to(draw)
    lost = f"host{draw.randrange(2)}"
    run.job.spawner.lose_host(lost)
    run.moment += f", {lost}"


def writing(run: Run, draw: random.Random) -> None:
    """A server, or a host with one, in the moment in which a snapshot is being written."""
    number = SNAPSHOT_STEPS * draw.randrange(1, STEPS // SNAPSHOT_STEPS)
    folder = snapshot.folder_of(run.folder / "snapshots", number)
    run.wait_for(folder.exists)
    time.sleep(0.004 * draw.randrange(6))
    run.moment = f"snapshot {number} begun"
    if draw.random() < 0.5:
        run.kill(f"server{draw.randrange(2)}")
    else:
        lost = f"host{draw.randrange(2)}"
        run.job.spawner.lose_host(lost)
        run.moment += f", {lost}"


def nothing(run: Run, draw: random.Random) -> None:
    """The faults are in the network."""
    run.moment = "all the time"


@dataclass(frozen=True)
class Kind:
    """A kind of failures.

    Args:
        strike: what is done; the docstring's text is shown in the tables.
        text: in words.
        spawner: makes the job's spawner.
        replicas, snapshots: of the job.
        faults: a network's, by seed.
        way: 'job' (a `Job` of this process), 'launcher' (the command, killed, and run again with
            ``--resume``) or 'ray'.
        barriers: whether the workers wait for each other after each step.
        back: whether the job must go back to a snapshot; None: either is right.
    """

    text: str
    strike: Callable[[Run, random.Random], None]
    spawner: Callable[[], Any] = LocalSpawner
    replicas: int | None = None
    snapshots: bool = False
    faults: Callable[[int], Faults] = lambda seed: Faults()
    way: str = "job"
    barriers: bool = False
    back: bool | None = False


def bad_network(seed: int) -> Faults:
    """Messages that are lost, repeated, delayed and so reordered."""
    return Faults(lose=0.03, repeat=0.05, delay=0.2, delay_s=0.03, seed=seed)


KINDS = {
    "worker": Kind("SIGKILL of a worker", worker),
    "server": Kind("SIGKILL of a server", server),
    "pair": Kind("SIGKILL of two processes at once", pair),
    "barrier": Kind("SIGKILL of a worker, a barrier after each step", worker, barriers=True),
    "merger": Kind("SIGKILL of a host's merger", merger, Apart),
    "start": Kind("SIGKILL in the first 2.5 s", start),
    "host": Kind("a host is lost, another stands by", host, lambda: LocalSpawner(3)),
    "host-back": Kind(
        "a host is lost, nobody stands by",
        host,
        lambda: LocalSpawner(3),
        replicas=0,
        snapshots=True,
        back=True,
    ),
    "snapshot": Kind(
        "server or host lost while a snapshot is written",
        writing,
        lambda: LocalSpawner(3),
        replicas=0,
        snapshots=True,
        back=None,
    ),
    "launcher": Kind("SIGKILL of the launcher, `--resume`", nothing, way="launcher", back=None),
    "network": Kind("3 % lost, 5 % repeated, 20 % delayed", nothing, faults=bad_network),
    "node": Kind("a Ray node is lost, another stands by", nothing, way="ray"),
    "node-back": Kind(
        "a Ray node is lost, nobody stands by",
        nothing,
        replicas=0,
        snapshots=True,
        way="ray",
        back=True,
    ),
}
