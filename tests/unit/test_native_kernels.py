"""Plain native kernels (elementwise, reductions, copies, indices, draws) against NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from mixflow import _rt
from mixflow import dtype as dtypes
from mixflow.backends import native
from mixflow.backends.reference.random import philox_words
from mixflow.errors import MXNetError
from mixflow.ir import Desc

core = _rt.load_native()
pytestmark = pytest.mark.skipif(
    core is None or not hasattr(core, "prepare"), reason="the compiled core was not built"
)

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), BF16]
INTEGERS = [np.dtype(t) for t in (np.int32, np.int64, np.uint8, np.int8)]
ALL = [*FLOATS, *INTEGERS, np.dtype(bool)]
F32 = np.dtype(np.float32)
Shape = tuple[int, ...]


def desc(dtype: Any, shape: Shape) -> Desc:
    return Desc(dtypes.code(np.dtype(dtype)), tuple(shape))


def prepare(
    name: str,
    ins: Sequence[Any],
    outs: Sequence[tuple[Any, Shape]],
    threads: int = 2,
    **params: Any,
) -> Any:
    kernel = core.prepare(
        name,
        native.attributes(params),
        [desc(x.dtype, x.shape) for x in ins],
        [desc(d, s) for d, s in outs],
        threads,
    )
    assert kernel is not None, f"no native {name}"
    return kernel


def run(
    name: str,
    ins: Sequence[Any],
    *outs: tuple[Any, Shape],
    threads: int = 2,
    key: tuple[int, int] = (0, 0),
    **params: Any,
) -> Any:
    """Prepares and runs a kernel on fresh arrays; one result, or a list of several."""
    ins = [np.asarray(x) for x in ins]
    kernel = prepare(name, ins, outs, threads, **params)
    device = (1, 0)
    arrays = [core.from_numpy(np.ascontiguousarray(x).reshape(x.shape), device) for x in ins]
    made = [core.from_numpy(np.full(s, 7).astype(d), device) for d, s in outs]
    core.run_kernel(kernel, arrays, made, *key)
    got = [a.to_numpy() for a in made]
    return got[0] if len(got) == 1 else got


def integers(shape: Shape, dtype: Any, low: int = 0, high: int = 5, seed: int = 3) -> np.ndarray:
    made = np.random.default_rng([seed, *shape]).integers(low, high, shape)
    return np.asarray(made).astype(dtype)


# -- elementwise

EDGES = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-45, 1e-38, 3e38, -3e38, 0.5, 1.5, 2.5, -2.5]


def spread(low: float, high: float) -> np.ndarray:
    rng = np.random.default_rng(1)
    tiny = rng.uniform(-1, 1, 4000) * 10.0 ** rng.uniform(-40, 0, 4000)
    return np.concatenate([rng.uniform(low, high, 40000), tiny, EDGES]).astype(np.float32)


def positive() -> np.ndarray:
    rng = np.random.default_rng(2)
    wide = np.exp(rng.uniform(-103, 88, 40000))
    return np.concatenate([wide, rng.uniform(0.5, 2, 20000), EDGES]).astype(np.float32)


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    """Largest error in units in the last place; infinite where only one side is finite."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float32)
        finite = np.isfinite(nearest)
        error = np.abs(got.astype(np.float64) - exact) / np.spacing(np.abs(nearest))
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    return float(np.max(np.where(finite, error, np.where(same, 0.0, np.inf))))


PRECISE: list[tuple[str, Callable[[Any], Any], np.ndarray]] = [
    ("exp", np.exp, spread(-105, 90)),
    ("expm1", np.expm1, spread(-3, 3)),
    ("expm1", np.expm1, spread(-30, 90)),
    ("log", np.log, positive()),
    ("log2", np.log2, positive()),
    ("log10", np.log10, positive()),
    ("log1p", np.log1p, spread(-1, 4)),
    ("tanh", np.tanh, spread(-12, 12)),
    ("tanh", np.tanh, spread(-1, 1)),
    ("sigmoid", special.expit, spread(-105, 105)),
    ("erf", special.erf, spread(-5, 5)),
    ("sin", np.sin, spread(-10, 10)),
    ("cos", np.cos, spread(-900000, 900000)),
    ("sin", np.sin, spread(-1e8, 1e8)),
    ("rsqrt", lambda x: 1 / np.sqrt(x), positive()),
    ("erfinv", special.erfinv, spread(-1, 1)),
]


