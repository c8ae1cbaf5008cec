"""A placed graph as one graph per device, cut into pieces, and the order in which they are pushed.

Hazard: a run of a plan acquires all of its tags when it is pushed. Two plans that wait for each
other's values would wait for ever, and a plan that waits for a late value holds back everything
before it. So the nodes of a device form pieces, each a phase of its plan: what a piece needs from
elsewhere has been pushed before it, and a piece ends before the first node that needs something
newer. What a piece makes for others is released early, by its tag, while the piece goes on.

A timeline of the whole graph gives the order of the nodes: what leads to a copy comes first, by the
length of the way there, and what is left in the order of least memory. The first nodes of the
pieces keep the order of that timeline, so that what a piece waits for begins before it does: there
is no cycle.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..ir import Graph, Node, TensorType, Value, variable
from .place import Device, Places, devices, target
from .rewrite import backward_nodes, with_inputs
from .schedule import FREE, ORDER, PIECES
from .timeline import Job, simulate

#: Seconds within which two pieces of a device are joined, if they may be: about what it costs to
#: push a task, wake a worker and take the tags.
_GRAIN = 1e-4


@dataclass(frozen=True)
class _CopyLane:
    """The lane of copies towards a device."""

    device: Device


@dataclass
class Transfer:
    """A value that goes from one device to another.

    Attributes:
        type: of the value.
        source, target: devices.
        label: the user's node that it belongs to.
        given: argument of the whole graph that holds it; -1 = an array of its own.
        first: the transfer whose array it is read from, where one value goes to several devices.
    """

    type: TensorType
    source: Device
    target: Device
    label: str
    given: int = -1
    first: int = -1


@dataclass
class Part:
    """What runs on one device.

    Attributes:
        graph: its inputs are those of the whole graph that lie here, then what arrives; its outputs
            those of the whole graph that are made here, then what departs.
        inputs, outputs: for each of them ('whole', number of the whole graph's argument),
            ('in', transfer) or ('out', transfer).
    """

    device: Device
    graph: Graph
    inputs: list[tuple[str, int]] = field(default_factory=list)
    outputs: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Action:
    """A thing to push: a piece of a part, or a copy.

    Attributes:
        phase: 0 forward, 1 backward.
        part, piece: numbers; -1 for a copy.
        transfer: number; -1 for a piece.
    """

    phase: int
    part: int = -1
    piece: int = -1
    transfer: int = -1


@dataclass
class Split:
    """The parts by device, what goes between them, and what is pushed in which order."""

    parts: list[Part]
    transfers: list[Transfer]
    actions: list[Action]


def split(
    graph: Graph,
    places: Places,
    seconds: Callable[[Node], float],
    copying: Callable[[int], float],
    order: Mapping[Node, int],
) -> Split:
    """Cuts a placed graph.

    Args:
        graph: of primitives, with copies at the borders (pass place), after all other passes.
        order: position of nodes in an order that needs little memory on one device; a node without
            one goes with its inputs.
        seconds: estimated time of a node.
        copying: estimated time of a copy by its bytes.
    """
    return _Splitting(graph, places, seconds, copying, order).run()


class _Piece:
    """Nodes of one device that run as one task."""

    __slots__ = ("device", "first", "nodes", "phase", "start")

    def __init__(self, device: Device, phase: int, first: int, start: float) -> None:
        self.device, self.phase, self.first, self.start = device, phase, first, start
        self.nodes: list[Node] = []


class _Splitting:
    def __init__(
        self,
        graph: Graph,
        places: Places,
        seconds: Callable[[Node], float],
        copying: Callable[[int], float],
        order: Mapping[Node, int],
    ) -> None:
        self.graph, self.places = graph, places
        nodes = graph.nodes()
        self.at: Mapping[Node, Device] = devices(graph, places)
        self.late = backward_nodes(graph, nodes)
        self.seconds, self.copying = seconds, copying
        self.start: dict[Node, float] = {}
        self.order = self._ordered(_sorted(nodes, order))
        self.place = {n: k for k, n in enumerate(self.order)}
        self.piece: dict[Node, _Piece] = {}
        self.sent = {n.inputs[0].node for n in self.order if target(n) is not None}

    def _phase(self, node: Node) -> int:
        return int(node in self.late)

    def _ordered(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes in the order of a timeline, forward phase first."""
        number = {n: k for k, n in enumerate(nodes)}
        jobs = []
        for node in nodes:
            after = sorted({number[v.node] for v in node.inputs if v.node in number})
            to = target(node)
            if to is not None:
                jobs.append(Job(_CopyLane(to), self.copying(node[0].type.nbytes), after))
            else:
                jobs.append(Job(self.at[node], self.seconds(node), after))
            jobs[-1].phase = self._phase(node)
        line = simulate(jobs, _ways(jobs))
        self.start = {n: line.start[k] for n, k in number.items()}
        return sorted(nodes, key=lambda n: (self._phase(n), self.start[n], number[n]))

    def run(self) -> Split:
        """Pieces, then parts, then the order of pushes."""
        pieces = self._joined(self._pieces())
        order = _topological(pieces, self._needs(pieces))
        parts = {d: Part(d, self.graph) for d in self.places.devices}
        parts = {d: p for d, p in parts.items() if any(q.device == d for q in order)}
        return _Writer(self, parts, order).run()

    # -- pieces

    def _pieces(self) -> list[_Piece]:
        current: dict[Device, _Piece] = {}
        seen: dict[Device, set[Node]] = {}
        found: list[_Piece] = []
        for place, node in enumerate(self.order):
            if target(node) is not None:
                continue
            device, phase = self.at[node], self._phase(node)
            arrivals = {v.node for v in node.inputs if target(v.node) is not None}
            piece, known = current.get(device), seen.setdefault(device, set())
            late = piece is None or piece.phase != phase
            if (
                piece is None
                or late
                or self._comes_later(arrivals - known, piece)
                or self._holds_back(node, piece)
            ):
                piece = current[device] = _Piece(device, phase, place, self.start[node])
                found.append(piece)
            known |= arrivals
            piece.nodes.append(node)
            self.piece[node] = piece
        return found

    def _comes_later(self, arrivals: set[Node], piece: _Piece) -> bool:
        """Whether something arrives after the piece has begun."""
        return any(self.place[a] > piece.first for a in arrivals)

    def _holds_back(self, node: Node, piece: _Piece) -> bool:
        """Whether a node reads what its piece sends: the tag would be released after it only."""
        return any(v.node in self.sent and self.piece.get(v.node) is piece for v in node.inputs)

    def _needs(self, pieces: Sequence[_Piece]) -> dict[_Piece, set[_Piece]]:
        """Pieces that a piece waits for; those of its own device come one after another."""
        needs: dict[_Piece, set[_Piece]] = {p: set() for p in pieces}
        last: dict[Device, _Piece] = {}
        for piece in pieces:
            if piece.device in last:
                needs[piece].add(last[piece.device])
            last[piece.device] = piece
            for node in piece.nodes:
                for value in node.inputs:
                    source = value.node
                    if target(source) is not None:
                        source = source.inputs[0].node
                    made = self.piece.get(source)
                    if made is not None and made is not piece:
                        needs[piece].add(made)
        return needs

    def _joined(self, pieces: list[_Piece]) -> list[_Piece]:
        """Neighbours on a device that begin almost together become one, where nothing between."""
        result: list[_Piece] = []
        last: dict[Device, _Piece] = {}
        needs = self._needs(pieces)
        for piece in pieces:
            before = last.get(piece.device)
            near = (
                before is not None
                and before.phase == piece.phase
                and piece.start - before.start < _GRAIN
            )
            if before is None or not near or _around(before, piece, needs):
                result.append(piece)
                last[piece.device] = piece
                continue
            before.nodes += piece.nodes
            self.piece.update((n, before) for n in piece.nodes)
            _replace(needs, piece, before)
        return result


def _sorted(nodes: Sequence[Node], order: Mapping[Node, int]) -> list[Node]:
    """Operators in an order of little memory, each after its inputs."""
    place: dict[Node, tuple[int, int]] = {}
    for number, node in enumerate(nodes):
        before = max((place[v.node][0] for v in node.inputs), default=-1)
        place[node] = (max(order.get(node, before), before), number)
    return sorted((n for n in nodes if n.op is not None), key=place.__getitem__)


def _ways(jobs: Sequence[Job]) -> list[float]:
    """Seconds from the start of each job to the end of the last copy that it leads to; 0 = none."""
    found = [job.seconds if isinstance(job.lane, _CopyLane) else 0.0 for job in jobs]
    for number in range(len(jobs) - 1, -1, -1):
        for earlier in jobs[number].after if found[number] else ():
            found[earlier] = max(found[earlier], jobs[earlier].seconds + found[number])
    return found


def _around(first: _Piece, second: _Piece, needs: Mapping[_Piece, set[_Piece]]) -> bool:
    """Whether the second waits for the first through a third."""
    stack = [p for p in needs[second] if p is not first]
    seen = set(stack)
    while stack:
        for other in needs[stack.pop()]:
            if other is first:
                return True
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return False


def _replace(needs: dict[_Piece, set[_Piece]], old: _Piece, new: _Piece) -> None:
    needs[new] |= needs.pop(old)
    for other in needs.values():
        if old in other:
            other.discard(old)
            other.add(new)
    needs[new].discard(new)


def _topological(pieces: Sequence[_Piece], needs: Mapping[_Piece, set[_Piece]]) -> list[_Piece]:
    """The pieces, forward phase first, each after what it waits for, in the timeline's order."""
    missing = {p: len(needs[p]) for p in pieces}
    users: dict[_Piece, list[_Piece]] = {p: [] for p in pieces}
    for piece in pieces:
        for other in needs[piece]:
            users[other].append(piece)
    ready = [(p.phase, p.first, k) for k, p in enumerate(pieces) if not missing[p]]
    number = {p: k for k, p in enumerate(pieces)}
    heapq.heapify(ready)
    order = []
    while ready:
        piece = pieces[heapq.heappop(ready)[2]]
        order.append(piece)
        for user in users[piece]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (user.phase, user.first, number[user]))
    assert len(order) == len(pieces), "pieces wait for each other"
    return order


