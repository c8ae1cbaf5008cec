"""Random fused programs: the reference against its single kernels, native against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mixflow.ops.primitives  # noqa: F401 - fills the registry
from mixflow import _rt, ir
from mixflow import dtype as dtypes
from mixflow.backends.reference import compute
from mixflow.ops.primitives.fused import parse

UNARY = ["negative", "abs", "square", "relu", "sigmoid", "tanh", "sin", "floor", "logical_not"]
BINARY = ["add", "subtract", "multiply", "maximum", "minimum", "greater", "equal", "logical_and"]
SHAPES = [(3, 5, 7), (5, 7), (7,), (3, 1, 1), (1, 5, 1), ()]


@st.composite
def programs(draw: Any) -> tuple[str, list[tuple[int, ...]]]:
    """A program and the shapes of its inputs, the first of which is full."""
    shapes = [SHAPES[0], *draw(st.lists(st.sampled_from(SHAPES), max_size=3))]
    known = [f"i{k}" for k in range(len(shapes))]
    lines = []
    for number in range(draw(st.integers(1, 8))):
        arity = draw(st.sampled_from([1, 2, 2, 3]))
        pick = st.sampled_from(known)
        names = {1: UNARY, 2: BINARY, 3: ["select"]}[arity]
        args = [draw(pick) for _ in range(arity)]
        if arity == 2 and draw(st.booleans()):
            args[1] = draw(st.sampled_from(["0.5", "-2.0", "3"]))
        lines.append(f"t{number} = {draw(st.sampled_from(names))} {' '.join(args)}")
        known.append(f"t{number}")
    outs = draw(
        st.lists(st.sampled_from(known[len(shapes) :]), min_size=1, max_size=3, unique=True)
    )
    return "; ".join([*lines, f"out {' '.join(outs)}"]), shapes


def _arrays(shapes: list[tuple[int, ...]], dtype: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(17)
    return [np.asarray(rng.normal(size=s) * 3).astype(dtype) for s in shapes]


def _step_by_step(text: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The program's instructions as primitives of their own."""
    known: dict[Any, np.ndarray] = {f"i{k}": a for k, a in enumerate(arrays)}
    program = parse(text)
    dtype = arrays[0].dtype
    for step in program.instructions:
        args = [known[a] if isinstance(a, str) else np.asarray(a, dtype) for a in step.args]
        known[step.target] = compute(step.op, {}, args)[0].astype(dtype)
    return [np.broadcast_to(known[name], SHAPES[0]) for name in program.outputs]


@settings(max_examples=60, deadline=None)
@given(programs(), st.sampled_from([np.float32, np.float64, np.int32]))
def test_a_program_is_its_instructions(made: Any, dtype: Any) -> None:
    text, shapes = made
    arrays = _arrays(shapes, dtype)
    results = compute("fused", {"program": text}, arrays)
    for got, expected in zip(results, _step_by_step(text, arrays), strict=True):
        assert got.shape == SHAPES[0]
        np.testing.assert_array_equal(got.astype(dtype), expected)


@pytest.mark.skipif(_rt.load_native() is None, reason="the compiled core is not built")
@settings(max_examples=100, deadline=None)
@given(programs(), st.sampled_from([np.float32, np.float64, np.int32, np.float16]))
def test_native_runs_the_same_program(made: Any, dtype: Any) -> None:
    core: Any = _rt.load_native()
    text, shapes = made
    arrays = _arrays(shapes, dtype)
    expected = compute("fused", {"program": text}, arrays)
    code = dtypes.code(np.dtype(dtype))
    given_, wanted = ([ir.Desc(code, a.shape) for a in group] for group in (arrays, expected))
    kernel = core.prepare("fused", {"program": text}, given_, wanted, 1)
    assert kernel is not None
    outs = [core.empty(SHAPES[0], code, (1, 0)) for _ in expected]
    core.run_kernel(kernel, [core.from_numpy(a, (1, 0)) for a in arrays], outs, 0, 0)
    tolerance = {np.float64: 1e-9, np.float32: 1e-4, np.float16: 2e-2}.get(dtype, 0)
    with np.errstate(over="ignore"):
        for out, want in zip(outs, expected, strict=True):
            # A comparison of values that differ by rounding may tip: few elements, not many.
            off = ~np.isclose(
                out.to_numpy(), want.astype(dtype), tolerance, tolerance, equal_nan=True
            )
            assert off.mean() <= (0.0 if dtype == np.int32 else 0.02)
