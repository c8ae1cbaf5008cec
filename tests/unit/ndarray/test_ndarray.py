"""NDArray: creation, arithmetic, conversion, contexts, exchange."""

import copy
import operator
import pickle

import ml_dtypes
import numpy as np
import pytest

from mixflow import _rt
from mixflow import ndarray as nd
from mixflow.context import cpu
from mixflow.errors import MXNetError, ParamError, ShapeError

DTYPES = ["float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool", "bfloat16"]


def same(a, expected):
    np.testing.assert_array_equal(a.asnumpy(), expected)


def close(a, expected, rtol=1e-6):
    np.testing.assert_allclose(a.asnumpy(), expected, rtol=rtol)


# -- creation


def test_default_dtype_is_float32():
    for source in ([1, 2], np.arange(2), np.arange(2.0), 5):
        assert nd.array(source).dtype is np.float32
    assert nd.array(nd.ones((2,), dtype="int32")).dtype is np.int32


@pytest.mark.parametrize("dtype", DTYPES)
def test_constants(dtype):
    wanted = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    same(nd.zeros((2, 3), dtype=dtype), np.zeros((2, 3), wanted))
    same(nd.ones(3, dtype=dtype), np.ones(3, wanted))
    same(nd.full((2,), 1, dtype=dtype), np.full(2, 1, wanted))
    assert nd.ones(1, dtype=dtype).asnumpy().dtype == wanted


def test_ranges():
    same(nd.arange(5), np.arange(5, dtype="f4"))
    same(nd.arange(2, 8, 2, repeat=2, dtype="int32"), np.repeat(np.arange(2, 8, 2), 2))
    same(nd.arange(5, 0, -2), np.arange(5, 0, -2))
    assert nd.arange(0).shape == (0,)
    close(nd.linspace(0, 1, 5), np.linspace(0, 1, 5))
    same(nd.eye(2, 3, 1), np.eye(2, 3, 1))


def test_array_of_arrays():
    same(nd.array([nd.array([1, 2]), nd.array([3, 4])]), [[1, 2], [3, 4]])


def test_ragged_source():
    with pytest.raises(TypeError, match=r"\[array\] expected numbers of one regular shape"):
        nd.array([[1], [1, 2]])


# -- numbers

BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.mod, operator.pow]
COMPARE = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("op", BINARY + COMPARE, ids=lambda f: f.__name__)
def test_operators(op):
    x = np.array([[1.0, 2.5, 3.0]], "f4")
    y = np.array([[2.0], [2.5]], "f4")
    a, b = nd.array(x), nd.array(y)
    close(op(a, b), op(x, y).astype("f4"), 1e-5)
    close(op(a, 2), op(x, 2).astype("f4"), 1e-5)
    close(op(2, a), op(2, x).astype("f4"), 1e-5)
    close(op(a, np.float32(2.5)), op(x, np.float32(2.5)).astype("f4"), 1e-5)
    assert op(a, b).dtype is np.float32


@pytest.mark.parametrize(
    "op", [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.imod]
)
def test_in_place(op):
    x = np.array([[1.0, 2.5, 3.0], [4, 5, 6]], "f4")
    y = np.array([2.0, 2.5, 4], "f4")
    a, b = nd.array(x), nd.array(y)
    before, alias = a, a.reshape((6,))
    a = op(a, b)
    a = op(a, 3)
    assert a is before
    expected = op(op(x.copy(), y), np.float32(3))
    close(a, expected, 1e-5)
    close(alias, expected.reshape(6), 1e-5)
    part = a[1]
    part += 1
    close(a[1], expected[1] + 1, 1e-5)


def test_in_place_with_itself_and_overlap():
    a = nd.array([1.0, 2, 3, 4])
    a *= a
    same(a, [1, 4, 9, 16])
    part = a[1:]
    part += a[:-1]
    same(a, [1, 5, 13, 25])


