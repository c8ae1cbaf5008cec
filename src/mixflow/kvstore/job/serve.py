"""A server shard as a process: ``python -m mixflow.kvstore.job.serve``.

Its task comes as JSON on standard input (so that the job's token stands in no process list): name,
number, incarnation, rendezvous, token, folder of its state, number of workers and servers, options,
the snapshot to start from ('': none), who stood by for the lost shard whose place it takes ('':
none), where and how often it writes snapshots. It ends when its standard input closes: a server
never outlives whoever started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

from ...errors import MixflowError
from ...files import write_atomically
from ..options import StoreOptions
from ..protocol.compression import decode
from ..protocol.program import without_code
from ..protocol.sharding import Directory
from ..server import snapshot
from ..server.appliers import Optimizing
from ..server.barriers import Barriers
from ..server.ledger import SharedLedger, SharedReplicas
from ..server.plan import BEAT_SECONDS
from ..server.replica import ReplicatedShard
from ..server.shard import Shard
from ..server.slots import Ledger
from ..server.snapshot import Capture, Snapshot
from ..transport.rendezvous import Enquirer
from ..transport.zeromq import Server
from ..utilisation import start_sampler

START_SECONDS = 60.0


def make_shard(task: dict[str, Any], options: StoreOptions) -> ReplicatedShard:
    """The shard of a task; what an earlier process left in the folder is taken over, else what
    stands in the snapshot."""
    folder = Path(task["folder"])
    ledger = SharedLedger(folder)
    # A shard in the place of a lost one may find that the other has not had all of it yet: the
    # snapshot's slices are there then, and every push since is still to be confirmed.
    if ledger.roster() is None and task["snapshot"]:
        restore(task, options, ledger)

    def make(mirror: Ledger) -> Shard:
        return Shard(
            task["name"],
            options.policy,
            Optimizing(needs_optimizer=not options.policy.rounds, secret=task["token"]),
            workers=task["num_workers"],
            directory=Directory(task["num_servers"], options.bound) if not task["number"] else None,
            ledger=mirror,
            deadline=options.deadline,
            give_up=options.give_up,
            incarnation=task["incarnation"],
            decode=decode,
            capture=Capture(options.policy.rounds, task["snapshot_versions"]),
        )

    return ReplicatedShard(
        task["name"],
        task["incarnation"],
        make,
        ledger,
        SharedReplicas(folder / "replicas"),
        recover=task["recover"] or None,
        repeat=options.repeat,
        waits=task["stand_by"],
    )


def restore(task: dict[str, Any], options: StoreOptions, ledger: Ledger) -> None:
    """Fills an empty ledger from the snapshot of the task.

    Raises:
        FormatError: a damaged snapshot.
    """
    found, rounds = Snapshot(task["snapshot"]), options.policy.rounds
    directory, records = found.shard(task["number"], task["num_servers"], rounds, options.bound)
    clocks: dict[int, int] = {}
    for key, record in records:
        progress = snapshot.progress_at(record, found.number, rounds)
        for worker, clock in progress.clocks.items():
            clocks[worker] = max(clocks.get(worker, 0), clock)
        ledger.commit(key, record.value, record.states, progress)
    # Workers that the snapshot does not know begin where the others are.
    first = found.number if rounds else max(clocks.values(), default=0)
    ledger.commit_roster(
        {
            "members": [(w, 0 if w in clocks else first) for w in range(task["num_workers"])],
            "epochs": [],
            "configured": [],
            "barriers": Barriers().to_json(),
            "settings": without_code(found.settings),
            "directory": directory.to_json() if task["number"] == 0 else None,
        }
    )


def storage_of(folder: str | Path) -> str:
    """The identity of what a folder holds: another one where it was lost."""
    path = Path(folder) / "storage"
    if not path.exists():
        write_atomically(path, uuid.uuid4().hex.encode())
    return path.read_text()


class Registrar:
    """Tells the coordinator where the server is and what it has saved, again and again, and hears
    who stands by for it and which snapshots are wanted."""

    def __init__(self, task: dict[str, Any], server: Server, shard: ReplicatedShard) -> None:
        self._task, self._server, self._shard = task, server, shard
        self._storage = storage_of(task["folder"])
        self._enquirer = Enquirer(task["rendezvous"], task["token"], task["name"])
        self._saved: list[int] = []

    def run(self) -> None:
        """Never ends; the process does."""
        threading.Thread(target=self._write_snapshots, daemon=True).start()
        while True:
            with contextlib.suppress(MixflowError):
                self._talk()
            threading.Event().wait(BEAT_SECONDS)

    def _talk(self) -> None:
        made = self._shard
        shard, saved = made.shard, list(self._saved)
        versions = [slot.progress.version for slot in list(shard.slots.values())] if shard else []
        late = sorted(shard.capture.late) if shard else []
        backup = made.replicator.backup
        answer = self._enquirer.ask(
            "register",
            START_SECONDS,
            # A shard that still fetches its state is not to be asked yet.
            address=self._server.address if shard else "",
            incarnation=made.incarnation,
            storage=self._storage,
            version=max(versions, default=0),
            saved=saved,
            late=late,
            synced=backup if backup and made.replicator.synced else None,
        )
        del self._saved[: len(saved)]
        self._hear(made, answer)

    def _hear(self, made: ReplicatedShard, answer: dict[str, Any]) -> None:
        if answer["backup"]:
            name, address, storage = answer["backup"]
            self._server.others.at(name, address)
            made.wanted_backup = (name, storage)
        elif answer["alone"]:
            made.wanted_backup = None
        if made.shard is not None:
            made.shard.capture.wanted.extend(int(n) for n in answer["marks"])

    def _write_snapshots(self) -> None:
        """Writes what was captured, beside the server's own thread."""
        while True:
            shard = self._shard.shard
            while shard is not None and shard.capture.done:
                captured = shard.capture.done.popleft()
                folder = snapshot.folder_of(self._task["snapshot_folder"], captured.number)
                with snapshot.optional(captured.number):
                    snapshot.write_shard(folder, self._task["name"], captured)
                    self._saved.append(captured.number)
            threading.Event().wait(0.05)


def main() -> None:
    """Runs the server of the task on standard input."""
    task = json.loads(sys.stdin.readline())
    options = StoreOptions.from_json(task["options"])
    host = os.environ.get("DMLC_NODE_HOST", "")
    shard = make_shard(task, options)
    server = Server(shard, task["bind"], options.faults, host, token=task["token"])
    if task["recover"]:
        server.others.at(task["recover"], task["recover_address"])
    threading.Thread(target=_follow_parent, args=[server], daemon=True).start()
    threading.Thread(target=Registrar(task, server, shard).run, daemon=True).start()
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


if __name__ == "__main__":
    main()
