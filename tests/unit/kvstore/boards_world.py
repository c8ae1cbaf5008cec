"""One server, its workers, a bad network and boards: processes that die between any two stores."""

import random
from dataclasses import dataclass, replace

import numpy as np
from boards_support import PlacedMemory, TwinDesk, lane_of

import mixflow as mx
from mixflow.kvstore.protocol.client import Client
from mixflow.kvstore.protocol.messages import Ask, Init, Opened, Values
from mixflow.kvstore.protocol.policy import Async, Bounded, Sync
from mixflow.kvstore.protocol.sharding import Entry, Slice
from mixflow.kvstore.server.appliers import Optimizing
from mixflow.kvstore.server.shard import Add, Assign, Shard
from mixflow.optimizer.describe import describe

#: Rounds that an optimizer foresees.
AHEAD = (2, 4, 128)


@dataclass(frozen=True)
class Key:
    """What a lane sees of a key."""

    name: str
    entry: Entry


class Detour:
    """What an exchange was to do."""

    priority = 0

    def __init__(self, keys, gradients, targets):
        self.slices = [key.entry.slices[0].name for key in keys]
        self._gradients, self._targets = gradients, targets

    def gradients(self):
        return dict(zip(self.slices, self._gradients, strict=True))

    def ended(self, ticket, failed):
        for name, target in zip(self.slices, self._targets, strict=True):
            target[...] = ticket.values[name]
        failed.done(ticket.error or None)


class Worker:
    """A training loop: pushes and reads every key, each step, in groups that differ by step."""

    def __init__(self, world, rank, life=0, ahead=0):
        self.world, self.rank, self.life = world, rank, life
        self.ahead = ahead  #: steps that earlier lives have pushed: others may have gone on by them
        self.name = f"worker{rank}"
        self.client = Client(
            self.name, rank, lambda key: "server", world.policy, repeat=0.5, first_number=life << 32
        )
        self.client.offers = True
        self.lane, self.twin = lane_of(self.client, world)
        self.client.before_push = self._yield
        self.tickets, self.exchanges, self.asked = [], [], None
        self.over = self.leaving = self.working = False
        self.step = 0
        self.values = {key: np.zeros(world.workers) for key in world.keys}
        self.reading = False  #: whether what is under way only reads
        self.fresh = {}  #: what a read has to see at least, and what reads have seen so far
        if life:
            self.asked = self.client.tell(["server"], Ask, world.now)
        self._flush()

    def _yield(self, slices):
        self.lane.retire(slices)
        self._leave_boards()

    def _leave_boards(self):
        if self.lane.in_trouble:
            for failed, ticket in self.lane.leave(self.world.now):
                self.tickets.append((ticket, failed.payload, failed))

    def _flush(self):
        for _, message in self.client.take_outgoing():
            self.world.post("server", message)

    def handle(self, message):
        if isinstance(message, Opened):
            self.lane.opened("server", -1, message)
        else:
            self.client.handle(message, self.world.now)
        self.act()

    def act(self):
        """What a process does when it is woken: repeats, ends, the next step."""
        self._leave_boards()
        self.client.tick(self.world.now)
        for ticket, detour, failed in [t for t in self.tickets if t[0].done]:
            assert not ticket.error, ticket.error
            self.tickets.remove((ticket, detour, failed))
            detour.ended(ticket, failed)
        self._go_on()
        self._flush()

    def _go_on(self):
        if self.asked is not None:
            if not self.asked.done:
                return
            rounds = self.world.policy.rounds
            self.step = self.client.resume(self.asked.reports, rounds=rounds)
            joined = self.client.join(["server"], self.step, 2 * self.life, self.world.now)
            self.asked = None
            self.exchanges = [Joined(joined)]
        if self.tickets or not all(exchange.over for exchange in self.exchanges):
            return
        if self.working:
            self.step += not self.reading
            for key, values in self.values.items():
                self.world.check_read(self, key, values)
        self.reading = False
        self.exchanges, self.working = [], self.step < self.world.steps
        if self.working:
            self._begin()
        elif not self.leaving and not self.client.pending and not self.lane.unconfirmed():
            self.leaving = True
            left = self.client.leave(["server"], 2 * self.life + 1, self.world.now)
            self.tickets.append((left, Left(self), None))

    def _begin(self):
        keys = list(self.world.keys)
        if self.step and self.world.draw.random() < 0.2:
            self._read(keys)
            return
        if self.step + 1 < self.world.steps and self.world.draw.random() < 0.05:
            self._push_unread(keys)
        for group in self.world.groups(keys, self.step):
            gradients = [self.world.gradient(self.rank, self.step) for _ in group]
            targets = [self.values[key] for key in group]
            detour = Detour(group, gradients, targets)
            route = self.lane.route(tuple(group))
            # Now and then a program does what boards can't.
            if route is None or self.world.draw.random() < 0.02:
                self.lane.follow()
                ticket = self.client.push(detour.gradients(), self.world.now, pull=True)
                self.exchanges.append(Joined(ticket))
                self.tickets.append((ticket, detour, Joined(ticket)))
            else:
                self.exchanges.append(self.twin.exchange(route, gradients, targets, detour))

    def _read(self, keys):
        """Reads, without a step."""
        self.reading = True
        for key in keys:
            self.fresh[key] = np.maximum(self.fresh.get(key, 0), self.world.present(key))
        targets = [self.values[key] for key in keys]
        detour = Detour(keys, None, targets)
        route = self.lane.route(tuple(keys))
        if route is None:
            self.lane.follow()
            ticket = self.client.pull(detour.slices, self.world.now)
            self.exchanges.append(Joined(ticket))
            self.tickets.append((ticket, detour, Joined(ticket)))
        else:
            self.world.reads_by_boards += 1
            self.exchanges.append(self.twin.exchange(route, None, targets, detour))

    def _push_unread(self, keys):
        """A step by messages whose values nobody reads: the next one begins at once."""
        gradients = [self.world.gradient(self.rank, self.step) for _ in keys]
        self.lane.follow()
        self.client.push(Detour(keys, gradients, []).gradients(), self.world.now)
        self.step += 1


