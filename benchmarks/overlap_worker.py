"""A worker of `overlap.py`: blocks of steps of several kinds, turn by turn, and a trace.

    python benchmarks/overlap_worker.py TASK-AS-JSON     (inside a job)

Kinds of steps: `forward`; `compute` (forward and backward pass); `alone` (push and pull of every
parameter, nothing else, one exchange after the other); `both` (a training step). Every worker runs
the same kind at the same time: a barrier stands before each block. Writes seconds and processor
time of each block to a file of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mixflow as mx
from mixflow import _rt

KINDS = ("forward", "compute", "alone", "both")
CLASSES = 10


def servers_of_job() -> list[str]:
    """Folders in /proc of the job's servers: they are children of the worker's parent."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == os.getppid() and b"mixflow.kvstore.job.serve" in command:
            found.append(str(folder))
    return found


def processor_seconds(folders: list[str]) -> float:
    """Processor time of all threads of some processes, in seconds."""
    tasks = [task for folder in folders for task in Path(folder).glob("task/*/schedstat")]
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def busy_seconds() -> float:
    """Processor time of everything on this machine, interrupts left out."""
    figures = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, _, _, steal = map(int, figures[:8])
    return (user + nice + system + steal) / os.sysconf("SC_CLK_TCK")


class Steps:
    """The steps of a module that trains by a store."""

    def __init__(self, store: Any, depth: int, batch: int) -> None:
        self._module = mx.mod.Module(mx.models.resnet_cifar(depth=depth))
        self._module.bind([("data", (batch, 3, 32, 32))], [("softmax_label", (batch,))])
        self._module.init_params(mx.init.Xavier())
        # So small that weights stay as they are: no step may differ from another.
        self._module.init_optimizer(store, "sgd", {"learning_rate": 1e-7})
        draw = np.random.default_rng(store.rank)
        images = mx.nd.array(draw.normal(size=(batch, 3, 32, 32)))
        labels = mx.nd.array(draw.integers(0, CLASSES, batch))
        self._given = mx.io.DataBatch([images], [labels])

    @property
    def sizes(self) -> list[int]:
        """Bytes of each parameter, in the order of its key."""
        shapes = self._module.get_params()[0]
        return [4 * shapes[name].size for name in self._module._trained_names()]

    def forward(self) -> None:
        """A forward pass."""
        self._module.forward(self._given, is_train=True)

    def compute(self) -> None:
        """A forward and a backward pass."""
        self._module.forward_backward(self._given)

    def alone(self) -> None:
        """The exchange of a step, to its end."""
        self._module.update()
        mx.nd.waitall()

    def both(self) -> None:
        """A training step."""
        self._module.forward_backward(self._given)
        self._module.update()


def block(action: Callable[[], None], count: int, store: Any, servers: list[str]) -> list[float]:
    """Seconds, and processor seconds of this process, of the servers and of everything that the
    machine ran, each per step."""
    store.barrier()
    before = time.process_time(), processor_seconds(servers), busy_seconds()
    began = time.perf_counter()
    for _ in range(count):
        action()
    mx.nd.waitall()
    took = time.perf_counter() - began
    after = time.process_time(), processor_seconds(servers), busy_seconds()
    used = [(end - start) / count for start, end in zip(before, after, strict=True)]
    return [took / count, *used]


def traced(steps: Steps, count: int, store: Any) -> dict[str, Any]:
    """What ran when in some training steps: spans of computing, and of each exchange with the
    numbers of its keys; nanoseconds of the host's clock."""
    store.barrier()
    _rt.core.start_trace()
    for _ in range(count):
        steps.both()
    mx.nd.waitall()
    events = _rt.core.stop_trace()
    computing = [[e["start_ns"], e["end_ns"]] for e in events if e["lane"] in ("compute", "small")]
    exchanges = [
        [e["start_ns"], e["end_ns"], [int(k) for k in e["name"][len("pushpull ") :].split(", ")]]
        for e in events
        if e["name"].startswith("pushpull ")
    ]
    return {"computing": sorted(computing), "exchanges": sorted(exchanges)}


def main(task: dict[str, Any]) -> None:
    """Runs the task's rounds; each begins with another kind."""
    store = mx.kv.create("dist_sync")
    steps = Steps(store, task["depth"], task["batch"])
    servers = servers_of_job()
    for _ in range(3):
        steps.both()
    mx.nd.waitall()
    rounds: list[dict[str, list[float]]] = []
    for number in range(task["rounds"]):
        kinds = [KINDS[(at + number) % len(KINDS)] for at in range(len(KINDS))]
        rounds.append({k: block(getattr(steps, k), task["steps"], store, servers) for k in kinds})
    found = {"rounds": rounds, "sizes": steps.sizes}
    found["trace"] = traced(steps, task["traced"], store)
    store.close()
    Path(f"{task['out']}{store.rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
