"""The optimizers themselves: which operator, which states, which numbers."""

from __future__ import annotations

import math
from typing import Any

from ..ndarray import NDArray
from .optimizer import Optimizer, UpdateRule, register, zeros_like_state


@register
class SGD(Optimizer):
    """Stochastic gradient descent with momentum and weight decay.

    Without momentum w -= lr (g + wd w); with it m = momentum m - lr (g + wd w), w += m
    (Polyak, 1964), where g is the rescaled, clipped gradient.

    Args:
        momentum: 0 to 1.
        lazy_update: row_sparse gradients change their rows alone: no decay, no momentum elsewhere.
    """

    rule_counts = False
    rule_reads = True

    def __init__(self, momentum: float = 0.0, lazy_update: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.momentum = self._finite("momentum", momentum)
        self.lazy_update = lazy_update

    def create_state(self, index: Any, weight: NDArray) -> Any:
        """Momentum, or None."""
        return zeros_like_state(weight) if self.momentum else None

    def update_rule(self, index: Any) -> UpdateRule:
        """sgd_update or sgd_mom_update."""
        if not self.momentum:
            return UpdateRule("sgd_update", self._clip(), self._common(index))
        return UpdateRule(
            "sgd_mom_update", {"momentum": self.momentum, **self._clip()}, self._common(index)
        )


@register
class ccSGD(SGD):
    """The old name of SGD."""

    rule_counts = False
    rule_reads = True


@register
class NAG(SGD):
    """SGD with Nesterov's look-ahead momentum (Sutskever et al., 2013)."""

    rule_counts = False
    rule_reads = True

    def update_rule(self, index: Any) -> UpdateRule:
        """sgd_update without momentum, else nag_mom_update."""
        rule = super().update_rule(index)
        return (
            rule if not self.momentum else UpdateRule("nag_mom_update", rule.params, rule.scalars)
        )


@register
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015); the bias correction is folded into the learning rate.

    Args:
        learning_rate: step size.
        beta1, beta2: decay of the first and second moment, below 1.
        epsilon: added to the root of the second moment.
        lazy_update: row_sparse gradients change their rows alone.
    """

    rule_reads = True

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        lazy_update: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.lazy_update = lazy_update

    def create_state(self, index: Any, weight: NDArray) -> Any:
        """(mean, variance)."""
        return (zeros_like_state(weight), zeros_like_state(weight))

    def update_rule(self, index: Any) -> UpdateRule:
        """adam_update with the corrected learning rate."""
        count = self._counts[index]
        scalars = self._common(index)
        scalars["lr"] *= math.sqrt(1 - self.beta2**count) / (1 - self.beta1**count)
        params = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
        return UpdateRule("adam_update", {**params, **self._clip()}, scalars)


@register
class RMSProp(Optimizer):
    """RMSProp (Tieleman and Hinton, 2012; centered: Graves, 2013).

    Args:
        gamma1: decay of the moments.
        gamma2: momentum of the centered form.
        epsilon: added under the root.
        centered: subtract the squared mean of the gradient.
        clip_weights: largest absolute weight; None = none.
    """

    rule_counts = False
    rule_reads = True

    def __init__(
        self,
        learning_rate: float = 0.001,
        gamma1: float = 0.9,
        gamma2: float = 0.9,
        epsilon: float = 1e-8,
        centered: bool = False,
        clip_weights: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.gamma1, self.gamma2, self.epsilon = gamma1, gamma2, epsilon
        self.centered, self.clip_weights = centered, clip_weights

    def create_state(self, index: Any, weight: NDArray) -> Any:
        """n, or (n, g, delta) when centered."""
        count = 3 if self.centered else 1
        return tuple(zeros_like_state(weight) for _ in range(count))

    def update_rule(self, index: Any) -> UpdateRule:
        """rmsprop_update or rmspropalex_update."""
        params: dict[str, Any] = {"gamma1": self.gamma1, "epsilon": self.epsilon, **self._clip()}
        if self.clip_weights:
            params["clip_weights"] = self.clip_weights
        if not self.centered:
            return UpdateRule("rmsprop_update", params, self._common(index))
        return UpdateRule(
            "rmspropalex_update", {**params, "gamma2": self.gamma2}, self._common(index)
        )


@register
class AdaGrad(Optimizer):
    """AdaGrad (Duchi, Hazan and Singer, 2011).

    Args:
        eps: added to the root of the sum of squares.
    """

    rule_counts = False
    rule_reads = True

    def __init__(self, eps: float = 1e-7, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.float_stable_eps = eps

    def create_state(self, index: Any, weight: NDArray) -> Any:
        """Sum of squared gradients."""
        return zeros_like_state(weight)

    def update_rule(self, index: Any) -> UpdateRule:
        """_sparse_adagrad_update, which is for dense arrays too."""
        params = {"epsilon": self.float_stable_eps, **self._clip()}
        return UpdateRule("_sparse_adagrad_update", params, self._common(index))


@register
class Signum(Optimizer):
    """Sign of the gradient or of its momentum (Bernstein et al., 2018).

    Args:
        momentum: 0 = signSGD.
        wd_lh: decoupled weight decay.
    """

    rule_counts = False
    rule_reads = True

    def __init__(
        self,
        learning_rate: float = 0.01,
        momentum: float = 0.9,
        wd_lh: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.momentum, self.wd_lh = momentum, wd_lh

    def create_state(self, index: Any, weight: NDArray) -> Any:
        """Momentum, or None."""
        return zeros_like_state(weight) if self.momentum else None

    def update_rule(self, index: Any) -> UpdateRule:
        """signsgd_update or signum_update."""
        if not self.momentum:
            return UpdateRule("signsgd_update", self._clip(), self._common(index))
        params = {"momentum": self.momentum, "wd_lh": self.wd_lh, **self._clip()}
        return UpdateRule("signum_update", params, self._common(index))


@register
class Ftrl(Optimizer):
    """Follow the regularised leader (McMahan et al., 2013).

    Args:
        lamda1: L1 strength.
        beta: smoothing of the per-coordinate rate.
    """

    rule_reads = True

    def __init__(
        self, lamda1: float = 0.01, learning_rate: float = 0.1, beta: float = 1, **kwargs: Any
    ) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.lamda1, self.beta = lamda1, beta

    def create_state(self, index: Any, weight: NDArray) -> Any:
        """(z, n)."""
        return (zeros_like_state(weight), zeros_like_state(weight))

    def update_rule(self, index: Any) -> UpdateRule:
        """ftrl_update."""
        params = {"lamda1": self.lamda1, "beta": self.beta, **self._clip()}
        return UpdateRule("ftrl_update", params, self._common(index))


@register
class Test(Optimizer):
    """Adds the rescaled gradient to the weight: results that can be told in advance, for tests."""

    def create_state(self, index: Any, weight: NDArray) -> Any:
        """A copy of the weight after its last update."""
        return zeros_like_state(weight)

    def update(self, index: Any, weight: NDArray, grad: NDArray, state: Any) -> None:
        """w += rescale_grad * g; the state is the new w."""
        self._update_count(index)
        weight[:] = weight + grad * self.rescale_grad
        weight.copyto(state)
