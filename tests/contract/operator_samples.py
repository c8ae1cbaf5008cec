"""Sample calls of every public operator, as plain data.

Read by the contract tests and, with MXNet's own Python, by ``tests/oracle/record_operators.py``:
so this file imports NumPy only, and only what both versions of it have.
"""

import zlib

import numpy as np


def n(*shape, **k):
    """Normal values."""
    return dict(kind="normal", shape=shape, **k)


def pos(*shape, **k):
    """Values in [0.5, 1.5]."""
    return dict(kind="positive", shape=shape, **k)


def unit(*shape, **k):
    """Values in [-0.9, 0.9]."""
    return dict(kind="unit", shape=shape, **k)


def ints(*shape, high=3, low=0, **k):
    """Whole numbers of [low, high)."""
    return dict(kind="ints", shape=shape, high=high, low=low, **k)


def v(values, dtype="float32"):
    """These values."""
    return dict(kind="values", values=values, dtype=dtype)


def S(*inputs, train=True, grad=True, fd=True, record=True, **params):
    """One call.

    Args:
        inputs: specifications of the inputs.
        train: record in training mode.
        grad: compare gradients with recorded ones.
        fd: compare gradients with finite differences.
        record: MXNet can run it; compare with recorded values.
        params: the operator's parameters.
    """
    return dict(inputs=inputs, params=params, train=train, grad=grad, fd=fd, record=record)


def arrays(name, number, sample):
    """The input arrays of a sample."""
    rng = np.random.RandomState(zlib.crc32(f"{name}-{number}".encode()) % (2**31))
    return [_array(rng, spec) for spec in sample["inputs"]]


def _array(rng, spec):
    dtype = spec.get("dtype", "float32")
    if spec["kind"] == "values":
        return np.array(spec["values"], dtype=dtype)
    shape = spec["shape"]
    if spec["kind"] == "normal":
        made = rng.normal(size=shape)
    elif spec["kind"] == "positive":
        made = rng.uniform(0.5, 1.5, size=shape)
    elif spec["kind"] == "unit":
        made = rng.uniform(-0.9, 0.9, size=shape)
    else:
        made = rng.randint(spec["low"], spec["high"], size=shape)
    return np.asarray(made).astype(dtype)


def heads(name, number, outputs):
    """Head gradients for the outputs of a sample (arrays or anything with a shape)."""
    seed = zlib.crc32(f"{name}-{number}-head".encode()) % (2**31)
    rng = np.random.RandomState(seed)
    return [rng.uniform(0.5, 1.5, size=o.shape) for o in outputs]


NAN = float("nan")
SAMPLES = {}


def add(name, *samples):
    SAMPLES.setdefault(name, []).extend(samples)


# Elementwise --------------------------------------------------------------------------------

for _name in [
    "negative",
    "abs",
    "sign",
    "round",
    "rint",
    "ceil",
    "floor",
    "trunc",
    "fix",
    "square",
    "cbrt",
    "exp",
    "expm1",
    "sin",
    "cos",
    "tan",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "arcsinh",
    "relu",
    "sigmoid",
    "softsign",
    "erf",
    "degrees",
    "radians",
    "logical_not",
]:
    add(_name, S(n(2, 3)))
for _name in [
    "sqrt",
    "rsqrt",
    "rcbrt",
    "log",
    "log2",
    "log10",
    "log1p",
    "reciprocal",
    "gamma",
    "gammaln",
]:
    add(_name, S(pos(2, 3)))
for _name in ["arcsin", "arccos", "arctanh", "erfinv"]:
    add(_name, S(unit(2, 3)))
add("arccosh", S(v([1.5, 2.0, 3.0])))

for _name in ["add", "sub", "mul", "div"]:
    add("elemwise_" + _name, S(n(2, 3), pos(2, 3)))
    add("broadcast_" + _name, S(n(2, 1, 3), pos(4, 1)), S(n(2, 3), pos(2, 3)))
    add(
        "elemwise_" + _name,
        S(ints(2, 3, low=-9, high=9, dtype="int32"), ints(2, 3, low=1, dtype="int32")),
    )
for _name in ["mod", "power", "maximum", "minimum", "hypot"]:
    add("_" + _name, S(pos(2, 3), pos(2, 3)))
    add("broadcast_" + _name, S(pos(2, 1, 3), pos(4, 1)))
