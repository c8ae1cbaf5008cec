"""The server's update by an optimizer that the program has defined itself.

The hazard: code that nobody here knows. It may raise, so an error names the optimizer, the key and
the line. It may keep what it likes in its attributes, and a server may be killed after any update;
so each slice has a copy of the optimizer to itself (in which order slices are updated is chance),
and the plain attributes that an update has changed are kept with the slice's states.

The index of a parameter is its key, as in MXNet, and its weight is flat: servers keep slices.
"""

from __future__ import annotations

import copy
import json
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ... import ndarray as nd
from ...errors import MixflowError, ParamError
from ...ndarray.row_sparse import RowSparseNDArray
from ...ndarray.rows import Rows
from ...optimizer import Optimizer, Updater
from ...optimizer.optimizer import mapped_state, state_list
from ...optimizer.own import changed_attributes, set_attributes
from ..protocol.messages import Array
from ..protocol.row_gradients import RowGradient
from .rules import index_of, key_of
from .states import COUNT, KEPT

#: Texts of kept attributes are filled up to multiples of so many bytes: files of a slice whose
#: arrays change their sizes are made anew.
ROOM = 256


class OwnOptimizer:
    """Applies merged gradients to slices. Owned by one shard.

    Args:
        template: the optimizer as it was set; each slice gets a copy.
        pending: states of slices by name, to be filled in when a slice is next used.
    """

    def __init__(self, template: Optimizer, pending: dict[str, dict[str, Array]]) -> None:
        self._template = template
        self._pending = pending
        self._updaters: dict[str, Updater] = {}
        self._weights: dict[str, tuple[Array, nd.NDArray]] = {}

    def each(self) -> Iterator[Optimizer]:
        """Every copy, for settings."""
        yield self._template
        yield from (updater.optimizer for updater in self._updaters.values())

    def apply(self, key: str, value: Array, merged: Any) -> None:
        """Updates a slice's `value` in place.

        Raises:
            MixflowError: the program's code has failed; the value may be half updated.
        """
        try:
            updater = self._updater(key, value)
            if isinstance(merged, RowGradient):
                self._apply_rows(key, updater, value, merged)
            else:
                weight = self._weight(key, value)
                dtype = self._template._gradient_dtype(weight, merged.dtype)
                gradient = nd.array(merged, dtype=dtype)
                self._update(key, updater, weight, gradient)
        except (Exception, SystemExit) as error:
            raise MixflowError(self._failure(key, error)) from error

    def _failure(self, key: str, error: BaseException) -> str:
        name, where = type(self._template).__name__, ""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename != __file__]
        if own and not isinstance(error, ParamError):
            file = os.path.basename(own[-1].filename)  # of what travels by value it is made up
            where = f" ({own[-1].name}, line {own[-1].lineno} of {file})"
        return (
            f"[kvstore server] expected optimizer '{name}' to update key '{key_of(key)}', got "
            f"{type(error).__name__}: {error}{where}"
        )

    def _update(
        self,
        key: str,
        updater: Updater,
        weight: Any,
        gradient: Any,
        seen: Callable[[Any], Any] | None = None,
    ) -> None:
        """One update, done when it returns; `seen`: an array of a state as the optimizer sees it,
        if it is another one."""
        index = index_of(key)
        states = updater.states[index]
        if seen is not None:
            states = mapped_state(states, seen)
        updater.optimizer.update_multi_precision(index, weight, gradient, states)
        weight.wait_to_read()
        for state in self._checked(states):
            state.wait_to_read()

    def _apply_rows(self, key: str, updater: Updater, value: Array, merged: RowGradient) -> None:
        """Weight, gradient and the states that are as long as the slice are tables of rows."""
        shape = (value.size // merged.width, merged.width)
        table = value.reshape(shape)
        weight: Any = RowSparseNDArray(shape, value.dtype)
        weight.cell = Rows(np.arange(shape[0]), table)
        dtype = self._template._gradient_dtype(weight, merged.rows.values.dtype)
        gradient: Any = RowSparseNDArray(shape, dtype)
        gradient.set_rows(merged.rows)

        def seen(state: Any) -> Any:
            return state.view(0, shape) if state.size == value.size else state

        self._update(key, updater, weight, gradient, seen)
        if weight.cell.values is not table:
            table[...] = weight.asnumpy()

    def _weight(self, key: str, value: Array) -> nd.NDArray:
        """A tensor over the slice's own memory."""
        known = self._weights.get(key)
        if known is None or known[0] is not value:
            self._weights[key] = (value, nd.from_dlpack(value))
        return self._weights[key][1]

    def _updater(self, key: str, value: Array) -> Updater:
        """The slice's own copy, with its states in place."""
        if key not in self._updaters:
            made = Updater(copy.deepcopy(self._template))
            states = self._checked(made.state(index_of(key), self._weight(key, value)))
            self._updaters[key] = made
            self._fill(made.optimizer, key, states)
        return self._updaters[key]

    def _fill(self, optimizer: Optimizer, key: str, states: list[nd.NDArray]) -> None:
        """Takes over what is pending for a slice."""
        kept = self._pending.pop(key, {})
        numbered = [(n, state, kept[str(n)]) for n, state in enumerate(states) if str(n) in kept]
        for number, state, found in numbered:  # all is checked before anything changes
            if found.size != state.size:
                raise ParamError(
                    f"[{type(self._template).__name__}] expected {state.size} values for state "
                    f"{number} of key '{key_of(key)}', got {found.size}"
                )
        for _, state, found in numbered:
            state[:] = nd.array(found.reshape(state.shape), dtype=state.dtype)
        count = int(kept[COUNT][0]) if COUNT in kept else 0
        if count:
            optimizer._counts[index_of(key)] = count
            optimizer.num_update = max(optimizer.num_update, count)
        if KEPT in kept:
            own, schedule = json.loads(kept[KEPT].tobytes())
            set_attributes(optimizer, own)
            set_attributes(optimizer.lr_scheduler, schedule)

    def _checked(self, state: Any) -> list[nd.NDArray]:
        """The arrays of a state.

        Raises:
            ParamError: there is something else in it.
        """
        found: list[Any] = state_list(state)
        for one in found:
            if not isinstance(one, nd.NDArray):
                raise ParamError(
                    f"[{type(self._template).__name__}] expected states of dense NDArrays, None, "
                    f"and tuples and lists of them, got {type(one).__name__}"
                )
        return found

    def states(self, key: str) -> dict[str, Array]:
        """Copies of a slice's states, its number of updates, and changed attributes."""
        if key not in self._updaters:
            return dict(self._pending.get(key, {}))
        updater = self._updaters[key]
        arrays = state_list(updater.states.get(index_of(key)))
        found = {str(number): a.asnumpy().reshape(-1) for number, a in enumerate(arrays)}
        count = updater.optimizer._counts.get(index_of(key), 0)
        kept = self._kept(updater.optimizer)
        return found | kept | {COUNT: np.array([count], np.int64)}

    def _kept(self, optimizer: Optimizer) -> dict[str, Array]:
        """The attributes that updates of a slice have changed, as the bytes of a JSON text."""
        before = self._template
        changed = [
            changed_attributes(optimizer, before),
            changed_attributes(optimizer.lr_scheduler, before.lr_scheduler),
        ]
        if not any(changed):
            return {}
        text = json.dumps(changed).encode()
        return {KEPT: np.frombuffer(text.ljust(-(-len(text) // ROOM) * ROOM), np.uint8)}

    def restore(self, key: str, states: dict[str, Array]) -> None:
        """Takes back what `states` gave; it is filled in when the slice is next updated.

        Raises:
            ParamError: states of other sizes.
        """
        self._pending[key] = dict(states)
        if key in self._updaters:
            updater = self._updaters[key]
            self._fill(updater.optimizer, key, state_list(updater.states[index_of(key)]))
