"""Updater: an optimizer with the states of the parameters it has seen."""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any

import numpy as np

from .. import ndarray as nd
from ..errors import FormatError
from ..ndarray import NDArray
from ..ndarray.save_load import LIST_MAGIC
from .optimizer import Optimizer, state_list


class Updater:
    """``updater(index, grad, weight)``: the form that a KVStore calls.

    Not thread-safe. States live in the context of the first weight seen with an index.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.states: dict[Any, Any] = {}
        self.aggregate_updates = False
        self._pending: dict[Any, list[np.ndarray[Any, Any]]] = {}

    def state(self, index: Any, weight: NDArray) -> Any:
        """The state of a parameter, made on first use and filled from loaded values."""
        if index not in self.states:
            made = self.optimizer.create_state_multi_precision(index, weight)
            self.states[index] = made
            for array, value in zip(state_list(made), self._pending.pop(index, ()), strict=False):
                array[:] = nd.array(value, ctx=array.context, dtype=value.dtype)
        return self.states[index]

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Updates one weight, or lists of equal length."""
        if isinstance(index, (list, tuple)):
            for each in zip(index, grad, weight, strict=True):
                self(*each)
            return
        state = self.state(index, weight)
        self.optimizer.update_multi_precision(index, weight, grad, state)

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """Every state and count as a NumPy archive (nothing pickled); `set_states` reads it."""
        arrays: dict[str, Any] = {}
        for index, state in self.states.items():
            for slot, array in enumerate(state_list(state)):
                arrays[f"{_key(index)}/{slot}"] = array.asnumpy()
        counts = self.optimizer._counts
        for index, count in counts.items():
            arrays[f"count/{_key(index)}"] = np.int64(count)
        arrays["num_update"] = np.int64(self.optimizer.num_update)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        return buffer.getvalue()

    def set_states(self, states: bytes, allow_pickle: bool = False) -> None:
        """Takes over saved states; they are filled in as parameters appear.

        Args:
            states: what `get_states` gave. MXNet's own files are pickles, which can run any code:
                they are read only with `allow_pickle=True`.

        Raises:
            FormatError: damaged, or a pickle without permission.
        """
        if not states.startswith(b"PK"):
            if not allow_pickle:
                raise FormatError(
                    "[optimizer states] expected mixflow's archive, got other bytes; MXNet's are "
                    "pickles that can run code: pass allow_pickle=True if you trust the file"
                )
            self.states, self._pending = {}, _read_pickle(states)
            return
        try:
            with np.load(io.BytesIO(states), allow_pickle=False) as archive:
                content = {key: archive[key] for key in archive.files}
        except (ValueError, OSError, EOFError) as error:
            raise FormatError(f"[optimizer states] expected a whole archive, got {error}") from None
        except Exception as error:  # zipfile has errors of its own
            raise FormatError(f"[optimizer states] expected an archive, got {error}") from None
        self._take(content)

    def _take(self, content: dict[str, Any]) -> None:
        self.states = {}
        self._pending = {}
        self.optimizer.num_update = int(content.pop("num_update", 0))
        for key in sorted(content, key=lambda k: (k.rpartition("/")[0], _slot(k))):
            head, _, tail = key.rpartition("/")
            if head == "count":
                self.optimizer._counts[_index(tail)] = int(content[key])
            else:
                self._pending.setdefault(_index(head), []).append(content[key])


class _Theirs:
    """Stands for an object of MXNet in a pickle; an NDArray has its bytes under 'handle'."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.content: Any = None

    def __setstate__(self, content: Any) -> None:
        self.content = content

    def array(self) -> np.ndarray[Any, Any]:
        """The values of an NDArray: its bytes are one array of a ``.params`` file."""
        head, tail = struct.pack("<QQQ", LIST_MAGIC, 0, 1), struct.pack("<Q", 0)
        values: np.ndarray[Any, Any] = nd.load_frombuffer(
            head + bytes(self.content["handle"]) + tail
        )[0].asnumpy()
        return values


class _Unpickler(pickle.Unpickler):
    """Reads MXNet's pickles without MXNet."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "mxnet":
            return _Theirs
        return super().find_class(module, name)


def _read_pickle(states: bytes) -> dict[Any, list[np.ndarray[Any, Any]]]:
    """Arrays by index of states that MXNet wrote, with or without the optimizer.

    Raises:
        FormatError: damaged, or something else.
    """
    try:
        loaded = _Unpickler(io.BytesIO(states)).load()
        loaded = loaded[0] if isinstance(loaded, tuple) else loaded
        return {index: _flat(state) for index, state in loaded.items()}
    except Exception as error:  # damaged pickles raise nearly anything
        raise FormatError(f"[optimizer states] expected MXNet's pickle, got {error}") from None


def _flat(state: Any) -> list[np.ndarray[Any, Any]]:
    if state is None:
        return []
    if isinstance(state, (list, tuple)):
        return [array for part in state for array in _flat(part)]
    values: np.ndarray[Any, Any] = state.array()
    return [values]


def _key(index: Any) -> str:
    return f"i{index}" if isinstance(index, int) else f"s{index}"


def _index(text: str) -> Any:
    return int(text[1:]) if text.startswith("i") else text[1:]


def _slot(key: str) -> int:
    tail = key.rpartition("/")[2]
    return int(tail) if tail.isdigit() else -1


def get_updater(optimizer: Optimizer) -> Updater:
    """An `Updater` for the optimizer."""
    return Updater(optimizer)
