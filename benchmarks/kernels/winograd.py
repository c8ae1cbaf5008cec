"""Effective GFLOP/s of direct convolution (oneDNN) and Winograd: 3x3 of VGG and ResNet, some 5x5.

    python benchmarks/kernels/winograd.py [--batch 32] [--threads 2] [--rounds 5] [--only TEXT]

Effective: operations of the direct convolution over time, for both. Rounds are interleaved and the
best counts. With one thread the clock is the thread's own, which a busy machine disturbs less.
Activations are plain NCHW on both sides; oneDNN's reorders to its own order are included.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import numpy as np

import mixflow as mx
from mixflow import _rt
from mixflow.backends import native, onednn_loader
from mixflow.ir import Desc

#: name, channels, side of the image, filters; 5x5 where the name begins so
SHAPES = [
    ("vgg11-2 64-128", 64, 112, 128),
    ("vgg16-1 64-64", 64, 224, 64),
    ("vgg16-2 128-128", 128, 112, 128),
    ("vgg11-3 128-256", 128, 56, 256),
    ("vgg-3 256-256", 256, 56, 256),
    ("vgg-4 256-512", 256, 28, 512),
    ("vgg-4 512-512", 512, 28, 512),
    ("vgg-5 512-512", 512, 14, 512),
    ("resnet-2 64-64", 64, 56, 64),
    ("resnet-3 128-128", 128, 28, 128),
    ("resnet-4 256-256", 256, 14, 256),
    ("resnet-5 512-512", 512, 7, 512),
    ("5x5 alexnet 96-256", 96, 27, 256),
    ("5x5 googlenet 32-96", 32, 28, 96),
]
DIRECTIONS = ("conv", "conv_data_grad", "conv_weight_grad")


class Case:
    """One layer in one direction, ready to run by each implementation."""

    def __init__(
        self, direction: str, batch: int, c: int, side: int, k: int, taps: int, threads: int
    ):
        core: Any = _rt.core
        x, w, y = (batch, c, side, side), (k, c, taps, taps), (batch, k, side, side)
        ins, out = {"conv": ([x, w], y), "conv_data_grad": ([y, w], x)}.get(direction, ([y, x], w))
        self.flops = 2.0 * taps * taps * batch * c * k * side * side
        self.clock = time.thread_time if threads == 1 else time.perf_counter
        pad = (taps // 2,) * 2
        params = {"stride": (1, 1), "dilate": (1, 1), "pad": pad, "groups": 1, "shape": out}
        descs, outs = [Desc(0, s) for s in ins], [Desc(0, out)]
        self.kernels = {
            name: core.prepare(
                direction, native.attributes({**params, "winograd": side}), descs, outs, threads
            )
            for name, side in (("direct", 0), ("winograd", 4))
        }
        rng = np.random.default_rng(0)
        self.ins = [core.from_numpy(rng.random(s, np.float32) - 0.5, (1, 0)) for s in ins]
        self.out = [core.from_numpy(np.zeros(out, np.float32), (1, 0))]

    def seconds(self, name: str) -> float:
        start = self.clock()
        _rt.core.run_kernel(self.kernels[name], self.ins, self.out, 0, 0)
        return self.clock() - start


def measure(case: Case, rounds: int) -> dict[str, float]:
    """Best GFLOP/s of each implementation."""
    best = dict.fromkeys(case.kernels, float("inf"))
    for turn in range(rounds + 1):
        for name in best:
            taken = case.seconds(name)
            if turn:
                best[name] = min(best[name], taken)
    return {name: case.flops / taken / 1e9 for name, taken in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="layers whose name contains this")
    parser.add_argument("--json", action="store_true", help="rows instead of a table")
    args = parser.parse_args()
    onednn_loader.load(_rt.core)
    # The serial engine runs tasks on this thread, whose clock can then be read.
    with mx.config.override(engine="serial", threads=args.threads):
        print(f"batch {args.batch}, {args.threads} threads, load {os.getloadavg()[0]:.1f}")
        for name, c, side, k in SHAPES:
            if args.only in name:
                report(name, args, c, side, k)


def report(name: str, args: argparse.Namespace, c: int, side: int, k: int) -> None:
    line = f"{name:20s}{side:5d}"
    for direction in DIRECTIONS:
        taps = 5 if name.startswith("5x5") else 3
        found = measure(Case(direction, args.batch, c, side, k, taps, args.threads), args.rounds)
        if args.json:
            print(json.dumps({"layer": name, "side": side, "direction": direction, **found}))
        ratio = found["winograd"] / found["direct"]
        line += f" | {found['direct']:5.0f} {found['winograd']:5.0f} {ratio:5.2f}"
    if not args.json:
        print(line, flush=True)


if __name__ == "__main__":
    main()
