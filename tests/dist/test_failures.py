"""One run of the campaign of failures (`make prove` runs 20 moments of each kind)."""

import copy
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "failures"))
pytest.importorskip("zmq")
import jobs
from kinds import KINDS, STEPS


def test_two_killed_processes_change_neither_the_count_nor_the_curve():
    quiet, hurt = jobs.play(KINDS["pair"], None), jobs.play(KINDS["pair"], 2)
    assert not quiet.wrong and not hurt.wrong
    assert jobs.is_exact(quiet) and jobs.is_exact(hurt)
    assert len([e for e in hurt.events if e.get("code") == -9]) == 2
    apart = [abs(a - b) for a, b in zip(quiet.curve, hurt.curve, strict=True)]
    apart = [x for x in apart if not math.isnan(x)]
    assert len(apart) >= STEPS - jobs.HOLES and sum(apart) / len(apart) < jobs.APART
    # The counter tells one push too many or too few, whichever it is.
    for change in (-1, 1):
        other = copy.deepcopy(hurt)
        other.ends[1]["counter"][0] += change * jobs.smallest_push()
        assert not jobs.is_exact(other)
