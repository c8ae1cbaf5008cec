"""Changes of a job's members as all workers see them alike: each with the step that it precedes.

The hazard: workers are told of a loss at different moments, and servers give a worker up at
different versions. Under `Sync` the rounds order everything: a worker whose last part that counts
everywhere is that of step c - 1 is missing in round c, which closes only where it was dropped. So
whoever has done step c can know of it, and nobody needs to before: the change takes effect before
step c + 1. A worker that joins at step f stands in round f: whoever has done that can know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .messages import Report


class Change(NamedTuple):
    """A worker that takes part no more, after `step` steps that counted, or does from `step` on."""

    worker: int
    joined: bool
    step: int

    @property
    def before(self) -> int:
        """The step of the others before which it takes effect."""
        return self.step + 1


def changes_of(reports: Mapping[str, Report], in_step: int) -> list[Change]:
    """All changes that some server knows of, in order.

    Args:
        reports: of all servers.
        in_step: a version that all slices have which are pushed once a step.
    """
    joined: set[Change] = set()
    ended: dict[tuple[int, int], int] = {}
    for report in reports.values():
        for worker, first in report.members:
            joined.add(Change(int(worker), True, int(first)))
        for worker, first, steps in report.tenures:
            joined.add(Change(int(worker), True, int(first)))
            counted = [
                int(until)
                for key, until in steps.items()
                if int(report.slices.get(key, {"version": -1})["version"]) >= in_step
            ]
            at = (int(worker), int(first))
            if counted:
                ended[at] = min([ended.get(at, counted[0]), *counted])
    left = [Change(worker, False, until) for (worker, _), until in ended.items()]
    return sorted(left + [j for j in joined if j.step > 0], key=lambda c: (c.before, c.joined, c))


def total(reports: Mapping[str, Report]) -> dict[str, Any]:
    """Numbers of changes by server: as long as they are the same, nothing has changed."""
    return {server: report.changes for server, report in reports.items()}
