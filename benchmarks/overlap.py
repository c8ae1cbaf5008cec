"""How much of the communication of a training step is hidden behind computing.

    python benchmarks/overlap.py [--depth 20] [--batch 128] [--links throttle|namespaces]
        [--shares 0.25 0.5 1] [--rounds 10] [--under '/path/to/quiet -t 40']

Two synchronous workers with one thread each and one server train the CIFAR form of ResNet over
slow links: the transport's own throttle (each process sends at the rate), or network namespaces
whose cables have the rate in each direction (see `namespaces.py`; root). Trial jobs look for the
rates at which communication alone, with a step's messages and nothing else, takes the shares of
the time of the backward pass.

Then, per share, one job runs blocks of a few steps in turn: `compute` without communication,
communication `alone`, and `both`; each is as slow as its slower worker. The hidden share is
1 - (both - compute) / alone, of the medians over all rounds; beside it stand the quartiles of the
rounds. The engine's trace of some more steps gives the share of the time of pushes and pulls
during which something was computed, the pause between the backward pass and the next step, and
how much of it is waiting for the other worker, whose gradients are not there yet.

Workers, server and links share the machine's cores, so that part of what is called not hidden is
processor time that communication takes from computing; it is reported per step (`server_cpu`, and
`worker_cpu`: both - compute). Writes benchmarks/results/overlap/rows.json, where rows of other
nets, links and shares stay.
"""

from __future__ import annotations

import argparse
import contextlib
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
TRIAL_ROUNDS = 3
#: Tasks that take longer are the passes of the net.
STEP_NS = 5e6
Span = Sequence[int]


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


