"""Inception v3 without the auxiliary classifier.

Szegedy et al.: Rethinking the Inception Architecture for Computer Vision, 2015.
"""

from __future__ import annotations

from functools import partial

from .. import symbol as sym
from ..symbol import Symbol
from .layers import Block, Conv, Pool, Step, build, classifier, conv_bn_relu, global_pool

_MEAN = Pool("avg", 3, 1, 1)
_HALVE = Pool("max")
_STEM = (
    Conv(32, 3, stride=2),
    Conv(32, 3),
    Conv(64, 3, pad=1),
    _HALVE,
    Conv(80),
    Conv(192, 3),
    _HALVE,
)


def _row(filters: int, length: int) -> Conv:
    """1 x length, size kept."""
    return Conv(filters, (1, length), pad=(0, length // 2))


def _column(filters: int, length: int) -> Conv:
    """length x 1, size kept."""
    return Conv(filters, (length, 1), pad=(length // 2, 0))


def _block_35(name: str, projection: int) -> Block:
    """(batch, c, 35, 35) to (batch, 224 + projection, 35, 35)."""
    return Block(
        name,
        (
            (Conv(64),),
            (Conv(48), Conv(64, 5, pad=2)),
            (Conv(64), Conv(96, 3, pad=1), Conv(96, 3, pad=1)),
            (_MEAN, Conv(projection)),
        ),
    )


def _block_17(name: str, inner: int) -> Block:
    """(batch, 768, 17, 17) to the same, with `inner` filters before the last of a branch."""
    return Block(
        name,
        (
            (Conv(192),),
            (Conv(inner), _row(inner, 7), _column(192, 7)),
            (Conv(inner), _column(inner, 7), _row(inner, 7), _column(inner, 7), _row(192, 7)),
            (_MEAN, Conv(192)),
        ),
    )


def _block_8(name: str) -> Block:
    """(batch, c, 8, 8) to (batch, 2048, 8, 8); two branches end in a row beside a column."""
    split = Block("split", ((_row(384, 3),), (_column(384, 3),)))
    return Block(
        name,
        (
            (Conv(320),),
            (Conv(384), split),
            (Conv(448), Conv(384, 3, pad=1), split),
            (_MEAN, Conv(192)),
        ),
    )


_BLOCKS: tuple[Step, ...] = (
    _block_35("a1", 32),
    _block_35("a2", 64),
    _block_35("a3", 64),
    Block("b", (
        (Conv(384, 3, stride=2),),
        (Conv(64), Conv(96, 3, pad=1), Conv(96, 3, stride=2)),
        (_HALVE,),
    )),
    _block_17("c1", 128),
    _block_17("c2", 160),
    _block_17("c3", 160),
    _block_17("c4", 192),
    Block("d", (
        (Conv(192), Conv(320, 3, stride=2)),
        (Conv(192), _row(192, 7), _column(192, 7), Conv(192, 3, stride=2)),
        (_HALVE,),
    )),
    _block_8("e1"),
    _block_8("e2"),
)  # fmt: skip


def inception_v3(num_classes: int = 1000) -> Symbol:
    """Symbol with input ``data`` (batch, 3, 299, 299) and label ``softmax_label`` (batch,).

    Returns:
        Softmax over the classes: (batch, num_classes).
    """
    unit = partial(conv_bn_relu, eps=1e-3)
    net = build(sym.Variable("data"), [*_STEM, *_BLOCKS], unit)
    net = sym.Dropout(global_pool(net), p=0.5, name="drop")
    return classifier(net, num_classes)
