"""Learning-rate schedules: the number of updates so far -> the learning rate."""

from __future__ import annotations

import math
from itertools import pairwise

from .errors import ParamError


class LRScheduler:
    """Base of the schedules, with an optional warm-up.

    Args:
        base_lr: learning rate after the warm-up.
        warmup_steps: number of updates of the warm-up; 0 = none.
        warmup_begin_lr: learning rate at update 0.
        warmup_mode: 'linear' (ramp) or 'constant' (`warmup_begin_lr` all through).

    Raises:
        ParamError: a negative number of steps, a start above `base_lr`, an unknown mode.
    """

    def __init__(
        self,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        if warmup_steps < 0 or warmup_begin_lr > base_lr:
            raise ParamError(
                "[lr_scheduler] expected warmup_steps >= 0 and warmup_begin_lr <= base_lr, got "
                f"{warmup_steps} and {warmup_begin_lr} > {base_lr}"
            )
        if warmup_mode not in ("linear", "constant"):
            raise ParamError(
                f"[lr_scheduler] expected warmup_mode 'linear' or 'constant', got {warmup_mode!r}"
            )
        self.base_lr = base_lr
        self.warmup_steps = warmup_steps
        self.warmup_begin_lr = warmup_begin_lr
        self.warmup_final_lr = base_lr
        self.warmup_mode = warmup_mode

    def get_warmup_lr(self, num_update: int) -> float:
        """Learning rate at an update of the warm-up."""
        if self.warmup_mode == "constant":
            return self.warmup_begin_lr
        rise = (self.warmup_final_lr - self.warmup_begin_lr) * num_update / self.warmup_steps
        return self.warmup_begin_lr + rise

    def __call__(self, num_update: int) -> float:
        """Learning rate at update `num_update`."""
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        return self.decayed(num_update)

    def decayed(self, num_update: int) -> float:
        """Learning rate after the warm-up; subclasses implement it."""
        raise NotImplementedError


class FactorScheduler(LRScheduler):
    """Multiplies the rate by `factor` every `step` updates, down to `stop_factor_lr`.

    Args:
        step: updates between two changes, at least 1.
        factor: multiplier, at most 1.
        stop_factor_lr: lowest rate.
    """

    def __init__(
        self,
        step: int,
        factor: float = 1,
        stop_factor_lr: float = 1e-8,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        if step < 1 or factor > 1.0:
            raise ParamError(
                f"[FactorScheduler] expected step >= 1 and factor <= 1, got {step} and {factor}"
            )
        self.step = step
        self.factor = factor
        self.stop_factor_lr = stop_factor_lr
        self.count = 0

    def decayed(self, num_update: int) -> float:
        """Learning rate at update `num_update`; the change comes after a full step."""
        while num_update > self.count + self.step:
            self.count += self.step
            self.base_lr = max(self.base_lr * self.factor, self.stop_factor_lr)
        return self.base_lr


class MultiFactorScheduler(LRScheduler):
    """Multiplies the rate by `factor` after each update listed in `step`.

    Args:
        step: increasing list of update numbers, each at least 1.
        factor: multiplier, at most 1.
    """

    def __init__(
        self,
        step: list[int],
        factor: float = 1,
        base_lr: float = 0.01,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(base_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        increasing = all(a < b for a, b in pairwise(step))
        if not step or step[0] < 1 or not increasing or factor > 1.0:
            raise ParamError(
                "[MultiFactorScheduler] expected increasing steps >= 1 and factor <= 1, got "
                f"{step} and {factor}"
            )
        self.step = step
        self.cur_step_ind = 0
        self.factor = factor
        self.count = 0

    def decayed(self, num_update: int) -> float:
        """Learning rate at update `num_update`."""
        while self.cur_step_ind < len(self.step) and num_update > self.step[self.cur_step_ind]:
            self.count = self.step[self.cur_step_ind]
            self.cur_step_ind += 1
            self.base_lr *= self.factor
        return self.base_lr


class _Annealed(LRScheduler):
    """Falls from `base_lr` to `final_lr` between the warm-up and `max_update`."""

    def __init__(self, max_update: int, base_lr: float, final_lr: float, *warmup: object) -> None:
        super().__init__(base_lr, *warmup)  # type: ignore[arg-type]
        if not isinstance(max_update, int) or max_update < 1:
            raise ParamError(f"[lr_scheduler] expected max_update >= 1, got {max_update!r}")
        self.base_lr_orig = base_lr
        self.max_update = max_update
        self.final_lr = final_lr
        self.max_steps = max_update - self.warmup_steps

    def decayed(self, num_update: int) -> float:
        """Learning rate at update `num_update`; constant after `max_update`."""
        share = (min(num_update, self.max_update) - self.warmup_steps) / self.max_steps
        span = self.base_lr_orig - self.final_lr
        self.base_lr = self.final_lr + span * self.curve(share)
        return self.base_lr

    def curve(self, share: float) -> float:
        """What is left of the fall when `share` of the updates is done."""
        raise NotImplementedError


class PolyScheduler(_Annealed):
    """Polynomial fall: (1 - share) ** `pwr`."""

    def __init__(
        self,
        max_update: int,
        base_lr: float = 0.01,
        pwr: int = 2,
        final_lr: float = 0,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(max_update, base_lr, final_lr, warmup_steps, warmup_begin_lr, warmup_mode)
        self.power = pwr

    def curve(self, share: float) -> float:
        """(1 - share) ** power."""
        return float((1 - share) ** self.power)


class CosineScheduler(_Annealed):
    """Half a cosine (Loshchilov and Hutter, "SGDR", 2017, without restarts)."""

    def __init__(
        self,
        max_update: int,
        base_lr: float = 0.01,
        final_lr: float = 0,
        warmup_steps: int = 0,
        warmup_begin_lr: float = 0,
        warmup_mode: str = "linear",
    ) -> None:
        super().__init__(max_update, base_lr, final_lr, warmup_steps, warmup_begin_lr, warmup_mode)

    def curve(self, share: float) -> float:
        """(1 + cos(pi share)) / 2."""
        return (1 + math.cos(math.pi * share)) / 2
