"""One run of the program under a kind of failure, and what came of it."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import program
import psutil
from kinds import KINDS, SNAPSHOT_STEPS, STEPS, Kind, Run

from mixflow.files import write_atomically
from mixflow.kvstore.job.cluster import Job, JobOptions
from mixflow.kvstore.options import StoreOptions
from mixflow.kvstore.server.plan import SnapshotOptions

PROGRAM = str(Path(__file__).with_name("program.py"))
MAIN = "import sys; from mixflow.cli import main; raise SystemExit(main(sys.argv[1:]))"
#: Every process of a run inherits this name.
MARK = "FAILURES_RUN"
PAUSE = 0.01  #: seconds of each step that are slept, so that a loaded machine matters less
DEADLINE, JOB_SECONDS, GONE_SECONDS = 100.0, 300.0, 20.0
#: A gap in a ticking thread from which this process, and with it the run, was stopped from outside.
STOP_SECONDS = 1.0
TRAINING_SEED = 1
#: Steps whose loss may be unknown: a worker is killed after the push, before its line is written.
HOLES = 2
#: How far a curve may be from that of undisturbed runs, as the mean over its steps: as far as two
#: seeds of the training are from each other. A worker that is killed while a step's update is made
#: in some slices and not in others computes that step again from the weights that are there: no
#: push is counted twice or lost, but the curve is another one from there on (`mixed_step.py`).
APART = 0.06
LAST = 20  #: steps at the end that the final loss is the mean of
REFERENCE = Path(__file__).resolve().parents[1] / "results" / "failures" / "reference"
#: Steps that a point of a kept curve is the mean of.
POINT = 5
#: A process that is gone refuses to be asked at once; one that is only stopped is waited for.
HEALTH = {
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 60000,
    "health_check_failure_threshold": 3,
    "health_check_initial_delay_ms": 0,
}


@dataclass
class Ended:
    """A run that is over.

    `seconds` are those of a `Clock`; `curve` has each step's loss (mean over the workers) of the
    timeline that survived; `wrong` says what must not have happened.
    """

    seconds: float
    stopped: float
    moment: str
    wrong: str = ""
    events: list[dict] = field(default_factory=list)
    ends: list[dict] = field(default_factory=list)
    curve: list[float] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """What is kept of it."""
        what = [event["what"] for event in self.events]
        return {
            "moment": self.moment,
            "seconds": self.seconds,
            "stopped_from_outside": self.stopped,
            "longest_pause": max(self.pauses, default=0.0),
            "counter": self.ends[0]["counter"][0] if self.ends else None,
            "accuracy": self.ends[0]["accuracy"] if self.ends else None,
            "weights": self.ends[0]["weights"] if self.ends else None,
            "went_back": [e["snapshot"] for e in self.events if e["what"] in BACK],
            "restarts": what.count("worker ended") + what.count("server ended") - len(self.ends),
            "holes": sum(map(math.isnan, self.curve)),
            "curve": [
                None if math.isnan(loss := mean(self.curve[at : at + POINT])) else loss
                for at in range(0, len(self.curve), POINT)
            ],
        }


BACK = ("rolled back", "resumed")


def mean(values: list[float], digits: int = 5) -> float:
    """Mean of what is known; of a pair only if both are."""
    known = [value for value in values if not math.isnan(value)]
    return round(statistics.fmean(known), digits) if len(known) > len(values) / 2 else math.nan


class Clock:
    """Seconds since its start, but for those in which the whole process stood still: others of the
    machine may stop it (SIGSTOP, with all its children) for a measurement of theirs."""

    def __init__(self) -> None:
        self.began = self._last = time.monotonic()
        self.stopped = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            now = time.monotonic()
            if now - self._last > STOP_SECONDS:
                self.stopped += now - self._last
            self._last = now

    def end(self) -> float:
        """The seconds."""
        seconds = time.monotonic() - self.began
        self._ended.set()
        self._thread.join()
        return seconds - self.stopped


def play(
    kind: Kind, seed: int | None, cluster: Any = None, training_seed: int | None = TRAINING_SEED
) -> Ended:
    """One run, undisturbed without a seed."""
    with tempfile.TemporaryDirectory(prefix="failures-") as name:
        run, before = Run(Path(name)), marked()
        clock = Clock()
        ways = {"job": by_job, "launcher": by_launcher, "ray": by_ray}
        try:
            events, wrong = ways[kind.way](kind, run, seed, cluster, training_seed)
        except Exception:  # a run that fails is a row too
            events, wrong = [], traceback.format_exc(limit=3)
        ended = Ended(clock.end(), clock.stopped, run.moment, wrong, events)
        fill(ended, run.folder)
        check(ended, kind, seed)
        left = leftovers(before)
        if left:
            ended.wrong = f"left behind: {left}; {ended.wrong}".rstrip("; ")
        return ended


def options_of(kind: Kind, run: Run, seed: int | None) -> JobOptions:
    store = (
        StoreOptions(deadline=DEADLINE, repeat=0.1, bound=1000, faults=kind.faults(seed or 0))
        if seed is not None
        else StoreOptions(deadline=DEADLINE, repeat=0.1, bound=1000)
    )
    places = SnapshotOptions(str(run.folder / "snapshots"), versions=SNAPSHOT_STEPS)
    return JobOptions(
        2,
        2,
        store,
        deadline=JOB_SECONDS,
        replicas=kind.replicas,
        snapshots=places if kind.snapshots else SnapshotOptions(),
    )


def command_of(kind: Kind, run: Run, training_seed: int) -> list[str]:
    # Processes of a Ray node whose raylet is killed end a second later.
    pause = 5 * PAUSE if kind.way == "ray" else PAUSE
    words = [PROGRAM, str(run.folder), str(training_seed), str(pause)]
    return [sys.executable, *words, *(["barriers"] if kind.barriers else [])]


def by_job(kind: Kind, run: Run, seed: int | None, cluster: Any, training_seed: int):
    """A job of this process."""
    run.job = Job(command_of(kind, run, training_seed), options_of(kind, run, seed), kind.spawner())
    return beside(run, kind.strike, seed)


def beside(run: Run, strike: Any, seed: int | None) -> tuple[list[dict], str]:
    """Runs the job, and what hurts it in a thread."""
    errors: list[str] = []

    def act() -> None:
        try:
            strike(run, random.Random(seed))
        except Exception as error:
            errors.append(f"the blow failed: {error!r}")
        finally:
            (run.folder / program.STRUCK).touch()

    thread = threading.Thread(target=act, daemon=True)
    if seed is None:
        (run.folder / program.STRUCK).touch()
    else:
        thread.start()
    try:
        code = run.job.run()
    except Exception as error:
        return run.job.events, f"the job failed: {error}"
    if seed is not None:
        thread.join(5)
    return run.job.events, "; ".join([*errors, *([f"exit code {code}"] if code else [])])


def by_launcher(kind: Kind, run: Run, seed: int | None, cluster: Any, training_seed: int):
    """The command; with a seed it is killed at a moment, and started again with `--resume`."""
    events = run.folder / "events.json"
    (run.folder / program.STRUCK).touch()
    launch = ["launch", "-n", "2", "-s", "2", "--events", str(events), "--deadline", str(DEADLINE)]
    launch += ["--snapshot-folder", str(run.folder / "snapshots")]
    launch += ["--snapshot-every", str(SNAPSHOT_STEPS)]
    command = [sys.executable, "-c", MAIN, *launch]
    if seed is not None:
        first = subprocess.Popen([*command, *command_of(kind, run, training_seed)])
        run.come_to(random.Random(seed))
        os.kill(first.pid, signal.SIGKILL)
        first.wait(10)
        run.wait_for(lambda: not (run.folder / "events.json").exists())
        command.append("--resume")
    ended = subprocess.run([*command, *command_of(kind, run, training_seed)], timeout=JOB_SECONDS)
    found = json.loads(events.read_text()) if events.exists() else []
    return found, f"exit code {ended.returncode}" if ended.returncode else ""


@contextlib.contextmanager
def cluster_of(kind: Kind) -> Iterator[Any]:
    """A Ray cluster of this machine for all runs of a kind that wants one."""
    if kind.way != "ray":
        yield None
        return
    marked()  # Ray's processes, and what they start, inherit the name
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 100 << 20}
    made = Cluster(initialize_head=True, head_node_args={**head, "_system_config": HEALTH})
    made.add_node(num_cpus=2, object_store_memory=100 << 20)
    ray.init(address=made.address, log_to_driver=False)
    made.wait_for_nodes(30)
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def new_node(cluster: Any) -> Any:
    """One more node; tried again where the machine was stopped while it started."""
    for left in (2, 1, 0):
        try:
            made = cluster.add_node(num_cpus=4, object_store_memory=100 << 20)
            cluster.wait_for_nodes(60)
            return made
        except Exception:
            if not left:
                raise
    return None


def by_ray(kind: Kind, run: Run, seed: int | None, cluster: Any, training_seed: int):
    """A job on the cluster; its first server and workers lie on a node that is then removed."""
    from mixflow.kvstore.job.places import Room
    from mixflow.kvstore.job.ray_cluster import RaySpawner

    # Only the node that goes has room for both workers; the first server is placed there too.
    doomed = new_node(cluster)
    spawner = RaySpawner(Room(cpus_per_worker=2))
    run.job = Job(command_of(kind, run, training_seed), options_of(kind, run, seed), spawner)
    reserve = spawner.reserve

    def reserve_there(workers: int, servers: int) -> list[str]:
        hosts, alive = reserve(workers, servers), spawner.hosts()
        if doomed.node_id not in alive:
            return hosts
        return [doomed.node_id, next(host for host in alive if host != doomed.node_id)]

    spawner.reserve = reserve_there

    def strike(run: Run, draw: random.Random) -> None:
        run.come_to(draw)
        there = [run.job.servers["server0"], *run.job.workers.values()]
        if {process.host for process in there} != {doomed.node_id}:
            raise RuntimeError("the processes are not on the node that goes")
        cluster.remove_node(doomed, allow_graceful=False)
        run.moment += ", the node of server0 and both workers"

    found = beside(run, strike, seed)
    if seed is None:
        cluster.remove_node(doomed)
    return found


def expected_counter() -> float:
    """What `STEPS` updates of SGD with momentum make of the counter."""
    value, velocity = 0.0, 0.0
    for step in range(1, STEPS + 1):
        rate = program.RATE * 0.5 ** ((step - 1) // program.HALVED_EVERY)
        velocity = program.MOMENTUM * velocity + rate
        value += velocity
    return value


def smallest_push() -> float:
    """The least that one push of one worker adds."""
    return program.RATE * 0.5 ** ((STEPS - 1) // program.HALVED_EVERY) / 2


def is_exact(ended: Ended) -> bool:
    """Whether both workers have read the counter of every step's two pushes, once each."""
    wanted, room = expected_counter(), smallest_push() / 10
    return len(ended.ends) == 2 and all(
        abs(cell - wanted) < room for end in ended.ends for cell in end["counter"]
    )


