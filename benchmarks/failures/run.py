"""Jobs that are hurt at random moments: do they count exactly, learn the same, at what cost?

    python benchmarks/failures/run.py [--kind worker ...] [--moments 20] [--seed 0] [--report]

A small network is trained by two workers and two servers (`program.py`), undisturbed some times
and once for each random moment of each kind of failure (`kinds.py`). Every run must end by itself,
with the counter that all steps make, and leave no process behind. Writes
benchmarks/results/failures/<kind>.json, the table of docs/failures.md and its picture; --report
only draws again. Exits with 1 where a run was wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import jobs  # noqa: E402
from kinds import KINDS  # noqa: E402

import run as benchmarks  # noqa: E402 - facts on the machine

RESULTS = HERE.parent / "results" / "failures"
#: Undisturbed runs of a kind before its moments, and moments between two more.
QUIET_RUNS, QUIET_EVERY = 3, 10
#: Seeds of undisturbed runs that tell how far apart curves are by chance.
NOISE_SEEDS = range(1, 6)
LAST = 20  #: steps at the end that the final loss is the mean of


def final(ended: jobs.Ended) -> float | None:
    """Mean loss of the last steps."""
    known = [loss for loss in ended.curve[-LAST:] if not math.isnan(loss)]
    return statistics.fmean(known) if known else None


class Campaign:
    """Runs of one kind.

    Args:
        name: of the kind.
        seed: of the first moment.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.kind, self.seed = name, KINDS[name], seed
        self.rows: list[dict] = []
        self.quiet: list[dict] = []
        self.curve: list[float] = []

    def run(self, moments: int, cluster=None) -> list[dict]:
        """Undisturbed runs and moments in turn; their rows."""
        for _ in range(QUIET_RUNS):
            self.one(None, cluster)
        for number in range(moments):
            self.one(self.seed + number, cluster)
            if number % QUIET_EVERY == QUIET_EVERY - 1:
                self.one(None, cluster)
        usual = statistics.median(row["seconds"] for row in self.quiet)
        for row in self.rows:
            row["seconds_lost"] = row["seconds"] - usual
        return self.quiet + self.rows

    def apart(self, curve: list[float]) -> float | None:
        """The farthest that a curve is from the first undisturbed one, at any step."""
        if not curve:
            return None
        self.curve = self.curve or curve
        both = zip(curve, self.curve, strict=True)
        return max(abs(a - b) for a, b in both if not math.isnan(a - b))

    def one(self, seed: int | None, cluster) -> None:
        """One run; undisturbed without a seed."""
        ended = jobs.play(self.kind, seed, cluster)
        row = {
            "kind": self.name,
            "seed": seed,
            **ended.row(),
            "counter_exact": jobs.is_exact(ended),
        }
        row |= {"curve_distance": self.apart(ended.curve)}
        row["final_loss"] = final(ended)
        row["right"] = row["counter_exact"] and not ended.wrong
        row["wrong"] = ended.wrong
        (self.quiet if seed is None else self.rows).append(row)
        self.tell(row)

    def tell(self, row: dict) -> None:
        """A line for who watches."""
        state = "right" if row["right"] else f"WRONG: {row['wrong'] or 'the counter'}"
        what = "undisturbed" if row["seed"] is None else f"seed {row['seed']}, {row['moment']}"
        print(f"{self.name}: {what}: {row['seconds']:.1f} s, {state}", row["restarts"], flush=True)


def noise() -> list[dict]:
    """Undisturbed runs of several seeds of the training."""
    rows = []
    for seed in NOISE_SEEDS:
        ended = jobs.play(KINDS["worker"], None, training_seed=seed)
        rows.append({"kind": "noise", "seed": seed, **ended.row(), "final_loss": final(ended)})
    return rows


def saved() -> list[dict]:
    """The rows of all kinds."""
    files = sorted(RESULTS.glob("*.json"))
    return [row for path in files for row in json.loads(path.read_text())]


def save(name: str, rows: list[dict]) -> None:
    """Keeps the rows of a kind, with where they were measured."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    facts = benchmarks.facts(1)
    lines = ",\n ".join(json.dumps({**row, **facts}) for row in rows)
    (RESULTS / f"{name}.json").write_text(f"[{lines}]\n")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", action="append", choices=[*KINDS], help="default: all")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-noise", action="store_true", help="keep the rows of other seeds")
    parser.add_argument("--report", action="store_true", help="draw what was measured before")
    args = parser.parse_args()
    right = True
    if not args.report:
        if not args.no_noise:
            save("noise", noise())
        for name in args.kind or KINDS:
            with jobs.cluster_of(KINDS[name]) as cluster:
                rows = Campaign(name, args.seed).run(args.moments, cluster)
            save(name, rows)
            right &= all(row["right"] for row in rows)
    from report import write

    write(saved())
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
