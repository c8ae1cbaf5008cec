"""The server's update: an optimizer of the library on the slices that the server owns."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from ... import ndarray as nd
from ...errors import MixflowError, ParamError, UnknownNameError, describe_unknown
from ...ndarray.row_sparse import RowSparseNDArray
from ...ndarray.rows import Rows
from ...optimizer import FusedUpdate, Updater
from ...optimizer.describe import rebuild
from ...optimizer.optimizer import mapped_state, state_list
from ..protocol import program
from ..protocol.foreseen import ROUNDS, Foreseen
from ..protocol.messages import Array
from ..protocol.row_gradients import RowGradient, replace
from ..protocol.touched import Touched
from .own import OwnOptimizer
from .rules import index_of, key_of
from .states import COUNT


class Optimizing:
    """Applies merged gradients with an optimizer; until one is set, a sum replaces the value.

    Settings: 'optimizer' (what `optimizer.describe` or `program.pack` wrote),
    'learning_rate' ({'value': rate}),
    'multipliers' ({'lr_mult': {...}, 'wd_mult': {...}} by key name), 'rescale' ({'value': factor}).

    Optimizers that need the norm of a whole parameter see that of a slice only.

    Args:
        needs_optimizer: whether pushes are applied one by one.
        secret: of the job: code of its program is run, and no other.
    """

    #: Whether pushes are applied one by one: without an optimizer they would overwrite each other.
    needs_optimizer = False

    def __init__(self, needs_optimizer: bool = False, secret: str = "") -> None:
        self.needs_optimizer = needs_optimizer
        self._secret = secret
        #: The program's own optimizer; or its description while its code is not here, with
        #: settings that are to be made when it is.
        self._own: OwnOptimizer | None = None
        self._awaited: dict[str, Any] = {}
        self._later: list[tuple[str, dict[str, Any]]] = []
        self._updater: Updater | None = None
        self._weights: dict[str, tuple[Array, nd.NDArray]] = {}
        self._pending: dict[str, dict[str, Array]] = {}
        #: Schedules have a state: each slice has its own.
        self._schedule: Any = None
        self._schedules: dict[str, Any] = {}
        #: Of slices whose rounds are foreseen: the weight, and the plan of its updates; what was
        #: compiled for them; where sums go, by size and dtype (one at a time is made).
        self._fused: dict[str, tuple[nd.NDArray, FusedUpdate]] = {}
        self._plans: dict[Any, Any] = {}
        #: Rounds that are foreseen at once where numbers change.
        self.ahead = ROUNDS
        self._totals: dict[tuple[int, Any], nd.NDArray] = {}
        #: Row numbers of slices that were updated by rows: as many bytes as rows, made once.
        self._numbers: dict[str, Array] = {}

    @property
    def replaces(self) -> bool:
        """Without an optimizer a sum replaces the value."""
        found = self._updater is not None or self._own is not None
        return not (found or self._awaited or self.needs_optimizer)

    def apply(self, key: str, value: Array, merged: Any, count: int) -> bool:
        """Updates `value` in place; the rows of a `RowGradient` alone where the optimizer can
        (True then).

        Raises:
            MixflowError: no optimizer is set and pushes are applied one by one, or the program's
                own optimizer has failed or is not here.
        """
        if self._own is not None:
            self._own.apply(key, value, merged)
            return False
        if self._awaited:
            raise MixflowError(
                f"[kvstore server] expected set_optimizer with '{self._awaited['name']}' before a "
                f"push of '{key}', got none: a snapshot holds no code of the program"
            )
        if self._updater is None:
            if self.needs_optimizer:
                raise MixflowError(
                    f"[kvstore server] expected an optimizer before a push of '{key}' to an "
                    "asynchronous store, got none; call set_optimizer"
                )
            replace(value, merged)
            return False
        self._at_own_step(key)
        if isinstance(merged, RowGradient):
            return self._apply_rows(key, value, merged)
        weight = self._weight(key, value)
        optimizer = self._updater.optimizer
        gradient = _as_tensor(merged, optimizer._gradient_dtype(weight, merged.dtype))
        self._updater(self._name(key), gradient, weight)
        weight.wait_to_read()
        return False

    def foresee(self, key: str, value: Array) -> Foreseen | None:
        """See `slots.Applier`."""
        if self._updater is None:
            return Foreseen() if self.replaces and not self._pending.get(key) else None
        updater, weight, name = self._updater, self._weight(key, value), self._name(key)
        if not FusedUpdate.usable(updater.optimizer, [weight]):
            return None
        self._at_own_step(key)
        if key not in self._fused or self._fused[key][0] is not weight:
            grads = [self._total(weight)]
            made = FusedUpdate(updater, [name], [weight], grads, self._plans)
            self._fused[key] = weight, made
        found = self._fused[key][1].foresee(self.ahead)
        if found is None:
            return None
        bound, numbers, rounds = found
        arrays = enumerate(state_list(updater.states[name]))
        count = np.array([updater.optimizer._counts.get(key, 0)], np.int64)
        states: dict[str, Array] = {str(number): np.from_dlpack(state) for number, state in arrays}
        states[COUNT] = count
        return Foreseen(bound, self._total(weight), numbers, states, count, rounds)

    def _total(self, weight: nd.NDArray) -> nd.NDArray:
        """Where the sum of a slice's gradients goes before its update."""
        kind = (weight.size, weight.dtype)
        if kind not in self._totals:
            self._totals[kind] = nd.zeros(weight.shape, dtype=weight.dtype)
            self._totals[kind].wait_to_read()
        return self._totals[kind]

    def followed(self, key: str, rounds: int) -> None:
        """See `slots.Applier`. Each of the updates is asked for its rate: schedules may have a
        state."""
        if self._updater is None:
            return
        self._at_own_step(key)
        optimizer = self._updater.optimizer
        for _ in range(rounds):
            optimizer._update_count(key)
            if optimizer.lr_scheduler is not None:
                optimizer.lr_scheduler(optimizer.num_update)

    def _at_own_step(self, key: str) -> None:
        """Schedules go by a slice's own number of updates: those of others may be a step ahead,
        and which of them are is chance."""
        assert self._updater is not None
        optimizer = self._updater.optimizer
        optimizer.num_update = optimizer._counts.get(key, optimizer.begin_num_update)
        if optimizer.lr_scheduler is not None:
            if key not in self._schedules:
                self._schedules[key] = copy.deepcopy(self._schedule)
            optimizer.lr_scheduler = self._schedules[key]

    def _apply_rows(self, key: str, value: Array, merged: RowGradient) -> bool:
        """An update by rows: weight and states are seen as tables of rows for it. True: nothing
        else has changed, states that were set since the last update included."""
        shape = (value.size // merged.width, merged.width)
        table = value.reshape(shape)
        weight: Any = RowSparseNDArray(shape, value.dtype)
        if key not in self._numbers:
            self._numbers[key] = np.arange(shape[0])
        weight.cell = Rows(self._numbers[key], table)
        assert self._updater is not None
        dtype = self._updater.optimizer._gradient_dtype(weight, merged.rows.values.dtype)
        gradient: Any = RowSparseNDArray(shape, dtype)
        gradient.set_rows(merged.rows)
        new_states = key not in self._weights
        self._weight(key, value)  # makes the states
        name = self._name(key)
        states = mapped_state(self._updater.states[name], lambda state: state.view(0, shape))
        self._updater.optimizer.update_multi_precision(name, weight, gradient, states)
        weight.wait_to_read()
        for state in state_list(states):
            state.wait_to_read()
        if weight.cell.values is table:
            return not new_states
        # An optimizer that updates every row made a new table.
        table[...] = weight.asnumpy()
        return False

    def _weight(self, key: str, value: Array) -> nd.NDArray:
        """A tensor over the slice's own memory, with its states in place."""
        known = self._weights.get(key)
        if known is None or known[0] is not value:
            made = nd.from_dlpack(value)
            self._weights[key] = (value, made)
            self._fused.pop(key, None)  # it holds the old memory
            if known is None:
                self._fill_states(key, made)
        return self._weights[key][1]

    def _fill_states(self, key: str, weight: nd.NDArray) -> None:
        assert self._updater is not None
        states = self._updater.state(self._name(key), weight)
        kept = self._pending.pop(key, {})
        for number, state in enumerate(state_list(states)):
            if str(number) in kept:
                state[:] = nd.array(kept[str(number)], dtype=state.dtype)

    def _name(self, key: str) -> str:
        """Slices of a key count their updates apart, but share its name and multipliers."""
        assert self._updater is not None
        optimizer = self._updater.optimizer
        if key not in optimizer.idx2name:
            index = index_of(key)
            optimizer.idx2name[key] = optimizer.idx2name.get(index, key_of(key))
            for table in (optimizer.lr_mult, optimizer.wd_mult):
                if index in table:
                    table[key] = table[index]
        return key

    def configure(self, setting: str, value: dict[str, Any]) -> None:
        """Takes a setting.

        Raises:
            UnknownNameError: unknown setting.
            ParamError: a rate or factor without an optimizer, or a bad value.
        """
        settings = {
            "optimizer": self._set_optimizer,
            "learning_rate": self._set_rate,
            "multipliers": self._set_multipliers,
            "rescale": self._set_rescale,
        }
        if setting not in settings:
            raise UnknownNameError(describe_unknown("server setting", setting, list(settings)))
        if self._awaited and setting != "optimizer":
            self._later.append((setting, value))
        else:
            settings[setting](value)

    def _optimizers(self, setting: str) -> list[Any]:
        """Those that a setting is for."""
        if self._own is not None:
            return list(self._own.each())
        if self._updater is None:
            raise ParamError(
                f"[kvstore server] expected an optimizer before '{setting}', got none; call "
                "set_optimizer"
            )
        return [self._updater.optimizer]

    def _set_optimizer(self, value: dict[str, Any]) -> None:
        if program.OWN in value:
            self._set_own(value)
            return
        if self._awaited:  # what was saved belongs to another one
            self._pending.clear()
        made = Updater(rebuild(value))
        self._own, self._awaited, self._later = None, {}, []
        self._updater = made
        self._schedule = self._updater.optimizer.lr_scheduler
        self._forget()

    def _forget(self) -> None:
        """What was made for the optimizer before."""
        for kept in (self._schedules, self._weights, self._fused, self._plans):
            kept.clear()

    def _set_own(self, value: dict[str, Any]) -> None:
        """Takes the program's own optimizer, or waits for its code."""
        if program.is_awaited(value):
            self._awaited = value
            return
        made = program.unpack(value, self._secret)
        later = self._later if program.same(self._awaited, value) else []
        self._later, self._awaited, self._updater = [], {}, None
        self._forget()
        self._own = OwnOptimizer(made, self._pending)
        for setting, given in later:
            self.configure(setting, given)

    def _set_rate(self, value: dict[str, Any]) -> None:
        for optimizer in self._optimizers("learning_rate"):
            optimizer.set_learning_rate(value["value"])

    def _set_multipliers(self, value: dict[str, Any]) -> None:
        for optimizer in self._optimizers("multipliers"):
            optimizer.set_lr_mult(value.get("lr_mult", {}))
            optimizer.set_wd_mult(value.get("wd_mult", {}))

    def _set_rescale(self, value: dict[str, Any]) -> None:
        for optimizer in self._optimizers("rescale"):
            optimizer.rescale_grad = float(value["value"])

    def states(self, key: str, touched: Touched | None = None) -> dict[str, Array]:
        """Copies of the optimizer's states of a slice, or of their rows, and its number of
        updates."""
        if self._own is not None:
            return self._own.states(key)
        if self._updater is None:
            return dict(self._pending.get(key, {}))
        if key in self._pending:
            states = dict(self._pending[key])
        else:
            found = state_list(self._updater.states.get(key))
            size = self._weights[key][0].size if key in self._weights else 0
            states = {
                str(number): _copied(state, touched if state.size == size else None)
                for number, state in enumerate(found)
            }
        count = self._updater.optimizer._counts.get(key, 0)
        return states | {COUNT: np.array([count], np.int64)}

    def restore(self, key: str, states: dict[str, Array]) -> None:
        """Takes back what `states` gave; it is filled in when the slice is next updated.

        Raises:
            ParamError: states of other sizes than those of the program's own optimizer.
        """
        if self._own is not None:
            self._own.restore(key, states)
            return
        kept = dict(states)
        if self._awaited:
            self._pending[key] = kept
            return
        count = kept.pop(COUNT, None)
        self._pending[key] = kept
        self._weights.pop(key, None)
        if count is not None and self._updater is not None:
            optimizer = self._updater.optimizer
            optimizer._counts[key] = int(count[0])
            optimizer.num_update = max(optimizer.num_update, int(count[0]))


def _copied(state: nd.NDArray, touched: Touched | None) -> Array:
    """A flat copy of a state, or of the rows of it that were touched."""
    if touched is None:
        return state.asnumpy().reshape(-1)
    state.wait_to_read()
    return touched.of(np.from_dlpack(state))


def _as_tensor(merged: Array, dtype: Any) -> nd.NDArray:
    """A gradient as a tensor: on its own memory where nobody else has it, which saves most of what
    a small update costs."""
    own = merged.flags.owndata and merged.flags.writeable and merged.dtype == dtype
    return nd.from_dlpack(merged) if own else nd.array(merged, dtype=dtype)
