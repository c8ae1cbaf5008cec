"""Jobs that go on without a worker (`give_up`), when something else goes wrong in that moment."""

import os
import signal
import sys

import psutil
import pytest
from jobs_support import COUNTER, counted, until

from mixflow.kvstore.job.cluster import Job, JobOptions, LocalSpawner
from mixflow.kvstore.options import StoreOptions

pytest.importorskip("zmq")

#: Worker 1 ends at once, before anything else is there, or takes a server with it (argument 1).
FAILS = """
import os, runpy, sys
if os.environ["DMLC_WORKER_ID"] == "1":
    sys.path.insert(0, {folder!r})
    import died
sys.argv = {words!r}
sys.path.insert(0, {tests!r})
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def job(tmp_path, died, workers=2, steps=12):
    (tmp_path / "died.py").write_text(died)
    words = [COUNTER, str(steps), "0.05", str(tmp_path)]
    program = FAILS.format(folder=str(tmp_path), words=words, tests=os.path.dirname(COUNTER))
    store = StoreOptions(deadline=15.0, repeat=0.1, give_up=True, bound=1000)
    options = JobOptions(workers, 2, store, worker_restarts=0, deadline=100.0)
    return Job([sys.executable, "-c", program], options, LocalSpawner())


def events(made, who):
    return [e["what"] for e in made.events if e["who"] == who]


def test_a_worker_that_ends_before_the_servers_are_there_is_not_waited_for(tmp_path):
    made = job(tmp_path, "import os; os._exit(3)")
    assert made.run() == 0
    assert events(made, "worker1") == ["worker started", "worker ended", "worker taken out"]
    assert counted(tmp_path) == 12


KILLS = f"""
import os, signal, time, psutil
from pathlib import Path
while not Path(os.environ["FOLDER"], "steps0").exists():
    time.sleep(0.01)
def serves(process):
    try:
        return "mixflow.kvstore.job.serve" in process.cmdline()
    except psutil.Error:  # another test's, which has ended
        return False
server = next(filter(serves, psutil.Process(os.getppid()).children()))
os.kill(server.pid, {int(signal.SIGKILL)})
os._exit(3)
"""


def test_a_server_that_is_lost_with_a_worker_comes_back_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("FOLDER", str(tmp_path))
    # Worker 0 is alone until the other has joined: it must be waited for no more.
    joins = "import mixflow as mx; store = mx.kv.create('dist_sync')\n"
    steps = "store.init('small', mx.nd.zeros((3,))); store.init('big', mx.nd.zeros((5000,)))\n"
    optimizer = "store.set_optimizer(mx.optimizer.create('test', rescale_grad=1.0))\n"
    push = "[store.pushpull(k, mx.nd.ones(s), out=mx.nd.zeros(s))"
    one = f"{push} for k, s in (('small', (3,)), ('big', (5000,)))]; mx.nd.waitall()\n"
    made = job(tmp_path, joins + steps + optimizer + one + KILLS)
    assert made.run() == 0
    assert events(made, "worker1")[-1] == "worker taken out"
    servers = [e["who"] for e in made.events if e["what"] == "server started"]
    assert len(servers) == 3
    assert counted(tmp_path) == 12


def test_a_job_whose_workers_have_all_failed_has_failed(tmp_path):
    before = set(psutil.Process().children(recursive=True))  # of other tests
    made = Job(["false"], JobOptions(2, 1, StoreOptions(give_up=True)), LocalSpawner())
    assert made.run() == 1
    until(lambda: set(psutil.Process().children(recursive=True)) <= before)