add("_mod", S(v([-5.0, 5.0, 5.0, -7.5]), v([3.0, -3.0, 0.0, 2.0]), fd=False, grad=False))
add("_maximum", S(v([1.0, NAN, 2.0]), v([NAN, 1.0, 3.0]), grad=False, fd=False))
for _name in [
    "equal",
    "not_equal",
    "greater",
    "greater_equal",
    "lesser",
    "lesser_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
]:
    add("_" + _name, S(ints(2, 3), ints(2, 3), fd=False))
    add("broadcast_" + _name, S(ints(2, 1, 3), ints(4, 1), fd=False))
    add(f"_{_name}_scalar", S(ints(2, 3), scalar=1.0, fd=False))
for _name in [
    "plus",
    "minus",
    "rminus",
    "mul",
    "div",
    "rdiv",
    "mod",
    "rmod",
    "power",
    "rpower",
    "maximum",
    "minimum",
    "hypot",
]:
    add(f"_{_name}_scalar", S(pos(2, 3), scalar=1.3))
    add(
        f"_{_name}_scalar",
        S(ints(2, 3, low=1, high=5, dtype="int32"), scalar=2.0, record=_name not in ("hypot",)),
    )
add("_plus_scalar", S(ints(4, dtype="int32"), scalar=1.0))
add("_grad_add", S(n(2, 3), n(2, 3)))
add("add_n", S(n(2, 3), n(2, 3), n(2, 3), num_args=3), S(n(2), num_args=1))
add("_copy", S(n(2, 3)))
add("_copyto", S(n(2, 3), record=False))
add("_CrossDeviceCopy", S(n(2, 3), record=False))
add("BlockGrad", S(n(2, 3)))
add("Cast", S(n(2, 3), dtype="float64"), S(n(2, 3), dtype="int32"), S(ints(2, 3), dtype="bool"))
add("amp_cast", S(n(2, 3), dtype="float16", fd=False))
add(
    "clip",
    S(n(3, 4), a_min=-0.5, a_max=0.7),
    S(v([NAN, 1.0, 5.0]), a_min=0.0, a_max=2.0, fd=False, grad=False),
)
add("smooth_l1", S(n(3, 4), scalar=2.0), S(n(3, 4)))
add("hard_sigmoid", S(n(3, 4)), S(n(3, 4), alpha=0.5, beta=0.2))
add("_contrib_div_sqrt_dim", S(n(3, 4)))
add(
    "where",
    S(ints(2, 3, high=2), n(2, 3), n(2, 3)),
    S(v([1.0, 0.0]), n(2, 3), n(2, 3)),
    S(ints(2, 3, high=2, dtype="int32"), n(2, 3), n(2, 3)),
)

# Reductions ---------------------------------------------------------------------------------

for _name in ["sum", "mean", "prod", "max", "min", "nansum", "nanprod"]:
    add(
        _name,
        S(pos(2, 3, 4)),
        S(pos(2, 3, 4), axis=1),
        S(pos(2, 3, 4), axis=(0, 2), keepdims=True),
        S(pos(2, 3, 4), axis=(-1,), exclude=True),
    )
add("sum", S(ints(2, 3, dtype="int32"), axis=0))
add("mean", S(ints(2, 3, high=9, dtype="int32"), axis=0, record=False))
add("nansum", S(v([[1.0, NAN, 2.0]]), axis=1, fd=False))
add("nanprod", S(v([[1.0, NAN, 2.0]]), axis=1, fd=False, grad=False))
add(
    "norm",
    S(n(2, 3, 4)),
    S(n(2, 3, 4), ord=1, axis=1),
    S(n(2, 3, 4), axis=(0, 2), keepdims=True),
    S(n(2, 3), ord=1),
)
add("moments", S(n(3, 4), axes=(0,)), S(n(3, 4), axes=(0, 1), keepdims=True))
for _name in ("argmax", "argmin"):
    add(
        _name,
        S(n(3, 4), axis=1),
        S(n(3, 4)),
        S(n(3, 4), axis=0, keepdims=True),
        S(v([[1.0, 1.0, 0.0, 0.0]]), axis=-1),
    )
add("argmax_channel", S(n(2, 3)), S(n(2, 3, 4)))
add("_np_cumsum", S(n(2, 3)), S(n(2, 3), axis=1), S(n(2, 3), axis=0, dtype="float64"))
add("all_finite", S(n(2, 3)), S(v([1.0, NAN])), S(v([1.0, float("inf")])))

# Shape --------------------------------------------------------------------------------------

