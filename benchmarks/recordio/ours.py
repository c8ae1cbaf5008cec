"""Reading records by key in random order, and writing them: the same file for every rival."""

import random
import tempfile
import time
from pathlib import Path

import mixflow as mx

VERSION = f"mixflow {mx.__version__}"
FOLDER = Path(tempfile.gettempdir()) / "mixflow-bench-recordio"


def content(size, number):
    """Different bytes for each record, without the magic number."""
    return (b"%08d" % number) * (size // 8)


def make(size, count):
    """The paths of a file, written where it does not exist yet; `random` draws the order."""
    FOLDER.mkdir(exist_ok=True)
    index, records = FOLDER / f"{size}-{count}.idx", FOLDER / f"{size}-{count}.rec"
    if not index.exists():
        with mx.recordio.MXIndexedRecordIO(str(index), str(records), "w") as writer:
            for i in range(count):
                writer.write_idx(i, content(size, i))
    order = list(range(count))
    random.Random(0).shuffle(order)
    return str(index), str(records), order


def by_key(size, count):
    """Seconds per record as bytes, each copied once."""
    index, records, order = make(size, count)
    reader = mx.recordio.MXIndexedRecordIO(index, records, "r")

    def measure():
        began = time.perf_counter()
        for key in order:
            reader.read_idx(key)
        return (time.perf_counter() - began) / count

    return measure


def views(size, count):
    """Seconds per record as a view, in batches of 64; the last byte of each is touched."""
    index, records, order = make(size, count)
    reader = mx.recordio.RecordFile(records, index)

    def measure():
        began = time.perf_counter()
        for start in range(0, count, 64):
            for view in reader.read_many(order[start : start + 64]):
                view[-1]
        return (time.perf_counter() - began) / count

    return measure


def opening(count):
    """Seconds to open an indexed file and read one record."""
    index, records, order = make(64, count)

    def measure():
        began = time.perf_counter()
        mx.recordio.MXIndexedRecordIO(index, records, "r").read_idx(order[0])
        return time.perf_counter() - began

    return measure


def writing(size, count):
    """Seconds per record written."""
    FOLDER.mkdir(exist_ok=True)
    payload = content(size, 1)

    def measure():
        index, records = FOLDER / "written.idx", FOLDER / "written.rec"
        began = time.perf_counter()
        writer = mx.recordio.MXIndexedRecordIO(str(index), str(records), "w")
        for i in range(count):
            writer.write_idx(i, payload)
        writer.close()
        return (time.perf_counter() - began) / count

    return measure


CASES = {
    "60 kB by key, as bytes": lambda: by_key(60_000, 4_000),
    "60 kB by key, as it comes": lambda: views(60_000, 4_000),
    "1 kB by key, as bytes": lambda: by_key(1_000, 20_000),
    "1 kB by key, as it comes": lambda: views(1_000, 20_000),
    "open an index of 200,000": lambda: opening(200_000),
    "write 60 kB": lambda: writing(60_000, 1_000),
    "write 1 kB": lambda: writing(1_000, 20_000),
}
