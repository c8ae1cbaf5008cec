"""Random draws of one sample: a function of seed, epoch and number, and of nothing else.

Hazard: threads take samples in any order, and a resumed run starts in the middle. With one
generator for all, both would change every draw after them.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

T = TypeVar("T")
_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # the golden ratio's odd 64-bit fraction


def _mixed(x: int) -> int:
    """SplitMix64's output function (Steele, Lea, Flood: Fast splittable generators, 2014)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class Draws:
    """The draws of one sample, in the order asked for. Not thread-safe; cheap to make.

    Args:
        seed: whole number.
        epoch: at least 0.
        index: number of the sample, at least 0.
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int, epoch: int, index: int) -> None:
        state = _mixed((seed + _STEP) & _MASK)
        state = _mixed((state ^ epoch) + _STEP & _MASK)
        self._state = _mixed((state ^ index) + _STEP & _MASK)

    def bits(self) -> int:
        """64 random bits."""
        self._state = (self._state + _STEP) & _MASK
        return _mixed(self._state)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A number in [low, high)."""
        return low + (high - low) * ((self.bits() >> 11) * 2.0**-53)

    def integer(self, count: int) -> int:
        """A whole number in [0, count), `count` at least 1 and far below 2^64."""
        return (self.bits() * count) >> 64

    def coin(self, chance: float = 0.5) -> bool:
        """True with this probability."""
        return self.uniform() < chance

    def normal(self, deviation: float = 1.0) -> float:
        """A normal number of mean 0 (Box and Muller, 1958)."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return deviation * radius * math.cos(2.0 * math.pi * self.uniform())

    def shuffled(self, items: list[T]) -> list[T]:
        """The items in a random order (Fisher and Yates)."""
        made = list(items)
        for i in range(len(made) - 1, 0, -1):
            j = self.integer(i + 1)
            made[i], made[j] = made[j], made[i]
        return made


def epoch_generator(seed: int, epoch: int, purpose: int = 0) -> np.random.Generator:
    """A NumPy generator for what is drawn once per epoch, such as the order of the samples."""
    return np.random.Generator(np.random.Philox(key=seed & _MASK, counter=[0, 0, purpose, epoch]))
