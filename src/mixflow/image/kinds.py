"""Kinds of arguments that functions, augmenters and iterators of ``mx.image`` have in common."""

from __future__ import annotations

from typing import Any

from .. import dtype as dtypes
from ..arguments import (
    a,
    choice,
    either,
    flag,
    number,
    numbers,
    optional,
    rising,
    several,
    whole,
)
from ..ir import Kind
from . import codec

#: Pixels of one side.
SIDE = whole(1, 1 << 30)
#: (width, height).
SIZE = several(SIDE, 2)
INTERP = choice(*codec.INTERPOLATIONS)
#: A probability.
SHARE = number(0, 1)
#: Range of a random change.
JITTER = number(0)
LEVELS = numbers()
SPREADS = numbers(above=0)
MATRIX = numbers(None, (3, 3))
AREA = optional(either(number(above=0), rising(number(0))))
RATIOS = rising(number(above=0))
#: Mean and deviation of a normalisation: True stands for that of ImageNet.
_NORMAL = {"mean": optional(either(flag, LEVELS)), "std": optional(either(flag, SPREADS))}
_COLOURS = ("brightness", "contrast", "saturation", "hue", "pca_noise")
#: What the makers of a list of augmenters have in common.
MAKER: dict[str, Kind] = {
    "data_shape": several(SIDE, 3),
    "resize": whole(0, 1 << 30),
    "rand_mirror": flag,
    "rand_gray": SHARE,
    "inter_method": INTERP,
    **_NORMAL,
    **dict.fromkeys(_COLOURS, JITTER),
}


def _dtype(value: Any) -> Any:
    dtypes.canonical(value)
    return value


def _augmenters(value: Any) -> Any:
    for augmenter in a(list, tuple).convert(value):
        if not callable(augmenter):
            raise ValueError(f"a {type(augmenter).__name__} among them")
    return value


DTYPE = Kind("an element type", _dtype)
AUGMENTERS = Kind("a list of augmenters", _augmenters)
