"""Records what MXNet 1.9.1 makes of the sample calls: outputs, gradients, states after the call.

Run by `make oracle`, or with a Python that has ``mxnet==1.9.1 numpy==1.23.5``.
"""

import json
import os
import pickle
import signal
import sys

os.environ["MXNET_STORAGE_FALLBACK_LOG_VERBOSE"] = "0"
import mxnet as mx
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "contract"))
import operator_samples as table  # noqa: E402

#: Samples that MXNet refuses, recorded with its message so that the tests can say why.
REFUSED = {}


def function(name):
    if name.startswith("_contrib_"):
        return getattr(mx.nd.contrib, name[len("_contrib_") :])
    name = name.replace("_np_", "")
    return getattr(mx.nd, name, None) or getattr(mx.nd._internal, name)


def call(name, number, sample):
    """Outputs, gradients (None where there is none) and inputs after the call."""
    params = {k: p for k, p in sample["params"].items() if k != "num_args"}
    inputs = [mx.nd.array(a, dtype=a.dtype) for a in table.arrays(name, number, sample)]
    differentiable = sample["grad"]
    for x in inputs:
        if differentiable and np.issubdtype(x.dtype, np.floating):
            x.attach_grad()
    with mx.autograd.record(train_mode=sample["train"]):
        made = function(name)(*inputs, **params)
    outputs = made if isinstance(made, (list, tuple)) else [made]
    values = [o.asnumpy() for o in outputs]
    grads = [None] * len(inputs)
    if differentiable and inputs:
        try:
            heads = table.heads(name, number, outputs)
            heads = [mx.nd.array(h, dtype=o.dtype) for h, o in zip(heads, outputs, strict=False)]
            mx.autograd.backward(outputs, heads, train_mode=sample["train"])
            grads = [None if x.grad is None else x.grad.asnumpy() for x in inputs]
        except mx.MXNetError:
            grads = [None] * len(inputs)
    mx.nd.waitall()
    return values, grads, [x.asnumpy() for x in inputs]


def apart(name, number, sample, onednn=True):
    """`call` in a process of its own: some samples kill MXNet."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        signal.alarm(15)
        os.environ["MXNET_MKLDNN_ENABLED"] = "1" if onednn else "0"
        try:
            answer = call(name, number, sample)
        except Exception as error:  # the message is the record
            answer = str(error).strip().splitlines()[-1][:200]
        with os.fdopen(writable, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(text) if text else "the process died"


def main():
    data = {}
    for name, samples in sorted(table.SAMPLES.items()):
        for number, sample in enumerate(samples):
            if not sample["record"]:
                continue
            key = f"{name}/{number}"
            before = table.arrays(name, number, sample)
            answer = apart(name, number, sample)
            if isinstance(answer, str):
                answer = apart(name, number, sample, onednn=False)
            if isinstance(answer, str):
                REFUSED[key] = answer
                continue
            outputs, grads, after = answer
            for i, value in enumerate(outputs):
                data[f"{key}/out{i}"] = value
            for i, value in enumerate(grads):
                if value is not None:
                    data[f"{key}/grad{i}"] = value
            for i, (old, new) in enumerate(zip(before, after, strict=False)):
                if not np.array_equal(old, new, equal_nan=old.dtype.kind == "f"):
                    data[f"{key}/after{i}"] = new
    folder = os.path.join(HERE, "data")
    np.savez_compressed(os.path.join(folder, "operators.npz"), **data)
    facts = {"mxnet": mx.__version__, "numpy": np.__version__, "refused": REFUSED}
    with open(os.path.join(folder, "operators.json"), "w") as file:
        json.dump(facts, file, indent=1, sort_keys=True)
        file.write("\n")
    print(len(data), "arrays;", "refused:", json.dumps(REFUSED, indent=1))


if __name__ == "__main__":
    main()
