"""``mixflow launch``: runs a program as the workers of a job, with its servers."""

from __future__ import annotations

import argparse

from ...errors import ParamError
from ..protocol.policy import POLICIES
from . import detached, registry
from .running import options_of, run_job


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
    command.add_argument(
        "--cpus-per-worker", type=float, default=1.0, help="that Ray reserves; 0: none"
    )
    command.add_argument(
        "--cpus-per-server", type=float, default=0.0, help="that Ray reserves; 0: none"
    )
    command.add_argument(
        "--place-workers",
        choices=["pack", "spread"],
        default="pack",
        help="on few nodes of the Ray cluster, or on many; servers are spread",
    )
    command.add_argument("--name", help="of the job, for 'mixflow status' and its kin")
    command.add_argument(
        "--detach", action="store_true", help="return at once; the job outlives this terminal"
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
    """Runs the job, or starts it (`--detach`); ends with the exit code of a worker that failed for
    good.

    Raises:
        ParamError: no command, options that do not fit together, or a name that is in use.
        MixflowError: a server can't be kept alive, or the cluster has no room.
    """
    if not args.program:
        raise ParamError("[launch] expected a command after the options, got none")
    options = options_of(args)
    name = registry.checked_name(args.name) if args.name else registry.name_for(args.program)
    if args.detach:
        detached.start(name, vars(args))
        return
    code = run_job(args, options, name)
    if code:
        raise SystemExit(code if code > 0 else 128 - code)
