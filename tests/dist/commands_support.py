"""Commands as a user gives them, and what a job must not leave behind."""

import contextlib
import io
import json
import subprocess
import sys
import time

import psutil

from mixflow.cli import main

MAIN = "import sys; from mixflow.cli import main; raise SystemExit(main(sys.argv[1:]))"


def start(*words, **options):
    """The command in a process of its own."""
    return subprocess.Popen([sys.executable, "-c", MAIN, *map(str, words)], **options)


def mixflow(*words, code=0):
    """What a command prints (standard output and error), in this process."""
    stream = io.TextIOWrapper(io.BytesIO(), write_through=True)
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        try:
            found = main([str(word) for word in words])
        except SystemExit as end:
            found = end.code
    said = stream.buffer.getvalue().decode()
    assert found == code, said
    return said


def elsewhere(*words, code=0):
    """The same in a process of its own (one that may connect to a cluster)."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = start(*words, **streams, text=True)
    said, _ = done.communicate(timeout=400)  # a test has a limit of its own
    assert done.returncode == code, said
    return said


def status(name, *more):
    return json.loads(mixflow("status", name, "--json", *more))


def until(what, seconds=60, pause=0.05):
    """Waits until something is true, and returns it."""
    # Not by a clock: a machine may stop this process and those that it waits for.
    for _ in range(int(seconds / pause)):
        if found := what():
            return found
        time.sleep(pause)
    raise AssertionError("it did not come true")


def gone(pids):
    """Whether processes have ended."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
    return True


def enough(folder):
    """Lets the workers of a counting job end, each after its step."""
    (folder / "enough").touch()


def last_values(folder):
    """What the worker that has ended last has read: the largest values."""
    found = [json.loads(path.read_text()) for path in folder.glob("end*")]
    return max(found, key=lambda end: end["small"])


def counted(folder):
    """Steps of all workers together, from the lines that they have written."""
    return sum(len(path.read_text().splitlines()) for path in folder.glob("steps*"))