add(
    "Reshape",
    S(n(2, 3, 4), shape=(4, 0, 2)),
    S(n(2, 3, 4), shape=(-1,)),
    S(n(2, 3, 4), shape=(0, -1)),
    S(n(2, 3, 4), shape=(-2,)),
    S(n(2, 3, 4), shape=(2, -2)),
    S(n(2, 3, 4), shape=(-2, 1, 1)),
    S(n(2, 3, 4), shape=(-3, 4)),
    S(n(2, 3, 4, 5), shape=(-3, -3)),
    S(n(2, 3, 4), shape=(0, -3)),
    S(n(2, 3, 4), shape=(-3, -2)),
    S(n(2, 3, 4), shape=(-4, 1, 2, -2)),
    S(n(2, 3, 4), shape=(2, -4, -1, 3, -2)),
    S(n(10, 5, 4), shape=(-1, 0)),
    S(n(10, 5, 4), shape=(-1, 0), reverse=True),
    S(n(2, 3, 8), shape=(0, 0, -1, 2, -4), reverse=True),
    S(n(2, 3, 8), shape=(-3, 0), reverse=True),
)
add("Flatten", S(n(2, 3, 4)), S(n(3)))
add(
    "reshape_like",
    S(n(2, 6), n(3, 4)),
    S(n(30, 7), n(15, 2, 4), lhs_begin=0, lhs_end=1, rhs_begin=0, rhs_end=2),
)
add("expand_dims", S(n(2, 3), axis=1), S(n(2, 3), axis=-1))
add("squeeze", S(n(1, 2, 1)), S(n(1, 2, 1), axis=(0, -1)), S(n(1, 1)))
add("transpose", S(n(2, 3, 4)), S(n(2, 3, 4), axes=(1, 0, 2)))
add("SwapAxis", S(n(2, 3, 4), dim1=0, dim2=2), S(n(2, 3)))
add("reverse", S(n(2, 3, 4), axis=1), S(n(2, 3, 4), axis=(0, 2)))
add("depth_to_space", S(n(1, 8, 2, 3), block_size=2))
add("space_to_depth", S(n(1, 2, 4, 6), block_size=2))
add("tile", S(n(2, 3), reps=(2, 2)), S(n(2, 3), reps=(2, 1, 2)), S(n(2, 3), reps=(2,)))
add("repeat", S(n(2, 3), repeats=2), S(n(2, 3), repeats=2, axis=1), S(n(2, 3), repeats=3, axis=-2))
add("broadcast_to", S(n(1, 3), shape=(2, 3)), S(n(1, 3), shape=(2, 0)))
add("broadcast_axis", S(n(1, 3, 1), axis=(0, 2), size=(2, 4)), S(n(1, 3), axis=0, size=2))
add("broadcast_like", S(n(1, 3), n(4, 3)), S(n(1, 3), n(5, 6, 7), lhs_axes=(0,), rhs_axes=(-1,)))
add("shape_array", S(n(2, 3)))
add("size_array", S(n(2, 3)))
add(
    "slice",
    S(n(4, 5), begin=(1,), end=(3,)),
    S(n(4, 5), begin=(None, 4), end=(None, None), step=(2, -1)),
    S(n(10), begin=(7,), end=(1,), step=(-2,)),
    S(n(10), begin=(-3,), end=(-1,)),
    S(n(10), begin=(7,), end=(30,)),
    S(n(4, 5), begin=(0, 1), end=(2, 4), step=(1, 2)),
)
add(
    "_slice_assign",
    S(n(3, 4), n(2, 2), begin=(0, 1), end=(2, 3)),
    S(n(6), n(3), begin=(0,), end=(6,), step=(2,)),
)
add("_slice_assign_scalar", S(n(3, 4), scalar=2.5, begin=(0, 1), end=(2, 3)))
add(
    "slice_axis",
    S(n(4, 5), axis=1, begin=1, end=3),
    S(n(4, 5), axis=0, begin=-3, end=None),
    S(n(4, 5), axis=-1, begin=0, end=-1),
)
add("slice_like", S(n(3, 4), n(2, 3)), S(n(3, 4), n(2, 9), axes=(0,)))
add(
    "Crop",
    S(n(1, 2, 5, 6), num_args=1, h_w=(3, 3), offset=(1, 2)),
    S(n(1, 2, 5, 6), n(1, 1, 3, 2), num_args=2, center_crop=True),
)
add(
    "Concat",
    S(n(2, 3), n(2, 4), num_args=2),
    S(n(2, 3), n(1, 3), n(2, 3), num_args=3, dim=0),
    S(n(2, 3), num_args=1),
    S(n(2, 3, 2), n(2, 3, 1), num_args=2, dim=-1),
)
add(
    "stack",
    S(n(2, 3), n(2, 3), num_args=2),
    S(n(2, 3), n(2, 3), num_args=2, axis=-1),
    S(n(2), n(2), n(2), num_args=3, axis=1),
)
add(
    "SliceChannel",
    S(n(2, 4), num_outputs=2),
    S(n(2, 3), num_outputs=3, squeeze_axis=True),
    S(n(4, 3), num_outputs=2, axis=0),
    S(n(2, 3), num_outputs=1),
)
add(
    "_split_v2", S(n(6, 2), indices=(0, 1, 3), axis=0), S(n(2, 6), indices=(0,), axis=1, sections=3)
)
add(
    "Pad",
    S(n(1, 2, 3, 4), mode="constant", pad_width=(0, 0, 0, 0, 1, 2, 2, 1), constant_value=1.5),
    S(n(1, 2, 3, 4), mode="edge", pad_width=(0, 0, 0, 0, 1, 2, 2, 1)),
    S(n(1, 2, 3, 4), mode="reflect", pad_width=(0, 0, 0, 0, 1, 2, 2, 1)),
)

