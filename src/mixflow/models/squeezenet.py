"""SqueezeNet: 1x1 convolutions squeeze the channels before 1x1 and 3x3 ones expand them.

Iandola et al.: SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and <0.5MB model size,
2016; version 1.1 of its authors' repository.
"""

from __future__ import annotations

from .. import symbol as sym
from ..errors import ParamError
from ..symbol import Symbol
from .layers import Block, Conv, Pool, Step, build, conv_relu, global_pool

#: Stem, then per fire module its squeeze filters (each expansion has four times as many), 0 = pool.
_VERSIONS = {
    "1.0": (Conv(96, 7, 2), (0, 16, 16, 32, 0, 32, 48, 48, 64, 0, 64)),
    "1.1": (Conv(64, 3, 2), (0, 16, 16, 0, 32, 32, 0, 48, 48, 64, 64)),
}


def _fire(squeeze: int, name: str) -> tuple[Step, Step]:
    """(batch, c, h, w) to (batch, 8 * squeeze, h, w)."""
    expand = 4 * squeeze
    return Conv(squeeze), Block(name, ((Conv(expand),), (Conv(expand, 3, pad=1),)))


def squeezenet(num_classes: int = 1000, version: str = "1.0") -> Symbol:
    """Symbol with input ``data`` (batch, 3, 224, 224) and label ``softmax_label`` (batch,).

    Args:
        num_classes: size of the output.
        version: '1.0' or '1.1' (less work, same accuracy).

    Returns:
        Softmax over the classes: (batch, num_classes).

    Raises:
        ParamError: another version.
    """
    if version not in _VERSIONS:
        raise ParamError(f"[squeezenet] expected version '1.0' or '1.1', got '{version}'")
    stem, rows = _VERSIONS[version]
    steps: list[Step] = [stem]
    for row in rows:
        fires = sum(isinstance(s, Block) for s in steps)
        steps += _fire(row, f"fire{fires + 2}") if row else [Pool("max", full=True)]
    net = build(sym.Variable("data"), steps, conv_relu)
    net = sym.Dropout(net, p=0.5, name="drop")
    net = global_pool(conv_relu(net, Conv(num_classes), "conv_last"))
    return sym.SoftmaxOutput(sym.Flatten(net, name="flatten"), name="softmax")