class Joined:
    """A ticket with the face of an exchange."""

    def __init__(self, ticket):
        self._ticket = ticket

    @property
    def over(self):
        return self._ticket.done

    def done(self, error=None):
        assert error is None


class Left:
    """The end of a worker."""

    def __init__(self, worker):
        self._worker = worker

    def ended(self, ticket, failed):
        self._worker.over = True


class World:
    """One server, its workers, a bad network between them, and boards. Deterministic by seed."""

    def __init__(self, seed, policy=None):
        self.draw = draw = random.Random(seed)
        self.policy = policy = policy or Sync()
        self.workers, self.steps = draw.randrange(1, 4), draw.randrange(4, 12)
        names = [f"key{i}/0" for i in range(draw.randrange(1, 4))]
        self.keys = [
            Key(n, Entry(self.workers, "<f8", (Slice(n, 0, 0, self.workers),))) for n in names
        ]
        #: Sums replace the value, increments are added in Python, or an optimizer updates.
        self.kind = ("sum", "add", "update")[seed % 3]
        self.summed = self.kind == "sum"
        # Pushes that make updates one by one come in any order: their updates are sums.
        which = seed // 3 if policy.rounds else 0
        self.rule = optimizer_of(which) if self.kind == "update" else None
        self.course = course_of(self.rule, self.workers, self.steps)
        self.lossy = draw.random() < 0.5
        self.now, self._number, self.words = 0.0, 0, {}
        self.mail, self._dying, self._failing = [], None, None
        self.reads_by_boards = 0
        self.by_boards = self.by_desk = 0  #: rounds, and those that a desk closed itself
        self.ledger = PlacedMemory(keep=True)
        self.shard = self._make_shard(0)
        first = {key.name: np.zeros(self.workers) for key in self.keys}
        self.shard.handle(Init("worker0", 0, first), 0.0)
        self.processes = [Worker(self, rank) for rank in range(self.workers)]
        self.kills = draw.randrange(0, 4)

    def _make_shard(self, incarnation):
        shard = Shard(
            "server",
            self.policy,
            self._applier(),
            workers=self.workers,
            ledger=self.ledger,
            deadline=1e6,
            incarnation=incarnation,
        )
        self.desk = TwinDesk(self, self.ledger)
        shard.use_desk(self.desk)
        shard.deferring = True
        return shard

    def _applier(self):
        if self.rule is None:
            return Assign() if self.summed else Add()
        made = Optimizing()
        made.configure("optimizer", self.rule)
        made.ahead = self.draw.choice(AHEAD)
        return made

    def check_read(self, worker, key, values):
        """A read sees whole rounds, as many as it may; or all steps of its worker, and of others
        what the policy says."""
        first, last = worker.step, max(worker.step, worker.ahead)
        if self.policy.rounds:
            assert values.min() == values.max(), "a read sees whole rounds"
            assert values.max() in self.course[first : last + 1]
        elif self.summed:
            # Messages may overtake each other.
            assert len(np.flatnonzero(values)) == 1, "a read sees one whole push"
            assert values[worker.rank] <= last
        else:
            counts = values * (1 if self.rule is None else -2)
            assert first <= counts[worker.rank] <= last, "all steps of its own"
            assert (counts >= worker.fresh.get(key, 0)).all(), "no read is older than what was"
            worker.fresh[key] = counts
            if isinstance(self.policy, Bounded):
                assert counts.min() >= first - self.policy.staleness, "nobody is too far behind"

    def present(self, key):
        """Steps of each worker that the server has kept, where its value is a sum."""
        if self.policy.rounds or self.summed:
            return 0
        return self.ledger._slices[key.name][0] * (1 if self.rule is None else -2)

    def gradient(self, rank, step):
        mine = np.zeros(self.workers)
        mine[rank] = step + 1 if self.summed else 1
        return mine

    def groups(self, keys, step):
        cut = self.draw.randrange(1, len(keys) + 1)
        return [group for group in (keys[:cut], keys[cut:]) if group]

    def number(self):
        self._number += 1
        return self._number

    def post(self, to, message, sure=False):
        copies = 1 if sure or not self.lossy else self.draw.choice([0, 1, 1, 1, 2])
        self.mail += [(to, message)] * copies

    def dies_here(self, twin, at):
        """Called before each word of a staging."""
        if self._dying is None or at < self._dying:
            return
        self._dying = None
        self.kill_worker(next(w.rank for w in self.processes if w.twin is twin))
        raise Died

    def server_dies_here(self):
        """Called after each store of the server's."""
        if self._failing is None:
            return
        self._failing -= 1
        if self._failing < 0:
            self._failing = None
            self.kill_server()

    # -- what happens

    def kill_worker(self, rank):
        old = self.processes[rank]
        self.finish_round()  # the server hears of it between two looks at its boards
        self.shard.lost(old.name, self.now)
        ahead = max(old.ahead, old.step + (old.working and not old.reading))
        self.processes[rank] = Worker(self, rank, old.life + 1, ahead)
        if not self.policy.rounds:  # what it has seen stays seen
            self.processes[rank].fresh = old.fresh

    def kill_server(self):
        # Boards are told of by the channel that ends here.
        self.mail = [(to, m) for to, m in self.mail if to != "server" and type(m) is not Opened]
        self.shard = self._make_shard(self.shard.incarnation + 1)
        for worker in self.processes:
            worker.lane.lost("server")

    def finish_round(self):
        while self.desk.step():
            pass

    def serve(self):
        """The server looks at its boards, as before and after each message."""
        self.finish_round()
        if self.draw.random() < 0.01:
            self.shard.lanes.forget()  # as by a setting
        self.send(self.shard.serve_boards(self.desk.ready(), self.now))
        self.send(self.shard.finish())
        self.send(self.shard.tick(self.now))
        self.by_boards = max(self.by_boards, self.shard.lanes.rounds)

    def send(self, outgoing):
        for to, message in outgoing:
            if isinstance(message, Values):  # as they are now: arrays are the shard's own
                values = {key: value.copy() for key, value in message.values.items()}
                message = replace(message, values=values)
            self.post(to, message)

    def deliver(self):
        if not self.mail:
            return
        to, message = self.mail.pop(self.draw.randrange(min(3, len(self.mail))))
        if to != "server":
            worker = self.processes[int(to.removeprefix("worker"))]
            worker.handle(message)
            return
        self.serve()
        self.send(self.shard.handle(message, self.now))
        self.send(self.shard.finish())

    def turn(self):
        self.now += 0.01
        chance = self.draw.random()
        worker = self.draw.choice(self.processes)
        if chance < 0.3:
            self.deliver()
        elif chance < 0.7:
            try:
                worker.twin.step()
            except Died:
                return
            worker.act()
        elif chance < 0.99:
            self.server_turn(chance)
        elif self.kills:
            self.kills -= 1
            self.kill()

    def server_turn(self, chance):
        """The server does something, or comes nearer to its sleep; what sleeps stays where it is
        until it is rung, or mail comes."""
        desk = self.desk
        if desk.bell:
            desk.wake()
        if desk.asleep:
            mine = any(to == "server" for to, _ in self.mail)
            ringing = any(worker.twin.ringing() for worker in self.processes)
            assert not desk.complete() or mine or ringing, "a wake was lost"
        elif chance < 0.8:
            desk.fall_asleep()
        elif chance < 0.9:
            desk.step()
        else:
            self.serve()

    def kill(self):
        what = self.draw.randrange(5)
        alive = [w for w in self.processes if not w.over and not w.leaving]
        if what == 0 and alive:
            self.kill_worker(self.draw.choice(alive).rank)
        elif what == 1 and alive:  # it dies in the middle of its next staging
            self._dying = self.draw.randrange(3)
        elif what == 2:
            self.kill_server()
        else:  # in the middle of the next round that its desk closes
            self._failing = self.draw.randrange(4)

    def run(self, turns=200_000):
        for _ in range(turns):
            if all(worker.over for worker in self.processes):
                return
            self.turn()
        raise AssertionError("no end")


