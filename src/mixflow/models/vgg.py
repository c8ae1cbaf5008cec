"""VGG: stacks of 3x3 convolutions.

Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image Recognition, 2014.
"""

from __future__ import annotations

from functools import partial

from .. import symbol as sym
from ..errors import ParamError
from ..symbol import Symbol
from .layers import Conv, Pool, Step, build, conv_bn_relu, conv_relu, dense_head

#: Convolutions in each of the five stages, by depth.
DEPTHS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_FILTERS = (64, 128, 256, 512, 512)


def vgg(num_classes: int = 1000, depth: int = 16, batch_norm: bool = False) -> Symbol:
    """Symbol with input ``data`` (batch, 3, 224, 224) and label ``softmax_label`` (batch,).

    Args:
        num_classes: size of the output.
        depth: 11, 13, 16 or 19 layers with weights.
        batch_norm: normalise after each convolution.

    Returns:
        Softmax over the classes: (batch, num_classes).

    Raises:
        ParamError: another depth.
    """
    if depth not in DEPTHS:
        raise ParamError(f"[vgg] expected a depth of {list(DEPTHS)}, got {depth}")
    unit = partial(conv_bn_relu, bias=True) if batch_norm else conv_relu
    net = sym.Variable("data")
    for stage, (count, filters) in enumerate(zip(DEPTHS[depth], _FILTERS, strict=True), 1):
        steps: list[Step] = [Conv(filters, 3, pad=1)] * count
        net = build(net, [*steps, Pool("max", 2)], unit, f"stage{stage}_")
    return dense_head(net, num_classes, first=6)
