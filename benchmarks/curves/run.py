"""Training curves on real images (Fashion-MNIST) beside those of MXNet 1.9.1.

    python benchmarks/curves/run.py [TASK ...] [--seeds 3] [--report]

Both packages start from the same values, see the same images in the same order and use the same
settings; each seed has its own values and order. Writes
benchmarks/results/curves/fashion-mnist.json, docs/images/curves.png and the table between the
markers of docs/curves.md; --report only draws again what the JSON holds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
import run as benchmarks  # noqa: E402 - the environments of rivals
from mixflow import datasets, models  # noqa: E402

RIVALS = ("ours", "mxnet")
RUN_SECONDS = 3600
THREADS = 2
COMMON = {"momentum": 0.9, "wd": 1e-4}
TASKS = {
    "lenet": {"images": 6144, "epochs": 4, "batch_size": 64, "learning_rate": 0.05, **COMMON},
    "resnet-20-cifar": {
        "images": 3072, "epochs": 4, "batch_size": 64, "learning_rate": 0.1, **COMMON,
    },
}  # fmt: skip
TEST_IMAGES = 1024


def sample(name: str, images: np.ndarray) -> np.ndarray:
    """The images in the form of a network: those for CIFAR's get an edge of 2 and three channels.

    Args:
        images: (N, 1, 28, 28) in [0, 1].

    Returns:
        (N, 1, 28, 28) or (N, 3, 32, 32) float32, of mean about 0.
    """
    images = images - 0.5
    if models.DEFAULT_SHAPES[name] == (3, 32, 32):
        images = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)), constant_values=-0.5)
        images = np.repeat(images, 3, axis=1)
    return images.astype(np.float32)


def initial(symbol, shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Values of all parameters (He, 2015) and states, by 'arg:name' and 'aux:name'."""
    args, _, states = symbol.infer_shape(data=shape)
    found = {}
    for name, size in zip(symbol.list_arguments(), args, strict=True):
        if name.endswith("_weight"):
            spread = np.sqrt(2 / np.prod(size[1:]))
            found[f"arg:{name}"] = rng.normal(0, spread, size).astype(np.float32)
        elif name not in ("data", "softmax_label"):
            found[f"arg:{name}"] = np.full(size, name.endswith("_gamma"), np.float32)
    for name, size in zip(symbol.list_auxiliary_states(), states, strict=True):
        found[f"aux:{name}"] = np.full(size, name.endswith("_var"), np.float32)
    return found


def prepare(name: str, seeds: int) -> Path:
    """The folder of a task, filled."""
    settings = {**TASKS[name], "seeds": list(range(seeds))}
    folder = ROOT / ".bench" / "curves" / name
    folder.mkdir(parents=True, exist_ok=True)
    data = datasets.load("fashion-mnist")
    count = settings["images"]
    np.savez(
        folder / "arrays.npz",
        train_images=sample(name, data.train_images[:count]),
        train_labels=data.train_labels[:count],
        test_images=sample(name, data.test_images[:TEST_IMAGES]),
        test_labels=data.test_labels[:TEST_IMAGES],
    )
    symbol = models.NETWORKS[name](10)
    symbol.save(str(folder / "symbol.json"))
    shape = (settings["batch_size"], *models.DEFAULT_SHAPES[name])
    for seed in settings["seeds"]:
        rng = np.random.default_rng(seed)
        order = np.stack([rng.permutation(count) for _ in range(settings["epochs"])])
        np.savez(folder / f"seed-{seed}.npz", order=order, **initial(symbol, shape, rng))
    (folder / "settings.json").write_text(json.dumps(settings))
    return folder


def run(name: str, seeds: int) -> dict:
    """The curves of both packages."""
    folder = prepare(name, seeds)
    result = {"settings": json.loads((folder / "settings.json").read_text())}
    for rival in RIVALS:
        environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS)}
        if rival != "ours":
            environment.pop("PYTHONPATH", None)
        target = folder / f"{rival}.json"
        command = [benchmarks.interpreter(rival), str(HERE / f"{rival}.py"), folder, target]
        subprocess.run(command, check=True, env=environment, timeout=RUN_SECONDS)
        result[rival] = json.loads(target.read_text())
    return {**result, **benchmarks.facts(THREADS)}


def main() -> None:
    """Command line."""
    from report import write

    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="draw what was measured before")
    args = parser.parse_args()
    target = HERE.parent / "results" / "curves" / "fashion-mnist.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(target.read_text()) if target.exists() else {}
    if not args.report:
        for name in args.tasks:
            found[name] = run(name, args.seeds)
            target.write_text(json.dumps(found) + "\n")
    write(found)


if __name__ == "__main__":
    main()
