"""Every public operator: recorded values of MXNet 1.9.1, gradients against finite differences,
shape rules against what the composition makes, names and parameters, errors, docstrings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import operator_samples as table
import pytest

import mixflow as mx
import mixflow.ops  # fills the registry
from mixflow import dtype as dtypes
from mixflow import ir
from mixflow.backends.reference import evaluate
from mixflow.errors import MXNetError, ParamError, ShapeError
from mixflow.passes.gradient import gradient
from mixflow.passes.lower import lower

HERE = Path(__file__).parent
RECORDED = np.load(HERE.parent / "oracle" / "data" / "operators.npz")
REFUSED = json.loads((HERE.parent / "oracle" / "data" / "operators.json").read_text())["refused"]
COMPAT = json.loads((HERE / "compat_ops.json").read_text())
#: Operators whose behaviour is user code; their own tests stand elsewhere.
USER_CODE = {"Custom"}
PUBLIC = {op.name: op for op in ir.all_operators() if not op.internal and op.name not in USER_CODE}
SAMPLED = sorted(set(PUBLIC) & set(table.SAMPLES))
F64 = np.dtype(np.float64)

#: Samples whose difference from MXNet stands in docs/differences.md: (sample, output or None).
DIFFERENT_VALUES = {"LeakyReLU/6": 1, "mp_nag_mom_update/0": None}
DIFFERENT_GRADIENTS = {
    "BatchNorm/6",
    "Cast/1",
    "Cast/2",
    "LeakyReLU/2",
    "SoftmaxOutput/5",
    "SoftmaxOutput/13",
}


def _cases(keep: Any = lambda op, sample: True) -> list[Any]:
    return [
        pytest.param(name, i, sample, id=f"{name}-{i}")
        for name, samples in sorted(table.SAMPLES.items())
        for i, sample in enumerate(samples)
        if name in PUBLIC and keep(PUBLIC[name], sample)
    ]


def _variables(arrays: list[np.ndarray]) -> list[ir.Value]:
    return [ir.variable(f"x{i}", ir.TensorType(a.shape, a.dtype)) for i, a in enumerate(arrays)]


class Call:
    """One sample built on arrays: typed node, its lowered graph, values."""

    def __init__(
        self, name: str, sample: dict[str, Any], arrays: list[np.ndarray], **params: Any
    ) -> None:
        self.op = PUBLIC[name]
        self.train = sample["train"]
        self.arrays = arrays
        self.inputs = _variables(arrays)
        self.node = ir.emit_node(self.op, *self.inputs, **{**sample["params"], **params})
        self.visible = self.op.visible_count(dict(self.node.params))

    def run(
        self, heads: list[ir.Value], extra: list[tuple[ir.Value, np.ndarray]] = ()
    ) -> list[np.ndarray]:  # type: ignore[assignment]
        inputs = (*self.inputs, *(v for v, _ in extra))
        graph = lower(ir.Graph(inputs, tuple(heads)), train=self.train)
        feeds = dict(zip(graph.inputs, [*self.arrays, *(a for _, a in extra)], strict=True))
        return evaluate(graph, feeds)

    def outputs(self) -> list[np.ndarray]:
        count = len(self.node.types)
        return self.run(list(self.node.values))[:count]

    def gradients(self, heads: list[np.ndarray]) -> list[np.ndarray]:
        outs = list(self.node.values[: self.visible])
        given = [
            (ir.variable(f"h{i}", v.type), h.astype(v.dtype))
            for i, (v, h) in enumerate(zip(outs, heads, strict=True))
        ]
        inputs = (*self.inputs, *(v for v, _ in given))
        kept = lower(ir.Graph(inputs, tuple(outs)), train=self.train, keep_vjp=True)
        own = kept.inputs[: len(self.inputs)]
        floats = [i for i, v in enumerate(own) if dtypes.is_float(v.dtype)]
        made = gradient(
            kept.outputs, list(kept.inputs[len(self.inputs) :]), [own[i] for i in floats]
        )
        graph = lower(ir.Graph(kept.inputs, tuple(made)), train=self.train)
        feeds = dict(zip(graph.inputs, [*self.arrays, *(a for _, a in given)], strict=True))
        values = evaluate(graph, feeds)
        found = [np.zeros_like(a) for a in self.arrays]
        for i, value in zip(floats, values, strict=False):
            found[i] = value
        return found


def _close(actual: np.ndarray, wanted: np.ndarray, loose: float = 1.0) -> None:
    half = wanted.dtype == np.float16
    rtol, atol = (2e-2, 2e-3) if half else (1e-4 * loose, 2e-5 * loose)
    assert actual.shape == wanted.shape
    np.testing.assert_allclose(
        actual.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True
    )


def test_every_public_operator_has_a_sample() -> None:
    assert set(PUBLIC) - set(table.SAMPLES) == set()
    assert set(table.SAMPLES) - set(PUBLIC) == set()


def test_every_sample_is_recorded_or_says_why_not() -> None:
    missing = [
        f"{name}/{i}"
        for name, samples in table.SAMPLES.items()
        for i, sample in enumerate(samples)
        if sample["record"] and f"{name}/{i}/out0" not in RECORDED and f"{name}/{i}" not in REFUSED
    ]
    assert missing == []


@pytest.mark.parametrize(("name", "number", "sample"), _cases())
def test_types_are_those_of_the_composition(name: str, number: int, sample: dict[str, Any]) -> None:
    call = Call(name, sample, table.arrays(name, number, sample))
    made = call.outputs()
    assert [(t.shape, t.dtype) for t in call.node.types] == [(a.shape, a.dtype) for a in made]  # type: ignore[union-attr]


@pytest.mark.parametrize(("name", "number", "sample"), _cases(lambda op, sample: sample["record"]))
def test_values_are_those_of_mxnet(name: str, number: int, sample: dict[str, Any]) -> None:
    key = f"{name}/{number}"
    if key in REFUSED:
        pytest.skip(REFUSED[key])
    call = Call(name, sample, table.arrays(name, number, sample))
    outputs = call.outputs()
    for i in range(call.visible):
        if DIFFERENT_VALUES.get(key) == i:
            continue
        wanted = RECORDED[f"{key}/out{i}"]
        assert outputs[i].dtype == wanted.dtype
        _close(outputs[i], wanted)
    for k, i in enumerate(call.node.mutated):
        if key in DIFFERENT_VALUES:
            continue
        after = f"{key}/after{i}"
        wanted = RECORDED[after] if after in RECORDED else call.arrays[i]
        _close(outputs[len(outputs) - len(call.node.mutated) + k], wanted)


@pytest.mark.parametrize(
    ("name", "number", "sample"), _cases(lambda op, sample: sample["record"] and sample["grad"])
)
def test_gradients_are_those_of_mxnet(name: str, number: int, sample: dict[str, Any]) -> None:
    key = f"{name}/{number}"
    recorded = [i for i in range(len(sample["inputs"])) if f"{key}/grad{i}" in RECORDED]
    if key in REFUSED or not recorded or key in DIFFERENT_GRADIENTS:
        pytest.skip("MXNet gives no gradient, or another one (docs/differences.md)")
    call = Call(name, sample, table.arrays(name, number, sample))
    heads = table.heads(name, number, [np.empty(t.shape) for t in call.node.types[: call.visible]])  # type: ignore[union-attr,arg-type]
    found = call.gradients(heads)
    names = call.op.input_names(dict(call.node.params))
    for i in recorded:
        if names[i] not in call.op.nondiff and names[i] not in call.op.mutates:
            _close(found[i], RECORDED[f"{key}/grad{i}"], loose=10.0)


def _function(name: str) -> Any:
    if name.startswith("_contrib_"):
        return getattr(mx.nd.contrib, name.removeprefix("_contrib_"))
    return getattr(mx.nd, name, None) or getattr(mx.nd._internal, name)


@pytest.mark.parametrize(("name", "number", "sample"), _cases(lambda op, sample: sample["record"]))
def test_imperative_calls_are_those_of_mxnet(
    name: str, number: int, sample: dict[str, Any]
) -> None:
    """The same through the dispatcher, autograd and the default backend."""
    key = f"{name}/{number}"
    if key in REFUSED:
        pytest.skip(REFUSED[key])
    inputs = [mx.nd.array(a, dtype=a.dtype) for a in table.arrays(name, number, sample)]
    recorded = [i for i in range(len(inputs)) if f"{key}/grad{i}" in RECORDED]
    for i in recorded:
        inputs[i].attach_grad()
    with mx.autograd.record(train_mode=sample["train"]):
        made = _function(name)(
            *inputs, **{k: p for k, p in sample["params"].items() if k != "num_args"}
        )
    outputs = list(made) if isinstance(made, (list, tuple)) else [made]
    for i, output in enumerate(outputs):
        if DIFFERENT_VALUES.get(key) != i:
            _close(output.asnumpy(), RECORDED[f"{key}/out{i}"], loose=3.0)
    if recorded and key not in DIFFERENT_GRADIENTS and PUBLIC[name].differentiable != "no":
        heads = [
            h.astype(o.dtype)
            for h, o in zip(table.heads(name, number, outputs), outputs, strict=True)
        ]
        mx.autograd.backward(outputs, [mx.nd.array(h, dtype=h.dtype) for h in heads])
        names = PUBLIC[name].input_names({**PUBLIC[name].check_params(sample["params"])})
        for i in recorded:
            if names[i] not in PUBLIC[name].nondiff and names[i] not in PUBLIC[name].mutates:
                _close(inputs[i].grad.asnumpy(), RECORDED[f"{key}/grad{i}"], loose=10.0)


def _differentiable(op: ir.Operator, sample: dict[str, Any]) -> bool:
    return (
        sample["fd"]
        and bool(sample["inputs"])
        and op.vjp is None
        and not op.random
        and not op.mutates
    ) or (sample["fd"] and op.primitive and op.vjp is not None)


@pytest.mark.parametrize(("name", "number", "sample"), _cases(_differentiable))
def test_gradients_are_finite_differences(name: str, number: int, sample: dict[str, Any]) -> None:
    op = PUBLIC[name]
    arrays = [
        a.astype(F64) if a.dtype == np.float32 else a for a in table.arrays(name, number, sample)
    ]
    typed = name == "Embedding" or sample["params"].get("dtype") == "float64"
    changed = {"dtype": F64} if typed else {}
    call = Call(name, sample, arrays, **changed)
    if not dtypes.is_float(call.node.types[0].dtype) or op.differentiable == "no":  # type: ignore[union-attr,arg-type]
        pytest.skip("not differentiable")
    shown = call.node.types[: call.visible]
    heads = table.heads(name, number, [np.empty(t.shape) for t in shown])  # type: ignore[union-attr,arg-type]
    found = call.gradients(heads)
    names = op.input_names(dict(call.node.params))
    rng = np.random.default_rng(number)
    for i, x in enumerate(arrays):
        if x.dtype != F64 or names[i] in op.nondiff:
            continue
        direction = rng.normal(size=x.shape)
        slope = _slope(call, i, direction, heads)
        np.testing.assert_allclose(np.sum(found[i] * direction), slope, rtol=2e-5, atol=2e-7)


def _slope(
    call: Call, i: int, direction: np.ndarray, heads: list[np.ndarray], step: float = 1e-6
) -> float:
    base, sums = call.arrays, []
    for sign in (1.0, -1.0):
        call.arrays = [a + sign * step * direction if k == i else a for k, a in enumerate(base)]
        made = call.run(list(call.node.values[: call.visible]))
        sums.append(
            sum(float(np.sum(h * o)) for h, o in zip(heads, made, strict=False) if o.dtype == F64)
        )
    call.arrays = base
    return (sums[0] - sums[1]) / (2 * step)


def _has_runtime(op: ir.Operator, sample: dict[str, Any]) -> bool:
    return any(p.runtime for p in op.params) and not op.random


@pytest.mark.parametrize(("name", "number", "sample"), _cases(_has_runtime))
def test_runtime_numbers_may_be_values(name: str, number: int, sample: dict[str, Any]) -> None:
    call = Call(name, sample, table.arrays(name, number, sample))
    wanted = call.outputs()
    params: dict[str, Any] = dict(call.node.params)
    scalars = []
    for p in call.op.params:
        if p.runtime:
            number_ = np.asarray(params[p.name], F64)
            value = ir.variable(p.name, ir.TensorType((), F64), kind="scalar")
            scalars.append((value, number_))
            params[p.name] = value
    mode = {"train": call.train} if call.op.needs_mode else {}
    assert call.op.compose is not None
    made = call.op.compose(*call.inputs, **params, **mode)
    values = [made] if isinstance(made, ir.Value) else list(made)
    assert [v.type for v in values] == list(call.node.types)
    for a, b in zip(call.run(values, scalars), wanted, strict=False):
        _close(a, b)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_names_and_parameters_are_those_of_mxnet(name: str) -> None:
    op, facts = PUBLIC[name], COMPAT.get(name)
    assert facts is not None, "MXNet has no such operator"
    assert set(facts["aliases"]) <= {n for n, o in ir.names().items() if o is op}
    wanted = facts["params"]
    assert [p.name for p in op.params] == [p["name"] for p in wanted]
    for p, want in zip(op.params, wanted, strict=True):
        assert (p.default is ir.REQUIRED) == want["required"], p.name
        if not want["required"]:
            default = want["default"]
            expected = None if default in (None, "None") else p.check(name, default)
            got = p.default if p.default is None else p.check(name, p.default)
            assert got == expected or got == pytest.approx(expected), p.name
    given = op.check_params(facts["sample"])
    assert list(op.input_names(given)) == facts["inputs"]
    assert sorted(op.mutates) == sorted(facts["mutated"])
    assert op.visible_count(given) == facts["num_outputs"]


@pytest.mark.parametrize("name", SAMPLED)
def test_unknown_and_ill_typed_parameters_are_errors(name: str) -> None:
    op, sample = PUBLIC[name], table.SAMPLES[name][0]
    with pytest.raises(ParamError, match=re.escape(f"[{name}] expected")):
        op.check_params({**sample["params"], "no_such_parameter": 1})
    for p in op.params:
        if p.kind.name != "string" and p.kind.name != "any":
            with pytest.raises(ParamError, match=p.name):
                op.check_params({**sample["params"], p.name: object()})


@pytest.mark.parametrize("name", [n for n in SAMPLED if len(table.SAMPLES[n][0]["inputs"]) > 1])
def test_wrong_shapes_are_errors(name: str) -> None:
    sample = table.SAMPLES[name][0]
    op = PUBLIC[name]
    if name in _ANY_SHAPES:
        pytest.skip("takes any shapes")
    arrays = table.arrays(name, 0, sample)
    arrays[-1] = np.zeros((7, 5, 11, 2, 3, 1, 2), arrays[-1].dtype)
    with pytest.raises(ShapeError, match=re.escape(f"[{name}] expected")):
        ir.emit_node(op, *_variables(arrays), **sample["params"])


#: Operators whose last input may have any shape, or only gives numbers.
_ANY_SHAPES = {"take", "broadcast_like", "slice_like", "reshape_like", "Crop", "lamb_update_phase2"}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_docstrings_have_the_fixed_form(name: str) -> None:
    assert re.match(r"(?s)\S.*\.\n(.*\n)?\nArgs:\n    .+\n\nReturns:\n    .+", PUBLIC[name].doc), (
        PUBLIC[name].doc
    )
    assert all(p.doc for p in PUBLIC[name].params if p.name not in ("draw",))


_U = None
#: operator, parameters, known shapes of inputs and output, what must follow (MXNet's own results).
_PARTIAL: list[tuple[str, dict[str, Any], list[Any], Any, list[Any], Any]] = [
    ("FullyConnected", {"num_hidden": 3}, [(_U, 4), _U, _U], _U, [(_U, 4), (3, 4), (3,)], (_U, 3)),
    (
        "FullyConnected",
        {"num_hidden": 3},
        [(_U, 4), _U, _U],
        (8, 3),
        [(8, 4), (3, 4), (3,)],
        (8, 3),
    ),
    (
        "Convolution",
        {"kernel": (3, 3), "num_filter": 5},
        [(_U, 4, 5, 5), _U, _U],
        _U,
        [(_U, 4, 5, 5), (5, 4, 3, 3), (5,)],
        (_U, 5, 3, 3),
    ),
    (
        "Convolution",
        {"kernel": (3, 3), "num_filter": 5, "layout": "NHWC"},
        [(2, 5, 5, 4), _U, _U],
        _U,
        [(2, 5, 5, 4), (5, 3, 3, 4), (5,)],
        (2, 3, 3, 5),
    ),
    (
        "Deconvolution",
        {"kernel": (3, 3), "num_filter": 6, "num_group": 2, "no_bias": False},
        [(1, 4, 5, 5), _U, _U],
        _U,
        [(1, 4, 5, 5), (4, 3, 3, 3), (6,)],
        (1, 6, 7, 7),
    ),
    ("elemwise_add", {}, [(2, _U), (_U, 3)], _U, [(2, 3), (2, 3)], (2, 3)),
    ("broadcast_add", {}, [(2, _U), (1, 3)], _U, [(2, _U), (1, 3)], (2, 3)),
    ("Reshape", {"shape": (-1, 6)}, [(_U, 3, 2)], _U, [(_U, 3, 2)], (_U, 6)),
    ("transpose", {}, [_U], (2, 3), [(3, 2)], (2, 3)),
    ("Concat", {"num_args": 2}, [(2, 3), _U], (2, 7), [(2, 3), (2, 4)], (2, 7)),
    ("SliceChannel", {"num_outputs": 2}, [(_U, 4)], _U, [(_U, 4)], (_U, 2)),
    ("Embedding", {"input_dim": 4, "output_dim": 3}, [(2,), _U], _U, [(2,), (4, 3)], (2, 3)),
    ("LeakyReLU", {"act_type": "prelu"}, [(2, 3, 4), _U], _U, [(2, 3, 4), (3,)], (2, 3, 4)),
    ("LinearRegressionOutput", {}, [(4, 1), _U], _U, [(4, 1), (4,)], (4, 1)),
    ("SoftmaxOutput", {}, [(4, 2), _U], _U, [(4, 2), (4,)], (4, 2)),
    (
        "SoftmaxOutput",
        {"multi_output": True},
        [(4, 2, 3, 3), _U],
        _U,
        [(4, 2, 3, 3), (4, 9)],
        (4, 2, 3, 3),
    ),
    ("BatchNorm", {}, [(_U, 3, 4), _U, _U, _U, _U], _U, [(_U, 3, 4)] + [(3,)] * 4, (_U, 3, 4)),
    ("LayerNorm", {}, [(2, 3), _U, _U], _U, [(2, 3), (3,), (3,)], (2, 3)),
    ("GroupNorm", {"num_groups": 2}, [(2, 4, 4), _U, _U], _U, [(2, 4, 4), (2,), (2,)], (2, 4, 4)),
    ("SequenceMask", {"use_sequence_length": True}, [(2, 3), _U], _U, [(2, 3), (3,)], (2, 3)),
    ("sgd_mom_update", {"lr": 0.1}, [(2,), _U, _U], _U, [(2,)] * 3, (2,)),
]


@pytest.mark.parametrize(("name", "params", "ins", "out", "want_ins", "want_out"), _PARTIAL)
def test_partial_shapes(
    name: str, params: Any, ins: Any, out: Any, want_ins: Any, want_out: Any
) -> None:
    op = PUBLIC[name]
    checked = op.check_params(params)
    first = [ir.TensorType(s) for s in ins]
    rest = [ir.TensorType()] * (len(op.output_names(checked)) - 1)
    assert op.infer is not None
    made_in, made_out = op.infer(checked, first, [ir.TensorType(out), *rest])
    assert [t.shape for t in made_in] == want_ins
    assert made_out[0].shape == want_out


def test_errors_are_mxnet_errors() -> None:
    x, y = _variables([np.zeros((2, 3)), np.zeros((2, 3))])
    with pytest.raises(MXNetError, match=r"\[dot\] expected equal sizes .* got 3 and 2"):
        ir.emit_node(ir.get("dot"), x, y)
