"""``mixflow simulate``: what more machines would do, from parameters measured on one worker.

The hazard is an extrapolation that nobody checked. A file of parameters holds the model's step
times for two and three workers beside measured ones; for a policy whose rows are further apart than
its limit, nothing beyond them is simulated. Everything that a figure rests on is printed with it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import visualization
from .errors import MixflowError, ParamError
from .files import write_atomically
from .kvstore.protocol.policy import POLICIES, Policy, named
from .kvstore.simulation import scaling
from .kvstore.simulation.costs import Costs, Spread, Workload, read
from .kvstore.simulation.simulator import Network

#: The policy whose measured jobs stand for another one's: the messages are the same.
CHECKED_BY = {"dist_backup": "dist_sync"}
#: Share of the machines whose pushes make an update with backup workers.
BACKUP_TAKE = 0.85
#: Largest job that was measured.
MEASURED = 3


def check(parameters: Mapping[str, Any], policy: str) -> None:
    """Refuses to go beyond what was measured where the model is too far off.

    Raises:
        MixflowError: no measured jobs of two and three workers under the policy, or one that the
            model misses by more than the limit of the file; the text names it.
    """
    name = CHECKED_BY.get(policy, policy)
    rows = [r for r in parameters["check"] if r["policy"] == name and r["workers"] > 1]
    if {r["workers"] for r in rows} != {2, 3}:
        raise MixflowError(
            f"[simulate] expected measured jobs of 2 and 3 workers under '{name}', got "
            f"{len(rows)}; run benchmarks/scaling/calibrate.py"
        )
    worst = max(rows, key=lambda r: abs(r["off"]))
    if abs(worst["off"]) > parameters["limit"]:
        raise MixflowError(
            f"[simulate] expected the model of '{name}' within {100 * parameters['limit']:g} % of "
            f"measured step times, got {100 * worst['off']:+.0f} % for '{worst['workload']}' on "
            f"{worst['workers']} workers; nothing larger is shown"
        )


def sweep(
    parameters: Mapping[str, Any],
    workload: Workload,
    policies: Sequence[Policy],
    machines: Sequence[int],
    seed: int = 0,
    cores: int | None = None,
    **scenario: Any,
) -> list[dict[str, Any]]:
    """A row per policy and number of machines: the scenario's parameters and its outcome.

    Args:
        parameters: what `costs.read` gives.
        workload: a worker's step.
        policies: to compare.
        machines: how many; one server lies on each unless ``servers`` is given.
        seed: of all draws.
        cores: of each host; None: those of the measured one.
        scenario: further fields of `scaling.Scenario`.

    Raises:
        MixflowError: see `check`.
    """
    costs = Costs.from_json(parameters["costs"])
    if cores:
        costs = replace(costs, cores=cores)
    rows = []
    for policy in policies:
        if max(machines) > MEASURED:
            check(parameters, policy.name)
        for count in machines:
            servers = scenario.get("servers") or count
            made = scaling.Scenario(
                workload, _fitting(policy, count), machines=count,
                **{**scenario, "servers": servers},
            )  # fmt: skip
            outcome = scaling.simulate(made, costs, seed)
            rows.append({**scaling.describe(made), "seed": seed, **asdict(outcome)})
    return rows


def _fitting(policy: Policy, machines: int) -> Policy:
    """Of backup workers, the number that an update takes is a share of the machines."""
    if policy.name != "dist_backup":
        return policy
    return named("dist_backup", take=max(1, round(BACKUP_TAKE * machines)))


def premises(parameters: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the figures rest on, in lines."""
    row = rows[0]
    shown = {CHECKED_BY.get(r["policy"], r["policy"]) for r in rows}
    off = [abs(r["off"]) for r in parameters["check"] if r["workers"] > 1 and r["policy"] in shown]
    checked = f"foretold within {100 * max(off):.0f} %" if off else "not measured"
    return [
        f"{row['workload']}: {1e3 * row['compute_seconds']:.1f} ms, {row['bytes'] / 1e6:.1f} MB in "
        f"{row['keys']} keys; {row['spread']}; {row['devices']} devices, "
        f"{'overlapped' if row['overlapped'] else 'not overlapped'}",
        f"network: {8e-9 * row['bandwidth']:g} Gb/s per host and direction, latency "
        f"{1e6 * row['latency']:g} us, {100 * row['lose']:g} % lost; seed {row['seed']}",
        *Costs.from_json(parameters["costs"]).lines(),
        f"measured on one worker: {parameters.get('processor')}, commit "
        f"{parameters.get('commit')}; two and three workers {checked}",
        "messages were measured between processes that take each other for other hosts: ZeroMQ "
        "over the loopback device, no shared memory",
    ]


