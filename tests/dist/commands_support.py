"""Commands as a user gives them."""

import contextlib
import io
import json
import subprocess
import sys

from jobs_support import STORE_SECONDS

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


def scaled(*words):
    """`mixflow scale`, with all the time that newcomers may need on a busy machine."""
    return mixflow("scale", *words, "--deadline", STORE_SECONDS)
