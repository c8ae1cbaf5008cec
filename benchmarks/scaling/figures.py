"""Figures of scaling: machines by policy, and the GoogLeNet figure of the MXNet paper.

    python benchmarks/scaling/figures.py [--seed 0]

Reads parameters.json (calibrate.py) and convergence.json (convergence.py) in
benchmarks/results/scaling; writes figures.json there, docs/images/scaling.png and googlenet.png,
and what stands between the markers of docs/scaling.md. A policy for which the model has not
foretold two and three workers here is not drawn; the document says so. Where that is so of every
policy there are no pictures of the model: those that are there are removed.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import update_tables  # noqa: E402 - the markers of generated tables
from mixflow import models, simulate, visualization  # noqa: E402
from mixflow.errors import MixflowError  # noqa: E402
from mixflow.files import write_atomically  # noqa: E402
from mixflow.kvstore.protocol.policy import Backup, Bounded, Sync  # noqa: E402
from mixflow.kvstore.simulation.costs import Costs, Spread, Workload, read  # noqa: E402
from mixflow.kvstore.simulation.simulator import Network  # noqa: E402

RESULTS, IMAGES = HERE.parent / "results" / "scaling", ROOT / "docs" / "images"
DOCUMENT = ROOT / "docs" / "scaling.md"
#: Chen et al., 2015, section 4: seconds of a pass over ILSVRC12 on one machine of four devices and
#: on ten; 36 images per device and batch; 1,281,167 images (ILSVRC12's training set).
PAPER = {1: 14_000.0, 10: 1_400.0}
ILSVRC12, DEVICES, BATCH = 1_281_167, 4, 36
MACHINES = (1, 2, 5, 10, 30, 100, 300, 1000)
NETWORK = Network(latency=50e-6, bandwidth=1.25e9)
CORES = 8


def inception(overlapped: bool) -> Workload:
    """A step of one device: the paper's seconds, the bytes of Inception with batch normalisation.

    Overlapped: gradients come one after the other, from the last layer to the first, in the second
    two thirds of the step; else all at its end.
    """
    symbol = models.NETWORKS["inception-bn"]()
    shapes, _, _ = symbol.infer_shape(data=(BATCH, 3, 224, 224))
    sizes = [
        4 * int(np.prod(shape))
        for name, shape in zip(symbol.list_arguments(), shapes, strict=True)
        if name not in ("data", "softmax_label")
    ]
    seconds = PAPER[1] * DEVICES * BATCH / ILSVRC12
    count = len(sizes)
    # In four groups: what is ready at nearly the same time travels together. The first layers'
    # gradients come last, at the end.
    ready = [round(1 - 2 / 3 * (4 * k // count) / 4, 3) for k in range(count)]
    return Workload(
        "inception-bn", seconds, tuple(sizes), tuple(ready) if overlapped else (), Spread(0.03)
    )


def sweeps(parameters: dict, seed: int) -> tuple[list[dict], list[list[str]]]:
    """Rows of every case, and why others are missing."""
    calm = inception(overlapped=True)
    slow = replace(calm, spread=Spread(0.03, 0.01, 3.0))
    # The same bytes on devices ten times faster than those of 2015: communication matters.
    fast = replace(calm, name="inception-bn, 10 x faster devices", seconds=calm.seconds / 10)
    cases = {
        "dist_sync": (calm, Sync(), 0.0),
        "dist_sync, stragglers": (slow, Sync(), 0.0),
        "dist_backup 85 %, stragglers": (slow, Backup(), 0.0),
        "dist_ssp s=3, stragglers": (slow, Bounded(3), 0.0),
        "dist_sync, 10 x faster devices": (fast, Sync(), 0.0),
        "dist_sync, 0.1 % lost": (calm, Sync(), 0.001),
    }
    rows, missing = [], []
    for label, (workload, policy, lose) in cases.items():
        made = []
        try:
            for machines in MACHINES:
                if machines <= (100 if lose else 1000):
                    # Enough draws on few machines, few steps on many.
                    steps = max(4, min(60, 400 // machines))
                    made += simulate.sweep(
                        parameters, workload, [policy], [machines], seed, CORES, devices=DEVICES,
                        steps=steps, network=replace(NETWORK, lose=lose), on_devices=True,
                    )  # fmt: skip
        except MixflowError as error:
            missing.append([label, str(error)])
            continue
        rows += [{**row, "label": label} for row in made]
        print(label, [round(row["efficiency"], 3) for row in made], flush=True)
    return rows, missing


def passes(parameters: dict, seed: int) -> list[dict]:
    """Seconds of a pass over ILSVRC12 on 1 and 10 machines."""
    rows = []
    for overlapped in (False, True):
        made = simulate.sweep(
            parameters, inception(overlapped), [Sync()], (1, 10), seed, CORES, devices=DEVICES,
            steps=12, network=NETWORK, on_devices=True,
        )  # fmt: skip
        rows += [
            {**row, "pass_seconds": ILSVRC12 / BATCH / row["throughput"],
             "paper": PAPER[row["machines"]]} for row in made
        ]  # fmt: skip
    return rows


def premises(parameters: dict, rows: list[dict]) -> list[str]:
    """What the figures rest on, in lines; without figures, what the check rests on."""
    if not rows:
        return [
            *Costs.from_json(parameters["costs"]).lines(),
            f"measured on one worker: {parameters['processor']}, commit {parameters['commit']}",
        ]
    return [
        *simulate.premises(parameters, rows),
        f"modelled hosts have {CORES} cores, and one server each; a step of a device takes what "
        "the paper's pass on one machine says",
        "stragglers: 1 % of the steps of each device take 3 times as long; 10 x faster devices: a "
        "tenth of the time, same bytes; lost: of messages, sent again after 0.5 s",
    ]


def draw(found: dict, convergence: dict, lines: list[str]) -> None:
    """The pictures that there are figures for; others are removed."""
    machines, paper = IMAGES / "scaling.png", IMAGES / "googlenet.png"
    for path in (machines, paper):
        path.unlink(missing_ok=True)
    if found["machines"]:
        visualization.plot_scaling(found["machines"], machines, lines, "Inception-BN, 10 Gb/s")
    if found["passes"]:
        draw_paper(paper, found["passes"], convergence, lines)


def draw_paper(path: Path, rows: list[dict], convergence: dict, lines: list[str]) -> None:
    """The paper's figure: seconds of a pass, and accuracy by passes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 5.6))
    kinds = {"paper": "paper (GK104 devices)", False: "model, no overlap", True: "model, overlap"}
    for number, (kind, label) in enumerate(kinds.items()):
        own = [r for r in rows if kind == "paper" or r["overlapped"] == kind][:2]
        heights = [r["paper" if kind == "paper" else "pass_seconds"] for r in own]
        bars = left.bar(np.arange(2) + 0.27 * (number - 1), heights, 0.25, label=label)
        left.bar_label(bars, [f"{h:,.0f}" for h in heights], fontsize=7)
    left.set(yscale="log", xticks=[0, 1], ylabel="seconds of a pass over ILSVRC12",
             title="1.28 million images, 4 devices per machine")  # fmt: skip
    left.set_xticklabels(["1 machine", "10 machines"])
    left.legend(fontsize=8)
    for run in convergence["runs"]:
        numbers = range(1, 1 + len(run["accuracy"]))
        right.plot(numbers, [100 * a for a in run["accuracy"]], "o-", label=run["name"])
    right.set(xlabel="passes", ylabel="test accuracy (%)",
              title="Inception-BN, an eighth of its filters, Fashion-MNIST")  # fmt: skip
    right.legend(fontsize=8)
    right.grid(alpha=0.3)
    figure.tight_layout(rect=(0, 0.03 * len(lines), 1, 1))
    figure.text(0.02, 0.01, "\n".join(lines), fontsize=7, family="monospace")
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def checked(parameters: dict) -> list[str]:
    """Markdown: step times that were measured, and what the model says."""
    made = [("policy", "workload", "workers", "measured ms", "model ms", "off")]
    for row in [*parameters["check"], *parameters["beside"]]:
        workers = row["workers"] if "workers" in row else f"1 beside {row['beside']}"
        times = (f"{1e3 * row[kind]:.2f}" for kind in ("measured", "model"))
        off = f"{100 * row['off']:+.0f} %"
        made.append((row["policy"], row["workload"], str(workers), *times, off))
    lines = ["| " + " | ".join(row) + " |" for row in made]
    return [lines[0], "| --- | --- |" + " ---: |" * 4, *lines[1:]]