def fill(ended: Ended, folder: Path) -> None:
    """Reads what the workers have left."""
    for rank in range(2):
        with contextlib.suppress(OSError):
            ended.ends.append(json.loads((folder / f"end{rank}.json").read_text()))
    losses: list[dict[int, float]] = []
    for path in sorted(folder.glob("steps*")):
        found, times = {}, []
        for line in path.read_text().splitlines():
            _, step, at, loss = line.split()
            found[int(step)] = float(loss)  # of a step that was made twice the later one counts
            times.append(float(at))
        losses.append(found)
        ended.pauses.append(max((b - a for a, b in itertools.pairwise(times)), default=0.0))
    if len(losses) == 2:
        ended.curve = [mean([x.get(step, math.nan) for x in losses], 17) for step in range(STEPS)]


def check(ended: Ended, kind: Kind, seed: int | None) -> None:
    """Notes what must not have happened."""
    if ended.wrong:
        return
    back = any(event["what"] in BACK for event in ended.events)
    if not ended.curve or sum(map(math.isnan, ended.curve)) > HOLES:
        ended.wrong = "steps are missing"
    elif seed is not None and kind.way == "ray" and not any(map(is_loss, ended.events)):
        ended.wrong = "the job ended before the node was lost"
    elif seed is not None and kind.back is not None and back != kind.back:
        ended.wrong = "it went back to a snapshot" if back else "it did not go back to a snapshot"