def test_unary():
    a = nd.array([-1.0, 2])
    same(-a, [1, -2])
    same(abs(a), [1, 2])


def test_integers_stay_integers():
    a = nd.array([7, -7], dtype="int32")
    same(a + 1.5, [8, -6])
    same(a / 2, [3, -3])
    same(a % 3, [1, 2])
    assert (a + 1).dtype is np.int32


def test_scalars_do_not_recompile():
    a = nd.array([1.0])
    (a + 1).wait_to_read()
    before = _rt.core.dispatch_misses()
    for k in range(5):
        close(a + k, [1 + k])
    assert _rt.core.dispatch_misses() == before


def test_unsupported_operand():
    a = nd.ones((2,))
    for other in ("x", None, np.ones(2, "f4"), [1, 2]):
        with pytest.raises(TypeError):
            a + other
    assert (a == None) is False  # noqa: E711


def test_dtype_mismatch():
    with pytest.raises(MXNetError, match=r"float32.*int32|int32.*float32"):
        nd.ones((2,)) + nd.ones((2,), dtype="int32")


def test_context_mismatch():
    with pytest.raises(MXNetError, match="expected inputs on one context"):
        nd.ones((2,)) + nd.ones((2,), ctx=cpu(1))


@pytest.mark.parametrize(
    "name",
    [
        "add",
        "subtract",
        "multiply",
        "divide",
        "modulo",
        "power",
        "maximum",
        "minimum",
        "equal",
        "not_equal",
        "greater",
        "greater_equal",
        "lesser",
        "lesser_equal",
        "logical_and",
        "logical_or",
        "logical_xor",
    ],
)
def test_two_sided_functions(name):
    numpy_name = {"lesser": "less", "lesser_equal": "less_equal", "modulo": "mod"}.get(name, name)
    ours, theirs = getattr(nd, name), getattr(np, numpy_name)
    x, y = np.array([1.0, 2, 0], "f4"), np.array([[2.0], [1.0]], "f4")
    for p, q in ((x, y), (x, 2), (2, y)):
        args = [nd.array(v) if isinstance(v, np.ndarray) else v for v in (p, q)]
        close(ours(*args), np.asarray(theirs(p, q), "f4"), 1e-5)
    assert float(ours(3, 2)) == pytest.approx(float(theirs(3, 2)))
    with pytest.raises(TypeError, match=r"expected an NDArray or a number, got str"):
        ours("x", 1)


# -- conversion


@pytest.mark.parametrize("dtype", DTYPES)
def test_astype_round_trip(dtype):
    values = np.array([0, 1, 1, 0])
    a = nd.array(values, dtype=dtype)
    for other in DTYPES:
        same(a.astype(other).astype("int32"), values)


def test_astype_copy():
    a = nd.ones((2,))
    assert a.astype("float32", copy=False) is a
    assert not a.astype("float32").shares_storage(a)


def test_python_scalars():
    a = nd.array([2.5])
    assert (float(a), int(a), bool(a), a.item()) == (2.5, 2, True, 2.5)
    assert a.asscalar() == np.float32(2.5)
    assert [10, 20, 30][nd.array([1], dtype="int32")] == 20
    with pytest.raises(ValueError, match="not a scalar"):
        nd.ones((2,)).asscalar()
    with pytest.raises(ValueError, match="ambiguous"):
        bool(nd.ones((2,)))
    with pytest.raises(TypeError):
        [1][nd.array([0.0])]


def test_repr():
    assert repr(nd.array([[1, 2]])) == "\n[[1. 2.]]\n<NDArray 1x2 @cpu(0)>"
    assert repr(nd.ones((1,), ctx=cpu(1))).endswith("<NDArray 1 @cpu(1)>")


