"""A job from the command's options to its end, where other terminals can find it.

The hazard: a job that has ended and looks as if it ran, or the other way round. What is known of it
is written first, then its result, then its desk closes; a coordinator that is killed leaves a lock
that is free (see `registry`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import FileError
from ..files import write_atomically
from . import registry
from .cluster import STOPPED, Job, JobOptions, LocalSpawner, Spawner
from .desk import Desk, open_desk
from .options import StoreOptions
from .plan import SnapshotOptions
from .policy import Policy, named
from .transport.faults import Faults
from .utilisation import UtilisationLog


def run_job(
    args: argparse.Namespace,
    options: JobOptions,
    name: str,
    ready: Callable[[dict[str, Any]], None] = lambda _: None,
    linger: Callable[[Desk], None] = lambda _: None,
    listen: Callable[[int, bytes], Any] | None = None,
) -> int:
    """Runs a job that other terminals can find.

    Args:
        args: of the command.
        options: of the job.
        name: of the job.
        ready: called with the job's card, when others can find it.
        linger: called with the desk when the job has ended, before it can't be asked any more.
        listen: called with (rank, bytes) of what workers on Ray say.

    Returns:
        Its exit code; negative: a worker was ended by that signal.
    """
    with contextlib.ExitStack() as after:
        claim = _claim(name, bool(args.name or args.detach), args.detach)
        if claim:
            after.callback(claim.end, keep=args.detach)
        job = Job(args.program, options, _spawner(args, options.store.deadline, listen))
        after.callback(job.close)
        if args.tensorboard:
            job.usage.listen = log = UtilisationLog(args.tensorboard, time.time())
            after.callback(log.close)
        if claim is None:
            return _run(args, job, None, None)
        with _at_desk(args, job, claim, ready, linger) as desk:
            return _run(args, job, claim, desk)


def _run(
    args: argparse.Namespace, job: Job, claim: registry.Claim | None, desk: Desk | None
) -> int:
    """Runs a job and writes what is known of it; the desk has the result when all is there."""
    result = (1, "")
    try:
        result = (_ended(job, job.run()), "")
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        result = (130, "interrupted") if interrupted else (1, str(error))
        if args.detach:
            print(f"mixflow: {error}", file=sys.stderr, flush=True)
        raise
    finally:
        _write_reports(args, job, claim)
        if desk:
            desk.result = result
    return result[0]


@contextlib.contextmanager
def _at_desk(
    args: argparse.Namespace,
    job: Job,
    claim: registry.Claim,
    ready: Callable[[dict[str, Any]], None],
    linger: Callable[[Desk], None],
) -> Iterator[Desk]:
    """A desk for a job, and its card in the registry, which says in the end how it went."""
    desk = Desk(job, claim.name, claim.folder / "log" if args.detach else None)
    at = open_desk(desk, job.spawner.address)
    card = registry.card_of(
        claim.name,
        args.program,
        desk=at.address,
        token=at.token,
        detached=args.detach,
        address=args.address,
        workers=args.num_workers,
        servers=args.num_servers,
    )
    try:
        claim.write(card)
        ready(card)
        yield desk
    finally:
        code, text = desk.result or (1, "")
        with contextlib.suppress(FileError):
            begun = desk.job.begun  # who has just started it may come too late to ask
            claim.write({**card, "begun": begun, "code": code, "said": text, "ended": time.time()})
        if args.detach:
            linger(desk)
        at.close()


def _claim(name: str, needed: bool, detached: bool) -> registry.Claim | None:
    """The job's folder; without one the job runs all the same, unless somebody counts on it."""
    try:
        return registry.Claim(name, clear=not detached)
    except FileError as error:
        if needed:
            raise
        print(f"mixflow: {error}; 'mixflow jobs' will not show it", file=sys.stderr)
        return None


def _ended(job: Job, code: int) -> int:
    """The code of a job that has ended; says which worker has failed."""
    if code == STOPPED:
        print("mixflow: [launch] the job was stopped", file=sys.stderr, flush=True)
    elif code:
        ended = [e for e in job.events if e["what"] == "worker ended" and e["code"] == code]
        who, tries = ended[-1]["who"], len([e for e in ended if e["who"] == ended[-1]["who"]])
        text = f"mixflow: [launch] {who} ended with {code} ({tries} of it)"
        print(text, file=sys.stderr, flush=True)
    return code


def options_of(args: argparse.Namespace) -> JobOptions:
    """The job's options of the command's.

    Raises:
        ParamError: they do not fit together.
    """
    store = StoreOptions(
        policy=_policy(args),
        deadline=args.deadline,
        give_up=args.give_up,
        faults=Faults.from_text(args.faults),
        sample_period=args.sample_period if args.report or args.tensorboard else 0.0,
        lease=args.lease,
    )
    seconds, versions = SnapshotOptions.period(args.snapshot_every if args.snapshot_folder else "")
    folder = os.path.abspath(args.snapshot_folder) if args.snapshot_folder else ""
    return JobOptions(
        args.num_workers,
        args.num_servers,
        store,
        worker_restarts=args.restarts,
        replicas=args.replicas,
        snapshots=SnapshotOptions(folder, seconds, versions),
        resume=args.resume,
    )


def _write_reports(args: argparse.Namespace, job: Job, claim: registry.Claim | None) -> None:
    if args.events:
        write_atomically(Path(args.events), json.dumps(job.events, indent=1).encode())
    if args.report:
        write_atomically(Path(args.report), json.dumps(job.report()).encode())
    if args.detach and claim:
        write_atomically(claim.folder / "report.json", json.dumps(job.report()).encode())


def _policy(args: argparse.Namespace) -> Policy:
    given: dict[str, Any] = {"staleness": args.staleness, "take": args.take}
    return named(args.consistency, **{k: v for k, v in given.items() if v is not None})


def _spawner(
    args: argparse.Namespace, deadline: float, listen: Callable[[int, bytes], Any] | None
) -> Spawner:
    if args.address is None:
        return LocalSpawner()
    from .places import Room
    from .ray_cluster import RaySpawner

    room = Room(args.cpus_per_worker, args.cpus_per_server, args.place_workers, deadline)
    address = None if args.address == "local" else args.address
    folder = getattr(args, "folder", os.getcwd())  # of whoever has started a detached job
    least = args.num_workers * room.cpus_per_worker + args.num_servers * room.cpus_per_server
    made = RaySpawner(address, room, folder, least)
    made.listen = listen
    return made
