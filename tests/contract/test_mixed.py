"""Primitives on tensors of mixed precision: types, native kernels against the reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mixflow.ops.primitives  # noqa: F401 - fills the registry
from mixflow import _rt, ir
from mixflow import dtype as dtypes
from mixflow.backends import native
from mixflow.backends.reference import compute
from mixflow.errors import DTypeError

core: Any = _rt.load_native()
needs_native = pytest.mark.skipif(core is None, reason="the compiled core was not built")
CPU = (1, 0)
BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
F32 = np.dtype(np.float32)
NARROW = [pytest.param(d, id=d.name) for d in (BF16, F16)]
#: Of the largest element: a rounding on store, and another of what is stored in between.
TOLERANCE = {BF16: 2.0**-7, F16: 2.0**-10}

GEOMETRY = {"stride": (1, 1), "dilate": (1, 1), "pad": (1, 1), "groups": 1}
STEPS = {"stride": (2, 1), "dilate": (1, 1), "pad": (1, 0), "groups": 1}
GROUPS = {**GEOMETRY, "groups": 4}
X, W, Y = (2, 32, 9, 7), (48, 32, 3, 3), (2, 48, 9, 7)
BX, BY = (2, 2, 9, 7, 16), (2, 3, 9, 7, 16)
WINDOW = {"kernel": (3, 2), "stride": (2, 1), "pad": (1, 0), "pad_after": (1, 1)}

# name, parameters, inputs as (shape, 'n' narrow or 'w' float32), dtype of the result
CASES = [
    ("conv", GEOMETRY, [(X, "n"), (W, "w"), ((48,), "w")], None),
    ("conv", GEOMETRY, [(X, "n"), (W, "n")], "w"),
    ("conv", GEOMETRY, [(X, "w"), (W, "n")], None),
    ("conv", STEPS, [((3, 3, 10, 11), "n"), ((8, 3, 4, 3), "w")], None),
    ("conv", GROUPS, [((2, 16, 6, 6), "n"), ((8, 4, 3, 3), "w")], None),
    ("conv", {k: v[:1] if k != "groups" else v for k, v in GEOMETRY.items()},
     [((2, 4, 12), "n"), ((6, 4, 3), "w")], None),
    ("conv_data_grad", {**GEOMETRY, "shape": X}, [(Y, "n"), (W, "w")], None),
    ("conv_data_grad", {**GEOMETRY, "shape": X}, [(Y, "w"), (W, "n")], "w"),
    ("conv_weight_grad", {**GEOMETRY, "shape": W}, [(Y, "n"), (X, "n")], "w"),
    ("conv_weight_grad", {**GEOMETRY, "shape": W}, [(Y, "n"), (X, "w")], "w"),
    ("blocked_conv", {**GEOMETRY, "y_block": 16, "bias": True, "add": True, "relu": True},
     [(BX, "n"), (W, "w"), ((48,), "w"), (BY, "n")], None),
    ("blocked_conv", {**GEOMETRY, "y_block": 16},
     [((2, 3, 9, 7), "n"), ((48, 3, 3, 3), "w")], None),
    ("blocked_conv", {**GEOMETRY, "y_block": 16, "relu": True}, [(BX, "n"), (W, "w")], "w"),
    ("blocked_conv_data_grad", {**GEOMETRY, "shape": X, "x_block": 16},
     [(BY, "n"), (W, "w")], None),
    ("blocked_conv_weight_grad", {**GEOMETRY, "shape": W, "bias": True},
     [(BY, "n"), (BX, "n")], "w"),
    ("matmul", {"transpose_b": True}, [((33, 40), "n"), ((24, 40), "w")], None),
    ("matmul", {"transpose_a": True}, [((33, 40), "w"), ((33, 24), "n")], "w"),
    ("matmul", {}, [((3, 8, 12), "n"), ((3, 12, 5), "n")], "w"),
    ("batch_norm_train", {"axis": 1, "eps": 1e-3}, [(X, "n"), ((32,), "w"), ((32,), "w")], None),
    ("batch_norm", {"axis": 1}, [(X, "n"), *[((32,), "w")] * 4], None),
    ("batch_norm_grad", {"axis": 1}, [(X, "n"), (X, "n"), *[((32,), "w")] * 3], None),
    ("blocked_norm_train", {"eps": 1e-3, "relu": True, "add": True},
     [(BX, "n"), ((32,), "w"), ((32,), "w"), (BX, "n")], None),
    ("blocked_norm", {"relu": False}, [(BX, "n"), *[((32,), "w")] * 4], None),
    ("blocked_norm_grad", {"relu": True}, [(BX, "n"), (BX, "n"), *[((32,), "w")] * 4], None),
    ("blocked_norm_train", {"eps": 1e-3}, [((2, 3, 4, 5, 8), "n"), *[((24,), "w")] * 2], None),
    ("reduce_sum", {"axes": (0, 2, 3)}, [(X, "n")], "w"),
    ("reduce_max", {"axes": (1,), "keepdims": True}, [(X, "n")], "w"),
    *[(name, {**WINDOW, "mode": mode}, [(BX, "n")], None)
      for name, mode in (("blocked_pool", "max"), ("blocked_pool", "avg"))],
]  # fmt: skip
IDS = [f"{case[0]}-{k}" for k, case in enumerate(CASES)]


def draw(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> np.ndarray:
    values = np.random.default_rng([seed, *shape]).uniform(0.25, 1.25, shape)
    sign = np.random.default_rng([seed + 99, *shape]).choice([-1.0, 1.0], shape)
    return (values * (sign if len(shape) > 1 else 1.0)).astype(dtype)


def build(case: Any, narrow: np.dtype[Any]) -> tuple[ir.Node, list[np.ndarray]]:
    """The node of a case, and arrays for its inputs."""
    name, params, inputs, result = case
    kinds = {"n": narrow, "w": F32}
    arrays = [draw(shape, kinds[kind], k) for k, (shape, kind) in enumerate(inputs)]
    values = [ir.variable(f"x{k}", ir.TensorType(a.shape, a.dtype)) for k, a in enumerate(arrays)]
    more = {} if result is None else {"dtype": kinds[result]}
    return ir.emit_node(name, *values, **params, **more), arrays


def run_native(node: ir.Node, arrays: list[np.ndarray], **more: Any) -> tuple[list[Any], str]:
    """Outputs of the native kernel, and its name."""
    ins = [ir.Desc(dtypes.code(a.dtype), a.shape) for a in arrays]
    outs = [ir.Desc(dtypes.code(v.dtype), v.shape) for v in node.values]
    asked = native.attributes({**node.params, **more})
    kernel = core.prepare(node.op.name, asked, ins, outs, 2)  # type: ignore[union-attr]
    assert kernel is not None, "no native kernel: mixed precision would call NumPy"
    made = [core.empty(d.shape, d.dtype, CPU) for d in outs]
    core.run_kernel(kernel, [core.from_numpy(a, CPU) for a in arrays], made)
    return [m.to_numpy() for m in made], str(kernel.implementation)


def compare(node: ir.Node, arrays: list[np.ndarray], got: list[Any], narrow: Any) -> None:
    """Every output against the reference's, as a share of its largest element."""
    want = compute(node.op.name, node.params, arrays)  # type: ignore[union-attr]
    for value, made, expected in zip(node.values, got, want, strict=True):
        assert made.dtype == value.dtype
        expected = expected.astype(np.float64)
        scale = np.abs(expected).max()
        error = np.abs(made.astype(np.float64) - expected).max() / scale
        assert error <= TOLERANCE[narrow]


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_tensors_are_narrow_and_vectors_wide(case: Any, narrow: np.dtype[Any]) -> None:
    node, _ = build(case, narrow)
    wanted = {None: narrow, "w": F32}[case[3]]
    assert node[0].dtype == wanted
    assert all(v.dtype == F32 for v in node.values[1:])


