"""Native kernels of the network family against the NumPy reference.

float64 is served by the plain kernels only; float32 by oneDNN where it is, and by the plain ones in
the subprocess that runs this file again without it.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from mixflow import _rt
from mixflow import dtype as dtypes
from mixflow.backends import native, onednn_loader
from mixflow.backends.reference import ReferenceBackend, compute
from mixflow.ir import Desc, primitive

core = _rt.load_native()
pytestmark = pytest.mark.skipif(core is None, reason="the compiled core was not built")
VERSION = onednn_loader.load(core) if core is not None else None
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-12, dtypes.bfloat16.type: 2e-2}


def desc(array: Any) -> Desc:
    return Desc(dtypes.code(array.dtype), array.shape)


def draw(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def prepare(
    name: str, params: dict[str, Any], ins: list[Any], outs: list[Any], threads: int
) -> Any:
    found = native.attributes(params)
    return core.prepare(name, found, [desc(x) for x in ins], [desc(x) for x in outs], threads)


def run(kernel: Any, ins: list[Any], outs: list[Any]) -> list[np.ndarray]:
    device = (1, 0)
    arrays = [core.from_numpy(np.ascontiguousarray(x), device) for x in ins]
    # NaN in the outputs shows what a kernel leaves unwritten.
    made = [core.from_numpy(np.full(x.shape, np.nan, x.dtype), device) for x in outs]
    core.run_kernel(kernel, arrays, made, 0, 0)
    return [a.to_numpy() for a in made]


def same(
    name: str, params: dict[str, Any], ins: list[Any], threads: int = 2, wide: float = 1
) -> Any:
    """Runs the native kernel and compares it with the reference in float64; returns the kernel."""
    dtype = ins[0].dtype
    expected = compute(name, params, [x.astype(np.float64) for x in ins])
    outs = [np.empty(x.shape, dtype) for x in expected]
    kernel = prepare(name, params, ins, outs, threads)
    assert kernel is not None, f"no native {name} for {dtype}"
    for got, want in zip(run(kernel, ins, outs), expected, strict=True):
        limit = wide * TOLERANCE[dtype.type] * max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=limit)
    return kernel


CONVOLUTIONS = [
    # x, w, stride, dilate, pad, groups
    ((2, 3, 11), (4, 3, 3), (1,), (1,), (0,), 1),
    ((2, 4, 17), (6, 2, 3), (2,), (2,), (2,), 2),
    ((2, 1, 28, 28), (20, 1, 5, 5), (1, 1), (1, 1), (0, 0), 1),
    ((3, 20, 12, 12), (50, 20, 5, 5), (1, 1), (1, 1), (0, 0), 1),
    ((2, 16, 14, 14), (32, 16, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((1, 5, 9, 8), (7, 5, 3, 2), (2, 3), (1, 2), (1, 2), 1),
    ((2, 6, 10, 7), (6, 1, 3, 3), (2, 1), (1, 1), (1, 1), 6),
    ((2, 32, 9, 9), (32, 1, 3, 3), (1, 1), (1, 1), (1, 1), 32),
    ((2, 64, 7, 5), (48, 64, 1, 1), (1, 1), (1, 1), (0, 0), 1),
    ((2, 8, 9, 9), (8, 8, 1, 1), (2, 2), (1, 1), (0, 0), 1),
    ((1, 2, 5, 6, 7), (3, 2, 2, 3, 3), (1, 2, 1), (2, 1, 1), (1, 0, 1), 1),
    ((2, 4, 4, 5, 6), (4, 2, 3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1), 2),
    ((1, 3, 3, 3), (2, 3, 3, 3), (1, 1), (1, 1), (3, 3), 1),
]
TYPES = [np.float32, np.float64]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolution(case: Any, dtype: Any) -> None:
    x_shape, w_shape, stride, dilate, pad, groups = case
    how = {"stride": stride, "dilate": dilate, "pad": pad, "groups": groups}
    x, w, b = draw(x_shape, dtype, 0), draw(w_shape, dtype, 1), draw(w_shape[:1], dtype, 2)
    (y,) = compute("conv", how, [x, w])
    dy = draw(y.shape, dtype, 3)
    for threads in (1, 2):
        same("conv", how, [x, w], threads)
        same("conv", how, [x, w, b], threads)
        same("conv_data_grad", {**how, "shape": x_shape}, [dy, w], threads)
        same("conv_weight_grad", {**how, "shape": w_shape}, [dy, x], threads, wide=4)


@pytest.mark.skipif(VERSION is None, reason="oneDNN is not loaded")
def test_onednn_serves_float32() -> None:
    x, w = draw((2, 16, 14, 14), np.float32, 0), draw((32, 16, 3, 3), np.float32, 1)
    how = {"stride": (1, 1), "dilate": (1, 1), "pad": (1, 1), "groups": 1}
    assert same("conv", how, [x, w]).implementation.startswith("onednn:")
    assert not same("conv", how, [x.astype("f8"), w.astype("f8")]).implementation.startswith(
        "onednn"
    )


@pytest.mark.skipif(VERSION is None, reason="oneDNN is not loaded")
def test_bfloat16_where_the_processor_has_it() -> None:
    x, w = (draw(s, dtypes.bfloat16, 0) for s in ((4, 64), (64, 32)))
    params = {"transpose_a": False, "transpose_b": False}
    if prepare("matmul", params, [x, w], [np.empty((4, 32), dtypes.bfloat16)], 1) is None:
        pytest.skip("no bfloat16 instructions")
    same("matmul", params, [x, w])


PRODUCTS = [
    # a, b as (rows, columns) before the transposes
    ((3, 5), (5, 4)),
    ((1, 1), (1, 1)),
    ((100, 800), (800, 500)),
    ((131, 300), (300, 67)),
    ((2, 300), (300, 700)),
    ((1, 131), (131, 70)),
    ((133, 301), (301, 1)),
    ((1, 6), (6, 9000)),
    ((4, 7, 9), (4, 9, 5)),
    ((4, 7, 9), (9, 5)),
    ((7, 9), (3, 9, 5)),
    ((2, 3, 17, 6), (2, 3, 6, 33)),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shapes", PRODUCTS, ids=str)
def test_matrix_product(shapes: Any, dtype: Any) -> None:
    for ta, tb, threads in itertools.product((False, True), (False, True), (1, 2)):
        a, b = draw(shapes[0], dtype, 0), draw(shapes[1], dtype, 1)
        a = np.ascontiguousarray(a.swapaxes(-1, -2)) if ta else a
        b = np.ascontiguousarray(b.swapaxes(-1, -2)) if tb else b
        same("matmul", {"transpose_a": ta, "transpose_b": tb}, [a, b], threads, wide=4)


def test_products_with_a_vector_have_a_kernel_of_their_own() -> None:
    params = {"transpose_a": False, "transpose_b": True}
    a, b = draw((40, 30), np.float32, 0), draw((1, 30), np.float32, 1)
    assert same("matmul", params, [a, b]).implementation == "gemv"
    assert same("matmul", params, [b, a]).implementation == "gemv"
    assert same("matmul", params, [a, draw((2, 30), np.float32, 1)]).implementation != "gemv"


def test_product_with_a_vector_of_more_columns_than_are_summed_at_a_time() -> None:
    params = {"transpose_a": False, "transpose_b": False}
    a, b = draw((1, 19), np.float32, 0), draw((19, 2 * 32768 + 37), np.float32, 1)
    assert same("matmul", params, [a, b]).implementation == "gemv"


@pytest.mark.parametrize("dtype", TYPES)
def test_product_over_an_empty_axis_is_zero(dtype: Any) -> None:
    a, b = np.empty((3, 0), dtype), np.empty((0, 4), dtype)
    same("matmul", {"transpose_a": False, "transpose_b": False}, [a, b])
    same("matmul", {"transpose_a": False, "transpose_b": False}, [a, b[:, :1].copy()])


POOLS = [
    # x, kernel, stride, pad, pad_after
    ((2, 3, 11), (3,), (2,), (1,), (1,)),
    ((2, 3, 24, 24), (2, 2), (2, 2), (0, 0), (0, 0)),
    ((2, 3, 7, 31), (2, 2), (2, 2), (0, 0), (0, 0)),
    ((5, 2, 2, 2), (2, 2), (2, 2), (0, 0), (0, 0)),
    ((2, 3, 13, 10), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((2, 3, 12, 12), (3, 3), (2, 2), (0, 0), (1, 1)),
    ((1, 2, 9, 8), (3, 2), (1, 3), (1, 0), (2, 1)),
    ((2, 5, 7, 7), (7, 7), (1, 1), (0, 0), (0, 0)),
    ((1, 2, 6, 7, 8), (2, 3, 2), (2, 2, 1), (0, 1, 1), (0, 1, 1)),
    ((1, 2, 3, 600), (2, 3), (1, 2), (0, 1), (0, 1)),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", POOLS, ids=str)
@pytest.mark.parametrize("mode", ["max", "avg", "sum", "lp"])
def test_pooling(case: Any, mode: str, dtype: Any) -> None:
    shape, *geometry = case
    x = draw(shape, dtype, 0)
    how: dict[str, Any] = dict(zip(("kernel", "stride", "pad", "pad_after"), geometry, strict=True))
    for include, power in itertools.product((True, False), (2, 3)):
        how.update(mode=mode, count_include_pad=include, p_value=power)
        same("pool", how, [np.abs(x) if mode == "lp" else x])
        if mode == "lp":
            continue
        (y,) = compute("pool", how, [x])
        same("pool_grad", how, [draw(y.shape, dtype, 1), x, y.astype(dtype)])
        if mode == "max":
            same("pool_take", how, [draw(shape, dtype, 2), x])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("size", "stride", "width"), [(3, 1, 4), (2, 2, 34)])
def test_the_first_maximum_gets_the_gradient(
    size: int, stride: int, width: int, dtype: Any
) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (1, 3, width, width)).astype(dtype)
    how: dict[str, Any] = {"kernel": (size, size), "stride": (stride, stride)}
    how.update(pad=(0, 0), pad_after=(0, 0), mode="max", count_include_pad=True, p_value=2)
    (y,) = compute("pool", how, [x])
    same("pool", how, [x])
    same("pool_grad", how, [draw(y.shape, dtype, 1), x, y.astype(dtype)])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(7,), (100, 10), (3, 1000), (2, 3, 70), (2, 5, 4, 33)], ids=str)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    x = draw(shape, dtype, 0) * 20
    for axis in range(-1, len(shape)):
        same(name, {"axis": axis}, [x.astype(dtype)], wide=2)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "shape", [(5, 3), (100, 300), (4, 6, 5, 7), (2, 3, 40, 41), (3, 2, 9)], ids=str
)
@pytest.mark.parametrize("axis", [1, -1, 0])
def test_batch_norm(shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    x, dy = 3 * draw(shape, dtype, 0) + 5, draw(shape, dtype, 1)
    x = x.astype(dtype)
    channels = (shape[axis],)
    gamma, beta = draw(channels, dtype, 2), draw(channels, dtype, 3)
    mean, var = (v.astype(dtype) for v in compute("batch_norm_stats", {"axis": axis}, [x]))
    inv = (1 / np.sqrt(var + 1e-5)).astype(dtype)
    same("batch_norm_stats", {"axis": axis}, [x])
    same("batch_norm", {"axis": axis}, [x, gamma, beta, mean, inv], wide=4)
    same("batch_norm_train", {"axis": axis, "eps": 1e-3}, [x, gamma, beta], wide=4)
    same("batch_norm_grad", {"axis": axis}, [dy, x, gamma, mean, inv], wide=8)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(2, 7, 5, 5), (3, 4), (1, 64, 13, 13)], ids=str)
@pytest.mark.parametrize(("beta", "size"), [(0.75, 5), (0.6, 3)])
def test_local_response_norm(shape: tuple[int, ...], beta: float, size: int, dtype: Any) -> None:
    how = {"alpha": 0.3, "beta": beta, "knorm": 2.0, "nsize": size}
    x, dy = draw(shape, dtype, 0), draw(shape, dtype, 1)
    (y,) = compute("lrn", how, [x])
    same("lrn", how, [x])
    same("lrn_grad", how, [dy, x, y.astype(dtype)])


def test_one_kernel_runs_on_several_threads_at_once() -> None:
    x, w = draw((8, 16, 14, 14), np.float32, 0), draw((16, 16, 3, 3), np.float32, 1)
    how = {"stride": (1, 1), "dilate": (1, 1), "pad": (1, 1), "groups": 1}
    (expected,) = compute("conv", how, [x, w])
    kernel = prepare("conv", how, [x, w], [expected.astype(np.float32)], 1)

    def once(i: int) -> None:
        (got,) = run(kernel, [x * np.float32(i), w], [expected.astype(np.float32)])
        np.testing.assert_allclose(got, expected * i, rtol=0, atol=1e-3 * i)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(once, range(1, 33)))


def test_backend_caches_and_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rt, "core", core)
    backend = native.NativeBackend(ReferenceBackend())
    op = primitive("softmax")
    wide, narrow = Desc(0, (4, 5)), Desc(dtypes.code(np.int32), (4, 5))
    kernel = backend.prepare(op, {"axis": 1}, [wide], [wide], 1)
    assert backend.is_native(kernel)
    assert backend.prepare(op, {"axis": 1}, [wide], [wide], 1) is kernel
    call = backend.prepare(op, {"axis": 1}, [narrow], [narrow], 1)
    assert not backend.is_native(call)
    assert backend.fallbacks == {"softmax": 1}


def test_attributes_are_what_the_core_takes() -> None:
    given = {"dtype": np.dtype(np.float16), "axes": (1, 2), "draw": None, "mode": "max"}
    assert native.attributes(given) == {"dtype": 2, "axes": [1, 2], "mode": "max"}


@pytest.mark.skipif(VERSION is None, reason="this is the run without oneDNN")
def test_without_onednn() -> None:
    env = {**os.environ, onednn_loader.LIBRARY_VARIABLE: "none"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout[-3000:]
