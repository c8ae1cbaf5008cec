"""Checkpoints: ``prefix-symbol.json`` and ``prefix-%04d.params``, as MXNet writes them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import ndarray as nd
from . import symbol as _symbol
from .errors import FormatError
from .ndarray import NDArray

Params = dict[str, NDArray]


def save_checkpoint(
    prefix: str,
    epoch: int,
    symbol: Any,
    arg_params: Mapping[str, NDArray],
    aux_params: Mapping[str, NDArray],
    remove_amp_cast: bool = True,
) -> None:
    """Writes the symbol (if given) and the parameters; each file appears whole or not at all.

    Args:
        prefix: path without the ending.
        epoch: number in the file's name.
        symbol: network, or None to write parameters alone.
        arg_params, aux_params: arrays by name.
        remove_amp_cast: leave out the casts that `mixflow.amp` inserted.
    """
    if symbol is not None:
        symbol.save(f"{prefix}-symbol.json", remove_amp_cast)
    content = {f"arg:{k}": v for k, v in arg_params.items()}
    content.update({f"aux:{k}": v for k, v in aux_params.items()})
    path = f"{prefix}-{epoch:04d}.params"
    nd.save(path, content)
    logging.info('Saved checkpoint to "%s"', path)


def load_params(prefix: str, epoch: int) -> tuple[Params, Params]:
    """(arg_params, aux_params) of a checkpoint.

    Raises:
        FormatError: missing, damaged, or a name without 'arg:' or 'aux:'.
    """
    path = f"{prefix}-{epoch:04d}.params"
    if not Path(path).exists():
        raise FormatError(f"[checkpoint] expected the file {path}, found none")
    loaded = nd.load(path)
    if not isinstance(loaded, dict):
        raise FormatError(f"[checkpoint] expected named arrays in {path}, got a list")
    arg_params: Params = {}
    aux_params: Params = {}
    for key, value in loaded.items():
        kind, _, name = key.partition(":")
        if kind not in ("arg", "aux") or not name:
            raise FormatError(
                f"[checkpoint] expected 'arg:' or 'aux:' names in {path}, got '{key}'"
            )
        (arg_params if kind == "arg" else aux_params)[name] = value
    return arg_params, aux_params


def load_checkpoint(prefix: str, epoch: int) -> tuple[Any, Params, Params]:
    """(symbol, arg_params, aux_params) of a checkpoint.

    Raises:
        FormatError: a file is missing or damaged.
    """
    path = Path(f"{prefix}-symbol.json")
    if not path.exists():
        raise FormatError(f"[checkpoint] expected the file {path}, found none")
    return (_symbol.load(str(path)), *load_params(prefix, epoch))
