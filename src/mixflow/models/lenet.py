"""LeNet: two convolutions, two dense layers (LeCun et al., 1998; form of MXNet's example)."""

from __future__ import annotations

from .. import symbol as sym
from ..symbol import Symbol


def lenet(num_classes: int = 10) -> Symbol:
    """Symbol with input ``data`` (batch, 1, 28, 28) and label ``softmax_label`` (batch,).

    Returns:
        Softmax over the classes: (batch, num_classes).
    """
    net = sym.Variable("data")
    for number, filters in ((1, 20), (2, 50)):
        net = sym.Convolution(net, kernel=(5, 5), num_filter=filters, name=f"conv{number}")
        net = sym.Activation(net, act_type="tanh", name=f"tanh{number}")
        net = sym.Pooling(net, pool_type="max", kernel=(2, 2), stride=(2, 2), name=f"pool{number}")
    net = sym.FullyConnected(sym.Flatten(net, name="flatten"), num_hidden=500, name="fc1")
    net = sym.Activation(net, act_type="tanh", name="tanh3")
    net = sym.FullyConnected(net, num_hidden=num_classes, name="fc2")
    return sym.SoftmaxOutput(net, name="softmax")