@pytest.fixture(params=["baseline", "avx2", "avx512"])
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set that was compiled and that this processor has."""
    used = core.limit_instructions(request.param)
    try:
        if used != request.param:
            pytest.skip(f"no {request.param} here")
        yield used
    finally:
        core.limit_instructions("avx512")


def test_an_unknown_instruction_set_is_an_error() -> None:
    with pytest.raises(MXNetError, match="expected baseline, avx2 or avx512, got mmx"):
        core.limit_instructions("mmx")


@pytest.mark.parametrize(("name", "exact", "x"), PRECISE)
def test_functions_within_four_units(
    name: str, exact: Callable[[Any], Any], x: np.ndarray, instructions: str
) -> None:
    with np.errstate(all="ignore"):
        expected = exact(x.astype(np.float64))
    assert ulps(run(name, [x], (F32, x.shape)), expected) < 4


def test_power_is_precise_and_keeps_the_special_cases(instructions: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (g.ravel() for g in np.meshgrid(EDGES, [*EDGES, 2, 3, -3]))
    x = np.concatenate([np.exp(rng.uniform(-20, 20, 20000)), a]).astype(np.float32)
    y = np.concatenate([rng.uniform(-8, 8, 20000), b]).astype(np.float32)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64))
    assert ulps(run("power", [x, y], (F32, x.shape)), expected) < 4


def _half_down(x: Any) -> Any:
    """MXNet's rint."""
    low = np.floor(x)
    return low + (x - low > 0.5)


def _half_away(x: Any) -> Any:
    whole = np.trunc(np.abs(x))
    return np.copysign(whole + (np.abs(x) - whole >= 0.5), x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "exact"),
    [("rint", _half_down), ("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc),
     ("fix", np.fix), ("round", _half_away), ("sign", lambda x: np.nan_to_num(np.sign(x))),
     ("abs", np.abs)],
)  # fmt: skip
def test_roundings_are_exact(name: str, exact: Callable[[Any], Any], dtype: Any) -> None:
    x = np.concatenate([spread(-5, 5), np.arange(-6, 6, 0.5), [0.49999997, 8388607.5]])
    x = x.astype(np.float32).astype(dtype)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(name, [x], (dtype, x.shape)), exact(x))


