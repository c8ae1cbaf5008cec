"""DenseNet: each layer sees the outputs of all layers before it in its block.

Huang, Liu, van der Maaten, Weinberger: Densely Connected Convolutional Networks, 2016.
"""

from __future__ import annotations

from .. import symbol as sym
from ..errors import ParamError
from ..symbol import Symbol
from .layers import (
    Conv,
    Pool,
    batch_norm,
    classifier,
    conv,
    conv_bn_relu,
    global_pool,
    pool,
    relu,
)

#: Depth to (filters of the stem, filters that a layer adds, layers of each block).
DEPTHS = {
    121: (64, 32, (6, 12, 24, 16)),
    161: (96, 48, (6, 12, 36, 24)),
    169: (64, 32, (6, 12, 32, 32)),
    201: (64, 32, (6, 12, 48, 32)),
}


def _bn_relu_conv(data: Symbol, step: Conv, name: str) -> Symbol:
    net = relu(batch_norm(data, f"{name}_bn"), f"{name}_relu")
    return conv(net, step, name, bias=False)


def _layer(data: Symbol, growth: int, name: str) -> Symbol:
    """(batch, c, h, w) to (batch, c + growth, h, w)."""
    net = _bn_relu_conv(data, Conv(4 * growth), f"{name}_conv1")
    net = _bn_relu_conv(net, Conv(growth, 3, 1, 1), f"{name}_conv2")
    return sym.Concat(data, net, dim=1, name=f"{name}_concat")


def densenet(num_classes: int = 1000, depth: int = 121) -> Symbol:
    """Symbol with input ``data`` (batch, 3, 224, 224) and label ``softmax_label`` (batch,).

    Args:
        num_classes: size of the output.
        depth: 121, 161, 169 or 201.

    Returns:
        Softmax over the classes: (batch, num_classes).

    Raises:
        ParamError: another depth.
    """
    if depth not in DEPTHS:
        raise ParamError(f"[densenet] expected a depth of {list(DEPTHS)}, got {depth}")
    channels, growth, blocks = DEPTHS[depth]
    net = conv_bn_relu(sym.Variable("data"), Conv(channels, 7, 2, 3), "conv0")
    net = pool(net, Pool("max", 3, 2, 1), "pool0")
    for block, count in enumerate(blocks, 1):
        if block > 1:
            channels //= 2
            net = _bn_relu_conv(net, Conv(channels), f"transition{block - 1}")
            net = pool(net, Pool("avg", 2), f"transition{block - 1}_pool")
        for number in range(1, count + 1):
            net = _layer(net, growth, f"block{block}_layer{number}")
        channels += count * growth
    net = relu(batch_norm(net, "bn_last"), "relu_last")
    return classifier(global_pool(net), num_classes)
