"""Gradients of a partition of a Spark job, with NumPy.

A module of its own: what it has mapped stays there from pass to pass, since Spark's Python
processes are used again.
"""

from functools import cache

import numpy as np
from tasks import HIDDEN, part_of

mapped = cache(part_of)


def part_sums(cell, shared, rank):
    """The gradients of a partition, summed over its rows: one array per parameter."""
    weights = shared.value
    x, y = mapped(cell, rank)
    inputs, value = [x], x
    layers = list(zip(weights[::2], weights[1::2], strict=True))
    for number, (weight, bias) in enumerate(layers):
        value = value @ weight.T + bias
        if number < len(HIDDEN[cell.model]):
            value = np.maximum(value, 0)
            inputs.append(value)
    if cell.outputs == 1:
        delta = 1 / (1 + np.exp(-value)) - y[:, None]
    else:
        delta = np.exp(value - value.max(axis=1, keepdims=True))
        delta /= delta.sum(axis=1, keepdims=True)
        delta[np.arange(len(y)), y.astype(int)] -= 1
    found = []
    for (weight, _), before in zip(reversed(layers), reversed(inputs), strict=True):
        found = [delta.T @ before, delta.sum(axis=0), *found]
        delta = (delta @ weight) * (before > 0)
    return found
