"""MobileNet v1: convolutions split into one per channel and a 1x1 mixing.

Howard et al.: MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications,
2017.
"""

from __future__ import annotations

from .. import symbol as sym
from ..errors import ParamError
from ..symbol import Symbol
from .layers import Conv, classifier, conv_bn_relu, global_pool

#: Filters of the 1x1 and stride of the convolution per channel before it.
_PAIRS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)


def mobilenet(num_classes: int = 1000, multiplier: float = 1.0) -> Symbol:
    """Symbol with input ``data`` (batch, 3, 224, 224) and label ``softmax_label`` (batch,).

    Args:
        num_classes: size of the output.
        multiplier: share of the filters that is kept, e.g. 0.25, 0.5, 0.75, 1.

    Returns:
        Softmax over the classes: (batch, num_classes).

    Raises:
        ParamError: nothing would be kept.
    """
    channels = int(32 * multiplier)
    if channels < 1:
        raise ParamError(f"[mobilenet] expected a multiplier of at least 1/32, got {multiplier}")
    net = conv_bn_relu(sym.Variable("data"), Conv(channels, 3, 2, 1), "conv0")
    for number, (filters, stride) in enumerate(_PAIRS, 1):
        depthwise = Conv(channels, 3, stride, 1, groups=channels)
        net = conv_bn_relu(net, depthwise, f"conv{number}_depthwise")
        channels = int(filters * multiplier)
        net = conv_bn_relu(net, Conv(channels), f"conv{number}_pointwise")
    return classifier(global_pool(net), num_classes)