def test_numpy_conversion_and_pickle():
    a = nd.array([[1, 2], [3, 4]], ctx=cpu(1), dtype="float16")
    np.testing.assert_array_equal(np.asarray(a), a.asnumpy())
    assert np.asarray(a, "f8").dtype == np.float64
    for made in (pickle.loads(pickle.dumps(a)), copy.copy(a), copy.deepcopy(a)):
        assert made.context == cpu(1) and made.dtype is np.float16
        same(made, a.asnumpy())


def test_copies_and_contexts():
    a = nd.arange(6).reshape((2, 3))
    b = a.copyto(cpu(1))
    assert b.context == cpu(1) and a.as_in_context(cpu(0)) is a
    same(b, a.asnumpy())
    same(b * 2 + 1, a.asnumpy() * 2 + 1)
    target = nd.zeros((2, 3), dtype="float64")
    assert a.copyto(target) is target
    same(target, a.asnumpy())
    back = nd.zeros((2, 3))
    b.copyto(back)
    same(back, a.asnumpy())
    with pytest.raises(ShapeError, match=r"\[copyto\] expected shape \(3,\), got \(2, 3\)"):
        a.copyto(nd.zeros(3))
    c = a.copy()
    c[:] = 0
    assert a.asnumpy().sum() == 15


def test_current_context():
    with cpu(1):
        assert nd.zeros((1,)).context == cpu(1)
        assert nd.array([1]).context == cpu(1)


def test_dlpack():
    a = nd.arange(4)
    seen = np.from_dlpack(a)
    same(a, seen)
    a[1] = 9
    a.wait_to_read()
    assert seen[1] == 9
    b = nd.from_dlpack(a.to_dlpack_for_write())
    b[0] = 5
    b.wait_to_read()  # two arrays on one memory do not know of each other's work
    same(a, [5, 9, 2, 3])
    same(nd.from_dlpack(np.arange(3.0)), np.arange(3.0))
    source = np.ones((2, 2), "f4")
    shared = nd.from_numpy(source)
    same(shared, source)
    with pytest.raises(ValueError, match="read-only"):
        source[0] = 2


# -- shapes


@pytest.mark.parametrize(
    ("codes", "reverse", "expected"),
    [
        ((-1,), False, (24,)),
        ((0, -1), False, (2, 12)),
        ((-3, 4), False, (6, 4)),
        ((-4, 1, 2, -2), False, (1, 2, 3, 4)),
        ((-2, 1), False, (2, 3, 4, 1)),
        ((0, -4, -1, 3, 0), False, (2, 1, 3, 4)),
        ((0, -3), False, (2, 12)),
        ((-1, 0), True, (6, 4)),
        ((4, 6), False, (4, 6)),
        ((-1, 3, 4), False, (2, 3, 4)),
        ((0, 0, -1), False, (2, 3, 4)),
        ((-1, 2), True, (12, 2)),
    ],
)
def test_reshape(codes, reverse, expected):
    a = nd.arange(24).reshape((2, 3, 4))
    made = a.reshape(codes, reverse=reverse)
    assert made.shape == expected and made.shares_storage(a)
    assert a.reshape(*codes, reverse=reverse).shape == expected


@pytest.mark.parametrize("codes", [(7,), (-1, -1), (0, 0, 0, 0), (-4, 5, 5, -2), (), (-5, 2)])
def test_reshape_errors(codes):
    with pytest.raises(ShapeError, match=r"\[reshape\] expected"):
        nd.arange(24).reshape((2, 3, 4)).reshape(codes)


def test_shape_methods():
    values = np.arange(6, dtype="f4").reshape(1, 2, 3)
    a = nd.array(values)
    same(a.T, values.T)
    same(a.transpose((1, 0, 2)), values.transpose(1, 0, 2))
    assert a.expand_dims(-1).shape == (1, 2, 3, 1)
    assert a.squeeze().shape == (2, 3) and a.squeeze(0).shape == (2, 3)
    assert a.flatten().shape == (1, 6)
    same(a.broadcast_to((4, 2, 3)), np.broadcast_to(values, (4, 2, 3)))
    same(nd.moveaxis(a, 0, 2), np.moveaxis(values, 0, 2))
    same(nd.concatenate([a, a], axis=1), np.concatenate([values, values], 1))
    first, second = nd.split_v2(a, 2, axis=1, squeeze_axis=True)
    same(first, values[:, 0]), same(second, values[:, 1])


