"""Symbol: a declared graph, as a list of values over immutable nodes whose types are not known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

from ..errors import GraphError, UnknownNameError, describe_unknown
from ..ir import Graph, Node, Value, topological
from ..ir import json as codec
from . import infer as _infer
from .late import call


def output_names(value: Value) -> str:
    """MXNet's name of an output: ``fc1_output``; a variable's own name."""
    node = value.node
    if node.op is None:
        return node.name
    return f"{node.name}_{node.op.output_names(dict(node.params))[value.index]}"


def aux_nodes(nodes: Sequence[Node]) -> set[Node]:
    """Variables that stand at an auxiliary input of some node."""
    found = set()
    for node in nodes:
        if node.op is None or not node.op.aux:
            continue
        names = node.op.input_names(dict(node.params))
        aux = node.op.aux_names(dict(node.params))
        found |= {
            v.node
            for k, v in enumerate(node.inputs)
            if k < len(names) and names[k] in aux and v.node.op is None
        }
    return found


class Symbol:
    """One or more outputs of a declared graph.

    Made by `Variable`, by the generated functions (``mx.sym.FullyConnected``), by operators and by
    `Group`; never changed by composition.
    """

    __slots__ = ("_heads", "_nodes")

    def __init__(self, heads: Sequence[Value]) -> None:
        self._heads = tuple(heads)
        self._nodes: list[Node] | None = None

    # -- structure

    @property
    def heads(self) -> tuple[Value, ...]:
        """The values."""
        return self._heads

    def nodes(self) -> list[Node]:
        """Every node that the outputs need, inputs before users."""
        if self._nodes is None:
            self._nodes = topological(self._heads)
        return self._nodes

    def graph(self) -> Graph:
        """Arguments, then auxiliary states, as inputs; the outputs as outputs."""
        return Graph(tuple(self._variables(False) + self._variables(True)), self._heads)

    def _variables(self, aux: bool) -> list[Value]:
        nodes = self.nodes()
        states = aux_nodes(nodes)
        return [Value(n, 0) for n in nodes if n.op is None and (n in states) == aux]

    @property
    def name(self) -> str | None:
        """Name of the node, None for a group."""
        first = self._heads[0].node
        return first.name if all(v.node is first for v in self._heads) else None

    def list_arguments(self) -> list[str]:
        """Names of the inputs, in the order in which a depth-first walk meets them."""
        return [v.node.name for v in self._variables(False)]

    def list_auxiliary_states(self) -> list[str]:
        """Names of the states that operators change (moving statistics)."""
        return [v.node.name for v in self._variables(True)]

    def list_inputs(self) -> list[str]:
        """Names of arguments and auxiliary states."""
        return [n.name for n in self.nodes() if n.op is None]

    def list_outputs(self) -> list[str]:
        """Names of the outputs."""
        return [output_names(v) for v in self._heads]

    @property
    def num_outputs(self) -> int:
        """Number of outputs."""
        return len(self._heads)

    def get_internals(self) -> Symbol:
        """A group of every output of every node."""
        heads = []
        for node in self.nodes():
            count = 1 if node.op is None else node.op.visible_count(dict(node.params))
            heads += [Value(node, k) for k in range(count)]
        return Symbol(heads)

    def get_children(self) -> Symbol | None:
        """A group of the inputs of the node(s); None for variables."""
        inputs = [v for node in dict.fromkeys(h.node for h in self._heads) for v in node.inputs]
        return Symbol(inputs) if inputs else None

    def __getitem__(self, index: int | str | slice) -> Symbol:
        if isinstance(index, str):
            names = self.list_outputs()
            hits = [k for k, n in enumerate(names) if n == index]
            if not hits:
                raise UnknownNameError(describe_unknown("symbol output", index, names))
            if len(hits) > 1:
                raise GraphError(f"[symbol] expected one output named '{index}', got {len(hits)}")
            index = hits[0]
        if isinstance(index, slice):
            return Symbol(self._heads[index])
        if not -len(self._heads) <= index < len(self._heads):
            raise IndexError(f"[symbol] expected an output below {len(self._heads)}, got {index}")
        return Symbol([self._heads[index]])

    def __iter__(self) -> Iterator[Symbol]:
        return (Symbol([v]) for v in self._heads)

    def __len__(self) -> int:
        return len(self._heads)

    def __repr__(self) -> str:
        if self.name is not None:
            return f"<Symbol {self.name}>"
        return f"<Symbol group [{', '.join(v.node.name for v in self._heads)}]>"

    def __bool__(self) -> bool:
        raise GraphError(
            "[symbol] expected a value, got a symbol; its value is known only when run"
        )

    def __hash__(self) -> int:
        return id(self) >> 4

    def __copy__(self) -> Symbol:
        return Symbol(self._heads)

    def __deepcopy__(self, _memo: Any = None) -> Symbol:
        return Symbol(codec.loads(self.tojson(remove_amp_cast=False)))

    def __reduce__(self) -> Any:
        return fromjson, (self.tojson(remove_amp_cast=False),)

    # -- composition

    def __call__(self, *args: Symbol, name: str | None = None, **kwargs: Symbol) -> Symbol:
        """The same graph with variables replaced by other symbols.

        Args:
            *args: for the arguments in order.
            name: new name of the output node.
            **kwargs: for arguments by name.

        Raises:
            UnknownNameError: no such argument.
        """
        known = self.list_arguments()
        if len(args) > len(known):
            raise GraphError(f"[symbol] expected at most {len(known)} symbols, got {len(args)}")
        given = dict(zip(known, args, strict=False))
        for key, value in kwargs.items():
            if key not in known:
                raise UnknownNameError(describe_unknown("symbol argument", key, known))
            if key in given:
                raise GraphError(f"[symbol] expected '{key}' once, got it twice")
            given[key] = value
        return Symbol(_substitute(self._heads, {k: _one(v) for k, v in given.items()}, name))

    # -- attributes

    def attr(self, key: str) -> str | None:
        """The node's attribute (or parameter) of this key as a string."""
        found = self.list_attr()
        return found.get(key, found.get(codec.hidden_key(key)))

    def list_attr(self, recursive: bool = False) -> dict[str, str]:
        """All attributes of the node; hidden ones under both forms of their key."""
        if recursive:
            raise GraphError("[symbol] expected recursive=False, got True; use attr_dict")
        return _attributes(self._heads[0].node)

    def attr_dict(self) -> dict[str, dict[str, str]]:
        """Attributes of every node that has some, by node name."""
        found = {n.name: _attributes(n) for n in self.nodes()}
        return {k: v for k, v in found.items() if v}

    def _set_attr(self, **attrs: str) -> None:
        """Sets attributes of the node(s), for every symbol that shares them."""
        for node in dict.fromkeys(v.node for v in self._heads):
            new = {codec.hidden_key(k): str(v) for k, v in attrs.items()}
            node.attrs = MappingProxyType({**node.attrs, **new})

    # -- inference

    def infer_shape(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """Shapes of arguments, outputs and auxiliary states, in list order.

        Args:
            *args, **kwargs: known shapes, by position or name; 0 stands for an unknown dimension.

        Returns:
            Three lists of tuples, or three times None where something cannot be known.

        Raises:
            ShapeError: a contradiction.
        """
        return _infer.shapes(self, args, kwargs, partial=False)

    def infer_shape_partial(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """As `infer_shape`; unknown shapes are (), unknown dimensions 0."""
        return _infer.shapes(self, args, kwargs, partial=True)

    def infer_type(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """Dtypes of arguments, outputs and auxiliary states; three times None where unknown."""
        return _infer.dtypes_of(self, args, kwargs, partial=False)

    def infer_type_partial(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """As `infer_type`; None for each unknown one."""
        return _infer.dtypes_of(self, args, kwargs, partial=True)

    # -- files

    def tojson(self, remove_amp_cast: bool = True) -> str:
        """The graph as MXNet's JSON.

        Args:
            remove_amp_cast: leave out the casts that `mixflow.amp` inserted.
        """
        return codec.dumps(_without_casts(self._heads) if remove_amp_cast else self._heads)

    def save(self, fname: str, remove_amp_cast: bool = True) -> None:
        """Writes `tojson` to a file, which appears whole or not at all."""
        from ..files import write_atomically

        write_atomically(fname, self.tojson(remove_amp_cast).encode())

    def debug_str(self) -> str:
        """The graph as text, one node a line."""
        from ..ir.printing import format_graph

        return format_graph(self.graph())

    # -- brought by the executor

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """An executor over given arrays: ``bind(ctx, args, args_grad, grad_req, aux_states)``."""
        return call("bind", self, *args, **kwargs)

    def simple_bind(self, *args: Any, **kwargs: Any) -> Any:
        """An executor with arrays made for the shapes: ``simple_bind(ctx, data=(32, 784))``."""
        return call("simple_bind", self, *args, **kwargs)

    def eval(self, ctx: Any = None, **kwargs: Any) -> Any:
        """Outputs for given arrays: ``eval(ctx, a=nd.ones((2, 3)))``."""
        return call("eval", self, ctx, **kwargs)

    def memory_report(
        self, for_training: bool = True, memory_limit: int | str | None = None, **shapes: Any
    ) -> dict[str, int]:
        """Bytes of internal arrays by strategy, with lower bounds.

        Args:
            for_training: with gradients of all parameters.
            memory_limit: most bytes of internal arrays, as in `simple_bind`.
            **shapes: shapes of the inputs.

        Returns:
            'none', 'inplace', 'coshare', 'both', 'arena', 'lower_bound', 'lower_bound_unfused';
            with a limit 'recomputed' too, the arena of the plan that keeps it.

        Raises:
            ParamError: the limit cannot be met; the text states what can.
        """
        found: dict[str, int] = call("memory_report", self, for_training, memory_limit, **shapes)
        return found

    # -- arithmetic (bodies in register.py, which knows the operators)

    def __add__(self, other: Any) -> Symbol:
        return _arithmetic("add", self, other)

    __radd__ = __iadd__ = __add__

    def __sub__(self, other: Any) -> Symbol:
        return _arithmetic("subtract", self, other)

    def __rsub__(self, other: Any) -> Symbol:
        return _arithmetic("rsubtract", self, other)

    def __mul__(self, other: Any) -> Symbol:
        return _arithmetic("multiply", self, other)

    __rmul__ = __imul__ = __mul__

    def __truediv__(self, other: Any) -> Symbol:
        return _arithmetic("divide", self, other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return _arithmetic("rdivide", self, other)

    def __mod__(self, other: Any) -> Symbol:
        return _arithmetic("mod", self, other)

    def __rmod__(self, other: Any) -> Symbol:
        return _arithmetic("rmod", self, other)

    def __pow__(self, other: Any) -> Symbol:
        return _arithmetic("power", self, other)

    def __rpow__(self, other: Any) -> Symbol:
        return _arithmetic("rpower", self, other)

    def __neg__(self) -> Symbol:
        return _arithmetic("multiply", self, -1.0)

    def __abs__(self) -> Symbol:
        return self.abs()  # type: ignore[attr-defined,no-any-return]

    def __eq__(self, other: object) -> Any:
        return _arithmetic("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return _arithmetic("not_equal", self, other)

    def __gt__(self, other: Any) -> Symbol:
        return _arithmetic("greater", self, other)

    def __ge__(self, other: Any) -> Symbol:
        return _arithmetic("greater_equal", self, other)

    def __lt__(self, other: Any) -> Symbol:
        return _arithmetic("less", self, other)

    def __le__(self, other: Any) -> Symbol:
        return _arithmetic("less_equal", self, other)


def _arithmetic(kind: str, a: Symbol, b: Any) -> Symbol:
    made: Symbol = call("binary", kind, a, b)
    return made


def _one(symbol: Symbol) -> Value:
    if not isinstance(symbol, Symbol):
        raise GraphError(f"[symbol] expected a Symbol, got {type(symbol).__name__}")
    if len(symbol.heads) != 1:
        raise GraphError(f"[symbol] expected one output, got {len(symbol.heads)} of {symbol!r}")
    return symbol.heads[0]


def _substitute(heads: Sequence[Value], given: dict[str, Value], name: str | None) -> list[Value]:
    """The heads of the graph in which variables of these names are other values."""
    new: dict[Node, Node] = {}
    ends = {v.node for v in heads}

    def mapped(value: Value) -> Value:
        if value.node.op is None:
            return given.get(value.node.name, value)
        return Value(new[value.node], value.index)

    for node in topological(heads):
        if node.op is None:
            continue
        inputs = [mapped(v) for v in node.inputs]
        label = name if name and node in ends else node.name
        same = label == node.name and all(a == b for a, b in zip(inputs, node.inputs, strict=True))
        new[node] = (
            node
            if same
            else Node(
                node.op,
                label,
                inputs,
                dict(node.params),
                dict(node.attrs),
                subgraphs=node.subgraphs,
            )
        )
    return [mapped(v) for v in heads]


def _without_casts(heads: Sequence[Value]) -> list[Value]:
    """The same outputs computed without `amp_cast` nodes."""
    new: dict[Value, Value] = {}
    for node in topological(heads):
        inputs = [new[v] for v in node.inputs]
        if node.op is not None and node.op.name == "amp_cast":
            new[Value(node, 0)] = inputs[0]
            continue
        made = node
        if inputs != list(node.inputs):
            params, attrs = dict(node.params), dict(node.attrs)
            made = Node(node.op, node.name, inputs, params, attrs, subgraphs=node.subgraphs)
        new.update({v: Value(made, v.index) for v in node.values})
    return [new[v] for v in heads]


def _attributes(node: Node) -> dict[str, str]:
    found = {**codec.param_strings(node), **node.attrs}
    for key in codec.HIDDEN:
        if f"__{key}__" in found:
            found[key] = found[f"__{key}__"]
    return found


def fromjson(text: str) -> Symbol:
    """A symbol from JSON text.

    Raises:
        FormatError: not a symbol file, or of unknown operators.
    """
    return Symbol(codec.loads(text))


load_json = fromjson


def load(fname: str) -> Symbol:
    """A symbol from a file that `save` or MXNet wrote.

    Raises:
        FormatError: truncated or corrupt.
    """
    from pathlib import Path

    from ..errors import FormatError

    data = Path(fname).read_bytes()
    try:
        return fromjson(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise FormatError(
            f"[symbol file] expected UTF-8 text, got binary data in {fname}"
        ) from None


def Group(symbols: Sequence[Symbol]) -> Symbol:
    """One symbol with the outputs of several."""
    if not symbols:
        raise GraphError("[Group] expected at least one symbol, got none")
    heads: list[Value] = []
    for symbol in symbols:
        if not isinstance(symbol, Symbol):
            raise GraphError(f"[Group] expected symbols, got {type(symbol).__name__}")
        heads += symbol.heads
    return Symbol(heads)
