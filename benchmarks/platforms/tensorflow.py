"""TensorFlow 2.x: MultiWorkerMirroredStrategy ('sync'; a process per worker, no server), and
ParameterServerStrategy ('async'; a coordinator, a parameter server, workers)."""

import json
from importlib.metadata import version

from programs import jobs, tasks

from crew import free_port

VERSION = f"tensorflow {version('tensorflow')}"
WARM_UP = 0


def processes(cell, out):
    counts = {"worker": cell.workers}
    if cell.mode == "async":
        counts |= {"ps": 1, "chief": 1}
    ports = {role: [free_port() for _ in range(n)] for role, n in counts.items()}
    command = jobs.program("train_tensorflow.py", cell, out)
    tail = json.dumps(ports)
    commands = [
        ([*command, role, str(number), tail], {})
        for role, count in counts.items()
        for number in range(count)
    ]
    ends = 1 if cell.mode == "async" else cell.workers
    return jobs.Processes(commands, ends, ends, cell.threads)


CELLS = [c for c in tasks.all_cells() if not c.mode.startswith("staleness")]
RUNNER = jobs.Runner(processes, CELLS)
CASES, FIGURES = RUNNER.cases, RUNNER.figures
