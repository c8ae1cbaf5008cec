"""Boards in plain Python, one store at a time: every point at which a process may die is a step."""

from dataclasses import dataclass

import numpy as np

import mixflow as mx
from mixflow import _rt
from mixflow.kvstore.protocol.foreseen import Foreseen
from mixflow.kvstore.protocol.messages import Opened
from mixflow.kvstore.server.lanes import Opened as Board
from mixflow.kvstore.server.slots import Memory
from mixflow.kvstore.transport.lane import Lane
from mixflow.kvstore.transport.segments import Leased


class Words:
    """The memory of a board: its words, and bytes laid out as the core does it."""

    def __init__(self, values, versions, columns):
        sizes = [value.nbytes for value in values]
        total, places, gradients = _rt.core.lane_layout(sizes, columns)
        self.bytes = np.zeros(total, np.uint8).view(Leased)
        self.bytes.lease = object()
        self.open = True
        self.version, self.durable = list(versions), list(versions)
        self.staged = [[version] * columns for version in versions]
        self.values = [self._view(at, v) for at, v in zip(places, values, strict=True)]
        self.gradients = [
            [self._view(at, v) for at in row] for row, v in zip(gradients, values, strict=True)
        ]
        for place, value in zip(self.values, values, strict=True):
            place[...] = value

    def _view(self, at, like):
        return np.frombuffer(self.bytes.data, like.dtype, like.size, at)

    def pairs(self):
        return zip(self.version, self.durable, strict=True)

    def complete(self, index):
        return min(self.staged[index]) > self.version[index]


class PlacedMemory(Memory):
    """A ledger that takes rounds natively, as `SliceFile.place` does: beside the progress of the
    last `commit` it has the number of rounds since."""

    def __init__(self, keep):
        super().__init__(keep)
        self.since = {}

    def commit(self, key, value, states, progress):
        super().commit(key, value, states, progress)
        self.since[key] = (0, 0)

    def place(self, key, value, states):
        return (key,) if self._slices[key][1].keys() == states.keys() else None

    def add_rounds(self, key, value, states, rounds, parts):
        progress = self._slices[key][2]
        copies = {name: np.array(state) for name, state in states.items()}
        self._slices[key] = (value.copy(), copies, progress)
        self.since[key] = rounds, parts

    def slices(self):
        for key, value, states, progress in super().slices():
            progress.version += self.since[key][0]
            progress.applied += self.since[key][1]
            yield key, value, states, progress


@dataclass
class Armed:
    """A slice whose rounds the desk closes."""

    key: str | None
    first: int
    foreseen: Foreseen

    def takes(self, version):
        return self.foreseen.rounds is None or version < self.first + self.foreseen.rounds


class TwinDesk:
    """`lanes.Desk`; `step` does one store of an armed round, or of going to sleep."""

    def __init__(self, world, ledger):
        self.world, self.ledger = world, ledger
        self.rounds = 0
        self.boards, self.armed, self.under_way = {}, {}, []
        #: The word that workers see, whether it sleeps, and whether somebody has rung since.
        self.sleeps = self.asleep = self.bell = self.idle = False

    def open(self, values, versions, senders):
        if self.world.draw.random() < 0.1:
            return None  # a channel was full
        words = Words(list(values.values()), list(versions.values()), len(senders))
        number = self.world.number()
        words.desk = self
        self.world.words[words.bytes.__array_interface__["data"][0]] = words
        self.boards[number] = words
        came = np.frombuffer(words.bytes.data, np.uint8)
        arrays = {"board": came, "desk": came}
        sizes = [value.nbytes for value in values.values()]
        dtypes = [value.dtype.str for value in values.values()]
        for sender in senders.values():
            said = Opened("server", 0, tuple(values), sizes, dtypes, [], list(senders), arrays)
            said.versions = list(versions.values())
            self.world.post(sender, said, sure=True)
        return Board(
            number,
            tuple(values),
            tuple(senders),
            tuple(senders.values()),
            words.values,
            words.gradients,
        )

    def close(self, board):
        assert not self.under_way
        self.boards.pop(board.number).open = False

    def arm(self, board, index, ledger, version, foreseen):
        assert self.boards[board.number].version[index] == version
        key = ledger[0] if ledger else None
        self.armed[board.number, index] = Armed(key, version, foreseen)

    def disarm(self, board, index):
        self.armed.pop((board.number, index), None)

    def publish(self, board, index, version, durable):
        words = self.boards[board.number]
        words.version[index] = version
        words.durable[index] = version if durable else words.durable[index]

    def version(self, board, index):
        return self.boards[board.number].version[index]

    def ring(self):
        pass

    def _takes(self, number, index):
        armed = self.armed.get((number, index))
        return armed is not None and armed.takes(self.boards[number].version[index])

    def complete(self):
        """Complete rounds: board and slice."""
        return [
            (number, index)
            for number, words in self.boards.items()
            for index in range(len(words.version))
            if words.complete(index)
        ]

    def ready(self):
        """Complete rounds that the shard has to close."""
        return [where for where in self.complete() if not self._takes(*where)]

    def step(self):
        """One store of a round that the desk closes itself; whether there was one."""
        self.wake()
        if not self.under_way:
            for where in self.complete():
                if self._takes(*where):
                    self.under_way = self._round(self.boards[where[0]], where[1], self.armed[where])
                    break
        if self.under_way:
            self.under_way.pop(0)()
            self.world.server_dies_here()
        return bool(self.under_way)

    def wake(self):
        self.sleeps = self.asleep = self.bell = self.idle = False

    def fall_asleep(self):
        """A step on the way to sleep: it sees nothing to do, says that it sleeps, looks again."""
        if not self.idle:
            self.idle = not (self.under_way or self.complete())
        elif not self.sleeps:
            self.sleeps = True
        elif self.looks_again():
            self.wake()
        else:
            self.asleep = True

    def looks_again(self):
        return bool(self.complete())

    def _round(self, words, index, armed):
        value, gradients, foreseen = words.values[index], words.gradients[index], armed.foreseen

        def add():
            if foreseen.bound is None:
                value[:1] = sum(gradients)[:1]
            else:
                foreseen.total[:] = mx.nd.array(sum(gradients), dtype=value.dtype)

        def update():
            if foreseen.bound is None:
                value[1:] = sum(gradients)[1:]
            else:
                numbers = foreseen.numbers
                foreseen.bound.run(
                    numbers[min(words.version[index] - armed.first, len(numbers) - 1)]
                )
                mx.nd.waitall()
                foreseen.count[...] += 1

        def commit():
            if armed.key is not None:
                rounds = words.durable[index] + 1 - armed.first
                parts = rounds * len(gradients)
                self.ledger.add_rounds(armed.key, value, foreseen.states, rounds, parts)

        def confirm():
            words.durable[index] += 1

        def show():
            words.version[index] += 1
            self.rounds += 1
            self.world.by_desk += 1

        early = self.world.draw.random() < 0.5  # as big values are shown before they are durable
        rest = [show, commit, confirm] if early else [commit, confirm, show]
        return [add, update, *rest]