def efficiency(rows: list[dict]) -> list[str]:
    """Markdown: cases by machines."""
    lines = ["Efficiency, % (machines across):", ""]
    lines += ["| | " + " | ".join(map(str, MACHINES)) + " |", "| --- |" + " ---: |" * len(MACHINES)]
    for label in dict.fromkeys(r["label"] for r in rows):
        own = {r["machines"]: r for r in rows if r["label"] == label}
        cells = [f"{100 * own[m]['efficiency']:.1f}" if m in own else "" for m in MACHINES]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return [*lines, "", "![efficiency and throughput by machines](images/scaling.png)"]


def compared(rows: list[dict]) -> list[str]:
    """Markdown: the paper's seconds of a pass, and the model's."""
    lines = [
        "| a pass over ILSVRC12 | 1 machine, s | 10 machines, s | ratio |",
        "| --- |" + " ---: |" * 3,
    ]
    lines.append(f"| paper | {PAPER[1]:,.0f} | {PAPER[10]:,.0f} | {PAPER[1] / PAPER[10]:.2f} |")
    for kind in (False, True):
        one, ten = (r["pass_seconds"] for r in rows if r["overlapped"] == kind)
        label = "model, overlapped" if kind else "model, not overlapped"
        lines.append(f"| {label} | {one:,.0f} | {ten:,.0f} | {one / ten:.2f} |")
    return [*lines, "", "![seconds of a pass; accuracy by passes](images/googlenet.png)"]


