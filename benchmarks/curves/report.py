"""Statistics, picture and table of training curves."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import update_tables  # noqa: E402 - the markers of generated tables

DOCUMENT, PICTURE = ROOT / "docs" / "curves.md", ROOT / "docs" / "images" / "curves.png"
EARLY, LAST = 10, 64  #: steps at the start and at the end that the table speaks of


def curves(run: dict, kind: str) -> np.ndarray:
    """(seeds, steps) of losses, or (seeds, epochs) of accuracies."""
    return np.array([run["runs"][seed][kind] for seed in sorted(run["runs"], key=int)])


def statistics(task: dict) -> dict[str, float]:
    """What the table says of a task; spreads are standard deviations over the seeds."""
    found = {}
    losses = {r: curves(task[r], "losses") for r in ("ours", "mxnet")}
    ends = {r: x[:, -LAST:].mean(axis=1) for r, x in losses.items()}
    accuracies = {r: curves(task[r], "accuracies")[:, -1] for r in ("ours", "mxnet")}
    for rival in ("ours", "mxnet"):
        found[f"{rival}_loss"], found[f"{rival}_loss_spread"] = mean_spread(ends[rival])
        found[f"{rival}_accuracy"], found[f"{rival}_accuracy_spread"] = mean_spread(
            accuracies[rival]
        )
    apart = np.abs(losses["ours"] - losses["mxnet"]) / losses["mxnet"]
    found["first_step"] = float(apart[:, 0].max())
    found["early"] = float(apart[:, :EARLY].max())
    found["loss_difference"], found["loss_error"] = mean_error(ends["ours"] - ends["mxnet"])
    found["accuracy_difference"], found["accuracy_error"] = mean_error(
        accuracies["ours"] - accuracies["mxnet"]
    )
    return found


def mean_spread(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0


def mean_error(values: np.ndarray) -> tuple[float, float]:
    """Mean and its standard error."""
    mean, spread = mean_spread(values)
    return mean, spread / np.sqrt(len(values))


def table(found: dict) -> str:
    """Markdown."""
    lines = [
        "| network | seeds | first loss apart | first 10 apart | loss at the end, mixflow | MXNet "
        "| difference | test accuracy, mixflow | MXNet | difference |",
        "| --- |" + " ---: |" * 9,
    ]
    for name, task in found.items():
        s = statistics(task)
        cells = [
            name,
            str(len(task["ours"]["runs"])),
            f"{s['first_step']:.0e}",
            f"{s['early']:.0e}",
            f"{s['ours_loss']:.4f} ± {s['ours_loss_spread']:.4f}",
            f"{s['mxnet_loss']:.4f} ± {s['mxnet_loss_spread']:.4f}",
            f"{s['loss_difference']:+.4f} ± {s['loss_error']:.4f}",
            f"{100 * s['ours_accuracy']:.2f} ± {100 * s['ours_accuracy_spread']:.2f} %",
            f"{100 * s['mxnet_accuracy']:.2f} ± {100 * s['mxnet_accuracy_spread']:.2f} %",
            f"{100 * s['accuracy_difference']:+.2f} ± {100 * s['accuracy_error']:.2f} %",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    one = next(iter(found.values()))
    versions = f"mixflow {one['ours']['version']}, MXNet {one['mxnet']['version']}"
    lines += ["", f"{versions}; {one['processor']}; commit {one['commit']} ({one['date']})."]
    return "\n".join(lines)


def smooth(losses: np.ndarray, width: int = 16) -> np.ndarray:
    """Means of `width` steps."""
    count = losses.shape[1] // width * width
    return losses[:, :count].reshape(len(losses), -1, width).mean(axis=2)


def draw(found: dict, path: Path) -> None:
    """Losses and test accuracies: the mean over the seeds, and one standard deviation as a band."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        2, len(found), figsize=(4.5 * len(found), 5.5), squeeze=False, layout="constrained"
    )
    styles = {"ours": ("mixflow", "tab:blue", "-"), "mxnet": ("MXNet 1.9.1", "tab:orange", "--")}
    for (name, task), column in zip(found.items(), axes.T, strict=True):
        for rival, (label, colour, dash) in styles.items():
            loss, accuracy = (
                smooth(curves(task[rival], "losses")),
                curves(task[rival], "accuracies"),
            )
            steps = 16 * (np.arange(loss.shape[1]) + 0.5)
            epochs = np.arange(1, accuracy.shape[1] + 1)
            for axis, x, y in ((column[0], steps, loss), (column[1], epochs, 100 * accuracy)):
                mean, spread = y.mean(axis=0), y.std(axis=0)
                axis.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0)
                axis.plot(x, mean, dash, color=colour, label=label)
        column[0].set(title=name, xlabel="step", ylabel="training loss", yscale="log")
        column[1].set(xlabel="epoch", ylabel="test accuracy, %")
        column[0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def write(found: dict) -> None:
    """Picture and table."""
    draw(found, PICTURE)
    text = update_tables.filled(DOCUMENT.read_text(), table(found))
    DOCUMENT.write_text(text)
    print(table(found))