class Torn(World):
    """A world whose server dies between the show of a round and its commit, the first time."""

    torn = False

    def server_dies_here(self):
        super().server_dies_here()
        shown = [v > d for b in self.desk.boards.values() for v, d in b.pairs()]
        if any(shown) and not self.torn:
            self.torn = True
            self.kill_server()


class Died(Exception):
    """A worker's process has ended."""


def optimizer_of(number):
    """Optimizers whose sums and products are exact: whoever comes first, the bits are the same."""
    schedule = mx.lr_scheduler.FactorScheduler(step=1, factor=0.5, base_lr=0.5)
    made = (
        mx.optimizer.SGD(learning_rate=0.5),
        mx.optimizer.SGD(0.5, learning_rate=0.5),
        mx.optimizer.SGD(0.5, lr_scheduler=schedule),
        mx.optimizer.NAG(0.5, lr_scheduler=schedule),
    )
    return describe(made[number % len(made)])


def course_of(rule, size, steps):
    """The value of a slice's elements after each number of rounds."""
    if rule is None:
        return list(range(steps + 1))
    applier, value, course = Optimizing(), np.zeros(size), [0.0]
    applier.configure("optimizer", rule)
    for _ in range(steps):
        applier.apply("key/0", value, np.ones(size), size)
        course.append(float(value[0]))
    return course


