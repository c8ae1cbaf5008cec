"""Own boards at the server: a real shard, desk and ledger; the test stores the workers' words."""

import shutil
import socket

import numpy as np
import pytest

import mixflow as mx
from mixflow import _rt
from mixflow.kvstore.protocol.messages import Configure, Gradient, Init, Push
from mixflow.kvstore.protocol.policy import Async, Part
from mixflow.kvstore.server.appliers import Optimizing
from mixflow.kvstore.server.ledger import SharedLedger
from mixflow.kvstore.server.shard import Shard
from mixflow.kvstore.transport import boards, local
from mixflow.kvstore.transport.local import Channel
from mixflow.kvstore.transport.segments import WORDS, Blocks, SharedArena
from mixflow.optimizer.describe import describe

pytestmark = pytest.mark.skipif(
    not hasattr(_rt.core, "ServerDesk") or not local.available(), reason="no boards here"
)
SIZE, LINE = 4, 64
ONES = np.ones(SIZE, np.float32)


class Said:
    """A channel that keeps what it is given."""

    def __init__(self):
        self.sent = []

    def send(self, messages):
        self.sent += messages
        return True


class Bench:
    """A shard of one worker under `Async`, whose optimizer takes each push off."""

    def __init__(self, folder, keys, near=True):
        self.ledger = SharedLedger(folder)
        self.shard = Shard("s", Async(), Optimizing(True), workers=1, ledger=self.ledger)
        blocks = Blocks()
        self.shard.move_values(SharedArena(blocks))
        self.channel, self.now, self._number = Said(), 100.0, 10
        self.desk = boards.ServerBoards("s", blocks, lambda _: self.channel if near else None)
        self.shard.use_desk(self.desk)
        self.shard.handle(Init("w", 0, {key: np.zeros_like(ONES) for key in keys}), 0.0)
        optimizer = describe(mx.optimizer.SGD(learning_rate=1))
        self.shard.handle(Configure("w", 1, "optimizer", optimizer), 0.0)

    def push(self, steps):
        self._number += 1
        self.now += 0.01
        gradients = {key: Gradient((Part(0, step),), ONES) for key, step in steps.items()}
        self.shard.handle(Push("w", self._number, gradients, lane=True), self.now)
        self.shard.finish()
        self.shard.tick(self.now)

    def stage(self, name, times):
        """So many steps on the board that was opened last."""
        said = self.channel.sent[-1]
        count, index = len(said.slices), said.slices.index(name)
        board = said.values["board"]
        place = _rt.core.lane_layout(said.sizes, 1)[2][index][0]
        board[place : place + ONES.nbytes].view(np.float32)[...] = ONES
        for _ in range(times):
            board[: LINE * (1 + 2 * count)].view(np.int64).reshape(-1, 8)[1 + count + index, 0] += 1
            self.shard.serve_boards(self.desk.serve([], [], 0), self.now)
            self.shard.tick(self.now)


def test_a_board_that_a_copy_of_a_push_opens_does_not_set_the_ledger_back(tmp_path):
    bench = Bench(tmp_path / "ledger", ["a/0", "b/0"])
    bench.push({"a/0": 0, "b/0": 0})
    bench.stage("a/0", 9)
    bench.stage("b/0", 9)
    bench.push({"a/0": 10})  # it ends the board, and overtakes
    bench.push({"b/0": 9})  # what its worker did not know to be durable
    if "b/0" not in bench.channel.sent[-1].slices:
        bench.push({"b/0": 10})
    bench.stage("b/0", 2)
    shutil.copytree(tmp_path / "ledger", tmp_path / "copy")
    copy = SharedLedger(tmp_path / "copy")
    for key, value, _, progress in copy.slices():
        slot = bench.shard.slots[key]
        assert progress.to_json() == slot.progress.to_json()
        np.testing.assert_array_equal(value, slot.value)
    copy.close()
    bench.ledger.close()


def test_after_a_snapshot_the_desk_goes_on(tmp_path):
    bench = Bench(tmp_path, ["a/0"])
    bench.push({"a/0": 0})
    bench.stage("a/0", 3)
    bench.shard.capture.wanted.append(1)
    bench.shard.tick(bench.now)
    assert len(bench.shard.capture.done) == 1
    bench.shard.tick(bench.now)
    bench.stage("a/0", 5)
    assert bench.shard.slots["a/0"].progress.version == 9
    assert bench.desk.rounds == 8
    bench.ledger.close()


def test_the_value_of_a_worker_that_can_have_no_board_stays_where_it_is(tmp_path):
    bench = Bench(tmp_path, ["a/0"], near=False)
    bench.push({"a/0": 0})
    value = bench.shard.slots["a/0"].value
    bench.push({"a/0": 1})
    assert bench.shard.slots["a/0"].value is value
    bench.ledger.close()


def test_nobody_gets_a_copy_of_the_desk():
    """More boards are on their way than a block has words for leases."""
    blocks = Blocks()
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(5)]
    ours = [Channel(one, blocks, leases=True) for one, _ in pairs]
    theirs = [Channel(other, Blocks(), leases=False) for _, other in pairs]
    desk = boards.ServerBoards("s", blocks, lambda name: ours[int(name)])

    def open_board(worker, key):
        home = desk.home(ONES)
        return home, desk.open({key: home}, {key: 1}, {worker: str(worker)}, [None])

    kept = [open_board(number % 4, f"key{number}") for number in range(WORDS + 8)]
    kept.append(open_board(4, "last"))
    for channel in theirs:
        while (messages := channel.receive()) is not None:
            for message in messages:
                seen = message.values["desk"]
                desk._memory[5] += 1
                leased = getattr(getattr(seen.base, "obj", seen.base), "lease", None)
                assert leased is None or seen[5] == desk._memory[5]
    for channel in (*ours, *theirs):
        channel.close()
