"""Draws processor and network over time of the platforms, from benchmarks/results/platforms.json.

    python benchmarks/platform_pictures.py

Writes docs/images/platforms-processor.png and docs/images/platforms-network.png: one panel for each
case whose rows carry samples.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "benchmarks" / "results" / "platforms.json"
PICTURES = {
    "processor": ("cpu_percent", "processor time of all processes, % of one core"),
    "network": ("megabytes_per_s", "loop-back interface, MB per s"),
}
#: Name and colour of each platform.
LOOKS = {
    "ours": ("mixflow", "tab:blue"),
    "mxnet": ("MXNet", "tab:orange"),
    "torch": ("PyTorch", "tab:red"),
    "tensorflow": ("TensorFlow", "tab:green"),
    "spark": ("Spark", "tab:purple"),
}
BEFORE_SECONDS = 2.0


def draw(rows: list[dict], column: str, label: str, path: Path) -> None:
    """One picture: a panel per case, a line per platform; 0 is where the timed part begins."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure, axes = pyplot.subplots(
        1, len(cases), figsize=(6 * len(cases), 4), squeeze=False, layout="constrained"
    )
    for axis, case in zip(axes[0], cases, strict=True):
        for row in (r for r in rows if r["case"] == case):
            use = row["use"]
            end = use["ended"] - use["began"]
            times = [t - use["began"] for t in use["seconds"]]
            kept = [k for k, t in enumerate(times) if -BEFORE_SECONDS <= t <= end + 0.5]
            name, colour = LOOKS[row["rival"]]
            values = [use[column][k] for k in kept]
            axis.step([times[k] for k in kept], values, label=name, color=colour)
        axis.set(title=case, xlabel="seconds since the timed part began", ylabel=label)
        axis.set_ylim(0, None)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def main() -> None:
    """Command line."""
    rows = [row for row in json.loads(ROWS.read_text()) if "use" in row]
    if not rows:
        raise SystemExit(f"expected rows with samples in {ROWS}, got none; measure them first")
    for name, (column, label) in PICTURES.items():
        target = ROOT / "docs" / "images" / f"platforms-{name}.png"
        draw(rows, column, label, target)
        print(target)


if __name__ == "__main__":
    main()
