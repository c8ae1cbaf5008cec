"""Fills the table between ``<!-- bench -->`` and ``<!-- /bench -->`` of README.md.

    python tools/update_tables.py [--check]

Reads the rows of benchmarks/results/*.json. With --check it writes nothing and exits with 1 where
the table is not what the rows say.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OPEN, CLOSE = "<!-- bench -->", "<!-- /bench -->"
EMPTY = "No rows yet: `make bench`, then `python tools/update_tables.py`."
Row = dict[str, Any]


def read_rows(folder: Path) -> list[Row]:
    """Every row of every question, in order of the files' names."""
    return [row for path in sorted(folder.glob("*.json")) for row in json.loads(path.read_text())]


def shown(seconds: float | None) -> str:
    """A time with three digits and its unit."""
    if seconds is None:
        return ""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def rivals_of(rows: Iterable[Row]) -> list[str]:
    """Names of those measured, ours first; other ways of ours (`ours_...`) are left out."""
    names = {r["rival"] for r in rows if not r["rival"].startswith("ours_")}
    return sorted(names, key=lambda name: (name != "ours", name))


def table(rows: list[Row]) -> str:
    """One Markdown table for all questions, and a line that says where it was measured."""
    if not rows:
        return EMPTY
    others = [r for r in rivals_of(rows) if r != "ours"]
    names = ["question", "case", "mixflow", *others, *(f"{r} / mixflow" for r in others)]
    lines = ["| " + " | ".join(names) + " |", "| --- | --- |" + " ---: |" * (len(names) - 2)]
    for question, case in dict.fromkeys((r["question"], r["case"]) for r in rows):
        found = {
            r["rival"]: r["median_seconds"]
            for r in rows
            if (r["question"], r["case"]) == (question, case)
        }
        ours = found.get("ours")
        ratios = [f"{found[r] / ours:.2f}" if ours and r in found else "" for r in others]
        cells = [question, case, shown(ours), *(shown(found.get(r)) for r in others), *ratios]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", facts(rows)])


def facts(rows: list[Row]) -> str:
    """Machine, versions and commits of the rows."""
    rivals = [r["version"] for r in rows if not r["rival"].startswith("ours")]
    versions = sorted({v for v in rivals if " " in v})
    machines = sorted({f"{r['processor']}, {r['threads']} threads" for r in rows})
    commits = sorted({f"{r['commit']} ({r['date']})" for r in rows})
    return (
        f"Medians, interleaved; {'; '.join(machines)}; {', '.join(versions)}; "
        f"commit {', '.join(commits)}."
    )


def filled(text: str, content: str) -> str:
    """The text with the part between the markers replaced.

    Raises:
        ValueError: the markers do not stand there once each, in order.
    """
    if text.count(OPEN) != 1 or text.count(CLOSE) != 1 or text.index(OPEN) > text.index(CLOSE):
        raise ValueError(f"[update_tables] expected {OPEN} and {CLOSE} once each, in this order")
    head, rest = text.split(OPEN)
    return f"{head}{OPEN}\n{content}\n{CLOSE}{rest.split(CLOSE)[1]}"


def main() -> int:
    """Writes or checks the table."""
    path = ROOT / "README.md"
    old = path.read_text()
    new = filled(old, table(read_rows(ROOT / "benchmarks" / "results")))
    if "--check" in sys.argv[1:]:
        if new != old:
            print("README.md: the table is not current; run python tools/update_tables.py")
        return int(new != old)
    path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
