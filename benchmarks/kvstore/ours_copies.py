"""The limit: two processes that write their gradient and copy it out and back, no protocol."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
import crew


def member():
    """A process that copies."""
    import numpy as np

    def prepare(size):
        gradient, place, value = (np.zeros(size, np.float32) for _ in range(3))

        def trip(step):
            gradient.fill(step)
            np.copyto(place, gradient)
            np.copyto(value, place)

        return trip

    crew.serve(prepare)


if __name__ == "__main__":
    member()
else:
    VERSION = "numpy copies"
    WARM_UP = 1
    CASES = crew.cases(
        lambda: crew.Crew(2, lambda env: [crew.python(__file__, env) for _ in range(2)])
    )
