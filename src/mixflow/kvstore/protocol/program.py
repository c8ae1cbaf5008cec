"""Optimizers that a program defines itself, on their way from worker 0 to the servers.

The hazard: a pickle is a program; who unpickles one runs whatever its sender wants. So a server
opens one only if it carries the seal of the server's own job: an HMAC with the job's secret, which
workers and servers have from their launcher and which is never sent (`doorkeeper.proof` is). The
seal goes with the bytes, so it does not matter by which way they come: by a worker's message, from
the ledger of a process that was killed, or from a stand-by. In a snapshot there is no code at all
(`without_code`): its files outlive the job. A server that starts from one waits until the program
has called `set_optimizer` again.

Classes of the program's main module travel by value (cloudpickle), all others as module and name:
the servers import them by the worker's own path.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import pickle
import platform
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import MixflowError, ParamError
from ...extras import load
from ...optimizer import Optimizer
from ...optimizer.own import lone, outline

#: Of a description: where the code stands, and that there is or has been some.
CODE, OWN = "code", "own"
#: Of a description: how many the program's run had set with it, and whether that may be a
#: repetition of what an earlier run did: one of a restarted worker, or of a job that goes on from a
#: snapshot, before its first push.
TURN, RESTARTED, RESUMED = "turn", "restarted", "resumed"
#: Bytes of a pickle: servers commit it with every change of their members.
MAX_BYTES = 1 << 20


def pack(optimizer: Optimizer, secret: str, version: int = 0) -> dict[str, Any]:
    """An optimizer as plain values: what tells it from others, and its sealed code.

    Args:
        optimizer: its class or its schedule is the program's own.
        secret: of the job.
        version: tells classes of the same name apart that the program sets one after the other.

    Raises:
        ParamError: it can't be pickled, or takes more than `MAX_BYTES`.
        MixflowError: not in a job.
        MissingExtraError: cloudpickle is not installed.
    """
    name = type(optimizer).__name__
    if not secret:
        raise MixflowError(
            f"[{name}] expected a job to send the program's own optimizer to, got a store that was "
            "made without one; start the program with 'mixflow launch'"
        )
    cloudpickle = load("cloudpickle", "kvstore")
    try:
        code = cloudpickle.dumps(lone(optimizer))
    except Exception as error:  # pickling runs code of the program
        raise ParamError(
            f"[{name}] expected an optimizer that can be pickled, got {_words(error)}: it and its "
            "schedule may refer to what can be imported or pickled, and not to the store"
        ) from error
    if len(code) > MAX_BYTES:
        raise ParamError(
            f"[{name}] expected at most {MAX_BYTES} bytes, got {len(code)}: arrays belong into the "
            "states that create_state makes"
        )
    body = json.dumps(
        [
            platform.python_version(),
            cloudpickle.__version__,
            _path(),
            base64.b64encode(code).decode(),
        ]
    )
    sealed = {"body": body, "seal": _seal(body, secret)}
    return {**outline(optimizer), OWN: version, CODE: sealed}


def _path() -> list[str]:
    """Where this process finds modules; a server's working folder may be another one."""
    return list(dict.fromkeys(os.path.abspath(place) for place in sys.path))


def _seal(body: str, secret: str) -> str:
    key = hashlib.sha256(b"mixflow code " + secret.encode()).digest()
    return hmac.new(key, body.encode(), hashlib.sha256).hexdigest()


def unpack(value: Mapping[str, Any], secret: str) -> Optimizer:
    """The optimizer that `pack` wrote; runs code of the program.

    Raises:
        ParamError: no seal of this job (nothing was run then), another Python or cloudpickle, or
            an error of the code.
    """
    name = value.get("name")
    try:
        body, seal = str(value[CODE]["body"]), str(value[CODE]["seal"])
    except (KeyError, TypeError):
        raise ParamError(f"[kvstore server] expected sealed code of '{name}', got none") from None
    if not secret or not hmac.compare_digest(seal.encode(), _seal(body, secret).encode()):
        raise ParamError(
            f"[kvstore server] expected code of '{name}' with the seal of this job, got another "
            "one; it was not run"
        )
    python, cloudpickle, path, code = json.loads(body)
    _check_versions(str(name), python, cloudpickle)
    sys.path[:] = [*path, *(place for place in sys.path if place not in path)]
    try:
        made = pickle.loads(base64.b64decode(code))
    except (Exception, SystemExit) as error:
        raise ParamError(
            f"[kvstore server] expected to load the program's optimizer '{name}', got "
            f"{_words(error)}; servers import what is not in the main module by the worker's path"
        ) from error
    if not isinstance(made, Optimizer):
        raise ParamError(f"[kvstore server] expected an Optimizer, got {type(made).__name__}")
    return made


def _check_versions(name: str, python: str, cloudpickle: str) -> None:
    """Code travels between equal Pythons only (3.11 and 3.12 differ in their bytecode)."""
    here = (_minor(platform.python_version()), load("cloudpickle", "kvstore").__version__)
    if here != (_minor(python), cloudpickle):
        raise ParamError(
            f"[kvstore server] expected Python {here[0]} and cloudpickle {here[1]} for the "
            f"program's optimizer '{name}', got {_minor(python)} and {cloudpickle}"
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def is_awaited(value: Mapping[str, Any]) -> bool:
    """Whether a description is that of a program's optimizer whose code is not here."""
    return OWN in value and CODE not in value


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two settings mean the same; pickles of one class differ between processes."""
    texts = [{k: part for k, part in _plain(each).items() if k != TURN} for each in (one, other)]
    return json.dumps(texts[0]) == json.dumps(texts[1])  # a nan equals itself in a text


def repeats(known: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    """Whether a description is set only because the program has begun anew.

    What a restarted worker had set before `known` is over. A program that sets the same again
    while it runs wants it fresh.
    """
    turn, again = value.get(TURN, (0, RESUMED))
    last = known[TURN][0] if TURN in known else turn
    if again == RESTARTED and turn < last:
        return True
    return bool(again) and turn <= last and same(known, value)


def numbered(known: Mapping[str, Any] | None, value: Mapping[str, Any]) -> dict[str, Any]:
    """A description as it is kept: each that replaces another has a later turn, so that one which
    a restarted worker sets while it runs, its second maybe, comes after all of earlier runs."""
    if TURN not in value:
        return dict(value)
    turn, again = value[TURN]
    last = known[TURN][0] if known and TURN in known and not again else 0
    return {**value, TURN: [max(turn, last + 1), again]}


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in value.items() if key != CODE}


def without_code(settings: Iterable[Any]) -> list[tuple[str, dict[str, Any]]]:
    """A shard's settings as they may stand in a snapshot."""
    return [(str(setting), _plain(value)) for setting, value in settings]