def is_loss(event: dict) -> bool:
    """Whether an event tells of a lost host."""
    return event["what"] in ("host lost", *BACK)


def marked() -> set[psutil.Process]:
    """Processes of runs that live."""
    os.environ.setdefault(MARK, uuid.uuid4().hex)
    found, me = set(), psutil.Process()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            mine = process.environ().get(MARK) == os.environ[MARK] and process != me
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process)
    return found


def leftovers(before: set[psutil.Process]) -> list[str]:
    """Processes that have come since `before` and do not go."""
    left: set[psutil.Process] = set()
    for _ in range(int(10 * GONE_SECONDS)):  # not by a clock: all of them may be stopped meanwhile
        left = {process for process in marked() - before if not is_ray(process)}
        if not left:
            break
        time.sleep(0.1)
    found = []
    for process in left:
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(process.cmdline())[:200])
    return found


def is_ray(process: psutil.Process) -> bool:
    """Whether it belongs to Ray, whose own processes come and go with its nodes."""
    with contextlib.suppress(psutil.Error):
        words = " ".join(process.cmdline())
        return "ray/" in words or "ray::" in words
    return False


def reference(curve: list[float]) -> list[float]:
    """The curve of an undisturbed run, step by step: the first one that there was."""
    path = REFERENCE / "curve.json"
    if not path.exists() and curve:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(curve).encode())
    return list(json.loads(path.read_text())) if path.exists() else []


