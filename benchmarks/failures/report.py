"""Table and picture of the failures, from their rows."""

from __future__ import annotations

import itertools
import statistics
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from jobs import POINT  # noqa: E402
from kinds import KINDS  # noqa: E402

import update_tables  # noqa: E402 - the markers of generated tables

DOCUMENT, PICTURE = ROOT / "docs" / "failures.md", ROOT / "docs" / "images" / "failures.png"
#: Losses are the same up to the digits of a float32.
SAME = 1e-6
COLUMNS = (
    "failure",
    "moments",
    "counter exact",
    "curve the same",
    "final loss",
    "apart, mean (worst step)",
    "went back",
    "undisturbed",
    "lost, median",
    "lost, worst",
)


def of(rows: list[dict], kind: str) -> tuple[list[dict], list[dict]]:
    """A kind's undisturbed rows, and those of its moments."""
    own = [row for row in rows if row["kind"] == kind]
    return [r for r in own if r["seed"] is None], [r for r in own if r["seed"] is not None]


def table(rows: list[dict]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "| --- |" + " ---: |" * (len(COLUMNS) - 1)]
    for name, kind in KINDS.items():
        quiet, hurt = of(rows, name)
        if hurt and quiet:
            lines.append("| " + " | ".join([kind.text, *cells(quiet, hurt)]) + " |")
    machines = sorted({f"{row['processor']}, {row['cores']} cores" for row in rows})
    commits = sorted({f"{row['commit']} ({row['date']})" for row in rows})
    where = f"{'; '.join(machines)}; commit {', '.join(commits)}"
    return "\n".join([*lines, "", noise_text(rows), "", f"{where}."])


def cells(quiet: list[dict], hurt: list[dict]) -> list[str]:
    """What the table says of a kind."""
    usual, lost = times(quiet, hurt)
    ends = [row["final_loss"] for row in hurt if row["final_loss"] is not None]
    apart = [row["curve_distance"] for row in hurt if row["curve_distance"] is not None]
    mean = [row["curve_mean_distance"] for row in hurt if row["curve_distance"] is not None]
    return [
        str(len(hurt)),
        f"{sum(row['counter_exact'] for row in hurt)} of {len(hurt)}",
        f"{sum(x < SAME for x in apart)} of {len(hurt)}",
        f"{min(ends):.4f} to {max(ends):.4f}",
        "0" if max(apart) < SAME else f"{max(mean):.1g} ({max(apart):.1g})",
        str(sum(bool(row["went_back"]) for row in hurt)),
        *([f"{usual:.1f} s", f"{statistics.median(lost):.1f} s"] if lost else ["", ""]),
        f"{max(lost):.1f} s" if lost else "",
    ]


def times(quiet: list[dict], hurt: list[dict]) -> tuple[float, list[float]]:
    """Median seconds of undisturbed runs, and what each moment took more: of runs that were timed
    (not beside other work)."""
    usual = [row["seconds"] for row in quiet if row["timed"]]
    if not usual:
        return 0.0, []
    middle = statistics.median(usual)
    return middle, [row["seconds"] - middle for row in hurt if row["timed"]]


def noise_text(rows: list[dict]) -> str:
    """How far curves are apart by chance."""
    quiet = [r for r in rows if r["seed"] is None and r["kind"] != "noise"]
    same = max((r["curve_distance"] for r in quiet if r["curve_distance"] is not None), default=0)
    seeds = [row for row in rows if row["kind"] == "noise"]
    text = f"{len(quiet)} undisturbed runs: at most {same:.1g} from each other at any step."
    if len(seeds) > 1:
        pairs = itertools.combinations([np.array(row["curve"]) for row in seeds], 2)
        apart = statistics.fmean(float(np.abs(a - b).mean()) for a, b in pairs)
        ends = [row["final_loss"] for row in seeds]
        spread = statistics.stdev(ends)
        text += (
            f" {len(seeds)} seeds of the training: final loss {statistics.fmean(ends):.4f} "
            f"± {spread:.4f} (standard deviation); two of their curves are {apart:.2g} apart in "
            "the mean over all steps."
        )
    return text


def draw(rows: list[dict], path: Path) -> None:
    """The curves of all moments over the band of other seeds, and the seconds that they lost."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    seeds = np.array([row["curve"] for row in rows if row["kind"] == "noise"])
    if len(seeds):
        steps = POINT * (np.arange(seeds.shape[1]) + 0.5)
        left.fill_between(
            steps, seeds.min(axis=0), seeds.max(axis=0), color="0.8", label="other seeds"
        )
    for number, name in enumerate(KINDS):
        quiet, hurt = of(rows, name)
        _, lost = times(quiet, hurt)
        right.plot(lost, [number] * len(lost), "o", ms=4, alpha=0.5, color=f"C{number % 10}")
        for row in hurt:
            steps = POINT * (np.arange(len(row["curve"])) + 0.5)
            left.plot(
                steps, np.array(row["curve"], float), color=f"C{number % 10}", lw=0.5, alpha=0.5
            )
    left.set(xlabel="step", ylabel="training loss", yscale="log", title="curves of all moments")
    if len(seeds):
        left.legend()
    right.set_yticks(range(len(KINDS)), list(KINDS))
    right.invert_yaxis()
    right.set(xlabel="seconds lost against the undisturbed median", title="cost of a failure")
    right.axvline(0, color="0.6", lw=0.8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def write(rows: list[dict]) -> None:
    """Picture and table."""
    draw(rows, PICTURE)
    DOCUMENT.write_text(update_tables.filled(DOCUMENT.read_text(), table(rows)))
    print(table(rows))
