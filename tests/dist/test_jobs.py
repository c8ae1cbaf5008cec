"""Whole jobs: real processes, killed at random moments."""

import json
import os
import random
import signal
import sys
import time

import numpy as np
import pytest
from jobs_support import (
    COUNT,
    COUNTER,
    FIT,
    JOB_SECONDS,
    STORE_SECONDS,
    beside,
    ends,
    progressed,
)

from mixflow.cli import main
from mixflow.errors import MixflowError, ParamError
from mixflow.kvstore.job.cluster import Job, JobOptions
from mixflow.kvstore.options import StoreOptions
from mixflow.kvstore.protocol.policy import Async
from mixflow.kvstore.transport.faults import Faults

pytest.importorskip("zmq")


def run(folder, workers=2, servers=2, steps=20, pause=0.02, kill=None, name="dist_sync", **options):
    """A counting job; `kill(job)` runs beside it. Gives the job and each worker's end."""
    store = StoreOptions(**{"deadline": STORE_SECONDS, "repeat": 0.1, "bound": 1000, **options})
    command = [sys.executable, COUNTER, str(steps), str(pause), str(folder), name]
    job = Job(command, JobOptions(workers, servers, store, deadline=JOB_SECONDS))
    assert (beside(job, kill, (folder, steps - 1)) if kill else job.run()) == 0
    return job, ends(folder, workers)


def test_a_job_counts_every_push(tmp_path):
    job, found = run(tmp_path)
    assert found == [{"small": [40.0], "big": [40.0]}] * 2
    assert not any(event.get("code") for event in job.events)


@pytest.mark.parametrize("victim", ["worker1", "worker0", "server0", "server1"])
@pytest.mark.parametrize("number", range(COUNT))
def test_a_killed_process_is_started_again_and_nothing_is_lost(tmp_path, victim, number):
    draw = random.Random(number)

    def kill(job):
        progressed(tmp_path, 1 + draw.randrange(12))
        time.sleep(draw.random() * 0.05)
        processes = job.servers if victim.startswith("server") else job.workers
        key = victim if victim.startswith("server") else int(victim[-1])
        os.kill(processes[key].pid, signal.SIGKILL)

    job, found = run(tmp_path, kill=kill)
    assert [e for e in job.events if e["who"] == victim and e.get("code") == -signal.SIGKILL]
    assert found == [{"small": [40.0], "big": [40.0]}] * 2


def test_an_asynchronous_job_counts_too(tmp_path):
    def kill(job):
        progressed(tmp_path, 5)
        os.kill(job.servers["server0"].pid, signal.SIGKILL)
        os.kill(job.workers[0].pid, signal.SIGKILL)

    _, found = run(tmp_path, kill=kill, policy=Async(), name="dist_async")
    # Whose push of a slice was the last has seen all of that slice.
    assert max(end["small"][0] for end in found) == 40
    last = [np.load(tmp_path / f"last{rank}.npy") for rank in range(2)]
    assert (np.maximum(*last) == 40).all()


def test_a_worker_that_is_lost_for_good_ends_the_job(tmp_path):
    def kill(job):
        progressed(tmp_path, 3)
        os.kill(job.workers[1].pid, signal.SIGKILL)

    # Else worker 0 may have given up before the job has seen that worker 1 is gone.
    store = StoreOptions(deadline=STORE_SECONDS, repeat=0.1)
    command = [sys.executable, COUNTER, "500", "0.01", str(tmp_path)]
    job = Job(command, JobOptions(2, 1, store, worker_restarts=0, deadline=JOB_SECONDS))
    assert beside(job, kill, (tmp_path, 499)) == -signal.SIGKILL


def test_the_others_go_on_if_so_configured(tmp_path):
    def kill(job):
        progressed(tmp_path, 3)
        os.kill(job.workers[1].pid, signal.SIGKILL)

    store = StoreOptions(deadline=STORE_SECONDS, repeat=0.1, give_up=True)
    command = [sys.executable, COUNTER, "30", "0.01", str(tmp_path)]
    job = Job(command, JobOptions(2, 1, store, worker_restarts=0, deadline=JOB_SECONDS))
    assert beside(job, kill, (tmp_path, 29)) == 0
    assert [e["what"] for e in job.events if e["who"] == "worker1"][-1] == "worker taken out"
    end = json.loads((tmp_path / "end0").read_text())["small"][0]
    assert 30 + 3 <= end <= 30 + 30


def test_a_job_that_does_not_end_is_ended(tmp_path):
    command = [sys.executable, COUNTER, "1000000", "0.01", str(tmp_path)]
    with pytest.raises(MixflowError, match="expected the job to end within 3 s"):
        Job(command, JobOptions(1, 1, deadline=3.0)).run()


