"""Symbol: names, composition, attributes and inference as MXNet 1.9.1 has them."""

import copy
import pickle

import numpy as np
import pytest

import mixflow.symbol as sym
from mixflow.attribute import AttrScope
from mixflow.errors import (
    DTypeError,
    GraphError,
    MXNetError,
    ParamError,
    ShapeError,
    UnknownNameError,
)
from mixflow.name import NameManager, Prefix


@pytest.fixture(autouse=True)
def _names():
    with NameManager():
        yield


def small():
    fc = sym.FullyConnected(sym.Variable("data"), num_hidden=4)
    return sym.SoftmaxOutput(sym.BatchNorm(fc), name="softmax")


def test_automatic_names_and_variables():
    net = small()
    assert net.list_arguments() == [
        "data",
        "fullyconnected0_weight",
        "fullyconnected0_bias",
        "batchnorm0_gamma",
        "batchnorm0_beta",
        "softmax_label",
    ]
    assert net.list_auxiliary_states() == ["batchnorm0_moving_mean", "batchnorm0_moving_var"]
    assert net.list_outputs() == ["softmax_output"] and net.name == "softmax"
    assert net.list_inputs()[5:7] == ["batchnorm0_moving_mean", "batchnorm0_moving_var"]
    assert sym.FullyConnected(net, num_hidden=1).name == "fullyconnected1"
    assert (
        sym.FullyConnected(net, num_hidden=1, no_bias=True).list_arguments()[-1].endswith("weight")
    )


def test_arithmetic_names():
    x, y = sym.Variable("x"), sym.Variable("y")
    made = [x + 1, 1 + x, 1 - x, x - y, x * y, 2 / x, x**2, 2**x, -x, x % 2, x > 1, x == y, x <= y]
    assert [m.name for m in made] == [
        "_plusscalar0",
        "_plusscalar1",
        "_rminusscalar0",
        "_minus0",
        "_mul0",
        "_rdivscalar0",
        "_powerscalar0",
        "_rpowerscalar0",
        "_mulscalar0",
        "_modscalar0",
        "_greater_scalar0",
        "_equal0",
        "_lesser_equal0",
    ]
    with pytest.raises(ParamError, match="expected a symbol or a number"):
        x + "1"
    with pytest.raises(GraphError, match="expected a value"):
        bool(x)


def test_scopes():
    with Prefix("net_"):
        assert sym.relu(sym.Variable("x")).name == "net_relu0"
    with AttrScope(ctx_group="dev1", __lr_mult__="3"):
        fc = sym.FullyConnected(sym.Variable("x"), num_hidden=2)
        with AttrScope(ctx_group="dev2"):
            assert sym.Variable("y").attr("ctx_group") == "dev2"
    found = fc.attr_dict()
    assert (
        found["fullyconnected0"]["ctx_group"] == found["fullyconnected0"]["__ctx_group__"] == "dev1"
    )
    assert found["fullyconnected0_weight"]["lr_mult"] == "3"
    assert sym.Variable("z").list_attr() == {}
    with pytest.raises(ParamError, match="expected strings"):
        AttrScope(lr=1)


def test_variable_attributes():
    v = sym.Variable("v", shape=(2, 0), lr_mult=2.0, wd_mult=0.5, dtype="float16", __own__="1")
    assert v.attr("lr_mult") == "2.0" and v.attr("__own__") == "1" and v.attr("nothing") is None
    assert v.list_attr()["__shape__"] == "(2, 0)"
    v._set_attr(mirror_stage="1")
    assert v.attr("__mirror_stage__") == "1"
    with pytest.raises(ParamError, match="__key__"):
        sym.Variable("v", shpe=(1,))
    with pytest.raises(ParamError, match="string as name"):
        sym.Variable(3)


def test_group_index_iterate():
    parts = sym.split(sym.Variable("x"), num_outputs=3, name="s")
    assert parts.list_outputs() == ["s_output0", "s_output1", "s_output2"] and len(parts) == 3
    assert parts["s_output1"].list_outputs() == ["s_output1"]
    assert [p.list_outputs()[0] for p in parts] == parts.list_outputs()
    assert parts[1:].list_outputs() == ["s_output1", "s_output2"]
    group = sym.Group([parts[0], sym.Variable("y")])
    assert group.list_outputs() == ["s_output0", "y"] and group.name is None
    assert repr(group) == "<Symbol group [s, y]>" and repr(parts[0]) == "<Symbol s>"
    with pytest.raises(UnknownNameError, match="did you mean s_output"):
        parts["s_output"]
    with pytest.raises(IndexError):
        parts[3]
    with pytest.raises(GraphError, match="one output"):
        sym.relu(parts)
    with pytest.raises(GraphError, match="at least one"):
        sym.Group([])


def test_internals_and_children():
    net = small()
    assert net.get_internals().list_outputs()[3] == "fullyconnected0_output"
    feature = net.get_internals()["batchnorm0_output"]
    assert "softmax_label" not in feature.list_arguments()
    assert net.get_children().list_outputs() == ["batchnorm0_output", "softmax_label"]
    assert sym.Variable("x").get_children() is None