# Matrix products ----------------------------------------------------------------------------

add(
    "dot",
    S(n(2, 3), n(3, 4)),
    S(n(3, 2), n(3, 4), transpose_a=True),
    S(n(2, 3), n(4, 3), transpose_b=True),
    S(n(3, 2), n(4, 3), transpose_a=True, transpose_b=True),
    S(n(3), n(3)),
    S(n(2, 3), n(3)),
    S(n(3), n(3, 4)),
    S(n(2, 3, 4), n(4, 5)),
    S(n(2, 3, 4), n(4, 2, 3)),
    S(n(4, 2, 3), n(4, 5, 2), transpose_a=True),
    S(n(2, 3, 4), n(5, 2, 4), transpose_b=True),
)
add(
    "batch_dot",
    S(n(2, 3, 4), n(2, 4, 5)),
    S(n(2, 4, 3), n(2, 4, 5), transpose_a=True),
    S(n(2, 3, 4), n(2, 5, 4), transpose_b=True),
    S(n(2, 2, 3, 4), n(2, 2, 4, 5)),
)

# Indexing -----------------------------------------------------------------------------------

add(
    "Embedding",
    S(ints(2, 3, high=5), n(5, 2), input_dim=5, output_dim=2),
    S(v([0.0, 7.0, -1.0]), n(5, 2), input_dim=5, output_dim=2, grad=False),
)
add(
    "take",
    S(n(4, 3), ints(2, 2, high=4)),
    S(n(4, 3), ints(2, high=3), axis=1),
    S(n(3), v([-1.0, 4.0]), mode="wrap"),
    S(n(3), v([-1.0, 4.0])),
    S(n(4, 3), ints(2, high=3, dtype="int32"), axis=-1),
)
add("batch_take", S(n(3, 4), ints(3, high=4, dtype="int32"), grad=False))
add(
    "pick",
    S(n(3, 4), ints(3, high=4)),
    S(n(3, 4), ints(4), axis=0, keepdims=True),
    S(n(3, 4), v([-1.0, 5.0, 2.0]), mode="wrap"),
    S(n(3, 4), v([[-1.0], [5.0], [2.0]])),
)
add(
    "one_hot",
    S(ints(2, 3, high=4), depth=4),
    S(v([0.0, 5.0, -1.0]), depth=3, on_value=2.0, off_value=-1.0, dtype="int32"),
)
add(
    "gather_nd",
    S(n(3, 4), ints(2, 5)),
    S(n(3, 4), ints(1, 2)),
    S(n(3, 4), v([[-1.0, 1.0]]), grad=False),
)
add(
    "scatter_nd",
    S(n(2), v([[0.0, 1.0], [1.0, 2.0]]), shape=(2, 3)),
    S(n(2, 3), v([[0.0, 2.0]]), shape=(4, 3)),
)
add("_scatter_set_nd", S(n(2, 3), n(2), v([[0.0, 1.0], [1.0, 2.0]]), shape=(2, 3), record=False))
add("_ravel_multi_index", S(v([[3.0, 6.0, 6.0], [4.0, 5.0, 1.0]]), shape=(7, 6)))
add("_unravel_index", S(v([22.0, 41.0, 37.0]), shape=(7, 6)))
add(
    "sort",
    S(n(3, 4), axis=-1, grad=False),
    S(n(3, 4), axis=0, is_ascend=False),
    S(n(3, 4), axis=None),
)
add(
    "argsort",
    S(n(3, 4)),
    S(n(3, 4), axis=0, is_ascend=False, dtype="int32"),
    S(n(3, 4), axis=None),
    S(v([1.0, 1.0, 0.0, 1.0]), is_ascend=False),
)
add(
    "topk",
    S(n(3, 4), k=2),
    S(n(3, 4), k=2, ret_typ="both"),
    S(n(3, 4), k=2, ret_typ="value", is_ascend=True),
    S(n(3, 4), k=2, ret_typ="mask"),
    S(n(3, 4), k=3, axis=0, ret_typ="both", dtype="int32"),
    S(n(3, 4), k=3, axis=None),
)
add(
    "diag",
    S(n(3, 4)),
    S(n(3, 4), k=1),
    S(n(3, 4), k=-1),
    S(n(3)),
    S(n(3), k=-1),
    S(n(3), k=2),
    S(n(2, 3, 2)),
    S(n(2, 3, 4), axis1=1, axis2=2, k=1),
)
_LENGTHS = v([1.0, 3.0])
add(
    "SequenceMask",
    S(n(3, 2, 2), _LENGTHS, use_sequence_length=True, value=-1.0),
    S(n(3, 2)),
    S(n(2, 3, 2), _LENGTHS, use_sequence_length=True, axis=1),
)
add(
    "SequenceLast",
    S(n(3, 2, 2), _LENGTHS, use_sequence_length=True),
    S(n(3, 2)),
    S(n(2, 3, 2), _LENGTHS, use_sequence_length=True, axis=1),
)
add("SequenceReverse", S(n(3, 2, 2), _LENGTHS, use_sequence_length=True), S(n(3, 2)))

