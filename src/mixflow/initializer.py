"""Initial values of parameters, chosen by the parameter's name as in MXNet 1.x."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import random as _random
from .errors import ParamError, ShapeError, UnknownNameError, describe_unknown
from .ndarray import NDArray

_registry: dict[str, type[Initializer]] = {}


class InitDesc(str):
    """Name of a parameter with its attributes and the initializer of the whole model.

    Attributes:
        attrs: the variable's attributes; ``__init__`` names its own initializer.
        global_init: initializer of everything without one.
    """

    attrs: dict[str, str]
    global_init: Initializer | None

    def __new__(
        cls,
        name: str,
        attrs: Mapping[str, str] | None = None,
        global_init: Initializer | None = None,
    ) -> InitDesc:
        """A string with two more attributes."""
        made = super().__new__(cls, name)
        made.attrs = dict(attrs or {})
        made.global_init = global_init
        return made


def register(klass: type[Any]) -> type[Any]:
    """Makes a class known to `create` under its lower-cased name."""
    _registry[klass.__name__.lower()] = klass
    return klass


def alias(*aliases: str) -> Callable[[type[Initializer]], type[Initializer]]:
    """Registers a class under more names."""

    def add(klass: type[Initializer]) -> type[Initializer]:
        for name in aliases:
            _registry[name.lower()] = klass
        return klass

    return add


def create(name: str | Initializer | None, *args: Any, **kwargs: Any) -> Initializer:
    """The initializer of a name, or of the JSON text that `dumps` made.

    Raises:
        UnknownNameError: no such initializer.
    """
    if isinstance(name, Initializer):
        return name
    if name is None:
        return Uniform(0.01)
    if name.startswith("["):
        name, kwargs = json.loads(name)
    assert isinstance(name, str)
    found = _registry.get(name.lower())
    if found is None:
        raise UnknownNameError(describe_unknown("initializer", name, list(_registry)))
    return found(*args, **kwargs)


class Initializer:
    """Base: fills an array according to its name's ending.

    ``*weight`` -> `_init_weight`; ``*bias``, ``*beta``, ``*moving_mean`` -> 0; ``*gamma``,
    ``*moving_var`` -> 1. Other names need an initializer of their own.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = kwargs
        self._verbose = False
        self._print: Callable[[NDArray], str] | None = None

    def set_verbosity(
        self, verbose: bool = False, print_func: Callable[[NDArray], str] | None = None
    ) -> Initializer:
        """Logs what is initialised with which initializer."""
        self._verbose, self._print = verbose, print_func
        return self

    def dumps(self) -> str:
        """JSON text for `create`."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._kwargs == getattr(other, "_kwargs", None)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self.dumps()

    def __call__(self, desc: str, arr: NDArray) -> None:
        """Fills `arr`.

        Args:
            desc: `InitDesc` or plain name.
            arr: array to fill in place.

        Raises:
            ParamError: the name's ending is not known and the variable has no initializer.
        """
        if not isinstance(desc, InitDesc):
            desc = InitDesc(desc)
        own = desc.attrs.get("__init__", "")
        if own:
            create(own)._init_weight(desc, arr)
        else:
            self._by_ending(desc, arr)
        if self._verbose:
            shown = self._print(arr) if self._print else ""
            logging.info("initialized %s: %s %s", desc, own or self, shown)

    def _by_ending(self, desc: InitDesc, arr: NDArray) -> None:
        for ending, method in _ENDINGS:
            if desc.endswith(ending):
                getattr(self, method)(desc, arr)
                return
        raise ParamError(
            f"[initializer] expected a name ending in one of {[e for e, _ in _ENDINGS]}, got "
            f"'{desc}'; give the variable its own, e.g. mx.sym.Variable(name, init=mx.init.One())"
        )

    def _init_zero(self, _: str, arr: NDArray) -> None:
        arr[:] = 0.0

    def _init_one(self, _: str, arr: NDArray) -> None:
        arr[:] = 1.0

    def _init_bias(self, desc: str, arr: NDArray) -> None:
        self._init_zero(desc, arr)

    def _init_gamma(self, desc: str, arr: NDArray) -> None:
        self._init_one(desc, arr)

    def _init_bilinear(self, _: str, arr: NDArray) -> None:
        """Weights of bilinear enlargement."""
        height, width = arr.shape[2:4]
        factor = np.ceil(width / 2.0)
        centre = (2 * factor - 1 - factor % 2) / (2.0 * factor)
        x = 1 - np.abs(np.arange(width) / factor - centre)
        y = 1 - np.abs(np.arange(height) / factor - centre)
        arr[:] = np.broadcast_to(np.outer(y, x), arr.shape).astype(np.float32)

    def _init_weight(self, desc: str, arr: NDArray) -> None:
        raise NotImplementedError


_ENDINGS = (
    ("weight", "_init_weight"),
    ("bias", "_init_bias"),
    ("gamma", "_init_gamma"),
    ("beta", "_init_zero"),
    ("min", "_init_zero"),
    ("max", "_init_one"),
    ("moving_mean", "_init_zero"),
    ("running_mean", "_init_zero"),
    ("moving_var", "_init_one"),
    ("running_var", "_init_one"),
    ("moving_inv_var", "_init_zero"),
    ("moving_avg", "_init_zero"),
)


@register
class Load:
    """Takes values from a dictionary or a ``.params`` file, else from `default_init`."""

    def __init__(
        self,
        param: Mapping[str, NDArray] | str,
        default_init: Initializer | None = None,
        verbose: bool = False,
    ) -> None:
        if isinstance(param, str):
            from .ndarray import load

            param = load(param)
            assert not isinstance(param, str)
        self.param = {k.removeprefix("arg:").removeprefix("aux:"): v for k, v in param.items()}
        self.default_init = default_init
        self.verbose = verbose

    def __call__(self, name: str, arr: NDArray) -> None:
        """Fills `arr`.

        Raises:
            ShapeError: the stored shape differs.
            ParamError: no stored value and no default.
        """
        if name in self.param:
            stored = self.param[name]
            if stored.shape != arr.shape:
                raise ShapeError(
                    f"[Load] expected shape {arr.shape} for '{name}', got {stored.shape}"
                )
            arr[:] = stored
        elif self.default_init is not None:
            self.default_init(name, arr)
        else:
            raise ParamError(f"[Load] expected a value for '{name}', got none and no default_init")


@register
class Mixed:
    """The first initializer whose pattern matches the name.

    Args:
        patterns: regular expressions.
        initializers: one per pattern.
    """

    def __init__(self, patterns: Sequence[str], initializers: Sequence[Initializer]) -> None:
        if len(patterns) != len(initializers):
            raise ParamError(
                f"[Mixed] expected one initializer per pattern, got {len(patterns)} patterns and "
                f"{len(initializers)} initializers"
            )
        self.map = [(re.compile(p), i) for p, i in zip(patterns, initializers, strict=True)]

    def __call__(self, name: str, arr: NDArray) -> None:
        """Fills `arr`.

        Raises:
            ParamError: no pattern matches.
        """
        for pattern, initializer in self.map:
            if pattern.match(name):
                initializer(name, arr)
                return
        raise ParamError(f"[Mixed] expected a pattern that matches '{name}'; add '.*' as the last")


@alias("zeros")
@register
class Zero(Initializer):
    """All 0."""

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, desc: str, arr: NDArray) -> None:
        self._init_zero(desc, arr)


@alias("ones")
@register
class One(Initializer):
    """All 1."""

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, desc: str, arr: NDArray) -> None:
        self._init_one(desc, arr)


@register
class Constant(Initializer):
    """All `value` (a number, or an array of the parameter's shape)."""

    def __init__(self, value: Any) -> None:
        super().__init__(value=value)
        self.value = value

    def _init_weight(self, desc: str, arr: NDArray) -> None:
        arr[:] = self.value


@register
class Uniform(Initializer):
    """Uniform in [-scale, scale)."""

    def __init__(self, scale: float = 0.07) -> None:
        super().__init__(scale=scale)
        self.scale = scale

    def _init_weight(self, desc: str, arr: NDArray) -> None:
        _random.uniform(-self.scale, self.scale, out=arr)


@register
class Normal(Initializer):
    """Normal with mean 0 and standard deviation `sigma`."""

    def __init__(self, sigma: float = 0.01) -> None:
        super().__init__(sigma=sigma)
        self.sigma = sigma

    def _init_weight(self, desc: str, arr: NDArray) -> None:
        _random.normal(0, self.sigma, out=arr)


def _draw(kind: str, low_or_mean: float, high_or_sigma: float, shape: tuple[int, ...]) -> Any:
    sampler = _random.uniform if kind == "uniform" else _random.normal
    return sampler(low_or_mean, high_or_sigma, shape=shape).asnumpy()


@register
class Orthogonal(Initializer):
    """Orthogonal rows or columns times `scale` (Saxe, McClelland and Ganguli, 2014)."""

    def __init__(self, scale: float = 1.414, rand_type: str = "uniform") -> None:
        super().__init__(scale=scale, rand_type=rand_type)
        self.scale = scale
        self.rand_type = rand_type

    def _init_weight(self, desc: str, arr: NDArray) -> None:
        rows, columns = arr.shape[0], int(np.prod(arr.shape[1:]))
        low = -1.0 if self.rand_type == "uniform" else 0.0
        u, _, v = np.linalg.svd(_draw(self.rand_type, low, 1.0, (rows, columns)), False)
        basis = u if u.shape == (rows, columns) else v
        arr[:] = (self.scale * basis).reshape(arr.shape).astype(np.float32)


@register
class Xavier(Initializer):
    """Variance by fan-in and fan-out (Glorot and Bengio, 2010).

    Args:
        rnd_type: 'uniform' or 'gaussian'.
        factor_type: 'avg', 'in' or 'out': which fan divides.
        magnitude: numerator; scale = sqrt(magnitude / fan).

    Raises:
        ShapeError: fewer than two dimensions.
    """

    def __init__(
        self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3
    ) -> None:
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        if rnd_type not in ("uniform", "gaussian") or factor_type not in ("avg", "in", "out"):
            raise ParamError(
                "[Xavier] expected rnd_type uniform|gaussian and factor_type avg|in|out, got "
                f"{rnd_type!r} and {factor_type!r}"
            )
        self.rnd_type = rnd_type
        self.factor_type = factor_type
        self.magnitude = float(magnitude)

    def _init_weight(self, desc: str, arr: NDArray) -> None:
        shape = arr.shape
        if len(shape) < 2:
            raise ShapeError(
                f"[Xavier] expected at least 2 dimensions for '{desc}', got shape {shape}"
            )
        spatial = float(np.prod(shape[2:])) if len(shape) > 2 else 1.0
        fan_in, fan_out = shape[1] * spatial, shape[0] * spatial
        fan = {"avg": (fan_in + fan_out) / 2, "in": fan_in, "out": fan_out}[self.factor_type]
        scale = float(np.sqrt(self.magnitude / fan))
        if self.rnd_type == "uniform":
            _random.uniform(-scale, scale, out=arr)
        else:
            _random.normal(0, scale, out=arr)


@register
class MSRAPrelu(Xavier):
    """For layers before PReLU with initial `slope` (He et al., 2015)."""

    def __init__(self, factor_type: str = "avg", slope: float = 0.25) -> None:
        super().__init__("gaussian", factor_type, 2.0 / (1 + slope**2))
        self._kwargs = {"factor_type": factor_type, "slope": slope}


@register
class Bilinear(Initializer):
    """Bilinear enlargement, for Deconvolution."""

    def __init__(self) -> None:
        super().__init__()

    def _init_weight(self, desc: str, arr: NDArray) -> None:
        self._init_bilinear(desc, arr)


@register
class LSTMBias(Initializer):
    """Bias of an LSTM: 0, and `forget_bias` for the forget gate (the second quarter)."""

    def __init__(self, forget_bias: float = 1.0) -> None:
        super().__init__(forget_bias=forget_bias)
        self.forget_bias = forget_bias

    def _init_weight(self, desc: str, arr: NDArray) -> None:
        hidden = arr.shape[0] // 4
        values = np.zeros(arr.shape, np.float32)
        values[hidden : 2 * hidden] = self.forget_bias
        arr[:] = values
