"""Members that change between two steps: every partition of every epoch comes once."""

import json
import random

import pytest

from mixflow.pipeline.partitions.timeline import Timeline


class Play:
    """Workers that take one partition a step, as `PartitionedIter` does."""

    def __init__(self, count, members):
        self.timeline = Timeline.start(count, members)
        self.epochs = dict.fromkeys(members, 0)
        self.places = dict.fromkeys(members, 0)
        self.taken = {rank: [] for rank in members}

    def take(self, rank):
        while self.places[rank] == len(self.timeline.hand(rank, self.epochs[rank])):
            self.epochs[rank], self.places[rank] = self.epochs[rank] + 1, 0
        found = self.timeline.hand(rank, self.epochs[rank])[self.places[rank]]
        self.places[rank] += 1
        self.taken[rank].append(found)

    def change(self, step, left, joined):
        for rank in joined:  # it stands in the step before with what it is dealt first
            self.taken[rank] = []
        self.timeline = self.timeline.changed(step, left, joined)
        for rank in left:
            del self.epochs[rank], self.places[rank]
        for rank in self.timeline.members:
            at = self.timeline.at[rank]
            if rank not in joined:
                assert at == self.epochs[rank]
            self.epochs[rank], self.places[rank] = at, 0
        for rank in joined:
            self.take(rank)


@pytest.mark.parametrize("seed", range(200))
def test_every_partition_of_every_epoch_comes_once(seed):
    draw = random.Random(seed)
    count, steps = draw.randrange(1, 14), draw.randrange(5, 40)
    play = Play(count, range(draw.randrange(1, 5)))
    dead, fresh, away = set(), 10, None
    for step in range(steps):
        # One that is lost before this step misses it; the others hear of it after it.
        live = sorted(set(play.epochs) - dead)
        if len(live) > 1 and not dead and draw.random() < 0.15:
            away = draw.choice(live)
            dead.add(away)
        for rank in sorted(set(play.epochs) - dead):
            play.take(rank)
        left = dict.fromkeys(dead, step)
        joined = {}
        if not left and draw.random() < 0.1:
            joined[fresh] = step
            fresh += 1
        if left or joined:
            play.change(step + 1, left, joined)
        dead.clear()
        for rank in play.timeline.members:
            again = play.timeline.position(rank, step + 1)
            assert again == (play.epochs[rank], play.places[rank])
    found = [number for taken in play.taken.values() for number in taken]
    assert len(found) == len(set(found)), "none comes twice"
    # With what they still have of these epochs, that is all of them.
    last = max(play.epochs.values())
    for rank, epoch in play.epochs.items():
        found += play.timeline.hand(rank, epoch)[play.places[rank] :]
        for later in range(epoch + 1, last + 1):
            found += play.timeline.hand(rank, later)
    assert sorted(found) == list(range((last + 1) * count))


def test_what_is_left_of_an_epoch_that_all_others_have_left_comes_first_in_the_next():
    timeline = Timeline.start(3, range(2))
    assert timeline.hand(0, 0) == [0, 2] and timeline.hand(1, 0) == [1]
    # Worker 0 is missing in step 1: worker 1 has had 1, and one of the next epoch.
    assert timeline.position(1, 2) == (1, 1)
    after = timeline.changed(2, {0: 1}, {})
    assert after.members == (1,) and after.at == {1: 1}
    assert after.hand(1, 1) == [2, 4, 5] or after.hand(1, 1) == [2, 3, 5]
    assert after.hand(1, 2) == [6, 7, 8] and after.hand(0, 1) == []


def test_a_state_is_plain_values():
    timeline = Timeline.start(5, range(3)).changed(2, {1: 1}, {7: 1})
    again = Timeline.from_json(5, json.loads(json.dumps(timeline.to_json())))
    assert again == timeline and again.hand(7, 0) == timeline.hand(7, 0)