PAIRS: list[tuple[Shape, Shape]] = [
    ((5, 7), (7,)), ((5, 7), (5, 1)), ((3, 1, 5), (4, 1)), ((2, 3, 4, 5), (3, 1, 1)),
    ((2, 3, 400), (3, 1)), ((2, 300, 700), (700,)), ((2000, 10), (10,)), ((2000, 10), (2000, 1)),
    ((8, 32, 7, 7), (32, 1, 1)), ((4,), ()), ((), ()), ((0, 3), (3,)),
    ((2, 1, 3, 1, 300), (5, 1, 4, 1)), ((5000,), (1,)), ((3, 5000), (3, 5000)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_binary_broadcasts(left: Shape, right: Shape, dtype: Any) -> None:
    x, y = integers(left, dtype, 1, 10), integers(right, dtype, 1, 6)
    cases = [("add", np.add), ("subtract", np.subtract), ("maximum", np.maximum), ("mod", np.mod)]
    for (name, exact), (a, b) in itertools.product(cases, [(x, y), (y, x)]):
        expected = np.asarray(exact(a, b)).astype(dtype)
        np.testing.assert_array_equal(run(name, [a, b], (dtype, expected.shape)), expected)


@pytest.mark.parametrize("source", ALL, ids=str)
@pytest.mark.parametrize("target", ALL, ids=str)
def test_cast(source: Any, target: Any) -> None:
    x = np.random.default_rng(0).uniform(0, 100, 777).astype(source)
    expected = x != 0 if target == np.bool_ else x.astype(np.float32).astype(target)
    if source == np.float64 and target != np.bool_:
        expected = x.astype(target)
    np.testing.assert_array_equal(run("cast", [x], (target, x.shape), dtype=target), expected)


def test_half_conversions_exhaustively() -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(
        run("cast", [halves], (F32, halves.shape), dtype=F32), halves.astype(np.float32)
    )
    finite = halves[np.isfinite(halves)].astype(np.float32)
    ties = np.concatenate([(finite[:31743] + finite[1:31744]) / 2, finite, [65520, 1e9, 1e-9]])
    ties = ties.astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        expected = ties.astype(np.float16)
    np.testing.assert_array_equal(
        run("cast", [ties], (np.float16, ties.shape), dtype=np.dtype(np.float16)), expected
    )


def test_fused_program_of_several_outputs() -> None:
    w, g = np.random.default_rng(0).normal(size=(2, 100, 70)).astype(np.float32)
    program = "t0 = multiply i1 i2; t1 = subtract i0 t0; t2 = relu t1; t3 = exp t0; out t2 t3"
    outs = [(F32, w.shape)] * 2
    relu, exp = run("fused", [w, np.float32(0.1), g], *outs, program=program)
    np.testing.assert_allclose(relu, np.maximum(w - np.float32(0.1) * g, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(exp, np.exp(np.float32(0.1) * g), rtol=1e-6)


@pytest.mark.parametrize("size", [5, 1000, 30000])
def test_outputs_may_alias_inputs_exactly(size: int) -> None:
    m, g, w = np.random.default_rng(0).normal(size=(3, size)).astype(np.float32)
    program = (
        "t0 = multiply i0 0.9; t1 = add t0 i1; t2 = multiply t1 0.1; t3 = subtract i2 t2; out t1 t3"
    )
    kernel = prepare("fused", [m, g, w], [(F32, w.shape)] * 2, program=program)
    assert {(0, 0), (1, 2)} <= set(kernel.inplace)
    arrays = [core.from_numpy(x, (1, 0)) for x in (m, g, w)]
    core.run_kernel(kernel, arrays, [arrays[0], arrays[2]], 0, 0)
    moved = m * np.float32(0.9) + g
    np.testing.assert_allclose(arrays[0].to_numpy(), moved, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        arrays[2].to_numpy(), w - np.float32(0.1) * moved, rtol=1e-5, atol=1e-6
    )


def test_program_with_more_temporaries_than_the_stack_holds() -> None:
    ins = [np.random.default_rng(i).normal(size=(50, 30)).astype(np.float32) for i in range(21)]
    lines = [f"t{i} = add i{i} i{i + 1}" for i in range(20)]
    lines += ["t20 = add t0 t1", *(f"t{20 + i} = add t{19 + i} t{i + 1}" for i in range(1, 19))]
    got = run("fused", ins, (F32, (50, 30)), program="; ".join([*lines, "out t38"]))
    sums = [ins[i] + ins[i + 1] for i in range(20)]
    np.testing.assert_allclose(got, sum(sums), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("t0 = foo i0; out t0", "expected an elementwise operator, got 'foo'"),
        ("t0 = add i0; out t0", "expected 2 operands of add"),
        ("t0 = add i0 t1; out t0", "expected t1 to be defined"),
        ("t0 = add i0 i9; out t0", "expected inputs below i1"),
        ("t0 = relu i0", "expected a last instruction 'out ...'"),
        ("t0 = add i0 x; out t0", "expected a name or a number, got 'x'"),
    ],
)
def test_bad_programs_are_named(program: str, text: str) -> None:
    with pytest.raises(MXNetError, match=text.replace(".", r"\.")):
        run("fused", [np.zeros(3, np.float32)], (F32, (3,)), program=program)


# -- reductions

REDUCE = [
    ("reduce_sum", np.sum),
    ("reduce_prod", np.prod),
    ("reduce_max", np.max),
    ("reduce_min", np.min),
]
REDUCED: list[Shape] = [
    (5,), (), (1, 1), (4, 7), (3, 4, 5), (2, 3, 4, 5), (300, 3), (7, 600), (2, 3, 33, 32)
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8], ids=str)
@pytest.mark.parametrize("shape", REDUCED)
def test_reductions_over_all_sets_of_axes(shape: Shape, dtype: Any) -> None:
    x = integers(shape, dtype, 1, 3)
    for count in range(len(shape) + 1):
        for axes in itertools.combinations(range(len(shape)), count):
            for name, exact in REDUCE if x.size < 200 else REDUCE[:1] + REDUCE[2:]:
                with np.errstate(over="ignore"):
                    expected = np.asarray(exact(x.astype(np.float64), axis=axes))
                    if dtype in (np.int32, np.uint8):
                        expected = np.asarray(exact(x.astype(np.int64), axis=axes))
                    expected = expected.astype(dtype)
                got = run(name, [x], (dtype, expected.shape), axes=axes, keepdims=False)
                np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_float32_sums_are_accurate_and_half_sums_do_not_stall() -> None:
    x = np.random.default_rng(0).uniform(size=3_000_000).astype(np.float32)
    total = run("reduce_sum", [x], (F32, ()), axes=(0,), keepdims=False)
    assert abs(total / x.sum(dtype=np.float64) - 1) < 1e-7
    ones = np.ones((5000, 3), np.float16)
    got = run("reduce_sum", [ones], (np.float16, (3,)), axes=(0,), keepdims=False)
    np.testing.assert_array_equal(got, np.full(3, 5000, np.float16))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(5, 300), (3, 4, 500), (300, 40)])
