"""Spark's MLlib: LogisticRegression, for the two models that it has; seconds per iteration."""

from importlib.metadata import version

import numpy as np
from programs import jobs, tasks

VERSION = f"pyspark {version('pyspark')}, MLlib"
WARM_UP = 0
FILES = 12  #: as many workers divide them evenly
MODELS = ("logistic", "softmax")


def parquet(model):
    """The model's data as a folder of parquet files, made on first use."""
    folder = tasks.FOLDER / f"{model}-parquet"
    if not (folder / ".whole").exists():
        import pyarrow as pa
        from pyarrow import parquet

        folder.mkdir(parents=True, exist_ok=True)
        files = tasks.paths(model)
        x, y = np.load(files["x"], mmap_mode="r"), np.load(files["y"])
        for number, rows in enumerate(np.array_split(np.arange(len(x)), FILES)):
            part = np.ascontiguousarray(x[rows[0] : rows[-1] + 1])
            features = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), part.shape[1])
            columns = {"features": features, "label": pa.array(y[rows].astype(np.float64))}
            table = pa.table(columns)
            parquet.write_table(table, folder / f"{number:02d}.parquet", store_schema=False)
        (folder / ".whole").touch()
    return str(folder)


def processes(cell, out):
    command = jobs.program("train_mllib.py", cell, out, parquet(cell.model))
    return jobs.Processes([(command, {})], 1, 1, cell.threads)


CELLS = [
    c for c in tasks.all_cells() if c.batch == tasks.WHOLE and c.model in MODELS and c.times == 1
]
RUNNER = jobs.Runner(processes, CELLS)
CASES, FIGURES = RUNNER.cases, RUNNER.figures