# Creation and draws -------------------------------------------------------------------------

add("_zeros", S(shape=(2, 3)), S(shape=(2,), dtype="int32"))
add("_ones", S(shape=(2, 3)))
add("_full", S(shape=(2, 3), value=2.5), S(shape=(2,), value=2, dtype="int64"))
add("zeros_like", S(n(2, 3)), S(ints(2, 3, dtype="int32")))
add("ones_like", S(n(2, 3)))
add(
    "_arange",
    S(start=0.0, stop=1.0, step=0.3),
    S(start=4.0),
    S(start=5.0, stop=1.0, step=-2.0, repeat=2, dtype="int32"),
)
add("_linspace", S(start=0.0, stop=1.0, num=5), S(start=0.0, stop=1.0, num=5, endpoint=False))
add("_eye", S(N=3), S(N=2, M=3, k=1), S(N=3, M=2, k=-1, dtype="int32"))
add("_contrib_arange_like", S(n(2, 3)), S(n(2, 3), axis=1, start=1.0, step=2.0))
for _name in ("_random_uniform", "_random_normal", "_random_exponential"):
    add(_name, S(shape=(4, 5), record=False), S(shape=(3,), dtype="float64", record=False))
    add(_name + "_like", S(n(4, 5), record=False))
add(
    "_random_randint",
    S(low=2, high=7, shape=(4, 5), record=False),
    S(low=-3, high=3, shape=(3,), dtype="int64", record=False),
)
add("_sample_uniform", S(v([0.0, 2.0]), v([1.0, 3.0]), shape=(4,), record=False))
add("_sample_normal", S(v([0.0, 2.0]), v([1.0, 3.0]), shape=(4,), record=False))
add("_sample_exponential", S(v([1.0, 2.0]), shape=(4,), record=False))
add(
    "_sample_multinomial",
    S(v([[0.2, 0.8], [0.5, 0.5]]), shape=(3,), record=False),
    S(v([0.2, 0.8]), get_prob=True, record=False),
)
add("_shuffle", S(n(6, 2), record=False))

# Images: compared with MXNet by tests/oracle/image_cases.py ---------------------------------

add(
    "_image_to_tensor",
    S(n(4, 5, 3), record=False, fd=False),
    S(n(2, 4, 5, 1), record=False, fd=False),
)
add(
    "_image_normalize",
    S(n(3, 4, 5), mean=(1.0, 2.0, 3.0), std=(2.0, 3.0, 4.0), record=False),
    S(n(2, 3, 4, 5), mean=(1.0,), std=(2.0,), record=False),
    S(n(2, 4, 5), record=False),
)
add(
    "_image_crop",
    S(n(4, 5, 3), x=1, y=0, width=2, height=3, record=False),
    S(n(2, 4, 5, 3), x=1, y=2, width=4, height=2, record=False),
)
for _name in ("flip_left_right", "flip_top_bottom", "random_flip_left_right"):
    add("_image_" + _name, S(n(4, 5, 3), record=False))
