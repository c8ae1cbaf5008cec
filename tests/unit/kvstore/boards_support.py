"""Boards in plain Python, one store at a time: every point at which a process may die is a step."""

from dataclasses import dataclass, field
from math import inf

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

    def __init__(self, values, versions, columns, tracks=None):
        self.tracks = tracks or [Track() for _ in values]
        self.own = tracks is not None
        sizes = [value.nbytes for value in values]
        total, places, gradients = _rt.core.lane_layout(sizes, columns)
        self.bytes = np.zeros(total, np.uint8).view(Leased)
        self.bytes.lease = object()
        self.open = True
        self.version, self.durable = list(versions), list(versions)
        self.staged = [[version] * columns for version in versions]
        self.asked, self.served = [0] * len(values), [0] * len(values)
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
        closed = self.durable if self.own else self.version
        return min(self.staged[index]) > closed[index]

    def wants(self, index):
        return self.complete(index) or self.asked[index] > self.served[index]

    def may_show(self, index):
        """Whether the worker of an own board waits for a value, and may read it."""
        shown = self.version[index] == self.durable[index]
        if not self.own or (shown and self.asked[index] == self.served[index]):
            return False
        track = self.tracks[index]
        clocks = [words.durable[at] for words, at in track.places]
        return min([track.floor, *clocks]) >= self.durable[index] - track.bound


class PlacedMemory(Memory):
    """A ledger that takes rounds natively, as `SliceFile.place` does: beside the progress of the
    last `commit` it has the number of rounds since."""

    def __init__(self, keep):
        super().__init__(keep)
        self.since = {}

    def commit(self, key, value, states, progress):
        super().commit(key, value, states, progress)
        self.since[key] = (0, 0, {})

    def place(self, key, value, states, workers=0):
        assert not any(self.since[key]), "its text tells of all that was closed"
        return (key,) if self._slices[key][1].keys() == states.keys() else None

    def add_rounds(self, key, value, states, *since):
        progress = self._slices[key][2]
        copies = {name: np.array(state) for name, state in states.items()}
        self._slices[key] = (value.copy(), copies, progress)
        self.since[key] = since

    def slices(self):
        for key, value, states, progress in super().slices():
            progress.went_on(*self.since[key])
            yield key, value, states, progress


@dataclass
class Armed:
    """A slice whose rounds the desk closes."""

    key: str | None
    foreseen: Foreseen
    rounds: int = 0
    steps: dict = field(default_factory=dict)

    def takes(self):
        return self.foreseen.rounds is None or self.rounds < self.foreseen.rounds


@dataclass
class Track:
    """How rounds of a slice are closed; own boards with one home share it."""

    home: np.ndarray | None = None
    bound: float = inf
    floor: float = inf
    places: list = field(default_factory=list)
    armed: Armed | None = None


