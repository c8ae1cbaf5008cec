"""Which worker of a job has which partitions of an epoch: pure functions of epoch and members.

Every worker computes the whole deal by itself, so that no message is needed and no partition is
had twice or by nobody, as long as all were told the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...arguments import check, whole
from ...errors import ParamError

_COUNT = whole(0)


class Stage(NamedTuple):
    """A time in an epoch with the same members.

    Attributes:
        members: ranks, rising.
        done: partitions that each of them went through before the members changed.
    """

    members: tuple[int, ...]
    done: tuple[int, ...]


def checked_members(members: Sequence[int]) -> tuple[int, ...]:
    """Ranks, rising.

    Raises:
        ParamError: none, one twice, or one below 0.
    """
    try:
        made = tuple(sorted(_COUNT.convert(m) for m in members))
    except (TypeError, ValueError, OverflowError):
        made = ()
    if not made or len(set(made)) != len(made):
        raise ParamError(f"[partitions] expected different ranks of at least 0, got {members}")
    return made


def deal(numbers: Sequence[int], epoch: int, members: Sequence[int]) -> dict[int, list[int]]:
    """Deals partitions like cards; who begins moves on by one with each epoch.

    Args:
        numbers: of partitions, in order.
        epoch: at least 0.
        members: ranks.

    Returns:
        rank -> partitions, in order; their counts differ by at most one.
    """
    ranks = checked_members(members)
    count = len(ranks)
    return {
        rank: list(numbers[(place - epoch) % count :: count]) for place, rank in enumerate(ranks)
    }


def replay(
    count: int, epoch: int, stages: Sequence[Stage]
) -> tuple[list[int], dict[int, list[int]]]:
    """What happened to the `count` partitions of an epoch in earlier stages.

    Returns:
        Those that are left, in order, and rank -> those that it went through.

    Raises:
        ParamError: not one number of done partitions per member.
    """
    left = list(range(count))
    went: dict[int, list[int]] = {}
    for stage in stages:
        if len(stage.done) != len(stage.members) or min(stage.done) < 0:
            raise ParamError(
                f"[partitions] expected a number of partitions for each of the members "
                f"{list(stage.members)}, got {list(stage.done)}"
            )
        dealt = deal(left, epoch, stage.members)
        for rank, done in zip(stage.members, stage.done, strict=True):
            went.setdefault(rank, []).extend(dealt[rank][:done])
        gone = {number for numbers in went.values() for number in numbers}
        left = [number for number in left if number not in gone]
    return left, went


def share(
    count: int, epoch: int, stages: Sequence[Stage], members: Sequence[int], rank: int
) -> list[int]:
    """Partitions of an epoch that a worker has from now on; none where it is not a member."""
    return deal(replay(count, epoch, stages)[0], epoch, members).get(rank, [])


def stage_of(
    members: Sequence[int], done: int | Mapping[int, int], most: Mapping[int, int]
) -> Stage:
    """The stage that ends now.

    Args:
        members: its ranks.
        done: partitions that each went through: one number for all, or by rank.
        most: partitions that each had.

    Raises:
        ParamError: a rank that `done` lacks, or what is no number of partitions.
    """
    ranks = checked_members(members)
    if isinstance(done, Mapping):
        missing = [rank for rank in ranks if rank not in done]
        if missing:
            raise ParamError(
                f"[partitions] expected the number of partitions done by each of {list(ranks)}, "
                f"got none of {missing}"
            )
        given = [done[rank] for rank in ranks]
    else:
        given = [done] * len(ranks)
    counts = [check("partitions", "done", count, _COUNT) for count in given]
    return Stage(ranks, tuple(min(c, most[r]) for c, r in zip(counts, ranks, strict=True)))
