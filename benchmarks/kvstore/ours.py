"""Push and pull of a fresh gradient: two synchronous workers and a server on this host.

A launched job with its defaults: the server's state outlives its process (`ledger`).
"""

import sys
import threading
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
import crew


def member():
    """A worker of the job."""
    import mixflow as mx

    store = mx.kv.create("dist_sync")
    crew.serve(crew.store_trips(mx, store))
    store.close()


class Launched:
    """A job on a thread, with the face of a process."""

    def __init__(self, environment):
        from mixflow.kvstore.job.cluster import Job, JobOptions, LocalSpawner

        class Spawner(LocalSpawner):
            """Gives the workers the crew's place."""

            def worker(self, rank, command, env, folder=None):
                return super().worker(rank, command, {**env, **environment}, folder)

        self._job = Job([sys.executable, __file__], JobOptions(2, 1), Spawner())
        self._thread = threading.Thread(target=self._job.run, daemon=True)
        self._thread.start()

    def wait(self, seconds):
        """Waits for the end."""
        self._thread.join(seconds)

    def poll(self):
        """None while it runs."""
        return None if self._thread.is_alive() else 0

    def kill(self):
        """Ends its processes."""
        self._job.close()


if __name__ == "__main__":
    member()
else:
    import mixflow

    VERSION = f"mixflow {mixflow.__version__}"
    WARM_UP = 1
    CASES = crew.cases(lambda: crew.Crew(2, lambda environment: [Launched(environment)]))