def test_extremes_and_their_positions_with_nan(shape: Shape, axis: int) -> None:
    x = integers(shape, np.float32, 0, 50)
    for nan in (False, True):
        if nan:
            x.ravel()[[3, 17]] = np.nan
        for name, exact in [("arg_max", np.argmax), ("arg_min", np.argmin)]:
            expected = exact(x, axis=axis)
            got = run(name, [x], (np.int64, expected.shape), axis=axis, keepdims=False)
            np.testing.assert_array_equal(got, expected)
        expected = np.max(x, axis=axis)
        got = run("reduce_max", [x], (F32, expected.shape), axes=(axis % x.ndim,), keepdims=False)
        np.testing.assert_array_equal(got, expected)


# -- copies


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.uint8], ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (40, 70), (3, 4, 5), (16, 33, 8, 5), (2, 0, 3)])
def test_permute_and_reverse(shape: Shape, dtype: Any) -> None:
    x = integers(shape, dtype, 0, 200)
    for axes in itertools.permutations(range(len(shape))):
        expected = x.transpose(axes)
        got = run("permute", [x], (dtype, expected.shape), axes=axes)
        np.testing.assert_array_equal(got, expected)
    for axes in itertools.combinations(range(len(shape)), min(2, len(shape))):
        np.testing.assert_array_equal(
            run("reverse", [x], (dtype, shape), axes=axes), np.flip(x, axes)
        )


SLICES = [
    ((10,), [(2, 9, 3)]), ((10,), [(9, -1, -2)]), ((6, 7), [(1, 5, 1), (6, 1, -2)]),
    ((6, 7), [(0, 6, 1), (3, 4, 1)]), ((4, 5, 6), [(3, 0, -1), (0, 5, 2), (1, 6, 1)]),
    ((4,), [(2, 2, 1)]),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "region"), SLICES)
def test_slices_read_write_and_spread(shape: Shape, region: list[tuple[int, int, int]]) -> None:
    x = integers(shape, np.float32, 0, 99)
    begin, end, step = (tuple(part) for part in zip(*region, strict=True))
    at = tuple(slice(b, None if e < 0 else e, s) for b, e, s in region)
    where = {"begin": begin, "end": end, "step": step}
    picked = x[at]
    np.testing.assert_array_equal(run("strided_slice", [x], (F32, picked.shape), **where), picked)
    value = integers(picked.shape, np.float32, 100, 200)
    changed, only = x.copy(), np.zeros_like(x)
    changed[at] = only[at] = value
    np.testing.assert_array_equal(run("slice_assign", [x, value], (F32, shape), **where), changed)
    np.testing.assert_array_equal(run("unslice", [value], (F32, shape), **where, shape=shape), only)
    variable = core.from_numpy(x, (1, 0))
    kernel = prepare("slice_assign", [x, value], [(F32, shape)], **where)
    core.run_kernel(kernel, [variable, core.from_numpy(value, (1, 0))], [variable], 0, 0)
    np.testing.assert_array_equal(variable.to_numpy(), changed)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("shape", [(5,), (4, 6), (2, 3, 4, 5)])