def assert_all_counted_once(world):
    for key in world.keys:
        slot = world.shard.slots[key.name]
        if not world.policy.rounds:
            assert_all_steps_taken(world, key, slot)
            continue
        assert slot.value.tolist() == [world.course[-1]] * world.workers
        states = slot.applier.states(key.name)
        if world.rule is not None:
            assert states["count"].tolist() == [world.steps]
        assert slot.progress.version == world.steps
        assert slot.progress.applied == world.steps * world.workers


def assert_all_steps_taken(world, key, slot):
    steps, workers = world.steps, world.workers
    if world.summed:
        assert len(np.flatnonzero(slot.value)) == 1 and slot.value.max() <= steps
    else:
        assert slot.value.tolist() == [world.course[-1]] * workers
    if world.rule is not None:
        assert slot.applier.states(key.name)["count"].tolist() == [steps * workers]
    assert slot.progress.version == slot.progress.applied == steps * workers
    assert set(slot.progress.clocks.values()) == {steps}


class Own(World):
    """A world whose pushes make updates one by one: each worker has boards of its own."""

    def __init__(self, seed):
        super().__init__(seed, Async() if seed // 3 % 2 else Bounded(seed // 6 % 3))


class TornOwn(Own):
    """One whose server dies between an update and its commit, the first time."""

    torn = False

    def server_dies_here(self):
        super().server_dies_here()
        if self.desk.under_way and self.desk.under_way[0].__name__ == "commit" and not self.torn:
            self.torn = True
            self.kill_server()
