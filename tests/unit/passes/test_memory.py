"""Placement, order, strategies, and an oracle that does find mistakes."""

import numpy as np
import pytest
from graphs import REFERENCE, feeds, run, tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from mixflow.errors import GraphError
from mixflow.ir import Graph, emit
from mixflow.passes.memory import ALIGN, Block, check_overlap, lower_bound, place
from mixflow.passes.order import peak
from mixflow.passes.pipeline import build_plan, finish, scheduled
from mixflow.passes.strategies import strategies

blocks = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(1, 5000)), min_size=1, max_size=40
)


@settings(max_examples=150, deadline=None)
@given(blocks)
def test_blocks_that_live_together_never_overlap(spec):
    made = [Block(a, a + n, size) for a, n, size in spec]
    total = place(made)
    for k, a in enumerate(made):
        assert a.offset >= 0 and a.offset % ALIGN == 0 and a.offset + a.nbytes <= total
        for b in made[:k]:
            together = a.first <= b.last and b.first <= a.last
            apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            assert apart or not together
    assert total >= lower_bound(made, 40)


def chain(length=6):
    x = tensor("x", (64, 64))
    w = tensor("w", (64, 64))
    y = x
    for _ in range(length):
        y = emit("matmul", y, w, transpose_a=False, transpose_b=False)
    return Graph((x, w), (y,))


def test_chain_needs_two_blocks():
    plan = build_plan(finish(chain()), REFERENCE, (1, 0), "arena", 0)
    check_overlap(plan)
    assert plan.memory == {"arena": 2 * 64 * 64 * 8, "lower_bound": 2 * 64 * 64 * 8}
    none = build_plan(finish(chain()), REFERENCE, (1, 0), "none", 0)
    check_overlap(none)
    assert none.memory["none"] == 5 * 64 * 64 * 8


def test_greedy_order_runs_a_wide_graph_branch_by_branch():
    x = tensor("x", (256, 256))
    wide = [
        emit("reduce_sum", emit("permute", x * float(k), axes=(1, 0)), axes=(0, 1), keepdims=False)
        for k in range(2, 10)
    ]
    graph = Graph((x,), tuple(wide))
    _, order = scheduled(finish(graph, fuse=False), REFERENCE, (1, 0), 0)
    assert peak(order) <= 2 * x.type.nbytes + 1024


def test_workspaces_are_planned_and_never_meet_operands():
    class Kernel:
        workspace_bytes = 1000
        inplace = ()

    class Backend:
        def prepare(self, *_):
            return Kernel()

    from mixflow.passes.memory import allocate
    from mixflow.passes.order import lifetimes
    from mixflow.passes.pipeline import _step

    _, order = scheduled(finish(chain()), Backend(), (1, 0), 0)
    lifetimes(order)
    spaces, total, bound = allocate(order, "arena")
    assert bound == 2 * 64 * 64 * 8 + 1000 <= total
    steps = [_step(t, spaces, {}) for t in order]
    for step in steps:
        begin, size = step.workspace
        for slot in (*step.inputs, *step.outputs):
            if slot[0] == "arena":
                assert slot[1] + slot[2] <= begin or begin + size <= slot[1]


def test_oracle_finds_a_broken_plan():
    plan = build_plan(finish(chain()), REFERENCE, (1, 0), "arena", 0)
    plan.steps[1].outputs[0] = plan.steps[1].inputs[0]
    with pytest.raises(GraphError, match="got another one"):
        check_overlap(plan)
    plan = build_plan(finish(chain()), REFERENCE, (1, 0), "arena", 0)
    plan.steps[2].workspace = (0, 10**6)
    with pytest.raises(GraphError, match=r"overlap|free workspace"):
        check_overlap(plan)


def test_strategies_of_a_chain():
    x, w = tensor("x", (64, 64)), tensor("w", (64, 64))
    y = emit("matmul", x, w, transpose_a=False, transpose_b=False)
    for _ in range(3):
        y = emit("tanh", y)
    y = emit("matmul", y, w, transpose_a=False, transpose_b=False)
    _, order = scheduled(finish(Graph((x, w), (y,)), fuse=False), REFERENCE, (1, 0), 0)
    one = 64 * 64 * 8
    assert strategies(order) == {
        "none": 4 * one,
        "inplace": one,
        "coshare": 2 * one,
        "both": one,
        "lower_bound_unfused": one,
    }


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_strategies_are_ordered(seed):
    rng = np.random.default_rng(seed)
    x = tensor("x", (8, 8))
    pool = [x]
    for _ in range(12):
        a, b = (pool[rng.integers(len(pool))] for _ in range(2))
        kind = rng.integers(3)
        if kind == 0:
            pool.append(emit("tanh", a))
        elif kind == 1:
            pool.append(emit("add", a, b))
        else:
            pool.append(emit("matmul", a, b, transpose_a=False, transpose_b=False))
    graph = Graph((x,), (pool[-1],))
    _, order = scheduled(finish(graph, fuse=False), REFERENCE, (1, 0), 0)
    report = strategies(order)
    assert report["lower_bound_unfused"] <= report["both"]
    assert report["both"] <= min(report["inplace"], report["coshare"])
    assert max(report["inplace"], report["coshare"]) <= report["none"]
    run(graph, feeds(graph))
