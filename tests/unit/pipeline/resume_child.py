"""Trains a small net from a record file with a checkpoint after each batch; for test_resume.py.

    resume_child.py FOLDER THREADS BATCHES DIE

Continues from FOLDER/state.npz where there is one. Kills itself with SIGKILL in the middle of batch
number DIE (counted over the epochs); -1: never. Writes FOLDER/final.npz after BATCHES.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import mixflow as mx
from mixflow import _rt
from mixflow.files import write_atomically

CPU = (1, 0)


def network() -> Any:
    net = mx.sym.Convolution(mx.sym.Variable("data"), num_filter=4, kernel=(3, 3), name="conv")
    net = mx.sym.Activation(net, act_type="relu")
    net = mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max")
    net = mx.sym.Dropout(mx.sym.Flatten(net), p=0.3)
    net = mx.sym.FullyConnected(net, num_hidden=5, name="fc")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def weights(module: Any) -> dict[str, np.ndarray]:
    return {k: v.asnumpy() for part in module.get_params() for k, v in part.items()}


def save(folder: Path, module: Any, iterator: Any, done: int) -> None:
    """Weights, optimizer states, position and random state, in one file that appears whole."""
    module.save_optimizer_states(str(folder / "states"))
    notes = {
        "iterator": iterator.state_dict(),
        "done": done,
        "random": list(_rt.core.rng_state(CPU)),
    }
    buffer = io.BytesIO()
    np.savez(
        buffer,
        notes=np.frombuffer(json.dumps(notes).encode(), np.uint8),
        states=np.frombuffer((folder / "states").read_bytes(), np.uint8),
        **weights(module),
    )
    write_atomically(folder / "state.npz", buffer.getvalue())


def restore(folder: Path, module: Any, iterator: Any) -> int:
    """Number of batches that were done; 0 without a checkpoint."""
    if not (folder / "state.npz").exists():
        return 0
    with np.load(folder / "state.npz") as content:
        saved = dict(content)
    notes = json.loads(saved.pop("notes").tobytes())
    (folder / "states").write_bytes(saved.pop("states").tobytes())
    module.set_params({k: mx.nd.array(v) for k, v in saved.items()}, {})
    module.load_optimizer_states(str(folder / "states"))
    iterator.load_state_dict(notes["iterator"])
    _rt.core.set_rng_state(tuple(notes["random"]), CPU)
    return int(notes["done"])


def main() -> None:
    folder, threads, total, die = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    mx.config.update(deterministic=True, threads=threads)
    mx.random.seed(11)
    np.random.seed(11)
    iterator = mx.io.ImageRecordIter(
        str(folder / "set.rec"),
        (3, 12, 12),
        4,
        path_imgidx=str(folder / "set.idx"),
        shuffle=True,
        rand_crop=True,
        rand_mirror=True,
        resize=14,
        seed=3,
        scale=1 / 255,
        preprocess_threads=threads,
    )
    module = mx.mod.Module(network())
    module.bind(iterator.provide_data, iterator.provide_label)
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.01})
    done = restore(folder, module, iterator)
    while done < total:
        try:
            batch = iterator.next()
        except StopIteration:
            iterator.reset()
            continue
        module.forward_backward(batch)
        if done == die:
            os.kill(os.getpid(), signal.SIGKILL)
        module.update()
        done += 1
        save(folder, module, iterator, done)
    buffer = io.BytesIO()
    np.savez(buffer, **weights(module))
    write_atomically(folder / "final.npz", buffer.getvalue())


if __name__ == "__main__":
    main()
