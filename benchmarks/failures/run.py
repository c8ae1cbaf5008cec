"""Jobs that are hurt at random moments: do they count exactly, learn the same, at what cost?

    python benchmarks/failures/run.py [--kind worker ...] [--moments 20] [--seed 0] [--report]

A small network is trained by two workers and two servers (`program.py`), undisturbed some times
and once for each random moment of each kind of failure (`kinds.py`). Every run must end by itself,
with the counter that all steps make, and leave no process behind. Writes
benchmarks/results/failures/rows.json (kinds that were not run stay), the table of docs/failures.md
and its picture; --report only draws again. Exits with 1 where a run was wrong.
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
import program  # noqa: E402
from kinds import KINDS, STEPS  # noqa: E402

import run as benchmarks  # noqa: E402 - facts on the machine

RESULTS = HERE.parent / "results" / "failures"
#: Undisturbed runs of a kind before its moments, and moments between two more.
QUIET_RUNS, QUIET_EVERY = 3, 7
#: Seeds of undisturbed runs that tell how far apart curves are by chance.
NOISE_SEEDS = range(1, 6)
LAST = 20  #: steps at the end that the final loss is the mean of


def expected_counter() -> float:
    """What `STEPS` updates of SGD with momentum make of the counter."""
    value, velocity = 0.0, 0.0
    for step in range(1, STEPS + 1):
        rate = program.RATE * 0.5 ** ((step - 1) // program.HALVED_EVERY)
        velocity = program.MOMENTUM * velocity + rate
        value += velocity
    return value


def smallest_push() -> float:
    """The least that one push of one worker adds."""
    return program.RATE * 0.5 ** ((STEPS - 1) // program.HALVED_EVERY) / 2


def is_exact(ended: jobs.Ended) -> bool:
    """Whether both workers have read the counter of every step's two pushes, once each."""
    wanted, room = expected_counter(), smallest_push() / 10
    return len(ended.ends) == 2 and all(
        abs(cell - wanted) < room for end in ended.ends for cell in end["counter"]
    )


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
        row = {"kind": self.name, "seed": seed, **ended.row(), "counter_exact": is_exact(ended)}
        row |= {"curve_distance": self.apart(ended.curve), "final_loss": final(ended)}
        row["right"] = row["counter_exact"] and not ended.wrong
        row["wrong"] = ended.wrong
        (self.quiet if seed is None else self.rows).append(row)
        self.tell(row)

    def tell(self, row: dict) -> None:
        """A line for who watches."""
        state = "right" if row["right"] else f"WRONG: {row['wrong'] or 'the counter'}"
        what = "undisturbed" if row["seed"] is None else f"seed {row['seed']}, {row['moment']}"
        print(f"{self.name}: {what}: {row['seconds']:.1f} s, {state}", row["restarts"], flush=True)


def noise(moments: int) -> list[dict]:
    """Undisturbed runs of several seeds of the training."""
    rows = []
    for seed in NOISE_SEEDS if moments >= 20 else []:
        ended = jobs.play(KINDS["worker"], None, training_seed=seed)
        rows.append({"kind": "noise", "seed": seed, **ended.row(), "final_loss": final(ended)})
    return rows


def saved() -> list[dict]:
    path = RESULTS / "rows.json"
    return json.loads(path.read_text()) if path.exists() else []


def save(rows: list[dict]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    lines = ",\n ".join(json.dumps(row) for row in rows)
    (RESULTS / "rows.json").write_text(f"[{lines}]\n")


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
        rows = saved()
        groups = {} if args.no_noise else {"noise": noise(args.moments)}
        for name in args.kind or KINDS:
            with jobs.cluster_of(KINDS[name]) as cluster:
                groups[name] = Campaign(name, args.seed).run(args.moments, cluster)
            right &= all(row["right"] for row in groups[name])
            facts = benchmarks.facts(1)
            groups = {k: [{**row, **facts} for row in found] for k, found in groups.items()}
            rows = [row for row in rows if not groups.get(row["kind"])]
            rows += [row for found in groups.values() for row in found]
            groups = {}
            save(rows)
    from report import write

    write(saved())
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
