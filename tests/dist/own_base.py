"""What the program of `own.py` imports: servers find it by the worker's path alone."""

import mixflow as mx


class Counting(mx.optimizer.Optimizer):
    """Adds up what has been pushed, and counts its updates in an attribute."""

    def __init__(self, **options):
        super().__init__(**options)
        self.calls = 0

    def create_state(self, index, weight):
        return [mx.nd.zeros(weight.shape), None]

    def counted(self, index):
        """Counts an update; the same number as the schedule's."""
        self._update_count(index)
        self.calls += 1
        assert self._get_lr(index) == self.calls == self._index_update_count[index]
        return self.calls