# -- generated functions


def test_generated_functions_have_signatures_and_docs():
    import inspect

    parameters = inspect.signature(nd.slice_axis).parameters
    assert list(parameters)[:4] == ["data", "axis", "begin", "end"]
    assert "out" in parameters and nd.slice_axis.__doc__
    assert nd.slice_axis.__name__ == "slice_axis"


def test_calling_conventions():
    a = nd.arange(6).reshape((2, 3))
    expected = a.asnumpy()[:, 0:2]
    same(nd.slice_axis(a, 1, 0, 2), expected)
    same(nd.slice_axis(a, axis=1, begin=0, end=2), expected)
    same(nd.slice_axis(data=a, axis="1", begin="0", end="2"), expected)
    same(a.slice_axis(axis=1, begin=0, end=2), expected)
    same(nd.sum(a, axis=[0, 1]), [15])
    same(nd.concat(a, a, dim=0), np.concatenate([a.asnumpy()] * 2))
    out = nd.zeros((2, 2))
    assert nd.slice_axis(a, axis=1, begin=0, end=2, out=out) is out
    same(out, expected)


def test_out_must_fit():
    a = nd.ones((2, 3))
    with pytest.raises(MXNetError, match=r"\[?relu"):
        nd.relu(a, out=nd.zeros((3, 2)))
    with pytest.raises(MXNetError):
        nd.relu(a, out=nd.zeros((2, 3), dtype="float64"))


def test_out_that_aliases_an_input():
    a = nd.arange(4).reshape((2, 2))
    nd.dot(a, a, out=a)
    same(a, [[2, 3], [6, 11]])


def test_call_errors():
    a = nd.ones((2,))
    with pytest.raises(TypeError, match=r"\[relu\] expected 'data' as an NDArray, got int"):
        nd.relu(3)
    with pytest.raises(TypeError, match=r"\[relu\] expected 1 inputs of \['data'\], got 0"):
        nd.relu()
    with pytest.raises(ParamError, match="got 'foo'"):
        nd.relu(a, foo=1)
    with pytest.raises(ParamError, match="expected parameter 'axis'"):
        nd.slice_axis(a)
    with pytest.raises(ParamError, match="'axis'"):
        nd.slice_axis(a, axis="x", begin=0, end=1)
    with pytest.raises(AttributeError, match="no_such_operator"):
        nd.no_such_operator  # noqa: B018


def test_random_repeats_with_its_seed():
    nd.random.seed(3)
    first = nd.random.uniform(shape=(5,)).asnumpy()
    assert not np.array_equal(first, nd.random.uniform(shape=(5,)).asnumpy())
    nd.random.seed(3)
    np.testing.assert_array_equal(first, nd.random.uniform(shape=(5,)).asnumpy())
    assert ((first >= 0) & (first < 1)).all()
    many = nd.random.normal(2, 3, shape=(20000,)).asnumpy()
    assert abs(many.mean() - 2) < 0.1 and abs(many.std() - 3) < 0.1


def test_waitall_and_versions():
    a = nd.zeros((2,))
    before = a.version
    a += 1
    assert a.version > before
    nd.waitall()


def test_error_stays_on_the_array():
    source, target = nd.ones((2,)), nd.ones((2,))

    def broken():
        raise ValueError("boom")

    _rt.core.push(broken, [source], [target], name="broken (2,)")
    later = target + 1
    for array in (target, later):
        with pytest.raises(MXNetError, match=r"boom.*broken \(2,\).*test_ndarray\.py:\d+"):
            array.asnumpy()
    nd.waitall()
    same(source, [1, 1])
    target[:] = 3
    same(target, [3, 3])
