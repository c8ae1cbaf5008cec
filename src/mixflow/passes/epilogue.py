"""What follows a blocked convolution or norm goes into its kernel: addend, relu, bias gradient.

Hazard: the value before the addend or relu is gone afterwards. Only a value with one user is taken
along, and an addend only when it does not depend on the kernel that is to read it.
"""

from __future__ import annotations

from collections import defaultdict

from ..ir import Graph, Node, Value, emit, emit_node, origin
from .rewrite import backward_nodes, with_heads, with_inputs

#: Kernels that can end with an addend and relu.
_ENDED = frozenset({"blocked_conv", "blocked_norm", "blocked_norm_train"})


def epilogue(graph: Graph) -> Graph:
    """The graph with addends, relu and bias gradients computed where the data is at hand."""
    return _Epilogue(graph).run()


def _name(node: Node) -> str:
    return "" if node.op is None else node.op.name


class _Epilogue:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.order = graph.nodes()
        self.at = {n: k for k, n in enumerate(self.order)}
        self.late = backward_nodes(graph, self.order)
        self.users: dict[Value, list[Node]] = defaultdict(list)
        for node in self.order:
            for value in node.inputs:
                self.users[value].append(node)
        self.heads = {*graph.outputs, *(new for new, _ in graph.updates)}
        self.into: dict[Node, tuple[Node, Value | None]] = {}  # relu or add -> kernel, addend
        self.taken: set[Node] = set()
        self.addends: dict[Node, Value] = {}  # kernel -> addend
        self.relus: dict[Node, Node] = {}  # relu -> the kernel that ends with it
        self.masked: dict[Node, tuple[Value, Value]] = {}  # norm gradient -> dy before relu, beta
        self.biases: dict[Node, Node] = {}  # weight gradient -> reduce_sum that it computes

    def run(self) -> Graph:
        """Finds what to take along, then builds the new graph."""
        for node in self.order:
            if _name(node) == "relu":
                self._end(node)
        for node in self.order:
            if _name(node) == "add":
                self._add(node)
        for node in self.order:
            if _name(node) == "blocked_norm_grad":
                self._mask(node)
            elif _name(node) == "blocked_conv_weight_grad":
                self._bias(node)
        if not (self.into or self.masked or self.biases):
            return self.graph
        return self._build()

    # -- what can be taken along

    def _single(self, value: Value, user: Node) -> bool:
        """Whether `user` is the only one who needs the value, and runs in its phase."""
        only = self.users[value] == [user] and value not in self.heads
        return only and (value.node in self.late) == (user in self.late)

    def _kernel(self, value: Value, user: Node) -> Node | None:
        """The kernel whose end `user` may become, given its input `value`."""
        node = value.node
        free = _name(node) in _ENDED and value.index == 0 and not node.params["relu"]
        return node if free and node not in self.taken and self._single(value, user) else None

    def _end(self, relu: Node) -> None:
        value = relu.inputs[0]
        kernel = self._kernel(value, relu)
        if kernel is not None:
            self.into[relu] = (kernel, None)
            self.taken.add(kernel)
            self.relus[relu] = kernel
        elif _name(value.node) == "add" and self._single(value, relu):
            self._add(value.node, relu)

    def _add(self, node: Node, relu: Node | None = None) -> None:
        a, b = node.inputs
        if a.shape != b.shape or a == b or node in self.taken:
            return
        for value, other in sorted(((a, b), (b, a)), key=lambda p: -self.at[p[0].node]):
            kernel = self._kernel(value, node)
            if kernel is None or kernel.params.get("y_block") == 0:  # addends are blocked only
                continue
            if self._reaches(other, kernel):
                continue
            end = relu if relu is not None else node
            self.into[end] = (kernel, other)
            self.taken |= {kernel, node}
            self.addends[kernel] = other
            if relu is not None:
                self.relus[relu] = kernel
            return

    def _reaches(self, value: Value, goal: Node) -> bool:
        """Whether a value depends on a node."""
        stack, seen = [value.node], set()
        while stack:
            node = stack.pop()
            if node is goal:
                return True
            if node in seen:
                continue
            seen.add(node)
            stack.extend(v.node for v in node.inputs)
            if node in self.addends:  # it waits for what it was given before
                stack.append(self.addends[node].node)
        return False

    def _mask(self, node: Node) -> None:
        """dy = select(relu(norm(x)) > 0, g, 0) of a norm that ends with that relu."""
        dy, x = node.inputs[:2]
        if _name(dy.node) != "select" or not self._single(dy, node):
            return
        condition, g, zero = dy.node.inputs
        if _name(condition.node) != "greater" or not _is_zero(zero):
            return
        result, bound = condition.node.inputs
        kernel = self.relus.get(result.node)
        found = self.into.get(result.node)
        if kernel is None or found is None or found[1] is not None or not _is_zero(bound):
            return
        if _name(kernel) == "blocked_norm_train" and kernel.inputs[0] == x and g.shape == x.shape:
            self.masked[node] = (g, kernel.inputs[2])

    def _bias(self, node: Node) -> None:
        """The sum of dy over all but channels is a by-product of the weight gradient."""
        dy = node.inputs[0]
        axes = tuple(a for a in range(dy.ndim) if a not in (1, dy.ndim - 1))
        if dy.ndim != len(node.params["shape"]) + 1:
            return
        for user in self.users[dy]:
            same_phase = (user in self.late) == (node in self.late)
            if _name(user) == "reduce_sum" and user.params["axes"] == axes and same_phase:
                if user[0].dtype == node[0].dtype and user not in self.biases.values():
                    self.biases[node] = user
                return

    # -- the new graph

    def _build(self) -> Graph:
        new: dict[Value, Value] = {}
        ends = {kernel: end for end, (kernel, _) in self.into.items()}
        sums = {total: grad for grad, total in self.biases.items()}
        done: set[Node] = set()
        stack = list(reversed(self.order))
        while stack:
            node = stack[-1]
            if node in done:
                stack.pop()
                continue
            missing = [n for n in self._needs(node, ends, sums) if n not in done]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            done.add(node)
            self._emit(node, new, ends, sums)
        return with_heads(self.graph, new)

    def _needs(self, node: Node, ends: dict[Node, Node], sums: dict[Node, Node]) -> list[Node]:
        """Nodes that come first: a kernel waits for its addend, an end for its kernel."""
        needs = [v.node for v in node.inputs]
        if node in ends:
            addend = self.into[ends[node]][1]
            if addend is not None:
                needs.append(addend.node)
        if node in self.into:
            return [self.into[node][0]]
        if node in sums:
            return [sums[node]]
        if node in self.masked:
            g, beta = self.masked[node]
            return [g.node, beta.node, *(v.node for v in node.inputs[1:])]
        return needs

    def _emit(
        self, node: Node, new: dict[Value, Value], ends: dict[Node, Node], sums: dict[Node, Node]
    ) -> None:
        if node.op is None or node in self.into or node in sums:
            return  # what these give is entered by their kernels
        inputs = [new.get(v, v) for v in node.inputs]
        params = dict(node.params)
        with origin(node.origin):
            if node in ends:
                self._emit_ended(node, inputs, params, new, ends[node])
            elif node in self.masked:
                g, beta = (new.get(v, v) for v in self.masked[node])
                inputs[0], inputs[3], params["relu"] = g, beta, True
                _enter(node, emit_node(node.op, *inputs, **params), new)
            elif node in self.biases:
                params["bias"] = True
                made = emit_node(node.op, *inputs, **params)
                new[node[0]] = made[0]
                total = self.biases[node][0]
                new[total] = _shaped(made[1], total.shape)
            else:
                _enter(node, with_inputs(node, inputs), new)

    def _emit_ended(
        self,
        node: Node,
        inputs: list[Value],
        params: dict[str, object],
        new: dict[Value, Value],
        end: Node,
    ) -> None:
        assert node.op is not None
        addend = self.into[end][1]
        if addend is not None:
            inputs.append(new.get(addend, addend))
        params |= {"add": addend is not None, "relu": end in self.relus}
        made = emit_node(node.op, *inputs, **params)
        _enter(node, made, new)
        new[end[0]] = made[0]


def _shaped(value: Value, shape: tuple[int, ...]) -> Value:
    return value if value.shape == shape else emit("reshape", value, shape=shape)


def _enter(node: Node, made: Node, new: dict[Value, Value]) -> None:
    if made is not node:
        new.update(zip(node.values, made.values, strict=True))


def _is_zero(value: Value) -> bool:
    node = value.node
    while _name(node) == "broadcast":
        node = node.inputs[0].node
    return _name(node) == "full" and node.params["value"] == 0.0