def learned(convergence: dict) -> list[str]:
    """Markdown: accuracy by passes."""
    count = max(len(r["accuracy"]) for r in convergence["runs"])
    numbers = " | ".join(str(n + 1) for n in range(count))
    lines = [f"| test accuracy, %, after pass | {numbers} |", "| --- |" + " ---: |" * count]
    for run in convergence["runs"]:
        cells = [f"{100 * a:.1f}" for a in run["accuracy"]]
        cells += [""] * (count - len(cells))
        lines.append(f"| {run['name']} | " + " | ".join(cells) + " |")
    return [*lines, "", f"Commit {convergence['commit']} ({convergence['date']})."]


def document(parameters: dict, found: dict, convergence: dict) -> str:
    """Markdown; figures of the model where its check lets them stand."""
    lines = [*checked(parameters), ""]
    if found["machines"]:
        lines += [*efficiency(found["machines"]), ""]
    for reason in dict.fromkeys(text for _, text in found["missing"]):
        labels = [f"*{label}*" for label, text in found["missing"] if text == reason]
        lines += [f"Not shown: {', '.join(labels)}. {reason}.", ""]
    if found["passes"]:
        lines += [*compared(found["passes"]), ""]
    lines += [*learned(convergence), "", "Parameters:", ""]
    shown = premises(parameters, found["machines"])
    return "\n".join([*lines, *(f"    {text}" for text in shown)])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tables", action="store_true", help="draw again what the JSON holds")
    args = parser.parse_args()
    parameters = read(RESULTS / "parameters.json")
    convergence = json.loads((RESULTS / "convergence.json").read_text())
    target = RESULTS / "figures.json"
    if args.tables:
        found = json.loads(target.read_text())
    else:
        rows, missing = sweeps(parameters, args.seed)
        try:
            pair = passes(parameters, args.seed)
        except MixflowError as error:
            pair, missing = [], [*missing, ["a pass over ILSVRC12", str(error)]]
        found = {"machines": rows, "missing": missing, "passes": pair}
        write_atomically(target, (json.dumps(found, indent=1) + "\n").encode())
    draw(found, convergence, premises(parameters, found["machines"]))
    text = document(parameters, found, convergence)
    write_atomically(DOCUMENT, update_tables.filled(DOCUMENT.read_text(), text).encode())
    print(text)


if __name__ == "__main__":
    main()