def add_simulate(command: argparse.ArgumentParser) -> None:
    """The options of the command."""
    command.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    add = command.add_argument
    add("--parameters", required=True, help="JSON of benchmarks/scaling/calibrate.py")
    add("--workload", help="one of the file's; else --seconds, --bytes and --keys")
    add("--seconds", type=float, default=0.1, help="computing of a step")
    add("--bytes", type=int, default=40_000_000, help="of all gradients")
    add("--keys", type=int, default=50, help="that they lie in")
    add("--devices", type=int, default=1, help="of each machine; it merges their gradients")
    add("--machines", type=int, nargs="+", default=[1, 2, 10, 100], help="to compare")
    add("--servers", type=int, help="default: one on each machine")
    add("--policies", nargs="+", choices=list(POLICIES), default=["dist_sync"], help="to compare")
    add("--bandwidth", type=float, default=10.0, help="Gb/s of each host and direction")
    add("--latency", type=float, default=50.0, help="us")
    add("--lose", type=float, default=0.0, help="share of messages that are lost")
    add("--sigma", type=float, default=0.05, help="spread of step times (log-normal)")
    add("--slow", type=float, nargs=2, default=(0.0, 1.0), metavar=("SHARE", "FACTOR"),
        help="stragglers: share of steps, and how much longer they take")  # fmt: skip
    add("--cores", type=int, help="of each host (default: those of the measured one)")
    add("--on-devices", action="store_true", help="computing takes no core of the host")
    add("--steps", type=int, default=10, help="of each worker")
    add("--seed", type=int, default=0, help="of all draws")
    add("--out", default="out/simulate", help="folder for the figures")
    command.set_defaults(run=simulate)


def simulate(args: argparse.Namespace) -> None:
    """Prints and keeps a table of step time, throughput and efficiency.

    Raises:
        MixflowError: see `check`.
        ParamError: a workload that the file does not have, or a count below 1.
        FormatError: no file of parameters.
    """
    parameters = read(args.parameters)
    rows = sweep(
        parameters,
        _workload(parameters, args),
        [named(name) for name in args.policies],
        args.machines,
        args.seed,
        args.cores,
        devices=args.devices,
        servers=args.servers,
        network=Network(args.latency * 1e-6, args.bandwidth * 1.25e8, args.lose),
        steps=args.steps,
        on_devices=args.on_devices,
    )
    lines = premises(parameters, rows)
    for row in rows:
        print(
            f"{row['policy']:12} {row['machines']:5} machines: "
            f"step {1e3 * row['step_seconds']:9.2f} ms, {row['throughput']:10.2f} batches/s, "
            f"efficiency {100 * row['efficiency']:5.1f} %, "
            f"{row['sent_per_host'] / 1e6:.1f} MB sent per host and step"
        )
    print("\n".join(f"  {line}" for line in lines))
    target = Path(args.out) / "scaling.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, json.dumps({"rows": rows, "premises": lines}, indent=1).encode())
    print(f"  figures: {target}")
    if visualization.can_draw():
        picture = target.with_suffix(".png")
        visualization.plot_scaling(rows, picture, lines)
        print(f"  picture: {picture}")


def _workload(parameters: Mapping[str, Any], args: argparse.Namespace) -> Workload:
    spread = Spread(args.sigma, *args.slow)
    if args.workload is None:
        if args.keys < 1:
            raise ParamError(f"[simulate] expected at least one key, got {args.keys}")
        sizes = (args.bytes // args.keys,) * args.keys
        return Workload("made up", args.seconds, sizes, spread=spread)
    known = parameters["workloads"]
    if args.workload not in known:
        raise ParamError(
            f"[simulate] expected a workload of {sorted(known)}, got {args.workload!r}"
        )
    found = known[args.workload]
    return Workload(args.workload, found["seconds"], tuple(found["sizes"]), spread=spread)
