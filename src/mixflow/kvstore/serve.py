"""A server shard as a process: ``python -m mixflow.kvstore.serve``.

Its task comes as JSON on standard input (so that the job's token stands in no process list): name,
number, rendezvous, token, folder of its ledger ('' keeps nothing), options. It ends when its
standard input closes: a server never outlives whoever started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from ..files import write_atomically
from .appliers import Optimizing
from .compression import decode
from .ledger import SharedLedger
from .options import StoreOptions
from .rendezvous import Enquirer
from .server import Memory, Shard
from .sharding import Directory
from .transport.zeromq import Server
from .utilisation import start_sampler

START_SECONDS = 60.0
ALIVE_SECONDS = 1.0


def make_shard(task: dict[str, Any], options: StoreOptions) -> Shard:
    """The shard of a task; what an earlier process left in the ledger is taken over."""
    folder = task["folder"]
    ledger = SharedLedger(folder) if folder else Memory()
    return Shard(
        task["name"],
        options.policy,
        Optimizing(needs_optimizer=not options.policy.rounds),
        workers=task["num_workers"],
        directory=Directory(task["num_servers"], options.bound) if task["number"] == 0 else None,
        ledger=ledger,
        deadline=options.deadline,
        give_up=options.give_up,
        incarnation=_incarnation(folder),
        decode=decode,
    )


def _incarnation(folder: str) -> int:
    """0 for the first process on a folder, 1 for the next, ..."""
    if not folder:
        return 0
    path = Path(folder) / "incarnation"
    number = int(path.read_text()) + 1 if path.exists() else 0
    write_atomically(path, str(number).encode())
    return number


def main() -> None:
    """Runs the server of the task on standard input."""
    task = json.loads(sys.stdin.readline())
    options = StoreOptions.from_json(task["options"])
    host = os.environ.get("DMLC_NODE_HOST", "")
    shard = make_shard(task, options)
    server = Server(shard, task["bind"], options.faults, host)
    threading.Thread(target=_follow_parent, args=[server], daemon=True).start()
    threading.Thread(
        target=_stay_known, args=[task, server, shard.incarnation], daemon=True
    ).start()
    start_sampler(
        task["rendezvous"],
        task["token"],
        task["name"],
        options.sample_period,
        lambda: server.moved_bytes,
    )
    server.run()


def _follow_parent(server: Server) -> None:
    """Stops the server when whoever started it is gone (or closes the pipe)."""
    while sys.stdin.read(4096):
        pass
    server.stop()
    # `run` has IDLE_SECONDS to end by itself; a shard that hangs must not stay behind.
    threading.Timer(5.0, os._exit, [1]).start()


def _stay_known(task: dict[str, Any], server: Server, incarnation: int) -> None:
    """Registers the address again and again: a restarted rendezvous learns it too."""
    enquirer = Enquirer(task["rendezvous"], task["token"], task["name"])
    while True:
        enquirer.ask(
            "register",
            START_SECONDS,
            address=server.address,
            incarnation=incarnation,
        )
        threading.Event().wait(ALIVE_SECONDS)


if __name__ == "__main__":
    main()
