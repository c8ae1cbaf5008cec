"""``mixflow jobs``, ``status``, ``scale``, ``stop``, ``attach``: jobs from another terminal."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import MixflowError, ParamError
from . import registry
from .control import PIECE, ControlClient, read_log

LOOK_SECONDS = 0.3


def add_jobs(commands: Any) -> None:
    """The commands' options, below the subparsers of `mixflow`."""
    _add(commands, "jobs", _jobs, "the jobs of this user on this machine", job=False)
    status = _add(commands, "status", _status, "a job's workers and servers")
    status.add_argument("--json", action="store_true", help="as JSON")
    scale = _add(commands, "scale", _scale, "other numbers of workers in a running job")
    scale.add_argument("-n", "--num-workers", type=int, required=True, help="from now on")
    scale.add_argument(
        "--deadline", type=float, default=60.0, help="seconds to wait for it (default: 60; 0: none)"
    )
    stop = _add(commands, "stop", _stop, "end a job; its snapshots stay")
    stop.add_argument(
        "--deadline", type=float, default=60.0, help="seconds to wait for it (default: 60)"
    )
    _add(commands, "attach", _attach, "show what a detached job says, until it ends")


def _add(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], text: str, job: bool = True
) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(name, help=text)
    if job:
        made.add_argument("job", nargs="?", help="its name (default: the only one that runs)")
        made.add_argument("--address", help="of the Ray cluster that a job was detached on")
    made.set_defaults(run=run)
    return made


def _card(args: argparse.Namespace) -> dict[str, Any]:
    if args.address is None:
        card = registry.find(args.job)
        args.job = card["name"]  # when it is looked up again it may run no longer
        return card
    from .ray_job import find

    if args.job is None:
        raise ParamError("[jobs] expected the name of a job on the cluster, got none")
    return find(args.job, args.address)


def _running(args: argparse.Namespace) -> dict[str, Any]:
    card = _card(args)
    if card["state"] != "running":
        raise MixflowError(
            f"[jobs] expected a running job, got '{card['name']}', which {_end_of(card)}"
        )
    return card


def _end_of(card: Mapping[str, Any]) -> str:
    if card["state"] == "lost":
        return "lost its coordinator"
    return f"has ended with code {card['code']}"


def _jobs(args: argparse.Namespace) -> None:
    """``mixflow jobs``."""
    rows = []
    for card in registry.known():
        state = card["state"] if card["state"] != "ended" else f"ended ({card['code']})"
        workers = card["workers"]
        if card["state"] == "running":
            with contextlib.suppress(MixflowError), ControlClient(card) as client:
                workers = len(client.ask("status")["workers"])
        where = card.get("address") or "here"
        how = f"{where}, detached" if card.get("detached") else where
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(card["began"]))
        rows.append([card["name"], state, workers, card["servers"], how, began])
        rows[-1].append(" ".join(card["command"]))
    _table(["job", "state", "workers", "servers", "where", "began", "command"], rows)


def _status(args: argparse.Namespace) -> None:
    """``mixflow status``."""
    card = _card(args)
    ended = ("name", "state", "code", "said")
    found: dict[str, Any] = {key: card[key] for key in ended if key in card}
    found |= {"workers": [], "servers": []}
    if card["state"] == "running":
        try:
            with ControlClient(card) as client:
                found = client.ask("status")
        except MixflowError:
            card = _card(args)  # it may have ended meanwhile
            if card["state"] == "running":
                raise
            found["state"] = card["state"]
        found.pop("number", None)
    found |= {k: card[k] for k in ("command", "folder") if k in card}
    if args.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{found['name']}: {found['state']}, {' '.join(card['command'])}")
    if card["state"] != "running":
        print(f"{_end_of(card)} {card.get('said', '')}".rstrip())
    else:
        _show(found)
    if card.get("detached"):
        print(f"log: {card['folder']}/log")


def _show(found: Mapping[str, Any]) -> None:
    columns = ["name", "state", "step", "part", "restarts", "host", "pid"]
    processes = [*found["workers"], *found["servers"]]
    rows = [[process.get(key, "") for key in columns] for process in processes]
    _table(["", *columns[1:]], [["" if cell is None else cell for cell in row] for row in rows])
    text = f"{found['store']}, {found['seconds']:.0f} s, {found['returns']} returns to a snapshot"
    last = found["snapshot"]
    print(text + ("" if last is None else f", last snapshot {last}"))
    if found["refused"]:
        print(found["refused"])


def _scale(args: argparse.Namespace) -> None:
    """``mixflow scale``."""
    if args.num_workers < 1:
        raise ParamError(f"[scale] expected at least one worker, got {args.num_workers}")
    with ControlClient(_running(args)) as client:
        found = client.scale(args.num_workers, args.deadline)
        names = ", ".join(w["name"] for w in found["workers"])
        print(f"{client.name}: {len(found['workers'])} workers ({names})")


def _stop(args: argparse.Namespace) -> None:
    """``mixflow stop``."""
    card = _card(args)
    remembered = card["state"] == "ended" and card.get("detached") and card.get("address")
    with ControlClient(card if remembered else _running(args)) as client:
        if not remembered:
            client.stop(args.deadline)
            print(f"{client.name}: stopped")
            return
        with contextlib.suppress(MixflowError):  # its actor may be gone already
            client.ask("stop")
        print(f"{client.name}: {_end_of(card)}; the cluster forgets it")


def _attach(args: argparse.Namespace) -> None:
    """``mixflow attach``; ends with the job's exit code."""
    card = _card(args)
    if not card.get("detached"):
        raise ParamError(
            f"[attach] expected a job that was started with --detach, got '{card['name']}', whose "
            "output goes to the terminal that has launched it"
        )
    try:
        for piece in _pieces(args, card):
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"\nmixflow: left; job {card['name']} runs on", file=sys.stderr)
        raise SystemExit(130) from None
    ended = _card(args)
    if ended["state"] == "running":
        raise MixflowError(
            f"[attach] expected the coordinator of '{ended['name']}' to answer, got nothing; the "
            "job may run on"
        )
    if ended["state"] == "lost":
        raise MixflowError(f"[attach] expected the end of '{ended['name']}', got none: it was lost")
    if ended["code"]:
        raise SystemExit(ended["code"] if ended["code"] > 0 else 128 - ended["code"])


def _pieces(args: argparse.Namespace, card: Mapping[str, Any]) -> Iterator[bytes]:
    """What a job says, until it has ended: asked for while it runs, and at last read where it
    lies."""
    offset = 0
    with ControlClient(card) as client:
        while card["state"] == "running" or card.get("far"):
            try:
                found = client.ask("log", offset=offset)
            except MixflowError:
                break
            piece = str(found["text"]).encode("latin-1")
            offset += len(piece)
            yield piece
            if found["state"] == "ended" and len(piece) < PIECE:
                return
            if len(piece) < PIECE:
                time.sleep(LOOK_SECONDS)
    while piece := read_log(Path(str(card["folder"])) / "log", offset):
        offset += len(piece)
        yield piece


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Plain columns, as wide as what stands in them."""
    lines = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())
