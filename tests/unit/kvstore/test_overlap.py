"""How much of a slow link's time the backward pass hides: groups, parcels, and the whole exchange
under a clock of the test's own."""

import heapq

import numpy as np
import pytest

from mixflow.errors import FormatError
from mixflow.kvstore.base import FAR_BYTES, FIRST_BYTES, GROUP_BYTES, GROWTH, in_groups
from mixflow.kvstore.protocol.client import Client
from mixflow.kvstore.protocol.messages import Applied, Done, Gradient, Push, Received, Values
from mixflow.kvstore.protocol.policy import Part, Sync
from mixflow.kvstore.server.appliers import Optimizing, _as_tensor
from mixflow.kvstore.server.shard import Shard
from mixflow.kvstore.transport import parcels
from mixflow.kvstore.transport.faults import Faults, Mangler
from mixflow.kvstore.transport.zeromq import HOLD_SECONDS, Server

#: Floats of ResNet-20's arrays (CIFAR form) in the order of its layers, and of each the time in the
#: backward pass at which its gradient is there: a convolution of any stage takes as long.
STAGES = [[432, *[2304] * 7], [4608, *[9216] * 5], [18432, *[36864] * 5, 640]]
SIZES = [size for stage in STAGES for size in (*stage, 16)]
BACKWARD = 1.0
READY = [BACKWARD * (1 - place / len(SIZES)) for place in range(len(SIZES))]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1] * 17, [[0, 1], [*range(2, 10)], [*range(10, 17)]]),
        ([5, 1, 1, 1], [[0], [1, 2, 3]]),
        ([1, 4, 5, 5, 5], [[0], [1], [2, 3], [4]]),
    ],
)
def test_the_first_groups_are_small(sizes, expected):
    assert in_groups(range(len(sizes)), sizes, limit=10, first=2) == expected


def test_groups_grow_up_to_the_limit():
    draw = np.random.default_rng(0)
    sizes = [int(size) for size in draw.integers(1, 40, 500)]
    groups = in_groups(range(500), sizes, limit=300, first=10)
    assert [item for group in groups for item in group] == list(range(500))
    for number, group in enumerate(groups):
        assert len(group) == 1 or sum(sizes[item] for item in group) <= min(
            10 * GROWTH**number, 300
        )
    assert in_groups([0, 1], [1, 1], limit=1, first=100) == [[0], [1]]


class Exchange:
    """One step's push and pull of two workers with a server over slow links, under a clock of its
    own: the real client, shard, parcels and links, and no processor time."""

    def __init__(self, rate, limits):
        self.groups = in_groups(range(len(SIZES)), [4 * size for size in SIZES], *limits)
        self.shard = Shard("server", Sync(), Optimizing(), workers=2)
        self.clients = [Client(f"w{rank}", rank, lambda key: "server", Sync()) for rank in (0, 1)]
        self.links = {name: Mangler(Faults(rate=rate)) for name in ("server", "w0", "w1")}
        self.tickets = []
        for key, size in enumerate(SIZES):
            self.clients[0].init({str(key): np.zeros(size, "float32")}, 0.0)
        for _, message in self.clients[0].take_outgoing():
            self.shard.handle(message, 0.0)

    def send(self, name, outgoing, now):
        for to, message in outgoing:
            parts = [bytes(part) for part in parcels.pack([message])]
            self.links[name].take_time((to, parts), sum(map(len, parts)), now)

    def push(self, keys, now):
        for client in self.clients:
            values = {str(key): np.ones(SIZES[key], "float32") for key in keys}
            self.tickets.append(client.push(values, now, pull=True, priority=-keys[0]))
            self.send(client.name, client.take_outgoing(), now)

    def arrive(self, now):
        for link in self.links.values():
            for to, parts in link.due(now):
                for message in parcels.unpack(parts):
                    if to == "server":
                        self.send("server", self.shard.handle(message, now), now)
                    else:
                        self.clients[int(to[1:])].handle(message, now)

    def run(self, ready):
        """When the last value is there."""
        leaving = sorted((max(ready[key] for key in group), group) for group in self.groups)
        heapq.heapify(leaving)
        now = 0.0
        while leaving or not all(ticket.done for ticket in self.tickets):
            times = [link.next_time for link in self.links.values() if link.next_time is not None]
            now = min([*times, *(time for time, _ in leaving[:1])])
            while leaving and leaving[0][0] <= now:
                self.push(heapq.heappop(leaving)[1], now)
            self.arrive(now)
        return now


def hidden(share, *limits):
    """Share of the communication that the backward pass hides, where communication alone takes
    `share` of it."""
    nothing = [0.0] * len(SIZES)
    bytes_per_s = 1e6
    alone = Exchange(bytes_per_s, limits).run(nothing)
    rate = bytes_per_s * alone / (share * BACKWARD)
    return 1 - (Exchange(rate, limits).run(READY) - BACKWARD) / (share * BACKWARD)


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_small_first_groups_hide_most_of_a_slow_link(share):
    assert hidden(share, FAR_BYTES, FIRST_BYTES) > 0.9
    assert hidden(share, GROUP_BYTES) < 0.2


def test_a_link_that_takes_longer_is_hidden_in_part():
    assert 0.5 < hidden(1.0, FAR_BYTES, FIRST_BYTES) < 0.9
    assert hidden(1.0, GROUP_BYTES) < 0.2


def gradients(**sizes):
    return {k: Gradient((Part(0, 1),), np.arange(n, dtype="float32")) for k, n in sizes.items()}