add("_image_random_flip_top_bottom", S(ints(4, 5, 3, dtype="uint8"), record=False))
for _name in ("brightness", "contrast", "saturation"):
    _factors = {"min_factor": 0.5, "max_factor": 1.5}
    add("_image_random_" + _name, S(n(4, 5, 3), record=False, **_factors))
    add("_image_random_" + _name, S(n(4, 5, 1), record=False, **_factors))
add("_image_adjust_lighting", S(n(4, 5, 3), alpha=(0.1, 0.2, 0.3), record=False))
add("_image_random_lighting", S(n(4, 5, 3), record=False), S(n(4, 5, 1), record=False))

# Layers -------------------------------------------------------------------------------------

add(
    "FullyConnected",
    S(n(2, 3, 4), n(5, 12), n(5), num_hidden=5),
    S(n(2, 3), n(5, 3), num_hidden=5, no_bias=True),
    S(n(2, 3, 4), n(5, 4), n(5), num_hidden=5, flatten=False),
)
for _name in ["relu", "sigmoid", "softrelu", "softsign", "tanh"]:
    add("Activation", S(n(3, 4), act_type=_name))
add("Activation", S(v([-100.0, 100.0]), act_type="softrelu", fd=False))
for _name in ["leaky", "elu", "selu", "gelu"]:
    add("LeakyReLU", S(n(3, 4), act_type=_name, slope=0.3))
add("LeakyReLU", S(n(2, 3, 4), pos(3), act_type="prelu"), S(n(2, 3), pos(1), act_type="prelu"))
add(
    "LeakyReLU",
    S(n(3, 4), act_type="rrelu", train=False, grad=False),
    S(n(3, 4), act_type="rrelu", record=False),
)
add(
    "Dropout",
    S(n(3, 4), p=0.4, train=False),
    S(n(3, 4), p=0.4, record=False),
    S(n(3, 4), p=0.4, axes=(0,), record=False),
    S(n(3, 4), p=0.5, mode="always", train=False, record=False),
    S(n(3, 4), p=0.0),
)
for _name in ("softmax", "log_softmax", "softmin"):
    add(_name, S(n(2, 3, 4)), S(n(2, 3, 4), axis=1, temperature=2.0), S(n(2, 3), dtype="float64"))
add(
    "softmax",
    S(n(2, 3), ints(2, low=1, high=4, dtype="int32"), use_length=True),
    S(n(3, 2), v([2, 0], "int32"), use_length=True, axis=0),
)
add(
    "SoftmaxActivation",
    S(n(2, 5)),
    S(n(2, 3, 4, 4), record=False),
    S(n(2, 3, 4, 4), mode="channel"),
)

add(
    "Convolution",
    S(n(2, 3, 5, 6), n(4, 3, 3, 2), n(4), kernel=(3, 2), num_filter=4),
    S(
        n(1, 4, 6, 7),
        n(6, 2, 3, 3),
        n(6),
        kernel=(3, 3),
        num_filter=6,
        num_group=2,
        stride=(2, 1),
        pad=(1, 2),
        dilate=(1, 2),
    ),
    S(n(2, 3, 7), n(4, 3, 3), kernel=(3,), num_filter=4, no_bias=True, pad=(1,)),
    S(n(1, 2, 3, 4, 5), n(3, 2, 2, 2, 2), n(3), kernel=(2, 2, 2), num_filter=3),
    S(n(2, 5, 6, 3), n(4, 3, 2, 3), n(4), kernel=(3, 2), num_filter=4, layout="NHWC"),
)
add(
    "Deconvolution",
    S(n(1, 4, 3, 4), n(4, 3, 3, 3), kernel=(3, 3), num_filter=3),
    S(
        n(1, 4, 3, 4),
        n(4, 2, 3, 3),
        n(4),
        kernel=(3, 3),
        num_filter=4,
        num_group=2,
        stride=(2, 2),
        pad=(1, 1),
        adj=(1, 1),
        no_bias=False,
    ),
    S(
        n(1, 2, 5, 5),
        n(2, 3, 3, 3),
        kernel=(3, 3),
        num_filter=3,
        stride=(2, 2),
        target_shape=(10, 10),
    ),
    S(n(1, 2, 4), n(2, 3, 3), kernel=(3,), num_filter=3, dilate=(2,)),
)
for _name in ("max", "avg", "sum"):
    add(
        "Pooling",
        S(n(2, 3, 5, 6), kernel=(2, 3), pool_type=_name),
        S(n(1, 2, 7, 8), kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type=_name),
        S(n(1, 2, 7, 8), kernel=(3, 3), stride=(2, 2), pooling_convention="full", pool_type=_name),
        S(
            n(1, 2, 8, 7),
            kernel=(3, 3),
            stride=(2, 2),
            pad=(1, 1),
            pooling_convention="full",
            pool_type=_name,
        ),
        S(n(2, 3, 5, 6), kernel=(1, 1), global_pool=True, pool_type=_name),
        S(n(2, 3, 7), kernel=(3,), stride=(2,), pool_type=_name),
        S(n(1, 2, 4, 4, 5), kernel=(2, 2, 2), stride=(2, 2, 2), pool_type=_name),
    )
