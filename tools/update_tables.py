"""Fills the tables between ``<!-- bench -->`` and ``<!-- /bench -->`` of two documents.

    python tools/update_tables.py [--check]

README.md gets the headline questions, docs/benchmarks.md all of them, from the rows of
benchmarks/results/*.json. With --check it writes nothing and exits with 1 where a table is not what
the rows say.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OPEN, CLOSE = "<!-- bench -->", "<!-- /bench -->"
#: Documents with tables, and the questions that they show (None: all).
DOCUMENTS: dict[str, tuple[str, ...] | None] = {
    "README.md": ("convnets", "small_nets", "kvstore"),
    "docs/benchmarks.md": None,
}
EMPTY = "No rows yet: `make bench`, then `python tools/update_tables.py`."
Row = dict[str, Any]
#: Shares of limits that rows may carry, and their columns. The first counts direct convolution, so
#: Winograd's may pass 100 %.
SHARES = {"flop_share": "of arithmetic limit", "byte_share": "of memory-traffic limit"}
#: With more rivals than these a table has one column of ratios.
MANY = 3
#: Ends of cases' names whose ratios are averaged.
KINDS = ("train", "predict")


def read_rows(folder: Path) -> list[Row]:
    """Every row of every question, in order of the files' names.

    Raises:
        ValueError: a file holds something else than rows; results of another form belong into a
            folder of their own.
    """
    rows = []
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        if not _are_rows(found):
            raise ValueError(
                f"[update_tables] expected a list of rows with a 'question' in {path}, got another "
                f"form; keep it in a folder below {folder}"
            )
        rows += found
    return rows


def _are_rows(found: Any) -> bool:
    """Whether it is a list of objects with a question each."""
    return isinstance(found, list) and all(isinstance(r, dict) and "question" in r for r in found)


def shown(row: Row) -> str:
    """What a row measured, with its unit: a time with three digits, or whole megabytes; or that the
    rival did not come to an end."""
    if "unfinished" in row:
        return "not finished"
    if "median_bytes" in row:
        return f"{row['median_bytes'] / 1e6:,.0f} MB"
    seconds = row["median_seconds"]
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def rivals_of(rows: Iterable[Row]) -> list[str]:
    """Names of those measured, ours first; other ways of ours (`ours_...`) are left out."""
    names = {r["rival"] for r in rows if not r["rival"].startswith("ours_")}
    return sorted(names, key=lambda name: (name != "ours", name))


def table(rows: list[Row]) -> str:
    """One Markdown table for each question, and a line that says where all was measured."""
    if not rows:
        return EMPTY
    parts = []
    for question in dict.fromkeys(r["question"] for r in rows):
        own = [r for r in rows if r["question"] == question]
        parts += [f"**{question}**", "", question_table(own), ""]
    return "\n".join([*parts, facts(rows)])


def question_table(rows: list[Row]) -> str:
    """Markdown: medians of one question, how many times as long the others take, and where the
    rows know them, the shares of the machine's limits that mixflow reaches."""
    others = [r for r in rivals_of(rows) if r != "ours"]
    if len(others) > MANY:
        return wide_table(rows, others)
    shares = [s for s in SHARES if any(s in r for r in rows)]
    names = ["case", "mixflow", *others, *(f"{r} / mixflow" for r in others)]
    names += [SHARES[s] for s in shares]
    lines = ["| " + " | ".join(names) + " |", "| --- |" + " ---: |" * (len(names) - 1)]
    cases = list(dict.fromkeys(r["case"] for r in rows))
    for case in cases:
        found = {r["rival"]: r for r in rows if r["case"] == case}
        times = [shown(found[r]) if r in found else "" for r in others]
        ratios = [ratio(found, r) for r in others]
        cells = [f"{r:.2f}" if r else "" for r in ratios]
        ours = found.get("ours", {})
        reached = [f"{100 * ours[s]:.0f} %" if s in ours else "" for s in shares]
        lines.append(
            "| " + " | ".join([case, shown(ours) if ours else "", *times, *cells, *reached]) + " |"
        )
    return "\n".join([*lines, *mean_lines(rows, cases, others, len(shares))])