def test_a_parcel_holds_messages_whole():
    big = parcels.BIG_BYTES // 4
    sent = [
        Push("w", 1, gradients(a=3, b=big, c=1), True, -2),
        Done("w", 2),
        Values("s", 3, {"x": np.arange(5, dtype="int8"), "y": np.zeros(0)}, {"x": 1, "y": 2}),
    ]
    parts = parcels.pack(sent)
    assert len(parts) == 2  # one array is worth a part of its own
    assert np.shares_memory(np.frombuffer(parts[1], "float32"), sent[0].gradients["b"].values)
    push, done, values = parcels.unpack([bytes(part) for part in parts])
    assert (push.number, push.priority, push.pull) == (1, -2, True)
    for key, gradient in sent[0].gradients.items():
        np.testing.assert_array_equal(push.gradients[key].values, gradient.values)
        assert push.gradients[key].values.flags.aligned
    assert done == sent[1]
    np.testing.assert_array_equal(values.values["x"], np.arange(5))
    assert values.values["y"].size == 0


def test_what_is_no_parcel_is_refused():
    parts = [bytes(part) for part in parcels.pack([Push("w", 1, gradients(a=3, b=1 << 15))])]
    with pytest.raises(FormatError, match=r"\[kvstore parcel\] expected a parcel of ours"):
        parcels.unpack([bytes(64)])
    with pytest.raises(FormatError, match=r"\[kvstore parcel\] expected \d+ bytes at \d+, got"):
        parcels.unpack([parts[0][:-8], parts[1]])
    with pytest.raises(FormatError, match=r"\[kvstore parcel\] expected a whole one, got"):
        parcels.unpack(parts[:1])
    numbers = np.frombuffer(parts[0][:32], "int64").copy()
    numbers[3] = 1 << 40
    with pytest.raises(FormatError, match=r"\[kvstore parcel\] expected 1099511627776 arrays, got"):
        parcels.unpack([numbers.tobytes() + parts[0][32:], parts[1]])


@pytest.mark.parametrize("seed", range(200))
def test_damaged_parcels_are_an_error_or_messages(seed):
    draw = np.random.default_rng(seed)
    sent = [Push("w", 1, gradients(a=3, b=1 << 15)), Done("w", 2)]
    parts = [bytearray(part) for part in parcels.pack(sent)]
    for _ in range(draw.integers(1, 4)):
        parts[0][draw.integers(min(len(parts[0]), 120))] = draw.integers(256)
    if draw.random() < 0.3:
        parts.pop()
    try:
        parcels.unpack(parts)
    except FormatError as error:
        assert "[kvstore " in str(error)


class Silent:
    """A server's logic that has nothing to say."""

    name, deferring = "server", False

    def finish(self):
        return []

    def move_values(self, arena):
        pass

    def use_desk(self, desk):
        pass


@pytest.fixture
def server():
    """A server that does not run, and what it sends to peers of other hosts."""
    pytest.importorskip("zmq")
    made = Server(Silent(), "tcp://127.0.0.1:*")
    made.sent = []
    made._send = lambda to, parts, to_peer: made.sent.append((to, parcels.unpack(parts)))
    yield made
    made.stop()
    made.run()


def test_the_word_of_arrival_travels_with_what_comes_next(server):
    server._send_all([("w0", Received("server", 1)), ("w1", Received("server", 7))], 5.0)
    assert server.sent == [] and server._held_until == 5.0 + HOLD_SECONDS
    values = Values("server", 1, {"a": np.zeros(2)}, {"a": 1})
    answers = [Applied("server", 1, ("a",)), Received("server", 2), values]
    server._send_all([("w0", answer) for answer in answers], 5.01)
    [(to, found)] = server.sent
    assert to == "w0" and [type(m) for m in found] == [Applied, Received, Values]
    assert [m.number for m in found] == [1, 2, 1]  # that 1 has arrived says `Applied` too
    server._send_far(5.03, hold=False)
    assert server.sent[1:] == [("w1", [Received("server", 7)])]


def test_the_word_that_a_big_push_has_arrived_goes_at_once(server):
    server._send_all([("w0", Received("server", 1))], 5.0, hold=False)
    assert server.sent == [("w0", [Received("server", 1)])]


def test_a_shard_looks_at_slices_that_are_waited_for():
    shard = Shard("s", Sync(), Optimizing(), workers=2, deadline=9.0)
    clients = [Client(f"w{rank}", rank, lambda key: "s", Sync()) for rank in (0, 1)]

    def deliver(client, now):
        return [
            answer for _, message in client.take_outgoing() for answer in shard.handle(message, now)
        ]

    clients[0].init({"a": np.zeros(2), "b": np.zeros(2)}, 0.0)
    deliver(clients[0], 0.0)
    assert shard.next_deadline() is None
    clients[0].push({"a": np.ones(2)}, 1.0, pull=True)
    deliver(clients[0], 1.0)
    assert shard.next_deadline() == 10.0
    clients[1].push({"a": np.ones(2)}, 2.0)
    assert any(isinstance(message, Values) for _, message in deliver(clients[1], 2.0))
    assert shard.next_deadline() is None


def test_a_gradient_that_nobody_else_has_is_not_copied():
    own = np.ones(4, "float32")
    made = _as_tensor(own, np.dtype("float32"))
    own[0] = 5.0
    assert made.asnumpy().tolist() == [5.0, 1.0, 1.0, 1.0]
    for foreign, dtype in ((np.frombuffer(own.tobytes(), "float32"), "float32"), (own, "float64")):
        copied = _as_tensor(foreign, np.dtype(dtype))
        assert copied.dtype == np.dtype(dtype) and copied.asnumpy()[0] == 5.0
