"""Prints every cell of the platforms benchmark: ours, the fastest rival, who wins, and whether all
of them came to the same loss; from benchmarks/results/platforms.json.

    python benchmarks/platform_cells.py [--write]

With --write the table goes into docs/benchmarks.md, between its `platform cells` marks.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from update_tables import shown  # noqa: E402 - one way to print rows

ROWS = ROOT / "benchmarks" / "results" / "platforms.json"
DOCUMENT = ROOT / "docs" / "benchmarks.md"
OPEN, CLOSE = "<!-- platform cells -->", "<!-- /platform cells -->"
#: Trains by another method (L-BFGS): its loss is no check of the others.
OTHER_METHOD = {"spark_mllib"}
#: Greatest difference of losses between platforms. Synchronous ones do the same arithmetic in
#: another order; the order of asynchronous updates is chance, and TensorFlow's batches are drawn.
SYNC_SPREAD, FREE_SPREAD = 2e-3, 0.1

Row = dict[str, Any]


def cells(rows: list[Row]) -> list[dict[str, Any]]:
    """What each cell says: ours, the fastest rival, the ratio of their times (above 1: ours is
    faster), the greatest difference of a rival's loss from ours."""
    found = []
    for case in dict.fromkeys(row["case"] for row in rows):
        own = {row["rival"]: row for row in rows if row["case"] == case}
        ours = own.pop("ours", {})
        timed = {r: row for r, row in own.items() if "median_seconds" in row}
        fastest = min(timed, key=lambda r: timed[r]["median_seconds"], default="")
        same = [r for r in own if "loss" in own[r] and r not in OTHER_METHOD]
        ratio = None
        if fastest and "median_seconds" in ours:
            ratio = timed[fastest]["median_seconds"] / ours["median_seconds"]
        spread = max((abs(own[r]["loss"] - ours["loss"]) for r in same), default=None)
        cell = {"case": case, "ours": ours, "rivals": own, "fastest": fastest, "ratio": ratio}
        found.append({**cell, "spread": spread})
    return found


def allowed(case: str) -> float:
    """How far losses may lie apart in a case."""
    return SYNC_SPREAD if ", sync," in case else FREE_SPREAD


def table(found: list[dict[str, Any]]) -> str:
    """Markdown: a line per cell, those that we lose first, then a line that counts them."""
    names = ["cell", "mixflow", "fastest other", "other / mixflow", "losses differ by"]
    lines = ["| " + " | ".join(names) + " |", "| --- | ---: | ---: | ---: | ---: |"]
    order = sorted(found, key=lambda c: (c["ratio"] is None, (c["ratio"] or 0.0) >= 1.0))
    for cell in order:
        spread = cell["spread"]
        other = cell["rivals"].get(cell["fastest"])
        text = [
            cell["case"],
            shown(cell["ours"]) if cell["ours"] else "",
            f"{shown(other)} ({cell['fastest']})" if other else "no other has it",
            "" if cell["ratio"] is None else f"{cell['ratio']:.2f}",
            "" if spread is None else f"{spread:.1e}" + _doubt(cell["case"], spread),
        ]
        lines.append("| " + " | ".join(text) + " |")
    ratios = [cell["ratio"] for cell in found if cell["ratio"] is not None]
    won = sum(ratio >= 1 for ratio in ratios)
    lines += [
        "",
        f"mixflow is at least as fast as the fastest other in {won} of {len(ratios)} cells.",
    ]
    return "\n".join(lines)


def _doubt(case: str, spread: float) -> str:
    return "" if spread <= allowed(case) else " (too much)"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="put it into docs/benchmarks.md")
    args = parser.parse_args()
    text = table(cells(json.loads(ROWS.read_text())))
    print(text)
    if args.write:
        before, _, rest = DOCUMENT.read_text().partition(OPEN)
        after = rest.partition(CLOSE)[2]
        DOCUMENT.write_text(f"{before}{OPEN}\n{text}\n{CLOSE}{after}")


if __name__ == "__main__":
    main()
