"""Records what MXNet 1.9.1 makes of the programs in sparse_cases.py.

Run by `make oracle`, or with a Python that has ``mxnet==1.9.1 numpy==1.23.5``.
"""

import os
import sys

os.environ["MXNET_STORAGE_FALLBACK_LOG_VERBOSE"] = "0"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mxnet as mx
import numpy as np
import sparse_cases

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "sparse.npz")


def main():
    arrays = {}
    for name, stype, rows, values in sparse_cases.everything(mx):
        arrays[f"{name}|{stype}|rows"], arrays[f"{name}|{stype}|values"] = rows, values
    arrays["versions"] = np.array(f"mxnet {mx.__version__}, numpy {np.__version__}")
    np.savez_compressed(OUT, **arrays)


if __name__ == "__main__":
    main()
