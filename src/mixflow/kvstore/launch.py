"""``mixflow launch``: runs a program as the workers of a job, with its servers."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from ..errors import ParamError
from ..files import write_atomically
from .cluster import Job, JobOptions, LocalSpawner, Spawner
from .options import StoreOptions
from .plan import SnapshotOptions
from .policy import POLICIES, Policy, named
from .transport.faults import Faults
from .utilisation import UtilisationLog


def add_launch(command: argparse.ArgumentParser) -> None:
    """The options of the command."""
    command.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    command.add_argument("-n", "--num-workers", type=int, required=True, help="that train")
    command.add_argument("-s", "--num-servers", type=int, default=1, help="that hold the weights")
    command.add_argument(
        "--address", help="a Ray cluster ('auto', 'host:port', 'local'); default: this host only"
    )
    command.add_argument(
        "--consistency", choices=list(POLICIES), default="dist_sync", help="how workers agree"
    )
    command.add_argument("--staleness", type=int, help="clocks, of dist_ssp")
    command.add_argument("--take", type=int, help="pushes that make an update, of dist_backup")
    command.add_argument("--deadline", type=float, default=60.0, help="seconds of any wait")
    command.add_argument(
        "--lease",
        type=float,
        default=1.0,
        help="seconds between two deposits of a lone worker, which holds the state itself; "
        "0: the servers make every update",
    )
    command.add_argument(
        "--restarts", type=int, default=3, help="how often each worker is started again"
    )
    command.add_argument(
        "--give-up", action="store_true", help="go on without a worker that is lost for good"
    )
    command.add_argument(
        "--snapshot-folder", default="", help="that all hosts see; without one there are none"
    )
    command.add_argument(
        "--snapshot-every", default="60s", help="seconds ('60s') or steps ('500') between two"
    )
    command.add_argument(
        "--resume", action="store_true", help="start from the newest snapshot, if there is one"
    )
    command.add_argument(
        "--replicas",
        type=int,
        choices=[0, 1],
        help="other hosts that hold what is confirmed; default: 1 with servers on several hosts",
    )
    command.add_argument("--faults", default="", help="on purpose, e.g. 'lose=0.01,delay=0.1'")
    command.add_argument("--events", help="file for what happened, as JSON")
    command.add_argument(
        "--report", help="file for what happened and what each process used over time, as JSON"
    )
    command.add_argument(
        "--tensorboard", help="folder for the use over time as TensorBoard scalars"
    )
    command.add_argument(
        "--sample-period",
        type=float,
        default=1.0,
        help="seconds between two samples of use, for --report and --tensorboard",
    )
    command.add_argument("program", nargs=argparse.REMAINDER, help="command of each worker")
    command.set_defaults(run=launch)


def launch(args: argparse.Namespace) -> None:
    """Runs the job; ends with the exit code of a worker that failed for good.

    Raises:
        ParamError: no command, or options that do not fit together.
        MixflowError: a server can't be kept alive, or the cluster has no room.
    """
    if not args.program:
        raise ParamError("[launch] expected a command after the options, got none")
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
    options = JobOptions(
        args.num_workers,
        args.num_servers,
        store,
        worker_restarts=args.restarts,
        replicas=args.replicas,
        snapshots=SnapshotOptions(folder, seconds, versions),
        resume=args.resume,
    )
    job = Job(args.program, options, _spawner(args.address))
    with contextlib.ExitStack() as after:
        if args.tensorboard:
            job.usage.listen = log = UtilisationLog(args.tensorboard, time.time())
            after.callback(log.close)
        after.callback(_write_reports, args, job)
        code = job.run()
    if code:
        ended = [e for e in job.events if e["what"] == "worker ended" and e["code"] == code]
        who, tries = ended[-1]["who"], len([e for e in ended if e["who"] == ended[-1]["who"]])
        print(f"mixflow: [launch] {who} ended with {code} ({tries} of it)", file=sys.stderr)
        raise SystemExit(code if code > 0 else 128 - code)


def _write_reports(args: argparse.Namespace, job: Job) -> None:
    if args.events:
        write_atomically(Path(args.events), json.dumps(job.events, indent=1).encode())
    if args.report:
        write_atomically(Path(args.report), json.dumps(job.report()).encode())


def _policy(args: argparse.Namespace) -> Policy:
    given: dict[str, Any] = {"staleness": args.staleness, "take": args.take}
    return named(args.consistency, **{k: v for k, v in given.items() if v is not None})


def _spawner(address: str | None) -> Spawner:
    if address is None:
        return LocalSpawner()
    from .ray_cluster import RaySpawner

    return RaySpawner(None if address == "local" else address, folder=os.getcwd())
