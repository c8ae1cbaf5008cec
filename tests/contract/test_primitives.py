"""Every primitive of the registry: types, values over dtypes, gradients, errors, native kernels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from samples import F64, SAMPLES, Sample

import mixflow.ops.primitives  # noqa: F401 - fills the registry
from mixflow import _rt, ir
from mixflow import dtype as dtypes
from mixflow.backends.reference import KERNELS, ReferenceBackend, compute, evaluate
from mixflow.errors import DTypeError, GraphError, MXNetError, ShapeError
from mixflow.passes.gradient import gradient

PRIMITIVES = {op.name: op for op in ir.all_operators() if op.primitive and not op.host}
BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [F64, np.dtype(np.float32), np.dtype(np.float16), BF16]
TOLERANCE = {np.dtype(np.float16): 2e-2, BF16: 1e-1, np.dtype(np.float32): 2e-4, F64: 1e-9}


def _cases(keep: Any = lambda op, sample: True) -> list[Any]:
    return [
        pytest.param(op, sample, id=f"{name}-{i}")
        for name, op in sorted(PRIMITIVES.items())
        for i, sample in enumerate(SAMPLES.get(name, []))
        if keep(op, sample)
    ]


def _inputs(op: ir.Operator, sample: Sample, dtype: Any) -> list[np.ndarray]:
    """The sample's float64 inputs in another dtype; integers scale up first."""
    scale = 10 if np.dtype(dtype).kind == "i" else 1
    return [x if x.dtype != F64 else np.asarray(x * scale).astype(dtype) for x in sample.inputs]


def _params(sample: Sample, dtype: Any) -> dict[str, Any]:
    params = dict(sample.params)
    if "dtype" in params and params["dtype"] == F64:
        params["dtype"] = np.dtype(dtype)
    return params


def _node(op: ir.Operator, arrays: list[np.ndarray], params: dict[str, Any]) -> ir.Node:
    values = [ir.variable(f"x{i}", ir.TensorType(a.shape, a.dtype)) for i, a in enumerate(arrays)]
    return ir.emit_node(op, *values, **params)


def _run(op: ir.Operator, sample: Sample, dtype: Any) -> list[np.ndarray]:
    arrays = _inputs(op, sample, dtype)
    node = _node(op, arrays, _params(sample, dtype))
    graph = ir.Graph(node.inputs, node.values)
    return evaluate(graph, dict(zip(node.inputs, arrays, strict=True)))


def test_every_primitive_has_a_kernel_and_a_sample() -> None:
    assert set(KERNELS) == set(PRIMITIVES)
    assert set(SAMPLES) == set(PRIMITIVES)


@pytest.mark.parametrize("op", [pytest.param(op, id=n) for n, op in sorted(PRIMITIVES.items())])
def test_record_is_complete(op: ir.Operator) -> None:
    assert op.infer is not None
    assert op.doc.strip().endswith((".", ")"))
    assert op.differentiable in ("twice", "once", "no")
    if op.vjp is None:
        names = op.input_names({p.name: SAMPLES[op.name][0].params.get(p.name) for p in op.params})
        assert op.differentiable == "no" or set(names) == set(op.nondiff), (
            "a gradient was forgotten"
        )
    else:
        assert op.differentiable != "no"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("op", "sample"), _cases())
def test_types_are_what_the_reference_gives(op: ir.Operator, sample: Sample, dtype: Any) -> None:
    if op.name == "random_bits" and dtype != F64:
        return
    arrays = _inputs(op, sample, dtype)
    node = _node(op, arrays, _params(sample, dtype))
    raw = compute(op.name, node.params, arrays)
    assert [r.shape for r in raw] == [v.shape for v in node.values]
    for result, value in zip(_run(op, sample, dtype), node.values, strict=True):
        assert result.dtype == value.dtype


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
@pytest.mark.parametrize(("op", "sample"), _cases(lambda op, s: not op.random))
def test_narrow_floats_agree_with_float64(op: ir.Operator, sample: Sample, dtype: Any) -> None:
    exact = Sample(tuple(np.asarray(x).astype(F64) if x.dtype == dtype else x
                         for x in _inputs(op, sample, dtype)), sample.params)  # fmt: skip
    tolerance = TOLERANCE[np.dtype(dtype)]
    for got, expected in zip(_run(op, sample, dtype), _run(op, exact, F64), strict=True):
        np.testing.assert_allclose(got.astype(F64), expected.astype(F64), tolerance, tolerance)


# -- gradients


def _differentiable(op: ir.Operator, sample: Sample) -> bool:
    return op.vjp is not None and sample.params.get("dtype", F64) == F64