add(
    "Pooling",
    S(
        n(1, 2, 7, 8),
        kernel=(3, 3),
        stride=(2, 2),
        pad=(1, 1),
        pool_type="avg",
        count_include_pad=False,
    ),
    S(pos(1, 2, 6, 6), kernel=(3, 3), stride=(2, 2), pool_type="lp", p_value=2),
    S(n(1, 7, 8, 2), kernel=(2, 2), layout="NHWC"),
    S(n(1, 2, 8), kernel=(3,), stride=(2,), pooling_convention="same", record=False),
)
add(
    "UpSampling",
    S(n(1, 2, 3, 4), scale=2, sample_type="nearest", num_args=1),
    S(n(1, 2, 4, 4), n(1, 3, 2, 2), scale=2, sample_type="nearest", num_args=2),
    S(
        n(1, 2, 4, 4),
        n(1, 2, 2, 2),
        scale=2,
        sample_type="nearest",
        num_args=2,
        multi_input_mode="sum",
    ),
    S(n(1, 2, 3, 4), n(2, 1, 4, 4), scale=2, sample_type="bilinear", num_filter=2, num_args=2),
)

# Norms --------------------------------------------------------------------------------------

_STATS = (n(3), pos(3), n(3), n(3), pos(3))
add(
    "BatchNorm",
    S(n(4, 3, 2, 2), *_STATS[1:], fix_gamma=False, momentum=0.8),
    S(n(4, 3, 2, 2), *_STATS[1:], fix_gamma=True, eps=1e-5),
    S(n(4, 3, 2, 2), *_STATS[1:], fix_gamma=False, train=False),
    S(n(4, 3, 2, 2), *_STATS[1:], fix_gamma=False, use_global_stats=True),
    S(n(4, 3), *_STATS[1:], fix_gamma=False),
    S(n(4, 2, 3), *_STATS[1:], fix_gamma=False, axis=2),
    S(n(4, 3, 2), *_STATS[1:], fix_gamma=False, output_mean_var=True, fd=False),
)
add(
    "LayerNorm",
    S(n(2, 3, 4), pos(4), n(4)),
    S(n(2, 3, 4), pos(3), n(3), axis=1),
    S(n(2, 4), pos(4), n(4), output_mean_var=True, grad=False),
)
add(
    "GroupNorm",
    S(n(2, 4, 3, 2), pos(2), n(2), num_groups=2),
    S(n(2, 4, 3), pos(2), n(2), num_groups=2, output_mean_var=True, grad=False),
)
add("InstanceNorm", S(n(2, 3, 4, 2), pos(3), n(3)), S(n(2, 3, 4), pos(3), n(3), eps=0.1))
for _name in ("instance", "channel", "spatial"):
    add("L2Normalization", S(n(2, 3, 4, 2), mode=_name))
add(
    "LRN",
    S(n(2, 6, 3, 3), nsize=3, alpha=0.1),
    S(n(1, 6, 2, 2), nsize=5, alpha=0.2, beta=0.5, knorm=1.0),
)

# Outputs and losses -------------------------------------------------------------------------

