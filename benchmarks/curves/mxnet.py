"""The same training runs on MXNet 1.9.1."""

import sys

here = sys.path.pop(0)
import mxnet as mx  # noqa: E402 - this file's own folder must not shadow the package

sys.path.insert(0, here)
from training import main  # noqa: E402

if __name__ == "__main__":
    main(mx)