class _Function:
    """The sum of outputs times fixed random arrays, as a graph of float64 inputs."""

    def __init__(self, op: ir.Operator, sample: Sample) -> None:
        rng = np.random.default_rng(7)
        arrays = _inputs(op, sample, F64)
        node = _node(op, arrays, _params(sample, F64))
        self.feeds: dict[ir.Value, np.ndarray] = dict(zip(node.inputs, arrays, strict=True))
        self.heads = list(node.values)
        self.weights = [
            self._given(f"h{i}", rng.normal(size=v.shape)) for i, v in enumerate(self.heads)
        ]
        names = op.input_names(dict(node.params))
        self.wrt = [
            v for v, name in zip(node.inputs, names, strict=False)
            if v.dtype == F64 and name not in op.nondiff
        ]  # fmt: skip

    def _given(self, name: str, array: np.ndarray) -> ir.Value:
        value = ir.variable(name, ir.TensorType(array.shape, F64))
        self.feeds[value] = array
        return value

    def differentiated(self) -> _Function:
        """The same kind of function of this function's gradients, of inputs and weights."""
        rng = np.random.default_rng(11)
        other = object.__new__(_Function)
        other.feeds = dict(self.feeds)
        other.heads = gradient(self.heads, self.weights, self.wrt)
        other.weights = [
            other._given(f"g{i}", rng.normal(size=v.shape)) for i, v in enumerate(other.heads)
        ]
        other.wrt = [*self.wrt, *self.weights]
        return other

    def __call__(self, feeds: dict[ir.Value, np.ndarray]) -> float:
        graph = ir.Graph(tuple(feeds), tuple(self.heads))
        results = evaluate(graph, feeds)
        return sum(float((r * feeds[w]).sum()) for r, w in zip(results, self.weights, strict=True))

    def check(self) -> None:
        """Directional derivatives along random directions, one input at a time."""
        grads = gradient(self.heads, self.weights, self.wrt)
        values = evaluate(ir.Graph(tuple(self.feeds), tuple(grads)), self.feeds)
        rng = np.random.default_rng(13)
        step = 1e-5
        for value, grad in zip(self.wrt, values, strict=True):
            assert grad.shape == value.shape
            for _ in range(2):
                way = rng.normal(size=value.shape)
                ends = [
                    self({**self.feeds, value: self.feeds[value] + s * way}) for s in (step, -step)
                ]
                expected = (ends[0] - ends[1]) / (2 * step)
                assert float((grad * way).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("op", "sample"), _cases(_differentiable))
def test_gradient_against_finite_differences(op: ir.Operator, sample: Sample) -> None:
    _Function(op, sample).check()


@pytest.mark.parametrize(
    ("op", "sample"), _cases(lambda op, s: _differentiable(op, s) and op.differentiable == "twice")
)
def test_second_gradient_against_finite_differences(op: ir.Operator, sample: Sample) -> None:
    _Function(op, sample).differentiated().check()


def test_product_gradient_is_right_at_zeros() -> None:
    x = ir.variable("x", ir.TensorType((3, 3), F64))
    y = ir.emit("reduce_prod", x, axes=(1,), keepdims=False)
    data = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [2.0, 3.0, 4.0]])
    (got,) = evaluate(ir.Graph((x,), tuple(gradient([y], None, [x]))), {x: data})
    np.testing.assert_array_equal(got, [[0, 6, 0], [0, 0, 0], [12, 8, 6]])


def test_ties_of_a_maximum_all_get_the_gradient() -> None:
    x = ir.variable("x", ir.TensorType((4,), F64))
    y = ir.emit("reduce_max", x, axes=(0,), keepdims=False)
    (got,) = evaluate(
        ir.Graph((x,), tuple(gradient([y], None, [x]))), {x: np.array([1.0, 3, 3, 2])}
    )
    np.testing.assert_array_equal(got, [0, 1, 1, 0])


# -- errors


def _form(op: ir.Operator) -> str:
    return rf"^\[{op.name}\] expected .+, got .+"


@pytest.mark.parametrize(("op", "sample"), _cases())
def test_wrong_output_shape_is_refused(op: ir.Operator, sample: Sample) -> None:
    node = _node(op, _inputs(op, sample, F64), _params(sample, F64))
    outs = [
        ir.TensorType((*v.shape, 7), v.dtype)
        for v in node.values[: len(node.values) - len(node.mutated)]
    ]
    if outs:
        with pytest.raises(ShapeError, match=_form(op)):
            op.infer(dict(node.params), [v.type for v in node.inputs], outs)  # type: ignore[misc]


