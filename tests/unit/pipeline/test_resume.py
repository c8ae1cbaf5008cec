"""Training that is killed in mid-epoch and goes on gives the weights of one that was not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from picture_files import write_records

CHILD = Path(__file__).with_name("resume_child.py")
BATCHES = 9  # of 10 pictures by 4: three epochs, with a rest that wraps


def train(folder: Path, threads: int, die: int) -> int:
    arguments = [str(folder), str(threads), str(BATCHES), str(die)]
    done = subprocess.run(
        [sys.executable, str(CHILD), *arguments], capture_output=True, text=True, timeout=100
    )
    if done.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(done.stderr)
    return done.returncode


@pytest.mark.parametrize("threads", [1, 2])
def test_killed_and_resumed_training_is_bit_identical(tmp_path: Path, threads: int) -> None:
    finals = []
    for name, deaths in (("whole", []), ("killed", [1, 5])):
        folder = tmp_path / name
        folder.mkdir()
        write_records(folder, 10, height=20, width=24)
        for die in deaths:
            assert train(folder, threads, die) == -signal.SIGKILL
            assert not (folder / "final.npz").exists()
        assert train(folder, threads, -1) == 0
        with np.load(folder / "final.npz") as content:
            finals.append(dict(content))
    assert finals[0].keys() == finals[1].keys() and len(finals[0]) == 4
    for name, expected in finals[0].items():
        assert finals[1][name].tobytes() == expected.tobytes(), name
