"""The same on MXNet 1.9.1, whose reader gives bytes in every case."""

import random
import sys
import tempfile
import time
from pathlib import Path

here = sys.path.pop(0)
import mxnet as mx  # noqa: E402 - this file's own folder must not shadow the package

sys.path.insert(0, here)

VERSION = f"mxnet {mx.__version__}"
FOLDER = Path(tempfile.gettempdir()) / "mixflow-bench-recordio"


def content(size, number):
    return (b"%08d" % number) * (size // 8)


def make(size, count):
    FOLDER.mkdir(exist_ok=True)
    index, records = FOLDER / f"{size}-{count}.idx", FOLDER / f"{size}-{count}.rec"
    if not index.exists():
        writer = mx.recordio.MXIndexedRecordIO(str(index), str(records), "w")
        for i in range(count):
            writer.write_idx(i, content(size, i))
        writer.close()
    order = list(range(count))
    random.Random(0).shuffle(order)
    return str(index), str(records), order


def by_key(size, count):
    index, records, order = make(size, count)
    reader = mx.recordio.MXIndexedRecordIO(index, records, "r")

    def measure():
        began = time.perf_counter()
        for key in order:
            reader.read_idx(key)
        return (time.perf_counter() - began) / count

    return measure


def opening(count):
    index, records, order = make(64, count)

    def measure():
        began = time.perf_counter()
        mx.recordio.MXIndexedRecordIO(index, records, "r").read_idx(order[0])
        return time.perf_counter() - began

    return measure


def writing(size, count):
    payload = content(size, 1)

    def measure():
        index, records = FOLDER / "written-mx.idx", FOLDER / "written-mx.rec"
        began = time.perf_counter()
        writer = mx.recordio.MXIndexedRecordIO(str(index), str(records), "w")
        for i in range(count):
            writer.write_idx(i, payload)
        writer.close()
        return (time.perf_counter() - began) / count

    return measure


CASES = {
    "60 kB by key, as bytes": lambda: by_key(60_000, 4_000),
    "60 kB by key, as it comes": lambda: by_key(60_000, 4_000),
    "1 kB by key, as bytes": lambda: by_key(1_000, 20_000),
    "1 kB by key, as it comes": lambda: by_key(1_000, 20_000),
    "open an index of 200,000": lambda: opening(200_000),
    "write 60 kB": lambda: writing(60_000, 1_000),
    "write 1 kB": lambda: writing(1_000, 20_000),
}
