"""Inception with batch normalisation (Inception v2).

Ioffe, Szegedy: Batch Normalization: Accelerating Deep Network Training by Reducing Internal
Covariate Shift, 2015.
"""

from __future__ import annotations

from functools import partial

from .. import symbol as sym
from ..symbol import Symbol
from .layers import Block, Conv, Pool, build, classifier, conv_bn_relu, global_pool

_STEM = (
    Conv(64, 7, stride=2, pad=3),
    Pool("max"),
    Conv(64),
    Conv(192, 3, pad=1),
    Pool("max"),
)
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


def _block(name: str) -> Block:
    one, red3, three, red33, double, kind, projection = _BLOCKS[name]
    stride = 1 if one else 2
    branches = (
        (Conv(one),),
        (Conv(red3), Conv(three, 3, stride, 1)),
        (Conv(red33), Conv(double, 3, 1, 1), Conv(double, 3, stride, 1)),
        (Pool(kind, 3, stride, 1), Conv(projection)),
    )
    if one:
        return Block(f"in{name}", branches)
    return Block(f"in{name}", (*branches[1:3], branches[3][:1]))


def inception_bn(num_classes: int = 1000) -> Symbol:
    """Symbol with input ``data`` (batch, 3, 224, 224) and label ``softmax_label`` (batch,).

    Filters and rounding are those of MXNet's example (maps of 55, 27, 14, 7).

    Returns:
        Softmax over the classes: (batch, num_classes).
    """
    unit = partial(conv_bn_relu, bias=True)
    net = build(sym.Variable("data"), [*_STEM, *map(_block, _BLOCKS)], unit)
    return classifier(global_pool(net), num_classes)