def wide_table(rows: list[Row], others: list[str]) -> str:
    """Markdown of a question with many rivals: medians, and how many times as long the fastest of
    the others takes; then, where models were trained, what came out of it."""
    names = ["case", "mixflow", *others, "fastest other / mixflow"]
    lines = ["| " + " | ".join(names) + " |", "| --- |" + " ---: |" * (len(names) - 1)]
    best = []
    for case in dict.fromkeys(r["case"] for r in rows):
        found = {r["rival"]: r for r in rows if r["case"] == case}
        ratios = [x for r in others if (x := ratio(found, r)) is not None]
        best += [min(ratios)] if ratios else []
        cells = [shown(found[r]) if r in found else "" for r in ("ours", *others)]
        lines.append("| " + " | ".join([case, *cells, f"{best[-1]:.2f}" if ratios else ""]) + " |")
    if best:
        mean = math.exp(sum(map(math.log, best)) / len(best))
        won = sum(x >= 1 for x in best)
        text = f"geometric mean; mixflow is the fastest in {won} of {len(best)}"
        lines.append("| " + " | ".join([text, "", *[""] * len(others), f"{mean:.2f}"]) + " |")
    return "\n".join([*lines, *quality_lines(rows, others)])


def quality_lines(rows: list[Row], others: list[str]) -> list[str]:
    """Markdown: loss and accuracy after the timed passes, by case; nothing where none are known."""
    known = [r for r in rows if "accuracy" in r]
    if not known:
        return []
    names = ["loss, accuracy", "mixflow", *others]
    lines = ["", "| " + " | ".join(names) + " |", "| --- |" + " ---: |" * (len(names) - 1)]
    for case in dict.fromkeys(r["case"] for r in known):
        found = {r["rival"]: r for r in known if r["case"] == case}
        cells = [
            f"{found[r]['loss']:.4f}, {100 * found[r]['accuracy']:.1f} %" if r in found else ""
            for r in ("ours", *others)
        ]
        lines.append("| " + " | ".join([case, *cells]) + " |")
    return lines


def ratio(found: dict[str, Row], rival: str) -> float | None:
    """How many times as long a rival takes for a case; None where it was not measured."""
    if any("unfinished" in found.get(r, {"unfinished": ""}) for r in (rival, "ours")):
        return None
    return float(amount(found[rival]) / amount(found["ours"]))


def amount(row: Row) -> float:
    """What a row measured: seconds, or bytes."""
    return float(row["median_seconds"] if "median_seconds" in row else row["median_bytes"])


def mean_lines(rows: list[Row], cases: list[str], others: list[str], empty: int) -> list[str]:
    """Geometric means of the ratios of each kind of case, where names end with a kind."""
    lines = []
    for kind in KINDS:
        own = [c for c in cases if c.endswith(f" {kind}")]
        if not own:
            continue
        cells = []
        for rival in others:
            found = [{r["rival"]: r for r in rows if r["case"] == c} for c in own]
            known = [x for f in found if (x := ratio(f, rival)) is not None]
            mean = math.exp(sum(map(math.log, known)) / len(known)) if known else None
            note = "" if mean is None or len(known) == len(own) else f" (of {len(known)})"
            cells.append("" if mean is None else f"{mean:.2f}{note}")
        blank = [""] * (1 + len(others))
        parts = [f"geometric mean, {kind}", *blank, *cells, *[""] * empty]
        lines.append("| " + " | ".join(parts) + " |")
    return lines


def facts(rows: list[Row]) -> str:
    """Machine, versions and commits of the rows."""
    rivals = [r["version"] for r in rows if not r["rival"].startswith("ours")]
    versions = sorted({v for v in rivals if " " in v})
    machines = sorted({f"{r['processor']}, {r['threads']} threads" for r in rows})
    commits = sorted({f"{r['commit']} ({r['date']})" for r in rows})
    limits = sorted({(r["flop_limit"], r["byte_limit"]) for r in rows if "flop_limit" in r})
    measured = "".join(f"limits {f / 1e9:.0f} GFLOP/s, {b / 1e9:.1f} GB/s; " for f, b in limits)
    return (
        f"Medians, interleaved; {'; '.join(machines)}; {measured}{', '.join(versions)}; "
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
    """Writes or checks the tables."""
    rows, stale = read_rows(ROOT / "benchmarks" / "results"), 0
    for name, questions in DOCUMENTS.items():
        path = ROOT / name
        old = path.read_text()
        chosen = [r for r in rows if questions is None or r["question"] in questions]
        new = filled(old, table(chosen))
        if "--check" not in sys.argv[1:]:
            path.write_text(new)
        elif new != old:
            print(f"{name}: a table is not current; run python tools/update_tables.py")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
