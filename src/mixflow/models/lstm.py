"""A language model of long short-term memory, unrolled in time.

Hochreiter, Schmidhuber: Long Short-Term Memory, 1997; forget gate of Gers et al., 2000; Zaremba,
Sutskever, Vinyals: Recurrent Neural Network Regularization, 2014 (the model). Tied output: Press,
Wolf: Using the Output Embedding to Improve Language Models, 2016.
"""

from __future__ import annotations

from typing import Any

from .. import initializer
from .. import symbol as sym
from ..errors import ParamError
from ..symbol import Group, Symbol

#: A layer's output and cell, each (batch, hidden).
State = tuple[Symbol, Symbol]


def _cell(gates: Symbol, cell: Symbol, name: str) -> State:
    """One step.

    Args:
        gates: (batch, 4 hidden) before the non-linearities, in the order input, forget, candidate,
            output.
        cell: (batch, hidden).
    """
    parts = sym.SliceChannel(gates, num_outputs=4, axis=1, name=f"{name}_slice")
    kinds = ("sigmoid", "sigmoid", "tanh", "sigmoid")
    keep = zip("ifco", kinds, parts, strict=True)
    i, f, c, o = (sym.Activation(p, act_type=k, name=f"{name}_{n}") for n, k, p in keep)
    cell = sym.elemwise_add(f * cell, i * c, name=f"{name}_state")
    return sym.elemwise_mul(o, sym.Activation(cell, act_type="tanh"), name=f"{name}_out"), cell


def _start(gates: Symbol, hidden: int, name: str, carry: bool) -> State:
    """State before the first step: inputs of the graph when `carry`, else zeros."""
    if carry:
        return _initial(f"{name}_init_h", hidden), _initial(f"{name}_init_c", hidden)
    zeros = sym.zeros_like(sym.slice_axis(gates, axis=1, begin=0, end=hidden))
    return zeros, zeros


def _initial(name: str, hidden: int) -> Symbol:
    """An input (batch, hidden)."""
    return sym.Variable(name, shape=(0, hidden), init=initializer.Zero())


def _layer(data: Symbol, hidden: int, seq_len: int, name: str, carry: bool) -> tuple[Symbol, State]:
    """(batch, seq_len, c) to (batch, seq_len, hidden), and the state after the last step.

    The inputs of all steps go through one matrix product; only the products with the output of the
    step before are one by one.
    """
    bias = sym.Variable(f"{name}_i2h_bias", init=initializer.LSTMBias())
    inputs = sym.FullyConnected(
        data, bias=bias, num_hidden=4 * hidden, flatten=False, name=f"{name}_i2h"
    )
    steps = sym.SliceChannel(
        inputs, num_outputs=seq_len, axis=1, squeeze_axis=True, name=f"{name}_steps"
    )
    weight, shift = sym.Variable(f"{name}_h2h_weight"), sym.Variable(f"{name}_h2h_bias")
    out, cell = _start(steps[0], hidden, name, carry)
    outputs = []
    for step, gates in enumerate(steps):
        own = f"{name}_t{step}"
        recurrent = sym.FullyConnected(
            out, weight=weight, bias=shift, num_hidden=4 * hidden, name=f"{own}_h2h"
        )
        out, cell = _cell(gates + recurrent, cell, own)
        outputs.append(out)
    return sym.stack(*outputs, axis=1, name=f"{name}_outputs"), (out, cell)


def lstm_lm(
    vocab: int,
    embed: int = 200,
    hidden: int = 200,
    layers: int = 2,
    seq_len: int = 35,
    *,
    tied: bool = False,
    dropout: float = 0.0,
    carry_state: bool = False,
) -> Symbol:
    """Symbol with input ``data`` (batch, seq_len) of word numbers and label ``softmax_label``
    (batch, seq_len): the words that follow.

    Args:
        vocab: number of words.
        embed: size of a word's vector.
        hidden: units of each layer.
        layers: number of layers.
        seq_len: words of a sequence.
        tied: the output layer's weight is that of the embedding; needs ``embed == hidden``.
        dropout: share of the inputs of each layer, and of the last outputs, set to zero.
        carry_state: inputs ``lstm_l{k}_init_h``, ``lstm_l{k}_init_c`` (batch, hidden) give the
            first state (zeros otherwise), and further outputs give the last one in that order.

    Returns:
        Softmax over the words, (batch * seq_len, vocab), rows sequence by sequence.

    Raises:
        ParamError: a size below 1, or tied with ``embed != hidden``.
    """
    _check(vocab, embed, hidden, layers, seq_len, tied)
    words = sym.Variable("embed_weight")
    net = sym.Embedding(
        sym.Variable("data"), weight=words, input_dim=vocab, output_dim=embed, name="embed"
    )
    states: list[Symbol] = []
    for number in range(layers):
        net = _dropped(net, dropout, f"drop{number}")
        net, last = _layer(net, hidden, seq_len, f"lstm_l{number}", carry_state)
        states += last
    net = _dropped(net, dropout, "drop_last")
    net = sym.Reshape(net, shape=(-1, hidden), name="rows")
    tying: dict[str, Any] = {"weight": words} if tied else {}
    net = sym.FullyConnected(net, num_hidden=vocab, name="decoder", **tying)
    label = sym.Reshape(sym.Variable("softmax_label"), shape=(-1,), name="label_rows")
    net = sym.SoftmaxOutput(net, label, name="softmax")
    return Group([net, *map(sym.BlockGrad, states)]) if carry_state else net


def _dropped(data: Symbol, share: float, name: str) -> Symbol:
    return sym.Dropout(data, p=share, name=name) if share else data


def _check(vocab: int, embed: int, hidden: int, layers: int, seq_len: int, tied: bool) -> None:
    sizes = {"vocab": vocab, "embed": embed, "hidden": hidden, "layers": layers, "seq_len": seq_len}
    small = {k: v for k, v in sizes.items() if v < 1}
    if small:
        raise ParamError(f"[lstm_lm] expected sizes of at least 1, got {small}")
    if tied and embed != hidden:
        raise ParamError(
            f"[lstm_lm] expected embed == hidden for a tied output, got {embed} and {hidden}"
        )
