"""Optimizers and schedules of a program: servers import this module by its name."""

import mixflow as mx


class Momentum(mx.optimizer.Optimizer):
    """Counts for itself, has a nested state, and is not registered."""

    def __init__(self, momentum=0.5, **options):
        super().__init__(**options)
        self.momentum = momentum
        self.calls = 0
        self.history = {"rates": (1.0,), 3: []}

    def create_state(self, index, weight):
        like = (weight.shape, weight.context)
        return [mx.nd.zeros(*like), (None, mx.nd.zeros(*like), mx.nd.zeros((1,)))]

    def update(self, index, weight, grad, state):
        self._update_count(index)
        self.calls += 1
        self.history["rates"] = (*self.history["rates"][-2:], 1.0 / self.calls)
        mean, (_, square, count) = state
        count += self._index_update_count[index]
        gradient = grad * self.rescale_grad + self._get_wd(index) * weight
        mean[:] = self.momentum * mean + gradient
        square[:] = 0.9 * square + gradient * gradient
        rate = self._get_lr(index) * self.history["rates"][-1]
        weight[:] = weight - rate * mean / (mx.nd.sqrt(square) + 1) - 1e-3 * count


class Halving(mx.lr_scheduler.LRScheduler):
    """Keeps what it has counted in an attribute."""

    def __init__(self, **options):
        super().__init__(**options)
        self.asked = 0

    def __call__(self, num_update):
        self.asked += 1
        return self.base_lr * 0.5**self.asked


class Linear:
    """Any object that can be called is a schedule."""

    def __call__(self, num_update):
        return 0.1 / num_update


class Broken(mx.optimizer.Optimizer):
    """Fails at its sixth update, when half of it is made."""

    def update(self, index, weight, grad, state):
        self._update_count(index)
        weight += 1
        if self._index_update_count[index] == 6:
            raise ZeroDivisionError("no sixth one")


RAN = []


def ran():
    """Tells that it was called."""
    RAN.append(1)
