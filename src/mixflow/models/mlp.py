"""Dense networks: softmax regression and a multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from .. import symbol as sym
from ..symbol import Symbol


def mlp(num_classes: int = 10, hidden: Sequence[int] = (128, 64)) -> Symbol:
    """Symbol with input ``data`` (batch, ...) and label ``softmax_label`` (batch,).

    Args:
        num_classes: size of the output.
        hidden: units of each hidden layer, relu after each.

    Returns:
        Softmax over the classes: (batch, num_classes).
    """
    net = sym.Flatten(sym.Variable("data"), name="flatten")
    for number, units in enumerate(hidden, 1):
        net = sym.FullyConnected(net, num_hidden=units, name=f"fc{number}")
        net = sym.Activation(net, act_type="relu", name=f"relu{number}")
    net = sym.FullyConnected(net, num_hidden=num_classes, name=f"fc{len(hidden) + 1}")
    return sym.SoftmaxOutput(net, name="softmax")


def softmax_regression(num_classes: int = 10) -> Symbol:
    """One dense layer and a softmax."""
    return mlp(num_classes, hidden=())