_ROWS = ints(4, high=3)
_MAP = ints(2, 4, high=3)
add("SoftmaxOutput", S(n(4, 3), _ROWS), S(n(4, 3), _ROWS, grad_scale=0.5, normalization="batch"))
add(
    "SoftmaxOutput",
    S(n(4, 3), v([0.0, 2.0, 1.0, 0.0]), use_ignore=True, ignore_label=0.0, normalization="valid"),
)
add("SoftmaxOutput", S(n(4, 3), v([0.0, 2.0, 1.0, 0.0]), ignore_label=0.0, normalization="valid"))
add("SoftmaxOutput", S(n(4, 3), _ROWS, smooth_alpha=0.1), S(n(4, 3), _ROWS, out_grad=True))
add(
    "SoftmaxOutput",
    S(n(4, 3), pos(4, 3), grad_scale=2.0),
)
add("SoftmaxOutput", S(n(2, 3, 2, 2), _MAP, multi_output=True))
for _name in ("batch", "valid", "null"):
    add(
        "SoftmaxOutput",
        S(
            n(2, 3, 2, 2),
            _MAP,
            multi_output=True,
            normalization=_name,
            use_ignore=True,
            ignore_label=1.0,
        ),
    )
add(
    "SoftmaxOutput",
    S(n(2, 2, 3), ints(2, 2), preserve_shape=True),
    S(n(2, 2, 3), ints(2, 2), preserve_shape=True, normalization="batch"),
)
add("SoftmaxOutput", S(n(2, 3, 2, 2), _MAP, multi_output=True, smooth_alpha=0.2, out_grad=True))
for _name in ("Linear", "Logistic", "MAE"):
    add(_name + "RegressionOutput", S(n(4, 3), n(4, 3)), S(n(4, 1), n(4), grad_scale=0.5))
add(
    "SVMOutput",
    S(n(4, 3), _ROWS),
    S(n(4, 3), _ROWS, use_linear=True, margin=0.5, regularization_coefficient=2.0),
)
add(
    "MakeLoss",
    S(n(4, 3)),
    S(n(4, 3), grad_scale=2.0, normalization="batch"),
    S(n(4, 3), normalization="valid", valid_thresh=0.1),
)
add("make_loss", S(n(4, 3)))
add("softmax_cross_entropy", S(n(4, 3), _ROWS))

# Updates ------------------------------------------------------------------------------------

_RULE = dict(lr=0.1, wd=0.02, rescale_grad=0.5, clip_gradient=0.3)
_PAIR = (n(3, 4), n(3, 4))


def _update(name, states, *params):
    for extra in ({}, *params):
        more = dict(_RULE, **extra) if extra else dict(lr=0.1)
        add(name, S(*_PAIR, *[pos(3, 4) for _ in range(states)], **more))


_update("sgd_update", 0, dict(wd=0.02))
_update("sgd_mom_update", 1, dict(momentum=0.9))
_update("nag_mom_update", 1, dict(momentum=0.9))
_update("adam_update", 2, dict(epsilon=0.1, beta1=0.8))
_update("rmsprop_update", 1, dict(epsilon=0.1), dict(clip_weights=0.4))
add("rmspropalex_update", S(*_PAIR, v([[2.0] * 4] * 3), unit(3, 4), n(3, 4), epsilon=0.1, **_RULE))
_update("ftrl_update", 2, dict(lamda1=0.5, beta=0.7))
_update("signsgd_update", 0, dict(wd=0.02))
_update("signum_update", 1, dict(momentum=0.9, wd_lh=0.1))
add("_sparse_adagrad_update", S(*_PAIR, pos(3, 4), lr=0.1, wd=0.02, record=False))
add(
    "ftml_update",
    S(
        *_PAIR,
        pos(3, 4),
        pos(3, 4),
        pos(3, 4),
        lr=0.1,
        t=3,
        wd=0.02,
        rescale_grad=0.5,
        clip_grad=0.3,
    ),
)
add(
    "lamb_update_phase1",
    S(*_PAIR, pos(3, 4), pos(3, 4), t=3, wd=0.02, rescale_grad=0.5),
    S(*_PAIR, pos(3, 4), pos(3, 4), t=3, wd=0.0, bias_correction=False),
)
add(
    "lamb_update_phase2",
    S(*_PAIR, v([2.0]), v([3.0]), lr=0.1),
    S(*_PAIR, v([0.0]), v([3.0]), lr=0.1),
    S(*_PAIR, v([5.0]), v([3.0]), lr=0.1, upper_bound=1.0, lower_bound=0.1),
)
_HALF = (n(3, 4, dtype="float16"), n(3, 4, dtype="float16"))
add("mp_sgd_update", S(*_HALF, n(3, 4), **_RULE))
add("mp_sgd_mom_update", S(*_HALF, n(3, 4), n(3, 4), momentum=0.9, **_RULE))
add("mp_nag_mom_update", S(*_HALF, n(3, 4), n(3, 4), momentum=0.9, **_RULE))
