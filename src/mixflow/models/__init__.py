"""Networks as symbols (``mixflow.models``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..symbol import Symbol
from . import densenet as _densenet
from . import resnet as _resnet
from . import vgg as _vgg
from .alexnet import alexnet
from .densenet import densenet
from .googlenet import googlenet
from .inception_bn import inception_bn
from .inception_v3 import inception_v3
from .lenet import lenet
from .lstm import lstm_lm
from .mlp import mlp, softmax_regression
from .mobilenet import mobilenet
from .resnet import resnet, resnet_cifar
from .squeezenet import squeezenet
from .vgg import vgg


def _language_model(num_classes: int = 10000) -> Symbol:
    """`lstm_lm` of 2 layers of 200 units over sequences of 35 words."""
    return lstm_lm(num_classes)


#: Networks by the name that the command line uses: functions of ``num_classes``.
NETWORKS: dict[str, Callable[..., Symbol]] = {
    "lenet": lenet,
    "mlp": mlp,
    "softmax": softmax_regression,
    "alexnet": alexnet,
    **{f"vgg-{d}": partial(vgg, depth=d) for d in _vgg.DEPTHS},
    **{f"vgg-{d}-bn": partial(vgg, depth=d, batch_norm=True) for d in _vgg.DEPTHS},
    "googlenet": googlenet,
    "inception-bn": inception_bn,
    "inception-v3": inception_v3,
    **{f"resnet-{d}": partial(resnet, depth=d) for d in _resnet.DEPTHS},
    **{f"resnet-{d}-v2": partial(resnet, depth=d, version=2) for d in _resnet.DEPTHS},
    **{f"resnet-{d}-cifar": partial(resnet_cifar, depth=d) for d in (20, 32, 56, 110)},
    "mobilenet": mobilenet,
    **{f"mobilenet-{m}": partial(mobilenet, multiplier=m) for m in (0.25, 0.5, 0.75, 1.0)},
    **{f"densenet-{d}": partial(densenet, depth=d) for d in _densenet.DEPTHS},
    **{f"squeezenet-{v}": partial(squeezenet, version=v) for v in ("1.0", "1.1")},
    "lstm-lm": _language_model,
}

_OTHER_SHAPES = {
    "lenet": (1, 28, 28),
    "mlp": (1, 28, 28),
    "softmax": (1, 28, 28),
    "inception-v3": (3, 299, 299),
    "lstm-lm": (35,),
}


def _default_shape(name: str) -> tuple[int, ...]:
    return (3, 32, 32) if name.endswith("-cifar") else _OTHER_SHAPES.get(name, (3, 224, 224))


#: Shape of one sample of ``data`` for each network: the one of its paper.
DEFAULT_SHAPES = {name: _default_shape(name) for name in NETWORKS}


def input_shapes(
    name: str, batch_size: int, sample: tuple[int, ...] | None = None
) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs that fix all others of a named network.

    Args:
        name: in `NETWORKS`.
        batch_size: samples.
        sample: shape of one sample of ``data``; None = `DEFAULT_SHAPES`.

    Returns:
        By input name; for language models also the label, which has the shape of the data.
    """
    data = (batch_size, *(DEFAULT_SHAPES[name] if sample is None else sample))
    return {"data": data, "softmax_label": data} if name == "lstm-lm" else {"data": data}


__all__ = [
    "DEFAULT_SHAPES",
    "NETWORKS",
    "alexnet",
    "densenet",
    "googlenet",
    "inception_bn",
    "inception_v3",
    "input_shapes",
    "lenet",
    "lstm_lm",
    "mlp",
    "mobilenet",
    "resnet",
    "resnet_cifar",
    "softmax_regression",
    "squeezenet",
    "vgg",
]