def distances(curve: list[float], undisturbed: bool) -> tuple[float, float] | None:
    """The farthest that a curve is from the reference at any step, and the mean over all steps;
    None where it is not whole."""
    wanted = reference(curve if undisturbed else [])
    if not curve or not wanted:
        return None
    both = [abs(a - b) for a, b in zip(curve, wanted, strict=True) if not math.isnan(a - b)]
    return max(both), statistics.fmean(both)


def final(curve: list[float]) -> float | None:
    """Mean loss of the last steps."""
    known = [loss for loss in curve[-LAST:] if not math.isnan(loss)]
    return statistics.fmean(known) if known else None


def row_of(name: str, seed: int | None, cluster: Any) -> dict[str, Any]:
    """Makes one run and gives its row."""
    if name == "noise":
        ended, apart = play(KINDS["worker"], None, training_seed=seed), None
    else:
        ended = play(KINDS[name], seed, cluster)
        apart = distances(ended.curve, seed is None)
    if apart and apart[1] > APART and not ended.wrong:
        ended.wrong = f"the curve is {apart[1]:.2g} from the undisturbed one in the mean"
    row = {"kind": name, "seed": seed, **ended.row(), "counter_exact": is_exact(ended)}
    row |= {"curve_distance": apart and apart[0], "curve_mean_distance": apart and apart[1]}
    row |= {"final_loss": final(ended.curve), "wrong": ended.wrong}
    return {**row, "right": row["counter_exact"] and not ended.wrong}


def main() -> None:
    """``jobs.py KIND SEED ...`` ('quiet': undisturbed): a row of JSON for each."""
    name, *seeds = sys.argv[1:]
    with cluster_of(KINDS["worker" if name == "noise" else name]) as cluster:
        for seed in seeds:
            print(json.dumps(row_of(name, None if seed == "quiet" else int(seed), cluster)))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
