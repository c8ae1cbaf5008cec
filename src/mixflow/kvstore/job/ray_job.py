"""The coordinator of a detached job on Ray: an actor that outlives the terminal that has made it.

The hazard: processes of a cluster that nobody owns any more. The actor owns all of its job's
processes, so they end when it does; when the job has ended it stays for a while, so that those who
come later learn how it went, and then ends by itself. It is not restarted: a job whose coordinator
is lost goes on from its last snapshot with ``--resume``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import MixflowError, ParamError, UnknownNameError
from ...extras import load
from . import registry
from .control import Control
from .ray_cluster import connect
from .running import options_of, run_job

NAMESPACE = "mixflow"
QUIET = {"log_to_driver": False, "logging_level": logging.WARNING}
#: Seconds in which an actor answers.
ANSWER_SECONDS = 60.0
#: Seconds for which a job that has ended is remembered by its actor; one that was stopped: less.
KEPT_SECONDS = 3600.0
STOPPED_SECONDS = 1.0


def actor_name(job: str) -> str:
    """The name of a job's actor in `NAMESPACE`."""
    return f"mixflow-job-{job}"


class Coordinator:
    """The actor's class: runs one job."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self._args = argparse.Namespace(**task)
        self._ready = threading.Event()
        self._card: dict[str, Any] = {}
        self._error = ""
        if task["cache"]:  # the cluster's own environment is not that of the launcher
            os.environ["XDG_CACHE_HOME"] = str(task["cache"])
        registry.Claim(self._args.name).end(keep=True)
        self._folder = registry.place() / self._args.name
        # The actor's process is this job's alone: what it and its workers say is the job's log.
        self._log = open(self._folder / "log", "ab", buffering=0)  # noqa: SIM115
        sys.stdout = sys.stderr = io.TextIOWrapper(self._log, line_buffering=True)
        self._me = load("ray", "launch").get_runtime_context().current_actor
        threading.Thread(target=self._run, daemon=True).start()

    def card(self, seconds: float) -> dict[str, Any]:
        """The job's card, once it can be found.

        Raises:
            MixflowError: the job has not begun within so many seconds, or has failed before.
        """
        if not self._ready.wait(seconds) or self._error:
            raise MixflowError(self._error or f"[launch] expected the job within {seconds:g} s")
        return {**self._card, "folder": str(self._folder), "far": True}

    def _run(self) -> None:
        try:
            run_job(
                self._args,
                options_of(self._args),
                self._args.name,
                self._found,
                self._linger,
                lambda _, said: self._log.write(said),
            )
        except Exception as error:  # whatever it is: nobody else would end this actor
            self._error = str(error) if isinstance(error, MixflowError) else repr(error)
        self._ready.set()
        time.sleep(STOPPED_SECONDS)  # whoever waits for the card gets the error
        load("ray", "launch").kill(self._me)

    def _found(self, card: dict[str, Any]) -> None:
        self._card = card
        self._ready.set()

    def _linger(self, control: Control) -> None:
        code, said = control.result or (1, "")
        self._card |= {"state": "ended", "code": code, "said": said}
        end = time.monotonic() + KEPT_SECONDS
        while time.monotonic() < end and not control.stopped:
            time.sleep(0.1)
        time.sleep(STOPPED_SECONDS)


def start(name: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """Starts the coordinator of a job; its card.

    Raises:
        ParamError: a job of this name runs on the cluster, or no cluster is named.
        MixflowError: there is no cluster, or the job did not begin.
    """
    if task["address"] == "local":
        raise ParamError(
            "[launch] expected the address of a Ray cluster that outlives this terminal, got "
            "'local'; leave --address out to detach on this host alone"
        )
    ray = connect(task["address"], namespace=NAMESPACE, **QUIET)
    here = ray.get_runtime_context().get_node_id()
    near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=True)
    kind = ray.remote(Coordinator).options(
        name=actor_name(name),
        lifetime="detached",
        num_cpus=0,
        max_restarts=0,
        max_concurrency=8,
        scheduling_strategy=near,
    )
    wait = ANSWER_SECONDS + 2 * float(task["deadline"])
    try:
        actor = kind.remote({**task, "cache": os.environ.get("XDG_CACHE_HOME", "")})
        card = _asked(ray, actor, wait)
        return {**card, "far": not Path(card["folder"], "job.json").exists()}
    except ValueError:
        raise ParamError(
            f"[launch] expected a name that no job of the cluster has, got '{name}'; "
            f"'mixflow stop {name} --address {task['address']}' ends it or forgets it"
        ) from None
    finally:
        ray.shutdown()


def find(name: str, address: str) -> dict[str, Any]:
    """The card of a detached job on a cluster.

    Raises:
        UnknownNameError: no such job.
        MixflowError: there is no cluster, or the job's actor does not answer.
    """
    registry.checked_name(name)
    with contextlib.suppress(UnknownNameError):
        card = registry.find(name)  # it is coordinated on this host, or was
        if card.get("address"):
            return card
    ray = connect(address, namespace=NAMESPACE, **QUIET)
    try:
        actor = ray.get_actor(actor_name(name))
        return {"state": "running", **_asked(ray, actor, ANSWER_SECONDS)}
    except ValueError:
        raise UnknownNameError(
            f"[jobs] unknown job '{name}' on the cluster at '{address}': it was never there, or "
            "has ended long ago"
        ) from None
    finally:
        ray.shutdown()


def _asked(ray: Any, actor: Any, seconds: float) -> dict[str, Any]:
    """The card of an actor's job."""
    try:
        card: dict[str, Any] = ray.get(actor.card.remote(seconds), timeout=seconds + 10)
    except ray.exceptions.RayTaskError as error:
        raise MixflowError(str(error.cause)) from None
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        raise MixflowError(f"[launch] expected the job's coordinator, got {error}") from None
    return card
