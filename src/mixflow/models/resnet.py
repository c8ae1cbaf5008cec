"""Residual networks for ImageNet (v1, v2) and for CIFAR (v2).

He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2015 (v1); Identity Mappings in
Deep Residual Networks, 2016 (v2).
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import symbol as sym
from ..errors import ParamError
from ..symbol import Symbol
from .layers import (
    Conv,
    Pool,
    batch_norm,
    classifier,
    conv,
    conv_bn,
    conv_bn_relu,
    global_pool,
    pool,
    relu,
)

#: Depth to units of each of the four stages.
DEPTHS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


def _body(filters: int, stride: int, bottleneck: bool, version: int) -> list[Conv]:
    """Convolutions of a unit. A bottleneck strides in its first 1x1 (v1) or in its 3x3 (v2)."""
    if not bottleneck:
        return [Conv(filters, 3, stride, 1), Conv(filters, 3, 1, 1)]
    first, second = (stride, 1) if version == 1 else (1, stride)
    inner = filters // 4
    return [Conv(inner, 1, first), Conv(inner, 3, second, 1), Conv(filters)]


def _unit_v1(
    data: Symbol, body: Sequence[Conv], shortcut: Conv | None, name: str, eps: float
) -> Symbol:
    """Convolutions each with normalisation, rectifier between them and after the sum.

    The 1x1 convolutions have a bias, as in MXNet's own model (the normalisation cancels it).
    """
    net = data
    for number, step in enumerate(body, 1):
        net = conv_bn(net, step, f"{name}_conv{number}", bias=step.kernel == 1, eps=eps)
        if number < len(body):
            net = relu(net, f"{name}_relu{number}")
    if shortcut is not None:
        data = conv_bn(data, shortcut, f"{name}_shortcut", eps=eps)
    terms = (data, net) if len(body) == 2 else (net, data)  # the order of MXNet's parameter lists
    return relu(sym.elemwise_add(*terms, name=f"{name}_sum"), f"{name}_relu")


def _unit_v2(
    data: Symbol, body: Sequence[Conv], shortcut: Conv | None, name: str, eps: float
) -> Symbol:
    """Normalisation and rectifier before each convolution, nothing after the sum."""
    net = data
    for number, step in enumerate(body, 1):
        net = relu(batch_norm(net, f"{name}_bn{number}", eps), f"{name}_relu{number}")
        if number == 1 and shortcut is not None:
            data = conv(net, shortcut, f"{name}_shortcut", bias=False)
        net = conv(net, step, f"{name}_conv{number}", bias=False)
    return sym.elemwise_add(net, data, name=f"{name}_sum")


def _stages(
    data: Symbol,
    units: Sequence[int],
    filters: Sequence[int],
    *,
    bottleneck: bool,
    version: int,
    eps: float = 1e-5,
    project_first: bool = False,
) -> Symbol:
    """Stages of units: (batch, filters[0], h, w) to (batch, filters[-1], h', w').

    The first unit of each stage but the first halves the image. Its shortcut is a projection where
    the shape changes, in the first stage also when `project_first`.
    """
    unit = _unit_v1 if version == 1 else _unit_v2
    for stage, count in enumerate(units, 1):
        out = filters[stage]
        for number in range(1, count + 1):
            stride = 2 if stage > 1 and number == 1 else 1
            project = number == 1 and (out != filters[stage - 1] or project_first)
            data = unit(
                data,
                _body(out, stride, bottleneck, version),
                Conv(out, 1, stride) if project else None,
                f"stage{stage}_unit{number}",
                eps,
            )
    return data


def resnet(num_classes: int = 1000, depth: int = 50, version: int = 1) -> Symbol:
    """Symbol with input ``data`` (batch, 3, 224, 224) and label ``softmax_label`` (batch,).

    Parameter shapes are those of MXNet's ``resnet{depth}_v{version}``.

    Args:
        num_classes: size of the output.
        depth: 18, 34, 50, 101 or 152; bottlenecks from 50 on.
        version: 1 or 2 (normalisation first).

    Returns:
        Softmax over the classes: (batch, num_classes).

    Raises:
        ParamError: another depth or version.
    """
    if depth not in DEPTHS or version not in (1, 2):
        raise ParamError(
            f"[resnet] expected a depth of {list(DEPTHS)} and version 1 or 2, got depth {depth}, "
            f"version {version}"
        )
    bottleneck = depth >= 50
    filters = (64, 256, 512, 1024, 2048) if bottleneck else (64, 64, 128, 256, 512)
    net = sym.Variable("data")
    if version == 2:
        net = _normalised_data(net, 1e-5)
    net = conv_bn_relu(net, Conv(64, 7, 2, 3), "conv0")
    net = pool(net, Pool("max", 3, 2, 1), "pool0")
    net = _stages(net, DEPTHS[depth], filters, bottleneck=bottleneck, version=version)
    if version == 2:
        net = relu(batch_norm(net, "bn_last"), "relu_last")
    return classifier(global_pool(net), num_classes)


def _normalised_data(data: Symbol, eps: float) -> Symbol:
    """The images normalised per channel, without a learnt scale."""
    return batch_norm(data, "bn_data", eps, fix_gamma=True)


def resnet_cifar(num_classes: int = 10, depth: int = 20) -> Symbol:
    """Symbol with input ``data`` (batch, 3, 32, 32) and label ``softmax_label`` (batch,).

    Three stages of 16, 32, 64 filters in the v2 form of MXNet's example, whose first stage has a
    projection too.

    Args:
        num_classes: size of the output.
        depth: 6 n + 2, n units in each stage.

    Returns:
        Softmax over the classes: (batch, num_classes).

    Raises:
        ParamError: another depth.
    """
    units, rest = divmod(depth - 2, 6)
    if rest or units < 1:
        raise ParamError(f"[resnet_cifar] expected a depth of 6 n + 2, n >= 1, got {depth}")
    eps = 2e-5
    net = _normalised_data(sym.Variable("data"), eps)
    net = conv(net, Conv(16, 3, 1, 1), "conv0", bias=False)
    filters = (16, 16, 32, 64)
    net = _stages(
        net, (units,) * 3, filters, bottleneck=False, version=2, eps=eps, project_first=True
    )
    net = relu(batch_norm(net, "bn_last", eps), "relu_last")
    return classifier(global_pool(net), num_classes)
