"""Workers whose pushes come too late again and again: how they get back into step with the others.

The hazard: a worker that was held up once is late for ever. It is told the present version at
once and begins, while the others are in the middle of their step; it ends as much later as it
began, too late again, and a job with three workers of which two are needed has no backup any more.
So a read of one that keeps missing its rounds by much is held until the next round begins, where
it starts together with the others. One that just missed a round is not held: it would miss the
next one for sure. The hold ends by itself when the round takes twice as long as the last one:
others may be dead, and the late one is needed then.

Only times of this shard are compared, so that a wrong clock elsewhere changes nothing. Nothing of
this is committed: a restarted shard holds nobody until it has closed a round.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Rounds missed in a row from which a read is held: by more than `SHARE` of a round, or by less.
MISSES = 2
NEAR_MISSES = 4
SHARE = 0.25
#: Lengths of the last round after which nobody is held any more.
LONGEST = 2.0


@dataclass(slots=True)
class Lateness:
    """Of one slice: when its rounds began, and who missed them."""

    began: float | None = None
    took: float = 0.0
    misses: dict[int, int] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)

    def closed(self, now: float) -> None:
        """A round has ended and the next one begins."""
        self.took = 0.0 if self.began is None else now - self.began
        self.began = now

    def counted(self, worker: int) -> None:
        """A worker's push stands in its round."""
        self.misses.pop(worker, None)
        self.held.pop(worker, None)

    def missed(self, worker: int, version: int, now: float) -> None:
        """A worker's push came too late, while round `version` is open."""
        misses = self.misses[worker] = self.misses.get(worker, 0) + 1
        self.held.pop(worker, None)
        far = self.began is not None and now - self.began > SHARE * self.took
        if misses >= NEAR_MISSES or (far and misses >= MISSES):
            self.held[worker] = version + 1

    def hold(self, worker: int) -> tuple[int, float]:
        """The version that a worker's next read waits for, and until when: (0, 0.0) for none."""
        if worker not in self.held or self.began is None:
            return 0, 0.0
        return self.held[worker], self.began + LONGEST * self.took