def pauses(traces: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Medians over steps and workers, in seconds: from the end of a backward pass to the next step,
    and how much of it passes until the last worker is at the end of its own."""
    ends = [[end for _, end in passes(trace)] for trace in traces]
    found, late = [], []
    for trace, own in zip(traces, ends, strict=True):
        begins = [begin for begin, _ in passes(trace)]
        for step, (end, begin) in enumerate(zip(own, begins[1:], strict=False)):
            found.append((begin - end) / 1e9)
            late.append((max(each[step] for each in ends) - end) / 1e9)
    return statistics.median(found), statistics.mean(late)


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


def seconds_of(workers: Sequence[dict[str, Any]], kind: str) -> list[float]:
    """Seconds per step of each round's block: those of the slower worker."""
    per_worker = [[one[kind][0] for one in worker["rounds"]] for worker in workers]
    return [max(column) for column in zip(*per_worker, strict=True)]


def processor_of(workers: Sequence[dict[str, Any]], kind: str, which: int) -> float:
    """Median processor seconds per step: of a worker (1), of the servers (2)."""
    return statistics.median(one[kind][which] for worker in workers for one in worker["rounds"])


def figures(workers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a job's workers have measured, as one row."""
    blocks = {k: seconds_of(workers, k) for k in workers[0]["rounds"][0]}
    row: dict[str, Any] = {kind: statistics.median(seconds) for kind, seconds in blocks.items()}
    row["backward"] = row["compute"] - row["forward"]
    row["share"] = row["alone"] / row["backward"]
    row["hidden"] = 1 - (row["both"] - row["compute"]) / row["alone"]
    rounds = zip(blocks["compute"], blocks["alone"], blocks["both"], strict=True)
    each = [1 - (both - compute) / alone for compute, alone, both in rounds]
    row["hidden_quartiles"] = statistics.quantiles(each, n=4) if len(each) > 1 else each * 3
    for kind, seconds in blocks.items():
        row[f"{kind}_rounds"] = [round(s, 5) for s in seconds]
    row["server_cpu"] = processor_of(workers, "both", 2)
    row["worker_cpu"] = processor_of(workers, "both", 1) - processor_of(workers, "compute", 1)
    traces = [worker["trace"] for worker in workers]
    row["hidden_by_trace"] = statistics.mean(
        covered(trace["exchanges"], trace["computing"]) for trace in traces
    )
    row["pause"], row["straggler"] = pauses(traces)
    row["hidden_by_pause"] = 1 - row["pause"] / row["alone"]
    row["messages"] = profile(traces, workers[0]["sizes"])
    row["bytes"] = sum(workers[0]["sizes"])
    return row


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
    from mixflow.kvstore.cluster import Job, JobOptions
    from mixflow.kvstore.options import StoreOptions
    from mixflow.kvstore.transport.faults import Faults

    os.environ["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, str(HERE / "overlap_worker.py"), json.dumps(task)]
    with network(task) as (spawner, rate):
        options = StoreOptions(faults=Faults(rate=rate), repeat=30.0)
        if Job(command, JobOptions(WORKERS, task["servers"], options), spawner).run():
            raise SystemExit("a worker failed")


def measured(args: argparse.Namespace, rate: float, rounds: int) -> dict[str, Any]:
    """Figures of a job at a rate, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        names = ("depth", "batch", "links", "servers", "steps", "traced")
        task = {name: getattr(args, name) for name in names}
        task |= {"rate": rate, "rounds": rounds, "out": os.path.join(folder, "worker")}
        command = [*shlex.split(args.under), sys.executable, __file__, "--job", json.dumps(task)]
        subprocess.run(command, check=True)
        found = [json.loads(Path(f"{task['out']}{rank}").read_text()) for rank in range(WORKERS)]
    return figures(found)


def rate_for(args: argparse.Namespace, share: float, rate: float) -> float:
    """The rate at which communication alone takes a share of the backward pass, by trials."""
    for _ in range(TRIES):
        found = measured(args, rate, TRIAL_ROUNDS)
        off = found["share"] / share
        print(f"  trial: {rate / 1e6:.1f} MB/s: {found['share']:.3f} of it", flush=True)
        if abs(off - 1) < TOLERANCE:
            break
        rate *= off
    return rate


def described(row: dict[str, Any]) -> str:
    """One row in words."""
    low, _, high = row["hidden_quartiles"]
    return (
        f"{row['net']}, {row['links']}, {row['rate_bytes_per_s'] / 1e6:.1f} MB/s: communication "
        f"{1e3 * row['alone']:.1f} ms = {row['share']:.2f} of the backward pass "
        f"({1e3 * row['backward']:.0f} ms); step {1e3 * row['both']:.1f} ms, computing alone "
        f"{1e3 * row['compute']:.1f}: {100 * row['hidden']:.0f} % hidden (quartiles "
        f"{100 * low:.0f} to {100 * high:.0f}); by the trace {100 * row['hidden_by_trace']:.0f} % "
        f"covered, pause {1e3 * row['pause']:.1f} ms ({100 * row['hidden_by_pause']:.0f} %), of "
        f"which waiting for the other worker {1e3 * row['straggler']:.1f}; processor time per "
        f"step: server {1e3 * row['server_cpu']:.1f}, worker {1e3 * row['worker_cpu']:.1f} ms"
    )


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
    parser.add_argument("--steps", type=int, default=3, help="steps per block")
    parser.add_argument("--traced", type=int, default=10, help="steps that are traced")
    parser.add_argument("--under", default="", help="command to run each job under")
    parser.add_argument("--rate", type=float, help="bytes per second; no trials")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measures what is asked, prints it, and writes rows."""
    args = options()
    if args.job:
        return job(args.job)
    rate = args.rate or FIRST_RATE
    for share in sorted(args.shares, reverse=True):
        rate = args.rate or rate_for(args, share, rate)
        row = {"net": f"resnet{args.depth} CIFAR", "batch": args.batch, "links": args.links}
        row |= {"wanted_share": share, "rate_bytes_per_s": rate, "servers": args.servers}
        row |= {**measured(args, rate, args.rounds), **benchmarks.facts(1)}
        print(described(row), flush=True)
        keep(row)
    return None


if __name__ == "__main__":
    main()
