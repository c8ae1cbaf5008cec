"""Records the parameter shapes of MXNet 1.9.1's own networks.

Run with a Python that has ``mxnet==1.9.1 numpy==1.23.5``:

    python tests/oracle/record_models.py

For each network of ``mxnet.gluon.model_zoo.vision`` with 1000 classes: the shape of the output, how
many arguments (without data) and auxiliary states its symbol has, how many numbers the arguments
hold, and a hash of the shapes in the symbol's order. Only shape inference runs. The file is
data/models.json.
"""

import hashlib
import json
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet.gluon.model_zoo import vision

OUT = Path(__file__).parent / "data" / "models.json"

#: Our name to MXNet's.
NAMES = {
    **{f"vgg-{d}": f"vgg{d}" for d in (11, 13, 16, 19)},
    **{f"vgg-{d}-bn": f"vgg{d}_bn" for d in (11, 13, 16, 19)},
    "inception-v3": "inceptionv3",
    **{f"resnet-{d}": f"resnet{d}_v1" for d in (18, 34, 50, 101, 152)},
    **{f"resnet-{d}-v2": f"resnet{d}_v2" for d in (18, 34, 50, 101, 152)},
    **{f"mobilenet-{m}": f"mobilenet{m}" for m in ("0.25", "0.5", "0.75", "1.0")},
    **{f"densenet-{d}": f"densenet{d}" for d in (121, 161, 169, 201)},
    **{f"squeezenet-{v}": f"squeezenet{v}" for v in ("1.0", "1.1")},
}


def facts(name):
    """Row of one network at batch 2 with 1000 classes."""
    size = 299 if name == "inceptionv3" else 224
    symbol = vision.get_model(name, classes=1000)(mx.sym.Variable("data"))
    args, outputs, aux = symbol.infer_shape(data=(2, 3, size, size))
    shapes = [s for n, s in zip(symbol.list_arguments(), args, strict=True) if n != "data"]
    text = json.dumps([[list(s) for s in shapes], [list(s) for s in aux]], separators=(",", ":"))
    return {
        "mxnet": name,
        "output": list(outputs[0]),
        "arguments": len(shapes),
        "states": len(aux),
        "numbers": int(sum(np.prod(s) for s in shapes)),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


if __name__ == "__main__":
    content = {"mxnet": mx.__version__, "networks": {k: facts(v) for k, v in NAMES.items()}}
    OUT.write_text(json.dumps(content, indent=1) + "\n")