def test_pad(shape: Shape, mode: Any) -> None:
    x = integers(shape, np.float32, 0, 99)
    before, after = (1, 2, 0, 3)[: len(shape)], (2, 0, 1, 2)[: len(shape)]
    more = {"constant_values": 7} if mode == "constant" else {}
    expected = np.pad(x, list(zip(before, after, strict=True)), mode=mode, **more)
    got = run("pad", [x], (F32, expected.shape), before=before, after=after, mode=mode, value=7.0)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concatenate_and_broadcast(axis: int) -> None:
    parts = []
    for length in (3, 0, 5):
        shape = [2, 3, 4]
        shape[axis] = length
        parts.append(integers(tuple(shape), np.float32, 0, 99, length))
    expected = np.concatenate(parts, axis)
    got = run("concatenate", parts, (F32, expected.shape), axis=axis, num_args=3)
    np.testing.assert_array_equal(got, expected)
    column = parts[0][:, :1] if axis != 1 else parts[0]
    wide = np.broadcast_to(column[:, :1], (5, *column.shape[:1], 6, column.shape[2]))
    np.testing.assert_array_equal(
        run("broadcast", [column[:, :1]], (F32, wide.shape), shape=wide.shape), wide
    )


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_constants(dtype: Any) -> None:
    got = run("full", [], (dtype, (3, 4)), value=3.0, shape=(3, 4), dtype=dtype)
    np.testing.assert_array_equal(got, np.full((3, 4), 3).astype(dtype))
    got = run("iota", [], (dtype, (9,)), start=2.0, step=3.0, repeat=2, shape=(9,), dtype=dtype)
    np.testing.assert_array_equal(got, (2 + 3 * (np.arange(9) // 2)).astype(dtype))


# -- indices


@pytest.mark.parametrize("index", [np.int32, np.int64, np.float32], ids=str)
@pytest.mark.parametrize("mode", ["clip", "wrap", "raise"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_and_scatter_add(axis: int, mode: Any, index: Any) -> None:
    x = integers((6, 5, 40), np.float32, 0, 99)
    size = x.shape[axis]
    limit = size if mode == "raise" else 20
    at = integers((3, 300), index, -limit, limit)
    expected = np.take(x, at.astype(np.int64), axis, mode=mode)
    got = run("gather", [x, at], (F32, expected.shape), axis=axis, mode=mode)
    np.testing.assert_array_equal(got, expected)
    found = at.astype(np.int64)
    found = np.clip(found, 0, size - 1) if mode == "clip" else found % size
    updates = integers(expected.shape, np.float32, 0, 3)
    total = x.copy()
    np.add.at(total, (slice(None),) * (axis % 3) + (found,), updates)
    got = run("scatter_add", [x, at, updates], (F32, x.shape), axis=axis, mode=mode)
    np.testing.assert_array_equal(got, total)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take_along_and_put_along_add(axis: int) -> None:
    x = integers((6, 5, 40), np.float32, 0, 99)
    shape = list(x.shape)
    shape[axis] = 9
    at = integers(tuple(shape), np.int64, 0, x.shape[axis])
    got = run("take_along", [x, at], (F32, at.shape), axis=axis, mode="clip")
    np.testing.assert_array_equal(got, np.take_along_axis(x, at, axis))
    grid = list(np.ogrid[tuple(slice(d) for d in shape)])
    grid[axis] = at
    total = x.copy()
    updates = integers(at.shape, np.float32, 0, 3)
    np.add.at(total, tuple(grid), updates)
    got = run("put_along_add", [x, at, updates], (F32, x.shape), axis=axis, mode="clip")
    np.testing.assert_array_equal(got, total)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_nd_indices(rows: int) -> None:
    x = integers((6, 5, 7), np.float32, 0, 99)
    at = np.stack([integers((50, 3), np.int64, -d, d, d) for d in x.shape[:rows]])
    picked = np.asarray(x[tuple(at)])
    np.testing.assert_array_equal(run("gather_nd", [x, at], (F32, picked.shape)), picked)
    updates = integers(picked.shape, np.float32, 0, 3)
    total, placed = x.copy(), x.copy()
    np.add.at(total, tuple(at), updates)
    placed[tuple(at)] = updates
    got = run("scatter_nd_add", [x, at, updates], (F32, x.shape))
    np.testing.assert_array_equal(got, total)
    got = run("scatter_assign_nd", [x, at, updates], (F32, x.shape))
    np.testing.assert_array_equal(got, placed)


@pytest.mark.parametrize("bad", [5, -6])
def test_index_outside_is_named(bad: int) -> None:
    with pytest.raises(MXNetError, match=rf"\[gather\] expected indices in \[-5, 5\), got {bad}"):
        run("gather", [np.zeros((5, 2), np.float32), np.array([bad])], (F32, (1, 2)),
            axis=0, mode="raise")  # fmt: skip


def test_half_scatter_add_does_not_stall() -> None:
    base, at = np.zeros((4, 2), BF16), np.zeros(3000, np.int32)
    got = run(
        "scatter_add", [base, at, np.ones((3000, 2), BF16)], (BF16, (4, 2)), axis=0, mode="clip"
    )
    np.testing.assert_array_equal(got[0].astype(np.float32), np.full(2, 3000).astype(BF16))


def test_one_hot_outside_is_all_off() -> None:
    at = np.array([0, 3, -1, 9], np.float32)
    got = run("one_hot", [at], (F32, (4, 4)), depth=4, on_value=2.0, off_value=-1.0, dtype=F32)
    np.testing.assert_array_equal(got, np.where(at[:, None] == np.arange(4), 2.0, -1.0))


@pytest.mark.parametrize("ascend", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32], ids=str)
@pytest.mark.parametrize(
    ("shape", "axis"), [((3000,), 0), ((4, 70), 0), ((4, 70), -1), ((0, 3), 1)]
)
def test_sorting_is_stable(shape: Shape, axis: int, dtype: Any, ascend: bool) -> None:
    x = integers(shape, dtype, 0, 30)
    if dtype != np.int32 and x.size:
        x.ravel()[[1, 5]] = np.nan
    order = np.argsort(x, axis, kind="stable")
    if not ascend:
        back = np.argsort(np.flip(x, axis), axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(back, axis)
    got = run(
        "argsort", [x], (np.int64, shape), axis=axis, is_ascend=ascend, dtype=np.dtype(np.int64)
    )
    np.testing.assert_array_equal(got, order)
    got = run("sort", [x], (dtype, shape), axis=axis, is_ascend=ascend)
    np.testing.assert_array_equal(got, np.take_along_axis(x, order, axis))
    small = np.nan_to_num(x).astype(dtype)[:, :8] if x.ndim == 2 else x[:0]
    got = run("cumsum", [small], (dtype, small.shape), axis=axis)
    np.testing.assert_array_equal(got, np.cumsum(small, axis).astype(dtype))


# -- draws


def test_philox_known_answer() -> None:
    """The test vector of the authors' library for counter 0 and key 0."""
    got = run("random_bits", [], (np.int32, (4,)), shape=(4,)).view(np.uint32)
    assert [hex(int(w)) for w in got] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


@pytest.mark.parametrize("count", [1, 3, 5, 1000, 100_003])
def test_draws_equal_the_reference(count: int) -> None:
    key = (0x1234567890ABCDEF, 0x1_0000_0007)
    words = philox_words(2 * count + 2, *key)
    shape = (count,)
    got = run("random_bits", [], (np.int32, shape), key=key, shape=shape)
    np.testing.assert_array_equal(got.view(np.uint32), words[:count])
    recorded = run("random_bits", [], (np.int32, shape), key=(key[0], 5), shape=shape, draw=key[1])
    np.testing.assert_array_equal(recorded, got)
    got = run("random_uniform", [], (F32, shape), key=key, low=-1.0, high=3.0)
    np.testing.assert_allclose(got, -1 + 4 * (words[:count] >> 8) / 2**24, rtol=1e-6, atol=1e-6)
    u1 = ((words[0::2] >> 8) + 1) / 2**24
    angle = 2 * np.pi * (words[1::2] >> 8) / 2**24
    pair = np.sqrt(-2 * np.log(u1)) * np.stack([np.cos(angle), np.sin(angle)])
    expected = 1 + 2 * pair.T.ravel()[:count]
    for dtype, tolerance in [(F32, 2e-5), (np.float64, 1e-12)]:
        got = run("random_normal", [], (dtype, shape), key=key, loc=1.0, scale=2.0)
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    one, two = (
        run("random_normal", [], (F32, shape), key=key, threads=t, loc=0.0, scale=1.0)
        for t in (1, 2)
    )
    np.testing.assert_array_equal(one, two)


# -- errors at prepare time


@pytest.mark.parametrize(
    ("name", "shapes", "out", "params"),
    [
        ("permute", [(2, 3)], (3, 3), {"axes": (1, 0)}),
        ("strided_slice", [(5,)], (3,), {"begin": (3,), "end": (6,), "step": (1,)}),
        ("concatenate", [(2, 3), (2, 4)], (4, 3), {"axis": 0}),
        ("add", [(2, 3), (4,)], (2, 3), {}),
        ("reduce_sum", [(2, 3)], (2,), {"axes": (0,), "keepdims": False}),
        ("gather", [(2, 3), (4,)], (4, 4), {"axis": 0, "mode": "clip"}),
    ],
)
def test_wrong_shapes_are_refused(name: str, shapes: list[Shape], out: Shape, params: Any) -> None:
    ins = [np.zeros(s, np.float32) for s in shapes]
    with pytest.raises(MXNetError, match=rf"\[{name}\] expected"):
        prepare(name, ins, [(F32, out)], **params)