@pytest.mark.parametrize(("op", "sample"), _cases(lambda op, s: s.wrong is not None))
def test_wrong_input_shapes_are_refused(op: ir.Operator, sample: Sample) -> None:
    arrays = [np.zeros(w, x.dtype) for w, x in zip(sample.wrong or (), sample.inputs, strict=True)]
    with pytest.raises(ShapeError, match=_form(op)):
        _node(op, arrays, sample.params)


@pytest.mark.parametrize(
    ("op", "sample"), _cases(lambda op, s: len([x for x in s.inputs if x.dtype == F64]) > 1)
)
def test_mixed_dtypes_are_refused(op: ir.Operator, sample: Sample) -> None:
    arrays = _inputs(op, sample, F64)
    last = max(i for i, x in enumerate(arrays) if x.dtype == F64)
    arrays[last] = arrays[last].astype(np.float32)
    with pytest.raises(DTypeError, match=rf"^\[{op.name}\] expected .+, got .+"):
        _node(op, arrays, sample.params)


def test_unary_operators_infer_backwards() -> None:
    known = ir.TensorType((2, 3), np.dtype(np.float32))
    for name in ("exp", "relu", "sigmoid", "negative"):
        ins, outs = ir.get(name).infer({}, [ir.TensorType()], [known])  # type: ignore[misc]
        assert ins == outs == [known]


@pytest.mark.parametrize("text", ["t0 = add i0", "out", "t0 = add i0 what; out t0", ""])
def test_text_that_is_no_program_is_refused(text: str) -> None:
    x = ir.variable("x", ir.TensorType((2,), F64))
    with pytest.raises(GraphError, match=r"^\[fused\] expected .+, got .+"):
        ir.emit("fused", x, program=text)


@pytest.mark.parametrize("name", ["gather", "take_along", "gather_nd"])
def test_index_out_of_range_is_refused_in_mode_raise(name: str) -> None:
    at = np.array([5]) if name != "gather_nd" else np.array([[5]])
    with pytest.raises(MXNetError, match=rf"^\[{name}\] expected indices in \[-3, 3\), got 5"):
        compute(name, {"axis": 0, "mode": "raise"}, [np.zeros(3), at])


# -- draws


def test_philox_is_the_published_generator() -> None:
    # Known answer of Random123 for key 0 and counter 0.
    (got,) = compute("random_bits", {"shape": (4,)}, [], (0, 0))
    assert got.view(np.uint32).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("dtype", [np.float32, F64], ids=str)
def test_draws_have_their_moments(dtype: Any) -> None:
    params = {"shape": (40001,), "dtype": np.dtype(dtype)}
    (uniform,) = compute("random_uniform", {"low": -1.0, "high": 3.0, **params}, [], (5, 1))
    (normal,) = compute("random_normal", {"loc": 2.0, "scale": 3.0, **params}, [], (5, 2))
    assert uniform.min() >= -1 and uniform.max() < 3
    assert uniform.mean() == pytest.approx(1.0, abs=0.03)
    assert uniform.var() == pytest.approx(16 / 12, rel=0.02)
    assert normal.mean() == pytest.approx(2.0, abs=0.06)
    assert normal.std() == pytest.approx(3.0, rel=0.02)


def test_recorded_draw_repeats() -> None:
    params = {"shape": (7,), "dtype": F64, "low": 0.0, "high": 1.0}
    (first,) = compute("random_uniform", params, [], (3, 12))
    (again,) = compute("random_uniform", {**params, "draw": 12}, [], (3, 99))
    np.testing.assert_array_equal(first, again)


# -- host calls and native kernels


def _descs(arrays: list[np.ndarray]) -> list[ir.Desc]:
    return [ir.Desc(dtypes.code(a.dtype), a.shape) for a in arrays]


@pytest.mark.parametrize(("op", "sample"), _cases())
def test_host_call_stores_and_writes_variables_in_place(op: ir.Operator, sample: Sample) -> None:
    arrays = [a.copy() for a in _inputs(op, sample, np.float32)]
    params = _params(sample, np.float32)
    node = _node(op, arrays, params)
    expected = _run(op, sample, np.float32)
    outs = [np.empty(v.shape, v.dtype) for v in node.values]
    for out, source in node.aliases.items():
        outs[out] = arrays[source]
    call = ReferenceBackend().prepare(op, dict(node.params), _descs(arrays), _descs(outs))
    call(arrays, outs, (0, 0))
    for got, want in zip(outs, expected, strict=True):
        np.testing.assert_array_equal(got, want)


KEY = (0x0123456789ABCDEF, (7 << 32) + 5)
NATIVE = _rt.load_native()
needs_native = pytest.mark.skipif(NATIVE is None, reason="the compiled core is not built")


