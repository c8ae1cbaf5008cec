"""Base of the optimizers: counts, learning rates, multipliers, and how an update is described.

A concrete optimizer says which update operator it uses and with which numbers (`update_rule`). The
same description serves an imperative call on one parameter (`Optimizer.update`) and the fused
program over all parameters of a model (`optimizer.fused`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ndarray as nd
from ..errors import ParamError, UnknownNameError, describe_unknown
from ..ndarray import NDArray

if TYPE_CHECKING:
    from ..lr_scheduler import LRScheduler
    from ..symbol import Symbol

_registry: dict[str, type[Optimizer]] = {}


def register(klass: type[Optimizer]) -> type[Optimizer]:
    """Makes an optimizer known to `create` under its lower-cased class name."""
    _registry[klass.__name__.lower()] = klass
    return klass


def create(name: str | Optimizer, **kwargs: Any) -> Optimizer:
    """The optimizer of a name, e.g. ``create('sgd', learning_rate=0.1, momentum=0.9)``.

    Raises:
        UnknownNameError: no such optimizer.
        ParamError: a parameter is unknown or not a usable number.
    """
    if isinstance(name, Optimizer):
        return name
    found = _registry.get(name.lower())
    if found is None:
        raise UnknownNameError(describe_unknown("optimizer", name, list(_registry)))
    try:
        return found(**kwargs)
    except TypeError as error:
        known = _parameters(found)
        for name in kwargs:
            if name not in known:
                text = describe_unknown(found.__name__, name, known, _ELSEWHERE)
                raise ParamError(text) from None
        raise ParamError(f"[{found.__name__}] expected its own parameters, got {error}") from None


#: What other libraries call the parameters of optimizers.
_ELSEWHERE = {
    "lr": "learning_rate",
    "eta": "learning_rate",
    "weight_decay": "wd",
    "beta_1": "beta1",
    "beta_2": "beta2",
    "eps": "epsilon",
    "scheduler": "lr_scheduler",
}


def _parameters(klass: type[Optimizer]) -> list[str]:
    """Names that an optimizer takes, by its own constructor and those above it."""
    found: set[str] = set()
    for one in klass.__mro__:
        if "__init__" in vars(one) and one is not object:
            for parameter in inspect.signature(vars(one)["__init__"]).parameters.values():
                if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                    found.add(parameter.name)
    return sorted(found - {"self"})


@dataclass(frozen=True)
class UpdateRule:
    """One update as an operator call.

    Attributes:
        op: operator whose inputs are weight, gradient, states in order.
        params: parameters that stay the same for the optimizer's life.
        scalars: parameters that change from update to update, by name.
    """

    op: str
    params: Mapping[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)


class Optimizer:
    """Base of every optimizer.

    Args:
        rescale_grad: factor on each gradient (1 / batch size in `Module`).
        param_idx2name: names of parameters by index; multipliers go by name.
        wd: weight decay, per update and unit of learning rate.
        clip_gradient: largest absolute value of a rescaled gradient; None = no clipping.
        learning_rate: step size; None = 0.01, or the schedule's.
        lr_scheduler: schedule; sets the learning rate from the number of updates.
        sym: symbol whose ``__lr_mult__`` and ``__wd_mult__`` attributes are honoured.
        begin_num_update: number of updates done before.
        multi_precision: keep a float32 copy of 16-bit weights.
        param_dict: parameters with `lr_mult` and `wd_mult`, by index.

    Raises:
        ParamError: a rate, decay or factor that is not finite, or is negative.
    """

    def __init__(
        self,
        rescale_grad: float = 1.0,
        param_idx2name: Mapping[Any, str] | None = None,
        wd: float = 0.0,
        clip_gradient: float | None = None,
        learning_rate: float | None = None,
        lr_scheduler: LRScheduler | None = None,
        sym: Symbol | None = None,
        begin_num_update: int = 0,
        multi_precision: bool = False,
        param_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        self.rescale_grad = self._finite("rescale_grad", rescale_grad)
        self.lr_scheduler = lr_scheduler
        self.lr = self._finite("learning_rate", 0.01 if learning_rate is None else learning_rate)
        if lr_scheduler is not None and learning_rate is not None:
            lr_scheduler.base_lr = self.lr
        self.wd = self._finite("wd", wd)
        if clip_gradient is not None and math.isnan(clip_gradient):
            name = type(self).__name__
            raise ParamError(f"[{name}] expected a clip_gradient of at least 0 or None, got nan")
        self.clip_gradient = clip_gradient
        self.multi_precision = multi_precision
        self.begin_num_update = self.num_update = begin_num_update
        self._counts: dict[Any, int] = {}
        self.idx2name = dict(param_idx2name or {})
        self.param_dict = dict(param_dict or {})
        self._attributes = sym.attr_dict() if sym is not None else {}
        self._arguments = sym.list_arguments() if sym is not None else []
        self.set_lr_mult({})
        self.set_wd_mult({})

    def _finite(self, name: str, value: float) -> float:
        if not math.isfinite(value) or value < 0:
            raise ParamError(
                f"[{type(self).__name__}] expected a finite {name} of at least 0, got {value}"
            )
        return float(value)

    # -- multipliers

    def set_lr_mult(self, args_lr_mult: Mapping[Any, float]) -> None:
        """Multipliers of the learning rate by name or index, over those of the symbol."""
        self.lr_mult = self._attribute_floats("__lr_mult__") | dict(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Mapping[Any, float]) -> None:
        """Multipliers of the weight decay; names not ending in _weight or _gamma start with 0."""
        names = self.idx2name.values()
        start = {n: 0.0 for n in names if not n.endswith(("_weight", "_gamma"))}
        self.wd_mult = start | self._attribute_floats("__wd_mult__") | dict(args_wd_mult)

    def _attribute_floats(self, key: str) -> dict[Any, float]:
        attributes = self._attributes
        return {
            n: float(attributes[n][key]) for n in self._arguments if key in attributes.get(n, {})
        }

    def _multiplier(self, table: Mapping[Any, float], index: Any, attribute: str) -> float:
        if index in self.param_dict:
            return float(getattr(self.param_dict[index], attribute))
        if index in table:
            return table[index]
        return table.get(self.idx2name.get(index), 1.0)

    # -- counts and rates

    @property
    def learning_rate(self) -> float:
        """The learning rate now."""
        return self.lr if self.lr_scheduler is None else self.lr_scheduler(self.num_update)

    def set_learning_rate(self, lr: float) -> None:
        """Changes the learning rate.

        Raises:
            ParamError: a schedule is set, or the rate is not a finite number.
        """
        if self.lr_scheduler is not None:
            raise ParamError("[optimizer] expected no lr_scheduler when setting a rate, got one")
        self.lr = self._finite("learning_rate", lr)

    def _update_count(self, index: Any) -> None:
        counts, start, most = self._counts, self.begin_num_update, self.num_update
        for one in index if isinstance(index, (list, tuple)) else [index]:
            counts[one] = count = counts.get(one, start) + 1
            if count > most:
                most = count
        self.num_update = most

    #: MXNet's names of what optimizers of programs use.
    @property
    def _index_update_count(self) -> dict[Any, int]:
        return self._counts

    def _get_lrs(self, indices: Sequence[Any]) -> list[float]:
        return [self._get_lr(index) for index in indices]

    def _get_wds(self, indices: Sequence[Any]) -> list[float]:
        return [self._get_wd(index) for index in indices]

    def _get_lr(self, index: Any) -> float:
        return self.learning_rate * self._multiplier(self.lr_mult, index, "lr_mult")

    def _get_wd(self, index: Any) -> float:
        return self.wd * self._multiplier(self.wd_mult, index, "wd_mult")

    def _common(self, index: Any) -> dict[str, float]:
        """Numbers that every update operator takes."""
        return {
            "lr": self._get_lr(index),
            "wd": self._get_wd(index),
            "rescale_grad": self.rescale_grad,
        }

    def _clip(self) -> dict[str, Any]:
        """Static clipping parameter, where there is one."""
        return {} if self.clip_gradient is None else {"clip_gradient": self.clip_gradient}

    # -- states and updates

    #: MXNet's names of the functions of this module.
    register = staticmethod(register)
    create_optimizer = staticmethod(create)

    def create_state(self, index: Any, weight: NDArray) -> Any:
        """State of a parameter: None, an array, or a tuple of arrays like the weight."""
        return None

    #: Whether `update_rule` depends on a parameter's count of updates, other than by the schedule.
    #: Each class says it for itself: what a subclass overrides may count.
    rule_counts = True
    #: Whether `update_rule` only reads, so that it can be asked ahead of an update. Each class says
    #: that for itself, too.
    rule_reads = False

    def __init_subclass__(cls) -> None:
        cls.rule_counts = vars(cls).get("rule_counts", True)
        cls.rule_reads = vars(cls).get("rule_reads", False)

    def _rule_state(self) -> dict[str, Any] | None:
        """All that the rules depend on, to be compared; None where only they can tell."""
        if self.rule_counts or self.param_dict:
            return None
        state = {
            k: v.copy() if type(v) is dict else v
            for k, v in vars(self).items()
            if k != "_counts" and k != "num_update"
        }
        state["learning_rate"] = self.learning_rate
        return state

    def update_rule(self, index: Any) -> UpdateRule:
        """The update of parameter `index` with its count as it stands; subclasses implement it."""
        raise NotImplementedError

    def _needs_master(self, weight: NDArray) -> bool:
        return self.multi_precision and np.dtype(weight.dtype).itemsize == 2

    def _gradient_dtype(self, weight: NDArray, dtype: Any) -> Any:
        """Of a gradient of `dtype` when it updates a weight: sums of 16-bit gradients are float32,
        and stay so for a float32 copy of the weight."""
        return dtype if self._needs_master(weight) else weight.dtype

    def create_state_multi_precision(self, index: Any, weight: NDArray) -> Any:
        """(state, float32 copy) of a 16-bit weight under `multi_precision`, else the state."""
        if not self._needs_master(weight):
            return self.create_state(index, weight)
        master = weight.astype("float32")
        return (self.create_state(index, master), master)

    def update(self, index: Any, weight: NDArray, grad: NDArray, state: Any) -> None:
        """Updates `weight` (and `state`) in place; also takes lists of equal length.

        By a row_sparse gradient SGD, Adam and AdaGrad change its rows alone (the first two unless
        `lazy_update` is false), and Ftrl does where the weight is row_sparse too.
        """
        if isinstance(index, (list, tuple)):
            for each in zip(index, weight, grad, state, strict=True):
                self.update(*each)
            return
        self._update_count(index)
        rule = self.update_rule(index)
        call = getattr(nd, rule.op, None) or getattr(nd._internal, rule.op)
        params = {**rule.params, **rule.scalars}
        if not getattr(self, "lazy_update", True) and grad.stype != "default":
            params["lazy_update"] = False
        call(weight, grad, *state_list(state), out=weight, **params)

    def update_multi_precision(
        self, index: Any, weight: NDArray, grad: NDArray, state: Any
    ) -> None:
        """Like `update`, through the float32 copy where there is one."""
        if not self._needs_master(weight):
            self.update(index, weight, grad, state)
            return
        inner, master = state
        self.update(index, master, grad.astype("float32"), inner)
        master.astype(weight.dtype).copyto(weight)


def state_list(state: Any) -> list[NDArray]:
    """A state as a flat list of arrays."""
    if state is None:
        return []
    if isinstance(state, (list, tuple)):
        return [array for part in state for array in state_list(part)]
    return [state]


def mapped_state(state: Any, of: Callable[[NDArray], NDArray]) -> Any:
    """A state of the same form with another array for each."""
    if isinstance(state, (list, tuple)):
        return tuple(mapped_state(part, of) for part in state)
    return None if state is None else of(state)


def zeros_like_state(weight: NDArray) -> NDArray:
    """A state array of the weight's shape, dtype and context, all 0; dense for sparse weights."""
    return nd.zeros(weight.shape, ctx=weight.context, dtype=weight.dtype)