class TwinExchange:
    """One exchange: its stores are done one by one."""

    def __init__(self, stops, gradients, targets, payload):
        self.payload, self.over, self.staged, self.rung = payload, False, False, False
        self.stops = stops
        self.gradients, self.targets = gradients, targets
        self.copied, self.read = set(), set()

    def done(self, error=None):
        assert error is None
        self.over = True


class TwinBoard:
    """A board as its worker has it."""

    def __init__(self, words, column):
        self.words, self.column, self.dead = words, column, False


class TwinLane:
    """The core's `WorkerLane`, and the core for `Lane`: `step` does one store."""

    def __init__(self, world):
        self._world = world
        self._open, self._failed = [], []
        self.steps = self.bytes = 0
        self.lane_layout = _rt.core.lane_layout
        self.LaneRoute = list
        self.WorkerLane = lambda notify, patience: self

    def add_desk(self, address, number, channel, keep):
        return address

    def drop_desk(self, desk):
        pass

    def open(self, desk, sizes, columns, address, column, keep):
        return TwinBoard(self._world.words[address], column)

    def exchange(self, stops, gradients, targets, payload):
        self._open.append(TwinExchange(stops, gradients, targets, payload))
        return self._open[-1]

    def over(self, board):
        return board.dead or not board.words.open

    def words(self, board):
        words = board.words
        mine = [row[board.column] for row in words.staged]
        return list(zip(mine, words.durable, words.version, strict=True))

    def retire(self, board):
        board.dead = True
        return self.words(board)

    @property
    def has_failed(self):
        return bool(self._failed)

    def take_failed(self):
        found, self._failed = self._failed, []
        return found

    def step(self):
        """One store of an exchange under way."""
        for exchange in list(self._open):
            if self._advance(exchange):
                self._open.remove(exchange)

    def _fail(self, exchange):
        for board, *_ in exchange.stops:
            board.dead = True
        self._failed.append(exchange)
        return True

    def _advance(self, exchange):
        """Does the next store of it; True when it has left the lane."""
        boards = [(board, index) for board, index, *_ in exchange.stops]
        if not exchange.staged:
            return self._stage(exchange, boards)
        if not exchange.rung:
            return self._ring(exchange, boards)
        for at, (board, index) in enumerate(boards):
            wanted = board.words.staged[index][board.column]
            if at not in exchange.read and board.words.version[index] >= wanted:
                exchange.targets[at][...] = board.words.values[index]
                exchange.read.add(at)
                return False
        if len(exchange.read) == len(boards):
            exchange.done()
            return True
        late = self._world.draw.random() < 0.002  # it has no more patience
        gone = any(self.over(b) for at, (b, _) in enumerate(boards) if at not in exchange.read)
        return self._fail(exchange) if late or gone else False

    def _ring(self, exchange, boards):
        """The last worker of a round wakes the server, if it sleeps."""
        for board, index in boards:
            desk = board.words.desk
            if desk.sleeps and board.words.complete(index):
                desk.sleeps, desk.bell = False, True
        exchange.rung = True
        return False

    def ringing(self):
        """Whether somebody is about to be woken."""
        return any(exchange.staged and not exchange.rung for exchange in self._open)

    def _stage(self, exchange, boards):
        if any(self.over(board) for board, _ in boards):
            return self._fail(exchange)
        if any(b.words.durable[i] < b.words.staged[i][b.column] for b, i in boards):
            return False
        for at, (board, index) in enumerate(boards):
            if at not in exchange.copied:
                board.words.gradients[index][board.column][...] = exchange.gradients[at]
                exchange.copied.add(at)
                return False
        for at, (board, index) in enumerate(boards):
            self._world.dies_here(self, at)
            board.words.staged[index][board.column] += 1
        exchange.staged = True
        self.steps += len(boards)
        return False


def lane_of(client, world):
    """A worker's `Lane` over a twin of the core; gives both."""
    twin = TwinLane(world)
    return Lane(client, -1, twin), twin