def test_composition_replaces_variables():
    inner = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    outer = inner(data=sym.relu(sym.Variable("other"), name="r"), name="new")
    assert outer.list_arguments() == ["other", "fc_weight", "fc_bias"] and outer.name == "new"
    assert inner.list_arguments()[0] == "data"
    assert inner(sym.Variable("p")).list_arguments()[0] == "p"
    with pytest.raises(UnknownNameError, match="did you mean data"):
        inner(dat=sym.Variable("x"))
    with pytest.raises(GraphError, match="twice"):
        inner(sym.Variable("p"), data=sym.Variable("q"))


def test_operator_errors():
    x = sym.Variable("x")
    with pytest.raises(ParamError, match="num_hidden"):
        sym.FullyConnected(x)
    with pytest.raises(ParamError, match="expected"):
        sym.FullyConnected(x, num_hidden=2, hidden=3)
    with pytest.raises(AttributeError, match="did you mean"):
        sym.Convolutions  # noqa: B018
    with pytest.raises(ParamError, match="'out'"):
        sym.relu(x, out=x)


def test_infer_shape():
    net = small()
    args, outs, aux = net.infer_shape(data=(8, 5))
    assert args == [(8, 5), (4, 5), (4,), (4,), (4,), (8,)] and outs == [(8, 4)]
    assert aux == [(4,), (4,)]
    assert net.infer_shape((8, 5))[1] == [(8, 4)]
    assert net.infer_shape() == (None, None, None)
    part = sym.FullyConnected(sym.Variable("a"), num_hidden=2).infer_shape_partial()
    assert part[0][0] == ()
    with pytest.raises(ShapeError, match="fullyconnected0"):
        net.infer_shape(data=(8, 5), fullyconnected0_weight=(4, 6))
    with pytest.raises(UnknownNameError):
        net.infer_shape(dat=(8, 5))
    hinted = sym.Variable("a", shape=(2, 3)) + sym.Variable("b")
    assert hinted.infer_shape()[0] == [(2, 3), (2, 3)]


def test_shapes_flow_backwards():
    out = sym.Variable("a") + sym.Variable("b", shape=(2, 3))
    assert out.infer_shape()[0] == [(2, 3), (2, 3)]


def test_infer_type():
    net = small()
    args, outs, aux = net.infer_type(data="float32")
    assert set(args) == set(outs) == set(aux) == {np.float32}
    assert (sym.Variable("a") + sym.Variable("b")).infer_type(a="float64")[1] == [np.float64]
    assert (sym.Variable("a") + sym.Variable("b")).infer_type() == (None, None, None)
    with pytest.raises((DTypeError, MXNetError)):
        (sym.Variable("a") + sym.Variable("b")).infer_type(a="float64", b="float32")
    assert sym.Cast(sym.Variable("a"), dtype="float16").infer_type(a="float32")[1] == [np.float16]


def test_copies_and_pickle():
    net = small()
    for other in (copy.copy(net), copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert other.tojson() == net.tojson()
    assert isinstance(hash(net), int) and "BatchNorm" in net.debug_str()


def test_methods():
    x = sym.Variable("x")
    assert x.reshape((2, -1)).infer_shape(x=(4, 3))[1] == [(2, 6)]
    assert x.sum(axis=0).infer_shape(x=(4, 3))[1] == [(3,)]
    assert abs(x).infer_shape(x=(4, 3))[1] == [(4, 3)]


def test_constants_and_either_functions():
    x, y = sym.Variable("x"), sym.Variable("y")
    assert sym.zeros((2, 3)).name == "_zeros0"
    assert sym.zeros((2, 3)).infer_shape()[1] == [(2, 3)]
    assert sym.full((2,), 3.0).infer_shape()[1] == [(2,)]
    assert sym.arange(0, 6, 2).infer_shape()[1] == [(3,)]
    assert sym.maximum(x, y).name == "_maximum0" and sym.maximum(2, x).name == "_maximumscalar0"
    assert sym.pow(2, x).name == "_rpowerscalar0" and sym.maximum(2, 3) == 3
    with pytest.raises(ParamError, match="expected a number"):
        sym.minimum(x, "a")
    assert x.astype("float16").infer_type(x="float32")[1] == [np.float16]


def test_automatic_variables_of_any_operator():
    x = sym.Variable("data")
    assert sym.elemwise_add(x).list_arguments() == ["data", "elemwise_add0_rhs"]
    assert sym.relu(name="r").list_arguments() == ["r_data"]
    assert sym.Concat(x, num_args=2, name="c").list_arguments() == ["data", "c_arg1"]
    assert sym.LeakyReLU(x, name="p").list_arguments() == ["data"]
    assert sym.LeakyReLU(x, act_type="prelu", name="p").list_arguments() == ["data", "p_gamma"]
    found = sym.BatchNorm(x, eps=0.1, name="bn", attr={"__a__": "1"}).attr_dict()
    assert found["bn_moving_mean"] == {"__init__": '["zero", {}]', "eps": "0.1", "__a__": "1"}
    assert found["bn_gamma"] == found["bn"] == {"eps": "0.1", "__a__": "1"}