def _native_cases() -> list[Any]:
    whole = [np.dtype(t) for t in (np.int32, np.int64, np.int8, np.uint8)]
    result = []
    for name, op in sorted(PRIMITIVES.items()):
        for i, sample in enumerate(SAMPLES.get(name, [])):
            kinds = [*FLOATS, *(whole if sample.integers else [])]
            result += [pytest.param(op, sample, d, id=f"{name}-{i}-{d}") for d in kinds]
    return result


def _compare(op: ir.Operator, arrays: list[np.ndarray], params: dict[str, Any]) -> str | None:
    """Native against reference; the name of the native implementation, None if there is none."""
    from mixflow.backends.native import attributes

    node = _node(op, arrays, params)
    given = _descs(arrays)
    wanted = [ir.Desc(dtypes.code(v.dtype), v.shape) for v in node.values]
    kernel = NATIVE.prepare(op.name, attributes(dict(node.params)), given, wanted, 1)
    if kernel is None:
        return None
    outs = [np.empty(v.shape, v.dtype) for v in node.values]
    call = ReferenceBackend().prepare(op, dict(node.params), given, wanted)
    call(arrays, outs, KEY)
    ins = [NATIVE.from_numpy(np.array(a, order="C"), (1, 0)) for a in arrays]
    got = [NATIVE.empty(d.shape, d.dtype, (1, 0)) for d in wanted]
    for out, source in node.aliases.items():
        got[out] = ins[source]
    NATIVE.run_kernel(kernel, ins, got, *KEY)
    for native, expected in zip(got, outs, strict=True):
        tolerance = TOLERANCE.get(expected.dtype, 0)
        made = native.to_numpy()
        assert made.dtype == expected.dtype
        wide = np.float64 if tolerance else expected.dtype
        np.testing.assert_allclose(made.astype(wide), expected.astype(wide), tolerance, tolerance)
    return str(kernel.implementation)


@needs_native
@pytest.mark.parametrize(("op", "sample", "dtype"), _native_cases())
def test_native_kernel_agrees_with_the_reference(
    op: ir.Operator, sample: Sample, dtype: Any
) -> None:
    if op.name == "random_bits" and dtype != F64:
        return
    _compare(op, _inputs(op, sample, dtype), _params(sample, dtype))


SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, 1e-3, 1e10, -1e10, 88]
)
ELEMENTWISE = [
    pytest.param(op, id=name)
    for name, op in sorted(PRIMITIVES.items())
    if op.elementwise and not op.params
]


@needs_native
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), F64], ids=str)
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_native_agrees_on_special_values(op: ir.Operator, dtype: Any) -> None:
    count = len(op.input_names({}))
    rows = [SPECIAL.reshape([-1 if i == k else 1 for i in range(count)]) for k in range(count)]
    _compare(op, [r.astype(dtype) for r in rows], {})


@needs_native
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_native_agrees_on_more_than_one_block(op: ir.Operator) -> None:
    rng = np.random.default_rng(3)
    shapes = [(37, 1, 131), (1, 29, 131), (37, 29, 1)][: len(op.input_names({}))]
    if len(shapes) == 1:
        shapes = [(37, 29, 131)]
    _compare(op, [rng.uniform(0.1, 0.9, s).astype(np.float32) for s in shapes], {})


@needs_native
@pytest.mark.parametrize("name", ["random_bits", "random_uniform", "random_normal"])
@pytest.mark.parametrize("shape", [(), (1,), (1021, 33), (0, 3)], ids=str)
def test_native_draws_equal_the_reference(name: str, shape: tuple[int, ...]) -> None:
    more = {} if name == "random_bits" else {"dtype": np.dtype(np.float32)}
    _compare(PRIMITIVES[name], [], {"shape": shape, **more})


@needs_native
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("name", ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min"])
def test_native_reductions_of_many_elements(name: str, axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(5).uniform(0.9995, 1.0005, (67, 43, 35)).astype(np.float32)
    _compare(PRIMITIVES[name], [x], {"axes": axes, "keepdims": False})


@needs_native
@pytest.mark.parametrize(
    ("op", "sample"),
    _cases(
        lambda op, s: op.name.startswith(
            ("conv", "pool", "matmul", "softmax", "log_softmax", "batch")
        )
    ),
)
def test_onednn_kernel_agrees_with_the_reference(op: ir.Operator, sample: Sample) -> None:
    from mixflow.backends import native

    if native.load() is None:
        pytest.skip("oneDNN is not installed")
    _compare(op, _inputs(op, sample, np.float32), _params(sample, np.float32))
