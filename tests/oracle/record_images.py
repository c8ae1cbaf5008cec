"""Records what MXNet 1.9.1 makes of the calls in image_cases.py, into data/images.npz.

Run by `make oracle`, or with a Python that has ``mxnet==1.9.1 numpy==1.23.5``.
"""

import os
import sys

import mxnet as mx
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import image_cases as table  # noqa: E402


def write_records():
    """The record file and the list that the iterators read, written by MXNet."""
    base = os.path.join(table.FOLDER, "few")
    records = mx.recordio.MXIndexedRecordIO(base + ".idx", base + ".rec", "w")
    with open(base + ".lst", "w") as lines:
        for i, name in enumerate(table.LISTED):
            with open(os.path.join(table.FOLDER, name), "rb") as file:
                header = mx.recordio.IRHeader(0, 10.0 + i, i, 0)
                records.write_idx(i, mx.recordio.pack(header, file.read()))
            lines.write(f"{i}\t{20 + i}\t{name}\n")
    records.close()


def main():
    write_records()
    found = {}
    for name in table.CASES:
        for seed in table.SEEDS if name in table.RANDOM else table.SEEDS[:1]:
            for i, array in enumerate(table.results(mx, name, seed)):
                found[f"{name}:{seed}:{i}"] = array
    path = os.path.join(HERE, "data", "images.npz")
    np.savez_compressed(path, **found)
    print(len(found), "arrays of MXNet", mx.__version__, os.path.getsize(path), "bytes")


if __name__ == "__main__":
    main()
