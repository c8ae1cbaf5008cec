"""How much of the communication of a training step is hidden behind computing.

    python benchmarks/overlap.py [--depth 20] [--batch 128] [--links throttle|namespaces]
        [--shares 0.25 0.5 1] [--rounds 10] [--under '/path/to/quiet -t 40']

Two synchronous workers with one thread each and one server train the CIFAR form of ResNet over
slow links: the transport's own throttle (each process sends at the rate), or network namespaces
whose cables have the rate in each direction (see `namespaces.py`; root). Trial jobs look for the
rates at which communication alone, with a step's messages and nothing else, takes the shares of
the time of the backward pass.

Then, per share, jobs run blocks of a few steps in turn: `compute` without communication,
communication `alone`, and `both`; each is as slow as its slower worker. The hidden share is
1 - (both - compute) / alone, of the medians over all rounds; beside it stand the quartiles of the
rounds. Rounds during which other processes took more than a twentieth of the cores do not count.
The engine's trace of some more steps gives the share of the time of pushes and pulls during which
something was computed, the pause between the backward pass and the next step, and how much of it
is waiting for the other worker, whose gradients are not there yet.

Workers, server and links share the machine's cores, so that part of what is called not hidden is
processor time that communication takes from computing; it is reported per step (`server_cpu` and
`worker_cpu`: both - compute). A job on links without a limit shows what that costs
(`unlimited_cost`: both - compute there); `hidden_of_link` leaves it out. Writes
benchmarks/results/overlap/rows.json, where rows of other nets, links and shares stay.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import run as benchmarks  # noqa: E402 - facts on the machine

WORKERS = 2
#: Bytes per second of the first trial.
FIRST_RATE = 20e6
#: How far from the wanted share of the backward pass communication may be, and how often to try.
TOLERANCE, TRIES = 0.06, 4
TRIAL_ROUNDS = 4
#: Kinds of steps whose blocks are long enough for the clock of /proc/stat.
LONG = ("compute", "alone", "both")
#: Share of the cores that other processes of the machine may take in a block.
FOREIGN = 0.05
#: Tasks that take longer are the passes of the net.
STEP_NS = 5e6
#: Bytes per second of a link that takes no time.
NO_LIMIT = 5e9
Span = Sequence[int]
#: What the workers of one job have written.
Workers = Sequence[dict[str, Any]]


def union(spans: Iterable[Span]) -> list[list[int]]:
    """Spans of time with those that overlap as one, in order."""
    merged: list[list[int]] = []
    for begin, end, *_ in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def covered(spans: Iterable[Span], by: Iterable[Span]) -> float:
    """Share of the time of some spans that others cover."""
    own, others = union(spans), union(by)
    both = sum(max(0, min(e, f) - max(b, c)) for b, e in own for c, f in others)
    return both / max(1, sum(e - b for b, e in own))


def passes(trace: dict[str, Any]) -> list[Span]:
    """Spans of the net's passes, one per step."""
    return [span for span in trace["computing"] if span[1] - span[0] >= STEP_NS]


