"""A rival's side of a benchmark: measures the case that each line of stdin names.

A rival's file gives `VERSION` and `CASES`: case -> builder; a builder returns a function that gives
seconds per unit. Builders run once, with a warm-up of two calls (`WARM_UP`). Files with `UNIT`
give something else than seconds; `ROUNDS` is how often that is worth repeating; with `TOGETHER` (of
ours) all rivals build a case at the same time, before any measures it. `FIGURES`, where there is
one, maps a case to a function that gives numbers by name for its row; it is called after the
rounds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

#: Before the name of a case: its figures are asked for, not its time.
FIGURES = "figures "
#: Before the name of a case: it is built, so that it can be measured later without a start.
PREPARE = "prepare "


def main() -> None:
    """Command line: question, rival, threads."""
    question, rival, threads = sys.argv[1:4]
    os.environ["BENCH_THREADS"] = threads
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a rival prints must not mix with the answers
    path = Path(__file__).resolve().parent / question / f"{rival}.py"
    spec = importlib.util.spec_from_file_location(f"bench_{rival}", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    hello = {"cases": list(module.CASES), "version": module.VERSION}
    hello |= {"unit": getattr(module, "UNIT", "seconds"), "rounds": getattr(module, "ROUNDS", None)}
    hello["together"] = getattr(module, "TOGETHER", False)
    print(json.dumps(hello), file=answers, flush=True)
    ready = {}
    for line in sys.stdin:
        case = line.strip()
        if case.startswith(FIGURES):
            made = getattr(module, "FIGURES", {}).get(case.removeprefix(FIGURES))
            print(json.dumps(made() if made else {}), file=answers, flush=True)
            continue
        only_built = case.startswith(PREPARE)
        case = case.removeprefix(PREPARE)
        if case in module.CASES and case not in ready:
            ready.clear()  # the arrays of earlier cases would crowd this one
            ready[case] = module.CASES[case]()
            for _ in range(getattr(module, "WARM_UP", 2)):
                ready[case]()
        seconds = ready[case]() if case in ready and not only_built else None
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
