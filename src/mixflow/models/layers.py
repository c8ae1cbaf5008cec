"""Parts that networks share: layers, and networks written as tables of steps.

A table is a sequence of `Conv`, `Pool` and `Block` steps; `build` walks it. Shapes are those of
images, (batch, channels, height, width).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import symbol as sym
from ..symbol import Symbol

#: One number for both axes, or (height, width).
Size = int | tuple[int, int]


@dataclass(frozen=True)
class Conv:
    """A convolution: (batch, c, h, w) to (batch, filters, h', w'), h' = (h + 2 pad - kernel) //
    stride + 1; `groups` divides the channels."""

    filters: int
    kernel: Size = 1
    stride: int = 1
    pad: Size = 0
    groups: int = 1


@dataclass(frozen=True)
class Pool:
    """A pooling: 'max' or 'avg'; `full` rounds the output size up instead of down."""

    kind: str
    kernel: int = 3
    stride: int = 2
    pad: int = 0
    full: bool = False


@dataclass(frozen=True)
class Block:
    """Branches side by side, each a sequence of steps, joined along the channels."""

    name: str
    branches: tuple[Sequence[Step], ...]


Step = Conv | Pool | Block
#: Makes a convolution with what follows it: (data, step, name) to a symbol.
Unit = Callable[[Symbol, Conv, str], Symbol]


def pair(size: Size) -> tuple[int, int]:
    """(height, width)."""
    return (size, size) if isinstance(size, int) else size


def conv(data: Symbol, step: Conv, name: str, bias: bool = True) -> Symbol:
    """The convolution of a step; arguments ``name_weight`` and, with `bias`, ``name_bias``."""
    return sym.Convolution(
        data,
        kernel=pair(step.kernel),
        stride=pair(step.stride),
        pad=pair(step.pad),
        num_filter=step.filters,
        num_group=step.groups,
        no_bias=not bias,
        name=name,
    )


def batch_norm(data: Symbol, name: str, eps: float = 1e-5, **settings: Any) -> Symbol:
    """Batch normalisation with a learnt scale (unless ``fix_gamma=True``), momentum 0.9."""
    return sym.BatchNorm(data, eps=eps, momentum=0.9, name=name, **{"fix_gamma": False, **settings})


def relu(data: Symbol, name: str) -> Symbol:
    """Rectifier."""
    return sym.Activation(data, act_type="relu", name=name)


def pool(data: Symbol, step: Pool, name: str) -> Symbol:
    """The pooling of a step."""
    return sym.Pooling(
        data,
        pool_type=step.kind,
        kernel=pair(step.kernel),
        stride=pair(step.stride),
        pad=pair(step.pad),
        pooling_convention="full" if step.full else "valid",
        name=name,
    )


def global_pool(data: Symbol) -> Symbol:
    """Mean over the image: (batch, c, h, w) to (batch, c, 1, 1)."""
    return sym.Pooling(data, global_pool=True, kernel=(7, 7), pool_type="avg", name="global_pool")


def conv_relu(data: Symbol, step: Conv, name: str) -> Symbol:
    """Convolution with bias, rectifier."""
    return relu(conv(data, step, name), f"{name}_relu")


def conv_bn(data: Symbol, step: Conv, name: str, bias: bool = False, eps: float = 1e-5) -> Symbol:
    """Convolution and batch normalisation."""
    return batch_norm(conv(data, step, name, bias), f"{name}_bn", eps)


def conv_bn_relu(
    data: Symbol, step: Conv, name: str, bias: bool = False, eps: float = 1e-5
) -> Symbol:
    """Convolution, batch normalisation, rectifier."""
    return relu(conv_bn(data, step, name, bias, eps), f"{name}_relu")


def build(data: Symbol, steps: Sequence[Step], unit: Unit, prefix: str = "") -> Symbol:
    """Runs the steps of a table one after the other.

    Args:
        data: input.
        steps: the table; convolutions and poolings are numbered from 1 in each sequence.
        unit: makes a convolution step.
        prefix: of the names.
    """
    counts = {Conv: 0, Pool: 0}
    for step in steps:
        if isinstance(step, Block):
            data = _block(data, step, unit, prefix)
            continue
        counts[type(step)] += 1
        if isinstance(step, Conv):
            data = unit(data, step, f"{prefix}conv{counts[Conv]}")
        else:
            data = pool(data, step, f"{prefix}pool{counts[Pool]}")
    return data


def _block(data: Symbol, block: Block, unit: Unit, prefix: str) -> Symbol:
    name = f"{prefix}{block.name}"
    branches = [
        build(data, steps, unit, f"{name}_branch{k}_") for k, steps in enumerate(block.branches, 1)
    ]
    return sym.Concat(*branches, dim=1, name=f"{name}_concat")


def classifier(data: Symbol, num_classes: int, name: str = "fc") -> Symbol:
    """Flatten, one dense layer, softmax: (batch, ...) to (batch, num_classes)."""
    net = sym.Flatten(data, name="flatten")
    net = sym.FullyConnected(net, num_hidden=num_classes, name=name)
    return sym.SoftmaxOutput(net, name="softmax")


def dense_head(data: Symbol, num_classes: int, first: int) -> Symbol:
    """Two layers of 4096 units with rectifier and dropout of one half, then `classifier`.

    Args:
        data: (batch, ...).
        num_classes: size of the output.
        first: number of the first layer in the names ``fc6``, ``fc7``, ``fc8``.
    """
    net = sym.Flatten(data, name="flatten_features")
    for number in (first, first + 1):
        net = sym.FullyConnected(net, num_hidden=4096, name=f"fc{number}")
        net = sym.Dropout(relu(net, f"relu{number}"), p=0.5, name=f"drop{number}")
    return classifier(net, num_classes, f"fc{first + 2}")