def pauses(traces: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Of each step of some workers, in seconds: how long they pause from the end of the backward
    pass to the next step, and how much of it they wait for the last one's backward pass, both as
    means over the workers."""
    found, late = [], []
    for own in zip(*(itertools.pairwise(passes(trace)) for trace in traces), strict=False):
        ends = [this[1] for this, _ in own]
        found.append(statistics.mean(after[0] - this[1] for this, after in own) / 1e9)
        late.append((max(ends) - statistics.mean(ends)) / 1e9)
    return found, late


def profile(traces: Sequence[dict[str, Any]], sizes: Sequence[int]) -> list[dict[str, float]]:
    """What each message does: its bytes, and medians of the times at which its last gradient is
    there and its values are, in ms from the end of the backward pass."""
    times: dict[tuple[int, ...], list[tuple[float, float]]] = {}
    for trace in traces:
        steps = passes(trace)
        for begin, end, keys in trace["exchanges"]:
            mine = [done for started, done in steps if started <= begin]
            if mine:
                pair = ((begin - mine[-1]) / 1e6, (end - mine[-1]) / 1e6)
                times.setdefault(tuple(keys), []).append(pair)
    rows = []
    for keys, pairs in times.items():
        ready, there = (statistics.median(column) for column in zip(*pairs, strict=True))
        rows.append({"bytes": sum(sizes[k] for k in keys), "ready_ms": ready, "there_ms": there})
    return sorted(rows, key=lambda row: row["ready_ms"])


def foreign(blocks: Sequence[Sequence[float]]) -> float:
    """Share of the machine's cores that others took while the workers ran a block."""
    seconds = max(block[0] for block in blocks)
    ours = sum(block[1] for block in blocks) + blocks[0][2]
    return (max(block[3] for block in blocks) - ours) / (seconds * (os.cpu_count() or 1))


def rounds_of(jobs: Sequence[Workers]) -> list[dict[str, Sequence[Sequence[float]]]]:
    """Rounds of all jobs, by kind the block of each worker; those in which others took more than
    `FOREIGN` of the cores in a block of some length are left out, unless that is most of them."""
    found = []
    for workers in jobs:
        for one in zip(*(worker["rounds"] for worker in workers), strict=True):
            found.append({kind: [blocks[kind] for blocks in one] for kind in one[0]})
    quiet = [r for r in found if max(foreign(r[kind]) for kind in LONG) < FOREIGN]
    return quiet if 2 * len(quiet) >= len(found) else found


def figures(jobs: Sequence[Workers]) -> dict[str, Any]:
    """What the workers of some equal jobs have measured, as one row."""
    rounds = rounds_of(jobs)

    def processor(kind: str, which: int) -> float:
        """Median processor seconds per step: of a worker (1), of the servers (2)."""
        return statistics.median(block[which] for one in rounds for block in one[kind])

    blocks = {k: [max(block[0] for block in one[k]) for one in rounds] for k in rounds[0]}
    row: dict[str, Any] = {kind: statistics.median(seconds) for kind, seconds in blocks.items()}
    row["backward"] = row["compute"] - row["forward"]
    row["share"] = row["alone"] / row["backward"]
    row["hidden"] = 1 - (row["both"] - row["compute"]) / row["alone"]
    columns = zip(blocks["compute"], blocks["alone"], blocks["both"], strict=True)
    each = [1 - (both - compute) / alone for compute, alone, both in columns]
    row["hidden_quartiles"] = statistics.quantiles(each, n=4) if len(each) > 1 else each * 3
    row["rounds"] = len(rounds)
    row["rounds_left_out"] = sum(len(workers[0]["rounds"]) for workers in jobs) - len(rounds)
    for kind, seconds in blocks.items():
        row[f"{kind}_rounds"] = [round(s, 5) for s in seconds]
    row["foreign"] = statistics.median(foreign(one["both"]) for one in rounds)
    row["server_cpu"] = processor("both", 2) - processor("compute", 2)
    row["worker_cpu"] = processor("both", 1) - processor("compute", 1)
    return row | traced(jobs, row["alone"])


def traced(jobs: Sequence[Workers], alone: float) -> dict[str, Any]:
    """What the traces of the jobs say."""
    traces = [worker["trace"] for workers in jobs for worker in workers]
    found = [pauses([worker["trace"] for worker in workers]) for workers in jobs]
    pause, late = (
        statistics.median(s for one in column for s in one) for column in zip(*found, strict=True)
    )
    by_trace = statistics.mean(covered(one["exchanges"], one["computing"]) for one in traces)
    sizes = jobs[0][0]["sizes"]
    return {
        "hidden_by_trace": by_trace,
        "pause": pause,
        "straggler": late,
        "hidden_by_pause": 1 - pause / alone,
        "messages": profile(traces, sizes),
        "bytes": sum(sizes),
    }


@contextlib.contextmanager
def network(task: dict[str, Any]) -> Iterator[tuple[Any, float]]:
    """What starts the job's processes, and the rate of the transport's own throttle."""
    if task["links"] == "throttle":
        yield None, task["rate"]
        return
    import namespaces

    hosts = [f"server{n}" for n in range(task["servers"])] + [f"worker{n}" for n in range(WORKERS)]
    with namespaces.links(hosts, task["rate"]) as addresses:
        yield namespaces.NamespaceSpawner(addresses), 0.0


def job(task: dict[str, Any]) -> None:
    """Runs a job; its workers leave their files."""
    from mixflow.kvstore.job.cluster import Job, JobOptions
    from mixflow.kvstore.options import StoreOptions
    from mixflow.kvstore.transport.faults import Faults

    os.environ["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, str(HERE / "overlap_worker.py"), json.dumps(task)]
    with network(task) as (spawner, rate):
        options = StoreOptions(faults=Faults(rate=rate), repeat=30.0)
        if Job(command, JobOptions(WORKERS, task["servers"], options), spawner).run():
            raise SystemExit("a worker failed")


def measured(args: argparse.Namespace, rate: float, rounds: int, jobs: int = 1) -> dict[str, Any]:
    """Figures of some jobs at a rate, each in a process of its own."""
    found = []
    for _ in range(jobs):
        with tempfile.TemporaryDirectory() as folder:
            names = ("depth", "batch", "links", "servers", "steps", "traced")
            task = {name: getattr(args, name) for name in names}
            task |= {"rate": rate, "rounds": rounds, "out": os.path.join(folder, "worker")}
            under = shlex.split(args.under)
            subprocess.run(
                [*under, sys.executable, __file__, "--job", json.dumps(task)], check=True
            )
            files = [Path(f"{task['out']}{rank}") for rank in range(WORKERS)]
            found.append([json.loads(file.read_text()) for file in files])
    return figures(found)


def rate_for(args: argparse.Namespace, share: float, rate: float, free: dict[str, Any]) -> float:
    """The rate at which communication alone takes a share of the backward pass, by trials: what
    passes a link takes the inverse of its rate, the rest as long as on a link without a limit."""
    for _ in range(TRIES):
        found = measured(args, rate, TRIAL_ROUNDS)
        print(f"  trial: {rate / 1e6:.1f} MB/s: {found['share']:.3f} of it", flush=True)
        if abs(found["share"] / share - 1) < TOLERANCE:
            break
        wanted = share * found["backward"] - free["alone"]
        rate *= max(0.0, found["alone"] - free["alone"]) / max(wanted, 1e-3)
    return rate


def described(row: dict[str, Any]) -> str:
    """One row in words."""
    low, _, high = row["hidden_quartiles"]
    return (
        f"{row['net']}, {row['links']}, {row['rate_bytes_per_s'] / 1e6:.1f} MB/s: communication "
        f"{1e3 * row['alone']:.1f} ms = {row['share']:.2f} of the backward pass "
        f"({1e3 * row['backward']:.0f} ms); step {1e3 * row['both']:.1f} ms, computing alone "
        f"{1e3 * row['compute']:.1f}: {100 * row['hidden']:.0f} % hidden ({row['rounds']} rounds, "
        f"quartiles {100 * low:.0f} to {100 * high:.0f}), {100 * row['hidden_of_link']:.0f} % "
        f"beside a link without a limit; by the trace {100 * row['hidden_by_trace']:.0f} % "
        f"covered, pause {1e3 * row['pause']:.1f} ms ({100 * row['hidden_by_pause']:.0f} %), of "
        f"which waiting for the other worker {1e3 * row['straggler']:.1f}; processor time per "
        f"step: server {1e3 * row['server_cpu']:.1f}, worker {1e3 * row['worker_cpu']:.1f} ms"
    ) + (" - NOT TO BE TRUSTED: others took the cores" if row["foreign"] > FOREIGN else "")


def keep(row: dict[str, Any]) -> None:
    """Puts a row in the place of the one of the same net, links and share."""
    target = HERE / "results" / "overlap" / "rows.json"
    target.parent.mkdir(exist_ok=True)
    others = json.loads(target.read_text()) if target.exists() else []
    names = ("net", "batch", "links", "wanted_share")
    others = [o for o in others if [o.get(n) for n in names] != [row[n] for n in names]]
    target.write_text(json.dumps([*others, row], indent=1) + "\n")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--links", choices=("throttle", "namespaces"), default="throttle")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.25, 0.5, 1.0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2, help="jobs per share, of so many rounds")
    parser.add_argument("--steps", type=int, default=3, help="steps per block")
    parser.add_argument("--traced", type=int, default=10, help="steps that are traced")
    parser.add_argument("--under", default="", help="command to run each job under")
    parser.add_argument("--rates", type=float, nargs="+", help="bytes per second; no trials")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measures what is asked, prints it, and writes rows."""
    args = options()
    if args.job:
        return job(args.job)
    net = {"net": f"resnet{args.depth} CIFAR", "batch": args.batch, "links": args.links}
    free = measured(args, NO_LIMIT, args.rounds, args.jobs)
    cost = free["both"] - free["compute"]
    print(f"  without a limit a step takes {1e3 * cost:.1f} ms more than computing", flush=True)
    rate, known = FIRST_RATE, dict(zip(args.shares, args.rates or [], strict=False))
    for share in sorted(args.shares, reverse=True):
        rate = known[share] if share in known else rate_for(args, share, rate, free)
        row = {**net, "wanted_share": share, "rate_bytes_per_s": rate, "servers": args.servers}
        row |= {**measured(args, rate, args.rounds, args.jobs), **benchmarks.facts(1)}
        row["unlimited_cost"] = cost
        row["hidden_of_link"] = row["hidden"] + cost / row["alone"]
        print(described(row), flush=True)
        keep(row)
    return None


if __name__ == "__main__":
    main()