@needs_native
@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_native_kernel_agrees_with_the_reference(case: Any, narrow: np.dtype[Any]) -> None:
    native.load()
    node, arrays = build(case, narrow)
    compare(node, arrays, run_native(node, arrays)[0], narrow)


@needs_native
@pytest.mark.parametrize("mode", ["max", "avg"])
def test_gradient_of_overlapping_windows_is_summed_in_float(mode: str) -> None:
    how = {**WINDOW, "mode": mode}
    forward, (x,) = build(("blocked_pool", how, [(BX, "n")], None), BF16)
    y = compute("blocked_pool", forward.params, [x])[0].astype(BF16)
    node, arrays = build(
        ("blocked_pool_grad", how, [(y.shape, "n"), (BX, "n"), (y.shape, "n")], None), BF16
    )
    arrays[1:] = [x, y]
    compare(node, arrays, run_native(node, arrays)[0], BF16)


@needs_native
def test_wide_kernels_serve_a_batch_in_parts() -> None:
    """Weight gradients of 128 MB and more: sums over the parts are those of the whole."""
    x, w = (24, 32, 120, 120), (64, 32, 3, 3)
    case = ("conv_weight_grad", {**GEOMETRY, "shape": w},
            [((24, 64, 120, 120), "n"), (x, "n")], "w")  # fmt: skip
    node, arrays = build(case, BF16)
    got, name = run_native(node, arrays, deterministic=True)
    assert name.startswith("float32:")
    wide = [a.astype(np.float32) for a in arrays]
    whole, _ = build(("conv_weight_grad", case[1], [(s, "w") for s, _ in case[2]], None), BF16)
    want, _ = run_native(whole, wide, deterministic=True)
    np.testing.assert_allclose(got[0], want[0], rtol=0, atol=2e-5 * float(np.abs(want[0]).max()))


@pytest.mark.parametrize(
    "dtypes_", [(np.float64, np.float32), (np.float64, BF16), (F16, BF16)], ids=str
)
def test_other_mixtures_are_refused(dtypes_: Any) -> None:
    a, b = (
        ir.variable(n, ir.TensorType((4, 4), np.dtype(d)))
        for n, d in zip("ab", dtypes_, strict=True)
    )
    with pytest.raises(DTypeError, match=r"^\[matmul\] expected .+, got .+"):
        ir.emit("matmul", a, b)


def test_mixed_products_have_gradients_in_the_dtypes_of_their_inputs() -> None:
    from mixflow.passes.gradient import gradient

    x = ir.variable("x", ir.TensorType(X, BF16))
    w = ir.variable("w", ir.TensorType(W, F32))
    y = ir.emit("conv", x, w, **GEOMETRY)
    for value, grad in zip((x, w), gradient([y], None, [x, w]), strict=True):
        assert (grad.shape, grad.dtype) == (value.shape, value.dtype)
    a = ir.variable("a", ir.TensorType((4, 5), F32))
    b = ir.variable("b", ir.TensorType((5, 6), BF16))
    for value, grad in zip((a, b), gradient([ir.emit("matmul", a, b)], None, [a, b]), strict=True):
        assert (grad.shape, grad.dtype) == (value.shape, value.dtype)
    s = ir.emit("reduce_sum", x, axes=(1,), dtype=F32)
    (grad,) = gradient([s], None, [x])
    assert (grad.shape, grad.dtype) == (x.shape, BF16)
