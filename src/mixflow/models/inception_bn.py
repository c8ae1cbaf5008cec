"""Inception with batch normalisation (Inception v2).

Ioffe, Szegedy: Batch Normalization: Accelerating Deep Network Training by Reducing Internal
Covariate Shift, 2015.
"""

from __future__ import annotations

from functools import partial

from .. import symbol as sym
from ..errors import ParamError
from ..symbol import Symbol
from .layers import Block, Conv, Pool, build, classifier, conv_bn_relu, global_pool


def _stem(small: bool, divisor: int) -> tuple[Conv | Pool, ...]:
    first, last = 64 // divisor, Conv(192 // divisor, 3, pad=1)
    if small:
        return Conv(first, 3, stride=2, pad=1), last
    return Conv(first, 7, stride=2, pad=3), Pool("max"), Conv(first), last, Pool("max")


#: Filters of a block: 1x1, 3x3 reduction, 3x3, reduction of the two 3x3, each of the two, kind of
#: pooling, projection of the pooling. Without 1x1 and projection the block halves the image.
_BLOCKS = {
    "3a": (64, 64, 64, 64, 96, "avg", 32),
    "3b": (64, 64, 96, 64, 96, "avg", 64),
    "3c": (0, 128, 160, 64, 96, "max", 0),
    "4a": (224, 64, 96, 96, 128, "avg", 128),
    "4b": (192, 96, 128, 96, 128, "avg", 128),
    "4c": (160, 128, 160, 128, 160, "avg", 128),
    "4d": (96, 128, 192, 160, 192, "avg", 128),
    "4e": (0, 128, 192, 192, 256, "max", 0),
    "5a": (352, 192, 320, 160, 224, "avg", 128),
    "5b": (352, 192, 320, 192, 224, "max", 128),
}


def _block(name: str, divisor: int) -> Block:
    *filters, kind, projection = _BLOCKS[name]
    one, red3, three, red33, double = (count // divisor for count in filters)
    stride = 1 if one else 2
    branches = (
        (Conv(one),),
        (Conv(red3), Conv(three, 3, stride, 1)),
        (Conv(red33), Conv(double, 3, 1, 1), Conv(double, 3, stride, 1)),
        (Pool(kind, 3, stride, 1), Conv(projection // divisor)),
    )
    if one:
        return Block(f"in{name}", branches)
    return Block(f"in{name}", (*branches[1:3], branches[3][:1]))


def inception_bn(num_classes: int = 1000, divisor: int = 1, small: bool = False) -> Symbol:
    """Symbol with input ``data`` (batch, 3, 224, 224) and label ``softmax_label`` (batch,).

    Filters and rounding are those of MXNet's example (maps of 55, 27, 14, 7).

    Args:
        num_classes: of the softmax.
        divisor: every layer has so many times fewer filters (a power of 2 up to 32).
        small: a stem of two 3x3 convolutions for images of 28 pixels (maps of 14, 7, 4) in the
            place of that for 224; the ten blocks are the same.

    Returns:
        Softmax over the classes: (batch, num_classes).

    Raises:
        ParamError: a divisor that does not divide the filters.
    """
    if divisor not in (1, 2, 4, 8, 16, 32):
        raise ParamError(f"[inception_bn] expected a divisor of 1, 2, 4 ... 32, got {divisor}")
    unit = partial(conv_bn_relu, bias=True)
    steps = [*_stem(small, divisor), *(_block(name, divisor) for name in _BLOCKS)]
    net = build(sym.Variable("data"), steps, unit)
    return classifier(global_pool(net), num_classes)
