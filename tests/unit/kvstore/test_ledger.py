"""Committed state in shared mappings survives its process, at every point of a write."""

import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from mixflow.errors import FileError, FormatError
from mixflow.kvstore.protocol.policy import Part, Progress
from mixflow.kvstore.server.ledger import SharedLedger
from mixflow.kvstore.server.slice_file import HEADER, SliceFile


def progress(version):
    made = Progress(version=version)
    made.take(Part(0, 0), {})
    return made


def reopen(folder, ledger=None):
    if ledger:
        ledger.close()
    made = SharedLedger(folder)
    return made, {key: rest for key, *rest in made.slices()}


def test_the_last_commit_is_found_again(tmp_path):
    ledger = SharedLedger(tmp_path)
    for step in range(5):
        states = {} if step < 2 else {"0": np.full(7, step, "float32"), "count": np.array([step])}
        ledger.commit("weight/0", np.arange(7.0) + step, states, progress(step))
    ledger.commit("bias/0", np.zeros(0, "float32"), {}, progress(1))
    ledger.commit_roster({"members": [[0, 0]]})
    ledger, found = reopen(tmp_path, ledger)
    value, states, state = found["weight/0"]
    np.testing.assert_array_equal(value, np.arange(7.0) + 4)
    assert states["0"].tolist() == [4] * 7 and states["count"].tolist() == [4]
    assert state.version == 4 and state.clocks == {0: 1}
    assert found["bias/0"][0].size == 0
    assert ledger.roster() == {"members": [[0, 0]]}
    ledger.commit("weight/0", np.zeros(7), {}, progress(9))
    _, found = reopen(tmp_path, ledger)
    assert found["weight/0"][2].version == 9


def test_a_second_owner_is_refused(tmp_path):
    ledger = SharedLedger(tmp_path)
    with pytest.raises(FileError, match="to be free, got another process"):
        SharedLedger(tmp_path)
    ledger.close()
    SharedLedger(tmp_path).close()


@pytest.mark.parametrize("damage", ["short", "magic", "text", "size"])
def test_damaged_files_are_an_error_of_ours(tmp_path, damage):
    ledger = SharedLedger(tmp_path)
    ledger.commit("k", np.ones(4), {}, progress(1))
    ledger.close()
    path = next(tmp_path.glob("*.slice"))
    data = bytearray(path.read_bytes())
    if damage == "short":
        data = data[: HEADER + 5]
    elif damage == "magic":
        data[0] ^= 1
    elif damage == "text":
        data[HEADER + 48] = 0
    else:
        data[data.index(b'["<f8", 4]') + 8 :][:1] = b"9"
        at = data.index(b'["<f8", 4]')
        data[at + 8 : at + 9] = b"9"
        data = data.replace(b'"<f8", 9]', b'"<f8",9e9]'[:9])
    path.write_bytes(bytes(data))
    ledger = SharedLedger(tmp_path)
    with pytest.raises(FormatError, match=r"\[ledger\] expected"):
        list(ledger.slices())
    (tmp_path / "roster.json").write_text("{")
    with pytest.raises(FormatError, match="expected JSON"):
        ledger.roster()
    ledger.close()


CHILD = """
import sys, numpy as np
from mixflow.kvstore.server.ledger import SharedLedger
from mixflow.kvstore.protocol.policy import Progress
ledger, step = SharedLedger(sys.argv[1]), 0
while True:
    step += 1
    ledger.commit("k", np.full(50_000, step), {"0": np.full(50_000, -step)}, Progress(version=step))
"""


def test_a_kill_at_any_moment_leaves_a_whole_commit(tmp_path):
    versions = []
    for wait in (0.02, 0.05, 0.11):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)])
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*.slice")) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(wait)
        os.kill(child.pid, signal.SIGKILL)
        child.wait(60)
        ledger, found = reopen(tmp_path)
        value, states, state = found["k"]
        assert (value == state.version).all() and (states["0"] == -state.version).all()
        versions.append(state.version)
        ledger.close()
    assert versions[0] > 0


def test_a_full_place_is_an_error_of_ours_and_not_the_end_of_the_process(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FileError, match=r"\[ledger\] expected room for .* bytes in .*, got: No sp"):
        SliceFile(tmp_path / "a.slice").write({}, [np.zeros(1000)])
    assert not list(tmp_path.glob("*"))