class _Writer:
    """Makes the graphs of the parts."""

    def __init__(
        self, work: _Splitting, parts: dict[Device, Part], order: Sequence[_Piece]
    ) -> None:
        self.work, self.parts, self.order = work, parts, order
        self.graph = work.graph
        self.copies = [n for n in work.order if target(n) is not None]
        self.outside: dict[Value, int] = {}  # values that have an argument of the whole graph
        for number, value in enumerate(self.graph.inputs):
            self.outside[value] = number
        for number, value in enumerate(self.graph.outputs):
            self.outside.setdefault(value, len(self.graph.inputs) + number)

    def run(self) -> Split:
        transfers = [self._transfer(n) for n in self.copies]
        firsts: dict[Value, int] = {}
        for k, node in enumerate(self.copies):
            if transfers[k].given < 0:
                transfers[k].first = firsts.setdefault(node.inputs[0], k)
        for part in self.parts.values():
            self._part(part, transfers)
        return Split(list(self.parts.values()), transfers, self._actions())

    def _transfer(self, node: Node) -> Transfer:
        source, to = node.inputs[0], target(node)
        assert to is not None
        made = Transfer(node[0].type, self.work.at[source.node], to, node.origin)
        # A user may write to the outputs between the phases, so that only forward copies read them.
        if source.node.op is None or node not in self.work.late:
            made.given = self.outside.get(source, -1)
        return made

    def _part(self, part: Part, transfers: Sequence[Transfer]) -> None:
        work, device = self.work, part.device
        new: dict[Value, Value] = {}
        arrivals = []
        for k, node in enumerate(self.copies):
            if transfers[k].target == device:
                new[node[0]] = variable(f"{node.origin}_copy{k}", node[0].type)
                arrivals.append((new[node[0]], k))
        order: list[Node] = []
        pieces: dict[Node, int] = {}
        for number, piece in enumerate(p for p in self.order if p.device == device):
            for node in piece.nodes:
                made = with_inputs(node, [new.get(v, v) for v in node.inputs])
                if made is not node:
                    new.update(zip(node.values, made.values, strict=True))
                order.append(made)
                renamed = node.op is not None and node.op.name in FREE
                source = made.inputs[0].node if renamed else made
                pieces[made] = pieces.get(source, number)
        inputs = self._whole(part, work)
        part.inputs += [("in", k) for _, k in arrivals]
        outputs = []
        for k, value in enumerate(self.graph.outputs):
            if work.places.outputs[k] == device:
                outputs.append(new.get(value, value))
                part.outputs.append(("whole", len(self.graph.inputs) + k))
        for k, node in enumerate(self.copies):
            if transfers[k].source == device and transfers[k].given < 0 and transfers[k].first == k:
                outputs.append(new.get(node.inputs[0], node.inputs[0]))
                part.outputs.append(("out", k))
        updates = tuple(
            (new.get(n, n), v) for n, v in self.graph.updates if work.at[v.node] == device
        )
        part.graph = Graph(
            (*inputs, *(v for v, _ in arrivals)),
            tuple(outputs),
            updates,
            meta={**self.graph.meta, ORDER: tuple(order), PIECES: pieces},
        )

    def _whole(self, part: Part, work: _Splitting) -> list[Value]:
        """Inputs of the whole graph on a device."""
        found = []
        for number, value in enumerate(self.graph.inputs):
            if work.places.inputs[number] == part.device:
                found.append(value)
                part.inputs.append(("whole", number))
        return found

    def _actions(self) -> list[Action]:
        """Pieces in their order, each copy right after the piece that makes its source."""
        work, numbers = self.work, {d: k for k, d in enumerate(self.parts)}
        after: dict[tuple[int, _Piece | None], list[int]] = {}
        for k, node in enumerate(self.copies):
            phase, made = work._phase(node), work.piece.get(node.inputs[0].node)
            ready = made if made is not None and made.phase == phase else None
            after.setdefault((phase, ready), []).append(k)
        actions: list[Action] = []
        counts: dict[Device, int] = {}
        for phase in (0, 1):
            actions += [Action(phase, transfer=k) for k in after.get((phase, None), ())]
            for piece in self.order:
                if piece.phase == phase:
                    number = counts[piece.device] = counts.get(piece.device, -1) + 1
                    actions.append(Action(phase, numbers[piece.device], number))
                    actions += [Action(phase, transfer=k) for k in after.get((phase, piece), ())]
        return actions
