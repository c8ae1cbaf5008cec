"""Optimizer states of a job as a file: what the servers keep by slice, in the form of a store of
one process, so that either reads what the other wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import ndarray as nd
from ...errors import FormatError
from ...optimizer import Optimizer, Updater
from ...optimizer.describe import describe, rebuild
from ...optimizer.optimizer import state_list
from ...optimizer.own import fresh, is_own
from ..protocol.messages import Array, split_name
from ..protocol.sharding import Entry

#: Names of what is no state of single elements among a slice's states: its number of updates, and
#: what a program's own optimizer has changed of itself.
COUNT, KEPT = "count", "kept"


def fresh_updater(optimizer: Optimizer) -> Updater:
    """An updater with a copy of the optimizer that has not counted anything."""
    if is_own(optimizer):
        return Updater(fresh(optimizer))
    made = rebuild(describe(optimizer))
    made._counts, made.num_update = {}, made.begin_num_update
    return Updater(made)


def join(entry: Entry, found: Mapping[str, Mapping[str, Array]]) -> dict[str, Array]:
    """States of a whole key from those of its slices, flat. What is no state of single elements
    (a count) is that of the first slice.

    Raises:
        FormatError: slices that do not keep the same states.
    """
    names = [set(found.get(piece.name, {})) - {KEPT} for piece in entry.slices]
    if any(one != names[0] for one in names):
        raise FormatError(
            f"[optimizer states] expected the same states in all slices, got {names}: some of "
            "them have not been updated yet"
        )
    whole: dict[str, Array] = {}
    for name in sorted(names[0]):
        arrays = [found[piece.name][name] for piece in entry.slices]
        sizes = [piece.end - piece.begin for piece in entry.slices]
        alike = _of_elements(name) and [a.size for a in arrays] == sizes
        whole[name] = np.concatenate([a.reshape(-1) for a in arrays]) if alike else arrays[0]
    kept = [held[KEPT] for held in found.values() if KEPT in held]
    return whole | ({KEPT: kept[0]} if kept else {})


def _of_elements(name: str) -> bool:
    return name not in (COUNT, KEPT)


def cut(entry: Entry, whole: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
    """The reverse of `join`: states by slice."""
    return {
        piece.name: {
            name: a[piece.begin : piece.end] if _of_elements(name) and a.size == entry.size else a
            for name, a in whole.items()
        }
        for piece in entry.slices
    }


def to_archive(
    optimizer: Optimizer,
    keys: Mapping[Any, tuple[Entry, tuple[int, ...]]],
    found: Mapping[str, Array],
) -> bytes:
    """The archive of `Updater.get_states`.

    Args:
        keys: entry and shape by key.
        found: the servers' states; each under `messages.join_name`.
    """
    grouped: dict[str, dict[str, Array]] = {}
    for text, state in found.items():
        key, name = split_name(text)
        grouped.setdefault(key, {})[name] = state
    updater = fresh_updater(optimizer)
    for index, (entry, shape) in keys.items():
        whole = join(entry, grouped)
        count = whole.pop(COUNT, None)
        whole.pop(KEPT, None)  # a store of one process does not save it either
        if count is not None and int(count[0]):
            updater.optimizer._counts[index] = int(count[0])
        if whole:
            # Names are numbers: '10' comes after '9'.
            arrays = [whole[name] for name in sorted(whole, key=int)]
            arrays = [a.reshape(shape) if a.size == entry.size else a for a in arrays]
            updater.states[index] = tuple(nd.array(a, dtype=a.dtype) for a in arrays)
    counts = updater.optimizer._counts.values()
    updater.optimizer.num_update = max([updater.optimizer.num_update, *counts])
    return updater.get_states()


def from_archive(
    optimizer: Optimizer, keys: Mapping[Any, tuple[Entry, tuple[int, ...]]], archive: bytes
) -> dict[str, dict[str, Array]]:
    """States by slice and name of an archive that `to_archive` or `Updater.get_states` wrote.

    Raises:
        FormatError: damaged, or states of other sizes than the keys.
    """
    updater = fresh_updater(optimizer)
    updater.set_states(archive)
    found: dict[str, dict[str, Array]] = {}
    for index, arrays in updater._pending.items():
        if index not in keys:
            raise FormatError(
                f"[optimizer states] expected states of {list(keys)}, got key {index!r}"
            )
        entry, shape = keys[index]
        weight = nd.zeros(shape, dtype=np.dtype(entry.dtype))
        made = state_list(updater.optimizer.create_state_multi_precision(index, weight))
        sizes = [(a.shape, b.shape) for a, b in zip(made, arrays, strict=False)]
        if len(made) != len(arrays) or any(a != b for a, b in sizes):
            raise FormatError(
                f"[optimizer states] expected states of shapes {[a.shape for a in made]} for key "
                f"{index!r}, got {[a.shape for a in arrays]}"
            )
        whole = {str(number): array.reshape(-1) for number, array in enumerate(arrays)}
        whole[COUNT] = np.array([updater.optimizer._counts.get(index, 0)], np.int64)
        found.update(cut(entry, whole))
    return found