class TwinDesk:
    """`lanes.Desk`; `step` does one store of an armed round, or of going to sleep."""

    def __init__(self, world, ledger):
        self.world, self.ledger = world, ledger
        self.rounds = 0
        self.boards, self.under_way = {}, []
        #: The word that workers see, whether it sleeps, and whether somebody has rung since.
        self.sleeps = self.asleep = self.bell = self.idle = False

    def reaches(self, senders):
        return True

    def home(self, value):
        return value.copy()

    def _track(self, home, bound):
        tracks = [track for words in self.boards.values() for track in words.tracks]
        made = Track(home, inf if bound is None else bound)
        return next((track for track in tracks if track.home is home), made)

    def open(self, values, versions, senders, bounds=None):
        if self.world.draw.random() < 0.1:
            return None  # a channel was full
        tracks = bounds and list(map(self._track, values.values(), bounds))
        words = Words(list(values.values()), list(versions.values()), len(senders), tracks)
        for index, track in enumerate(words.tracks):
            assert track.armed is None
            track.places.append((words, index))
        number = self.world.number()
        words.desk, words.workers = self, tuple(senders)
        self.world.words[words.bytes.__array_interface__["data"][0]] = words
        self.boards[number] = words
        came = np.frombuffer(words.bytes.data, np.uint8)
        arrays = {"board": came, "desk": came}
        sizes = [value.nbytes for value in values.values()]
        dtypes = [value.dtype.str for value in values.values()]
        for sender in senders.values():
            said = Opened("server", 0, tuple(values), sizes, dtypes, [], list(senders), arrays)
            said.versions, said.own = list(versions.values()), words.own
            self.world.post(sender, said, sure=True)
        return Board(
            number,
            tuple(values),
            tuple(senders),
            tuple(senders.values()),
            words.values,
            words.gradients,
            words.own,
        )

    def close(self, board):
        assert not self.under_way
        words = self.boards.pop(board.number)
        words.open = False
        for track in words.tracks:
            track.places = [place for place in track.places if place[0] is not words]

    def arm(self, board, index, ledger, foreseen):
        track = self.boards[board.number].tracks[index]
        track.armed = Armed(ledger[0] if ledger else None, foreseen)

    def disarm(self, board, index):
        self.boards[board.number].tracks[index].armed = None

    def set_floor(self, board, index, steps):
        self.boards[board.number].tracks[index].floor = steps

    def publish(self, board, index, version, durable):
        words = self.boards[board.number]
        if not words.own:
            words.version[index] = version
        words.durable[index] = version if durable else words.durable[index]

    def closed(self, board, index):
        words = self.boards[board.number]
        return (words.durable if words.own else words.version)[index]

    def ring(self):
        pass

    def _takes(self, number, index):
        armed = self.boards[number].tracks[index].armed
        return armed is not None and armed.takes()

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
                    words, index = self.boards[where[0]], where[1]
                    self.under_way = self._round(words, index, words.tracks[index].armed)
                    break
        if not self.under_way:
            self.under_way = next((self._show(*where) for where in self._shown()), [])
        if self.under_way:
            self.under_way.pop(0)()
            self.world.server_dies_here()
        return bool(self.under_way)

    def _shown(self):
        """Own boards whose worker gets a value: words and slice."""
        return [
            (words, index)
            for words in self.boards.values()
            for index in range(len(words.version))
            if words.may_show(index)
        ]

    def _show(self, words, index):
        value, home = words.values[index], words.tracks[index].home
        asked = words.asked[index]

        def begin():
            value[:1] = home[:1]

        def end():
            value[1:] = home[1:]

        def show():
            words.served[index] = asked
            words.version[index] = words.durable[index]

        return [begin, end, show]

    def wake(self):
        self.sleeps = self.asleep = self.bell = self.idle = False

    def fall_asleep(self):
        """A step on the way to sleep: it sees nothing to do, says that it sleeps, looks again."""
        if not self.idle:
            self.idle = not (self.under_way or self.complete() or self._shown())
        elif not self.sleeps:
            self.sleeps = True
        elif self.looks_again():
            self.wake()
        else:
            self.asleep = True

    def looks_again(self):
        return bool(self.complete() or self._shown())

    def _round(self, words, index, armed):
        gradients, foreseen, track = words.gradients[index], armed.foreseen, words.tracks[index]
        value = track.home if words.own else words.values[index]

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
                foreseen.bound.run(numbers[min(armed.rounds, len(numbers) - 1)])
                mx.nd.waitall()
                foreseen.count[...] += 1

            armed.rounds += 1
            if words.own:
                worker = words.workers[0]
                armed.steps[worker] = armed.steps.get(worker, 0) + 1

        def commit():
            if armed.key is not None:
                since = armed.rounds, armed.rounds * len(gradients), dict(armed.steps)
                self.ledger.add_rounds(armed.key, value, foreseen.states, *since)

        def confirm():
            words.durable[index] += 1
            if words.own:
                closed()

        def show():
            words.version[index] += 1
            closed()

        def closed():
            self.rounds += 1
            self.world.by_desk += 1

        if words.own:
            return [add, update, commit, confirm]
        early = self.world.draw.random() < 0.5  # as big values are shown before they are durable
        rest = [show, commit, confirm] if early else [commit, confirm, show]
        return [add, update, *rest]


class TwinExchange:
    """One exchange: its stores are done one by one."""

    def __init__(self, stops, gradients, targets, payload):
        self.payload, self.over, self.rung = payload, False, False
        #: Without gradients it only reads, and asks for that.
        self.staged, self.asked = gradients is None, gradients is not None
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

    def open(self, desk, sizes, columns, address, column, own, keep):
        assert own == self._world.words[address].own
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
        if not exchange.asked:
            return self._ask(exchange, boards)
        if not exchange.rung:
            return self._ring(exchange, boards)
        for at, (board, index) in enumerate(boards):
            wanted = board.words.staged[index][board.column]
            words = board.words
            there = words.version[index] >= wanted and words.served[index] >= words.asked[index]
            if at not in exchange.read and there:
                exchange.targets[at][...] = board.words.values[index]
                exchange.read.add(at)
                return False
        if len(exchange.read) == len(boards):
            exchange.done()
            return True
        late = self._world.draw.random() < 0.002  # it has no more patience
        gone = any(self.over(b) for at, (b, _) in enumerate(boards) if at not in exchange.read)
        return self._fail(exchange) if late or gone else False

    def _ask(self, exchange, boards):
        if any(self.over(board) for board, _ in boards):
            return self._fail(exchange)
        for board, index in boards:
            board.words.asked[index] += board.words.own
        exchange.asked = True
        return False

    def _ring(self, exchange, boards):
        """Whoever gives the server something to do wakes it, if it sleeps."""
        for board, index in boards:
            desk = board.words.desk
            if desk.sleeps and board.words.wants(index):
                desk.sleeps, desk.bell = False, True
        exchange.rung = True
        return False

    def ringing(self):
        """Whether somebody is about to be woken."""
        return any(e.staged and e.asked and not e.rung for e in self._open)

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