def test_options_are_checked():
    with pytest.raises(ParamError, match="at least one worker"):
        JobOptions(workers=0)
    os.environ.pop("DMLC_PS_ROOT_URI", None)
    import mixflow as mx

    with pytest.raises(MixflowError, match="mixflow launch"):
        mx.kv.create("dist_sync")


def fitted(folder, workers, batch_size):
    out = folder / f"weights{workers}.npz"
    store = StoreOptions(deadline=STORE_SECONDS, repeat=0.1)
    command = [sys.executable, FIT, str(out), str(batch_size)]
    job = Job(command, JobOptions(workers, 1, store, deadline=JOB_SECONDS))
    assert job.run() == 0
    return dict(np.load(out))


def test_fit_on_two_workers_equals_fit_on_one_with_twice_the_batch(tmp_path):
    one, two = fitted(tmp_path, 1, 32), fitted(tmp_path, 2, 16)
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, atol=1e-5)


def test_the_command_launches_a_program_and_tells_what_happened(tmp_path):
    events = tmp_path / "events.json"
    command = ["launch", "-n", "2", "--events", str(events), sys.executable, COUNTER]
    assert main([*command, "3", "0", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "end1").read_text())["small"] == [6.0]
    assert {e["who"] for e in json.loads(events.read_text())} >= {"server0", "worker0", "worker1"}


def test_mistakes_of_the_command_are_one_line(tmp_path, capsys):
    assert main(["launch", "-n", "1"]) == 1
    assert "expected a command after the options" in capsys.readouterr().err
    assert main(["launch", "-n", "1", "--staleness", "2", "true"]) == 1
    assert "expected no options, got ['staleness']; of dist_ssp" in capsys.readouterr().err
    backup = ["--consistency", "dist_backup", "--take", "2"]
    assert main(["launch", "-n", "1", *backup, "true"]) == 1
    assert "expected --take of at most 1" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["launch", "-n", "1", "--restarts", "0", sys.executable, "-c", "raise SystemExit(5)"])
    assert ended.value.code == 5


FAILING = """
import os, sys, mixflow as mx
store = mx.kv.create(sys.argv[1] if len(sys.argv) > 1 else "dist_sync")
value = mx.nd.zeros((300,))
store.init("a", value)
store.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))
for step in range(store.first_step, 6):
    store.pushpull("a", mx.nd.ones((300,)), out=value)
    value.wait_to_read()
    if store.rank == 1 and step == 2 and store.first_step == 0:
        raise ValueError("my bug")
os.write(1, f"end {store.rank} {value.asnumpy()[0]}\\n".encode())  # at once: others write too
"""


def test_a_program_that_ends_by_an_error_is_started_again(tmp_path, capfd):
    store = StoreOptions(deadline=STORE_SECONDS, repeat=0.1)
    job = Job([sys.executable, "-c", FAILING], JobOptions(2, 1, store, deadline=JOB_SECONDS))
    assert job.run() == 0
    codes = [e["code"] for e in job.events if e["what"] == "worker ended"]
    assert sorted(codes) == [0, 0, 1]
    text = capfd.readouterr()
    assert "ValueError: my bug" in text.err and "zmq" not in text.err
    # Worker 0 has not gone on alone: every step holds two pushes.
    ends = [line for line in text.out.splitlines() if line.startswith("end")]
    assert sorted(ends) == ["end 0 12.0", "end 1 12.0"]


def test_what_cannot_succeed_is_not_started_again(capfd):
    for program in ("import nothing_of_that_name", FAILING.replace('"dist_sync"', '"dist_async"')):
        job = Job([sys.executable, "-c", program], JobOptions(1, 1, deadline=JOB_SECONDS))
        assert job.run() == 1
        assert len([e for e in job.events if e["what"] == "worker started"]) == 1
    assert "start it with 'mixflow launch --consistency dist_async'" in capfd.readouterr().err


def test_a_job_on_a_bad_network_ends(tmp_path):
    faults = Faults.from_text("lose=0.05,repeat=0.05,delay=0.2")
    _, found = run(tmp_path, steps=10, pause=0, faults=faults)
    assert found == [{"small": [20.0], "big": [20.0]}] * 2


def test_a_report_tells_what_each_process_has_used(tmp_path):
    report = tmp_path / "job.json"
    command = ["launch", "-n", "2", "--report", str(report), "--sample-period", "0.1"]
    assert main([*command, sys.executable, COUNTER, "8", "0.05", str(tmp_path)]) == 0
    found = json.loads(report.read_text())
    assert {e["what"] for e in found["events"]} >= {"worker started", "worker ended"}
    processes = found["utilisation"]["processes"]
    assert set(processes) == {"server0", "worker0", "worker1"}
    for rank in (0, 1):
        used = processes[f"worker{rank}"]["totals"]
        # Eight gradients of 5,003 values, and as many answers.
        assert used["sent_bytes"] > 8 * 5003 * 4 and used["received_bytes"] > 8 * 5003 * 4
        assert used["resident_bytes_max"] > 10**7
