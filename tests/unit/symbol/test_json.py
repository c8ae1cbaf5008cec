"""Symbol files: round trips, old forms, corruption."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mixflow.symbol as sym
from mixflow.errors import FormatError
from mixflow.name import NameManager


def net():
    with NameManager():
        x = sym.Variable("data", lr_mult=2.0)
        c = sym.Convolution(x, kernel=(3, 3), num_filter=4, pad=(1, 1), attr={"ctx_group": "dev1"})
        c = sym.Activation(sym.BatchNorm(c, eps=1e-3), act_type="relu")
        a, b = sym.split(c, num_outputs=2)
        y = sym.Concat(a * 2.5, b + a, dim=1)
        return sym.SoftmaxOutput(sym.FullyConnected(y, num_hidden=3), name="softmax")


TEXT = net().tojson()


def test_round_trip_keeps_everything():
    again = sym.fromjson(TEXT)
    assert again.tojson() == TEXT
    assert again.list_arguments() == net().list_arguments()
    assert again.attr_dict() == net().attr_dict()


def test_form():
    data = json.loads(TEXT)
    assert data["attrs"] == {"mxnet_version": ["int", 10901]}
    nodes = data["nodes"]
    conv = next(n for n in nodes if n["op"] == "Convolution")
    assert conv["attrs"]["kernel"] == "(3, 3)" and conv["attrs"]["__ctx_group__"] == "dev1"
    assert data["arg_nodes"] == [k for k, n in enumerate(nodes) if n["op"] == "null"]
    assert data["node_row_ptr"][-1] == sum(
        {"BatchNorm": 3, "SliceChannel": 2}.get(n["op"], 1) for n in nodes
    )
    assert len(data["node_row_ptr"]) == len(nodes) + 1 and data["heads"] == [[len(nodes) - 1, 0, 0]]


def test_save_and_load(tmp_path):
    path = tmp_path / "net-symbol.json"
    net().save(str(path))
    assert sym.load(str(path)).tojson() == TEXT
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="binary data"):
        sym.load(str(path))


def test_old_forms():
    old = {
        "nodes": [
            {"op": "null", "param": {}, "name": "data", "inputs": [], "backward_source_id": -1},
            {
                "op": "null",
                "param": {},
                "name": "fc_weight",
                "inputs": [],
                "backward_source_id": -1,
            },
            {"op": "null", "param": {}, "name": "fc_bias", "inputs": [], "backward_source_id": -1},
            {
                "op": "FullyConnected",
                "param": {"no_bias": "False", "num_hidden": "10"},
                "name": "fc",
                "inputs": [[0, 0], [1, 0], [2, 0]],
                "backward_source_id": -1,
                "attr": {"weight_lr_mult": "0.5", "ctx_group": "g"},
            },
            {"op": "null", "param": {}, "name": "bn_gamma", "inputs": []},
            {"op": "null", "param": {}, "name": "bn_beta", "inputs": []},
            {
                "op": "BatchNorm",
                "param": {"eps": "0.001"},
                "name": "bn",
                "inputs": [[3, 0], [4, 0], [5, 0]],
            },
        ],
        "arg_nodes": [0, 1, 2, 4, 5],
        "heads": [[6, 0]],
    }
    found = sym.fromjson(json.dumps(old))
    assert found.list_auxiliary_states() == ["bn_moving_mean", "bn_moving_var"]
    attrs = found.attr_dict()
    assert attrs["fc_weight"]["lr_mult"] == "0.5" and attrs["fc"]["ctx_group"] == "g"
    assert found.infer_shape(data=(2, 3))[1] == [(2, 10)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"nodes": []}',
        '{"nodes": [{"op": "null", "name": "x", "inputs": []}]}',
        '{"nodes": [1], "heads": [[0, 0, 0]]}',
        "\x00",
        '{"nodes": {}, "heads": []}',
    ],
)
def test_broken_files(text):
    with pytest.raises(FormatError):
        sym.fromjson(text)


def _changed(path, value):
    data = json.loads(TEXT)
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        (("heads",), [[999, 0, 0]], "expected a node"),
        (("heads",), [[0, 7, 0]], "expected an output below"),
        (("nodes", 3, "op"), "Convolutoin", "did you mean"),
        (("nodes", 3, "attrs", "kernel"), "(3, x)", "kernel"),
        (("nodes", 3, "attrs", "kernel"), 3, "expected a string"),
        (("nodes", 3, "inputs"), [[50, 0, 0]], "expected a node before"),
        (("nodes", 3, "inputs"), [[0, 0, 0]] * 9, "inputs"),
        (("nodes", 3, "inputs"), [[0, 0, 0]], "expected input 'weight'"),
        (("nodes", 0, "inputs"), [[0, 0, 0]], "no inputs of variable"),
        (("nodes", 0, "name"), 5, "with a name"),
    ],
)
def test_corruption_is_named(path, value, match):
    with pytest.raises(FormatError, match=match):
        sym.fromjson(_changed(path, value))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(TEXT) - 1), st.characters(max_codepoint=127), st.booleans())
def test_any_change_of_a_byte_loads_or_is_a_format_error(at, char, cut):
    text = TEXT[:at] if cut else TEXT[:at] + char + TEXT[at + 1 :]
    with contextlib.suppress(FormatError):
        sym.fromjson(text).list_arguments()


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 30) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
_paths = [
    ("nodes",),
    ("heads",),
    ("nodes", 3),
    ("nodes", 3, "attrs"),
    ("nodes", 3, "inputs"),
    ("nodes", 0, "name"),
    ("nodes", 3, "op"),
    ("heads", 0),
    ("nodes", 3, "inputs", 0),
]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(_paths), _json)
def test_any_replaced_entry_loads_or_is_a_format_error(path, value):
    with contextlib.suppress(FormatError):
        sym.fromjson(_changed(path, value)).list_arguments()
