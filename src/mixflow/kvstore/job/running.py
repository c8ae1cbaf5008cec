"""A job from the command's options to its end, where other terminals can find it.

The hazard: a job that has ended and looks as if it ran, or the other way round. What is known of it
is written first, then its result, then its control endpoint closes; a coordinator that is killed
leaves a lock that is free (see `registry`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...errors import FileError, ParamError
from ...files import write_atomically
from ..options import StoreOptions
from ..protocol.policy import Policy, named
from ..server.plan import SnapshotOptions
from ..transport.faults import Faults
from ..utilisation import UtilisationLog
from . import registry
from .cluster import STOPPED, Job, JobOptions, LocalSpawner, Spawner
from .control import Control, open_control


def run_job(
    args: argparse.Namespace,
    options: JobOptions,
    name: str,
    ready: Callable[[dict[str, Any]], None] = lambda _: None,
    linger: Callable[[Control], None] = lambda _: None,
    listen: Callable[[int, bytes], Any] | None = None,
) -> int:
    """Runs a job that other terminals can find.

    Args:
        args: of the command.
        options: of the job.
        name: of the job.
        ready: called with the job's card, when others can find it.
        linger: called with the control endpoint when the job has ended, before that closes.
        listen: called with (rank, bytes) of what workers on Ray say.

    Returns:
        Its exit code; negative: a worker was ended by that signal.

    Raises:
        SystemExit: this process was told to end, by SIGTERM or SIGHUP; all of the job has ended.
    """
    with _ending_by_signal(), contextlib.ExitStack() as after:
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
        with _controlled(args, job, claim, ready, linger) as control:
            return _run(args, job, claim, control)


def _run(
    args: argparse.Namespace, job: Job, claim: registry.Claim | None, control: Control | None
) -> int:
    """Runs a job and writes what is known of it; `control` has the result when all is there."""
    result = (1, "")
    try:
        result = (_ended(job, job.run()), "")
    except BaseException as error:
        result = _result_of(error)
        if args.detach:
            print(f"mixflow: {error}", file=sys.stderr, flush=True)
        raise
    finally:
        try:
            _write_reports(args, job, claim)
        except FileError as error:
            result = (result[0] or 1, str(error))
            raise
        finally:
            if control:
                control.result = result
    return result[0]


def _result_of(error: BaseException) -> tuple[int, str]:
    """Exit code and text of a job that has ended by an error."""
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    if isinstance(error, SystemExit):
        return int(error.code or 0), "ended by a signal"
    return 1, str(error)


@contextlib.contextmanager
def _ending_by_signal() -> Iterator[None]:
    """Scope in which SIGTERM and a terminal that closes end the job in order: what its workers have
    started too, and with its reports. What is ignored stays so (nohup); only the main thread can
    be told."""
    names = [n for n in ("SIGTERM", "SIGHUP") if hasattr(signal, n)]
    here = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name) for name in names if here]
    mine = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]

    def end(number: int, _: object) -> None:
        for each in mine:
            signal.signal(each, signal.SIG_IGN)  # it is ending
        raise SystemExit(128 + number)

    for number in mine:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _controlled(
    args: argparse.Namespace,
    job: Job,
    claim: registry.Claim,
    ready: Callable[[dict[str, Any]], None],
    linger: Callable[[Control], None],
) -> Iterator[Control]:
    """A job's control endpoint, and its card in the registry, which says in the end how it went."""
    control = Control(job, claim.name, claim.folder / "log" if args.detach else None)
    at = open_control(control, job.spawner.address)
    card = registry.card_of(
        claim.name,
        args.program,
        control=at.address,
        token=at.token,
        detached=args.detach,
        address=args.address,
        workers=args.num_workers,
        servers=args.num_servers,
    )
    try:
        claim.write(card)
        ready(card)
        yield control
    finally:
        code, text = control.result or (1, "")
        with contextlib.suppress(FileError):
            begun = control.job.begun  # who has just started it may come too late to ask
            claim.write({**card, "begun": begun, "code": code, "said": text, "ended": time.time()})
        if args.detach:
            linger(control)
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
    for name in ("events", "report"):
        given = getattr(args, name)
        if given and not os.path.isdir(os.path.dirname(os.path.abspath(given))):
            raise ParamError(f"[launch] expected a folder for --{name}, got none for {given}")
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
        _write_report(Path(args.events), job.events)
    if args.report:
        _write_report(Path(args.report), job.report())
    if args.detach and claim:
        _write_report(claim.folder / "report.json", job.report())


def _write_report(path: Path, content: Any) -> None:
    write_atomically(path, json.dumps(content, indent=1).encode())


def _policy(args: argparse.Namespace) -> Policy:
    given: dict[str, Any] = {"staleness": args.staleness, "take": args.take}
    if args.take is not None and args.take > args.num_workers:
        raise ParamError(
            f"[launch] expected --take of at most {args.num_workers}, the number of workers, got "
            f"{args.take}"
        )
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
