"""GoogLeNet (Inception v1) without the auxiliary classifiers.

Szegedy et al.: Going Deeper with Convolutions, 2014.
"""

from __future__ import annotations

from .. import symbol as sym
from ..symbol import Symbol
from .layers import Block, Conv, Pool, build, classifier, conv_relu, global_pool

_STEM = (
    Conv(64, 7, stride=2, pad=3),
    Pool("max", full=True),
    Conv(64),
    Conv(192, 3, pad=1),
    Pool("max", full=True),
)
#: Filters of a block: 1x1, 3x3 reduction, 3x3, 5x5 reduction, 5x5, projection of the pooling.
_BLOCKS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def _block(name: str) -> Block:
    one, red3, three, red5, five, projection = _BLOCKS[name]
    return Block(
        f"in{name}",
        (
            (Conv(one),),
            (Conv(red3), Conv(three, 3, pad=1)),
            (Conv(red5), Conv(five, 5, pad=2)),
            (Pool("max", 3, 1, 1), Conv(projection)),
        ),
    )


def googlenet(num_classes: int = 1000) -> Symbol:
    """Symbol with input ``data`` (batch, 3, 224, 224) and label ``softmax_label`` (batch,).

    Poolings round up, so that the maps have the paper's sizes 56, 28, 14, 7.

    Returns:
        Softmax over the classes: (batch, num_classes).
    """
    net = build(sym.Variable("data"), _STEM, conv_relu)
    for stage in "345":
        if stage != "3":
            net = build(net, [Pool("max", full=True)], conv_relu, f"stage{stage}_")
        net = build(net, [_block(n) for n in _BLOCKS if n[0] == stage], conv_relu)
    return classifier(global_pool(net), num_classes)
