"""Records what MXNet 1.9.1 writes into record files, and the batches of its iterators over files.

Run by `make oracle`, or with a Python that has ``mxnet==1.9.1 numpy==1.23.5``.
"""

import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import data_cases
import mxnet as mx
import numpy as np

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "files")


def main():
    os.makedirs(OUT, exist_ok=True)
    writer = mx.recordio.MXIndexedRecordIO(
        os.path.join(OUT, "records.idx"), os.path.join(OUT, "records.rec"), "w"
    )
    for key, payload in enumerate(data_cases.payloads(80, 1)):
        writer.write_idx(3 * key, payload)
    for label, first, second in data_cases.labels(2):
        header = mx.recordio.IRHeader(9, label, first, second)
        writer.write_idx(1000 + first, mx.recordio.pack(header, b"content"))
    writer.close()
    arrays = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        data_cases.write_files()
        for number, (kind, options) in enumerate(data_cases.ITERATORS):
            for place, batch in enumerate(data_cases.batches(mx.io, kind, options)):
                if batch is not None:
                    stype, data, label, pad = batch
                    name = f"{number} {place} {stype} {pad}"
                    arrays[name + " data"], arrays[name + " label"] = data, label
        os.chdir(OUT)
    np.savez_compressed(os.path.join(OUT, "batches.npz"), **arrays)
    with open(os.path.join(OUT, "VERSION"), "w") as handle:
        handle.write(f"mxnet {mx.__version__}, numpy {np.__version__}\n")


if __name__ == "__main__":
    main()
