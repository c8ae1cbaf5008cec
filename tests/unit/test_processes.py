"""Many processes that exit, fork or are interrupted with work pending: all must end cleanly.

`process_child.py` is what they run. ``make test`` starts a few dozen; ``make prove``
(marker slow) a thousand.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import process_child as child
import pytest
from core_support import native

pytestmark = pytest.mark.skipif(native is None, reason="needs the compiled core")

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = Path(child.__file__)
DEADLINE = 90.0  #: seconds, on a machine that is busy with other things
AT_ONCE = 2
FRESH = 340  #: new interpreters in the full run
IMPORTING = 60
FORKED = 600


def start(*arguments: object, code: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code] if code else [sys.executable, str(PROGRAM)]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def finish(process: subprocess.Popen[str], deadline: float = DEADLINE) -> tuple[int, str]:
    """Exit status and everything printed; kills and fails past the deadline."""
    try:
        out, err = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"{process.args} did not end within {deadline} s\n{out}\n{err}")
    return process.returncode, out + err


def complaint(name: str, seed: int) -> str:
    """What is wrong with the end of one process; '' when nothing is."""
    status, printed = finish(start(name, seed))
    expected, text = child.EXPECTED[name]
    lines = printed.strip().splitlines()
    if status != expected:
        return f"{name} {seed}: expected status {expected}, got {status}\n{printed}"
    if text == "" and printed:
        return f"{name} {seed}: expected no output, got\n{printed}"
    if text and (printed.count("Traceback") != 1 or text not in lines[-1]):
        return f"{name} {seed}: expected one traceback of {text}, got\n{printed}"
    return ""


def run_fresh(count: int) -> list[str]:
    names = [name for name in child.EXPECTED if name not in child.SLOW]
    todo = [(names[i % len(names)], i) for i in range(count)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [text for text in pool.map(lambda item: complaint(*item), todo) if text]


def run_interrupted_imports(count: int) -> list[str]:
    """Ctrl-C at a random moment from the first instruction to the first result."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "import mixflow as mx; a = mx.nd.ones((4,)) + 1; a.asnumpy()"
    wrong = []
    for seed in range(count):
        process = start(code=code)
        time.sleep(random.uniform(0.02, 0.9))
        process.send_signal(signal.SIGINT)
        status, printed = finish(process)
        # 0: it had ended. 1 with the text: the interpreter turned it into an error of its own.
        clean = status in (0, -signal.SIGINT) or (status == 1 and "KeyboardInterrupt" in printed)
        if not clean or "terminate" in printed or "Fatal" in printed:
            wrong.append(f"import {seed}: status {status}\n{printed}")
    return wrong


def run_forked(seed: int, count: int) -> tuple[int, str]:
    return finish(start("forks", seed, count), DEADLINE + count)


@pytest.mark.timeout(600)
def test_fresh_processes_end_cleanly() -> None:
    """One of each kind."""
    assert not run_fresh(len(child.EXPECTED) - len(child.SLOW))


@pytest.mark.timeout(300)
def test_interrupted_imports_end_cleanly() -> None:
    assert not run_interrupted_imports(4)


@pytest.mark.timeout(300)
def test_forked_processes_end_cleanly() -> None:
    assert run_forked(0, 2 * len(child.FORKED)) == (0, "")


@pytest.mark.slow
def test_a_callback_that_never_ends_does_not_keep_the_process() -> None:
    assert not complaint("stuck_callback", 0)


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_thousand_processes_end_cleanly() -> None:
    assert not run_fresh(FRESH)
    assert not run_interrupted_imports(IMPORTING)
    for seed in range(0, FORKED, 60):
        assert run_forked(seed, 60) == (0, ""), f"forks {seed} 60"


@pytest.mark.parametrize(
    ("own", "expected"),
    [({}, "2000"), ({"GOMP_SPINCOUNT": "1000"}, "1000")],
    ids=["default", "own"],
)
def test_idle_threads_of_openmp_do_not_spin(own: dict[str, str], expected: str) -> None:
    """The process and its children keep the environment that the user gave."""
    code = "import os, mixflow; print('left:', os.environ.get('GOMP_SPINCOUNT'))"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env={**environment, "PYTHONPATH": str(SOURCE), "OMP_DISPLAY_ENV": "verbose", **own},
    )
    assert f"GOMP_SPINCOUNT = '{expected}'" in done.stderr
    assert done.stdout.strip() == f"left: {own.get('GOMP_SPINCOUNT')}"
