"""AlexNet in one column, with local response normalisation.

Krizhevsky, Sutskever, Hinton: ImageNet Classification with Deep Convolutional Neural Networks,
2012.
"""

from __future__ import annotations

from .. import symbol as sym
from ..symbol import Symbol
from .layers import Conv, Pool, conv_relu, dense_head, pool

#: Convolution, whether it is followed by normalisation, whether by pooling.
_STAGES = (
    (Conv(96, 11, stride=4), True, True),
    (Conv(256, 5, pad=2), True, True),
    (Conv(384, 3, pad=1), False, False),
    (Conv(384, 3, pad=1), False, False),
    (Conv(256, 3, pad=1), False, True),
)


def alexnet(num_classes: int = 1000) -> Symbol:
    """Symbol with input ``data`` (batch, 3, 224, 224) and label ``softmax_label`` (batch,).

    The two columns of the paper are one here (no groups), as in MXNet's example.

    Returns:
        Softmax over the classes: (batch, num_classes).
    """
    net = sym.Variable("data")
    for number, (step, normalised, pooled) in enumerate(_STAGES, 1):
        net = conv_relu(net, step, f"conv{number}")
        if normalised:
            net = sym.LRN(net, alpha=1e-4, beta=0.75, knorm=2, nsize=5, name=f"norm{number}")
        if pooled:
            net = pool(net, Pool("max"), f"pool{number}")
    return dense_head(net, num_classes, first=6)
