"""What is not asked for does not run: counts of executed steps."""

import importlib

import numpy as np

import mixflow as mx
from mixflow import nd


def trunk():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1")
    return mx.sym.Activation(net, act_type="tanh", name="act1")


def classifier():
    net = mx.sym.FullyConnected(trunk(), num_hidden=6, name="fc2")
    net = mx.sym.Activation(net, act_type="relu", name="act2")
    net = mx.sym.FullyConnected(net, num_hidden=3, name="fc3")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def conv_net():
    net = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=4, name="conv1")
    net = mx.sym.BatchNorm(net, name="bn1", fix_gamma=False)
    net = mx.sym.Activation(net, act_type="relu", name="relu1")
    net = mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool1")
    net = mx.sym.Convolution(net, kernel=(3, 3), num_filter=4, name="conv2")
    net = mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def bind(symbol, grad_req="write", shape=(4, 5)):
    executor = symbol.simple_bind(mx.cpu(), grad_req=grad_req, data=shape)
    rng = np.random.default_rng(0)
    for name, array in executor.arg_dict.items():
        if not name.endswith("label"):
            array[:] = rng.normal(size=array.shape)
    return executor


def run(executor, **options):
    """Steps that one forward executes."""
    before = executor.executed_steps()
    executor.forward(**options)
    mx.waitall()
    return executor.executed_steps() - before


def text(executor, train=False):
    return "\n".join(s.label for s in executor.plan(train).steps)


def test_an_unused_branch_runs_nothing():
    base = trunk()
    wasted = mx.sym.FullyConnected(base, num_hidden=100, name="wasted")
    used = mx.sym.FullyConnected(base, num_hidden=3, name="used")
    pair = mx.sym.Group([used, wasted])
    alone, chosen, both = bind(used), bind(pair[0]), bind(pair)
    assert run(chosen) == run(alone) < run(both)
    assert "wasted_weight" not in chosen.arg_dict
    assert "wasted" not in text(chosen) and "wasted" in text(both)


def test_what_hangs_on_an_unused_output_does_not_run():
    parts = mx.sym.split(mx.sym.Variable("data"), num_outputs=2, axis=1)
    net = mx.sym.sqrt(parts[0], name="kept")
    mx.sym.exp(parts[1], name="lost")
    assert "lost" not in text(bind(net, shape=(4, 6)))


def test_inference_builds_no_backward_node():
    executor = bind(classifier())
    steps = run(executor, is_train=False)
    plan = executor.plan(False)
    assert steps == len(plan.steps) and plan.phase_ends == [steps]
    assert not [s.label for s in plan.steps if "grad" in s.op or "grad" in s.label]
    assert run(executor, is_train=True) == executor.plan(True).phase_ends[0]
    executor.backward()
    mx.waitall()
    assert executor.executed_steps() == steps + len(executor.plan(True).steps)


def test_training_without_requested_gradients_runs_forward_alone():
    null = bind(classifier(), grad_req="null")
    assert run(null, is_train=True) == run(null, is_train=False)
    before = null.executed_steps()
    null.backward()
    assert null.executed_steps() == before


def test_an_internal_output_runs_nothing_behind_it():
    whole = classifier().get_internals()
    counts = []
    for name in ("fc1_output", "act1_output", "fc2_output", "act2_output", "softmax_output"):
        counts.append(run(bind(whole[name], grad_req="null")))
    assert counts == sorted(counts) and counts[0] < counts[-1]
    feature = bind(whole["act1_output"])
    assert set(feature.arg_dict) == {"data", "fc1_weight", "fc1_bias"}
    assert "fc2" not in text(feature)


def test_features_of_a_convolutional_net():
    net = conv_net()
    whole = bind(net, shape=(2, 1, 12, 12))
    part = bind(net.get_internals()["pool1_output"], shape=(2, 1, 12, 12))
    assert run(part) < run(whole)
    assert not any(n in text(part) for n in ("conv2", "fc", "softmax"))


def test_only_the_way_to_a_requested_gradient_runs_backward():
    def backward_steps(*names):
        executor = bind(classifier(), grad_req={n: "write" for n in names})
        forward = run(executor, is_train=True)
        executor.backward()
        mx.waitall()
        return executor.executed_steps() - forward

    last = backward_steps("fc3_bias")
    middle = backward_steps("fc2_weight")
    first = backward_steps("fc1_weight")
    assert last < middle < first
    everything = bind(classifier())
    forward = run(everything, is_train=True)
    everything.backward()
    mx.waitall()
    assert first < everything.executed_steps() - forward


def test_moving_statistics_cost_nothing_in_inference():
    executor = bind(conv_net(), shape=(2, 1, 12, 12))
    assert run(executor, is_train=False) <= run(executor, is_train=True)
    executor.forward(is_train=False)
    before = executor.aux_dict["bn1_moving_mean"].asnumpy()
    executor.forward(is_train=False)
    np.testing.assert_array_equal(executor.aux_dict["bn1_moving_mean"].asnumpy(), before)


def test_dropout_and_blocked_gradients_leave_no_trace():
    x = mx.sym.Variable("data")
    with_dropout = mx.sym.Dropout(mx.sym.tanh(x), p=0.5)
    assert run(bind(with_dropout)) == run(bind(mx.sym.tanh(x)))
    blocked = mx.sym.BlockGrad(mx.sym.exp(x, name="inner")) * mx.sym.Variable("w", shape=(4, 5))
    plan = bind(blocked).plan(True)
    behind = [s.label for s in plan.steps[plan.phase_ends[0] :]]
    assert not any("inner" in label for label in behind)


def test_equal_parts_are_computed_once():
    x = mx.sym.Variable("data")
    once = mx.sym.dot(x, x, transpose_b=True)
    twice = mx.sym.dot(x, x, transpose_b=True) + mx.sym.dot(x, x, transpose_b=True)
    products = sum(s.op == "matmul" for s in bind(twice, "null").plan().steps)
    assert products == sum(s.op == "matmul" for s in bind(once, "null").plan().steps) == 1


def test_the_tape_computes_only_what_leaves_need():
    x, w = nd.ones((3, 3)), nd.ones((3, 3))
    w.attach_grad()
    engine = importlib.import_module("mixflow.autograd.backward")
    before = set(engine._programs)
    for _ in range(2):  # the first runs call by call, the second compiles one program
        with mx.autograd.record():
            loss = (nd.dot(x, w) * 1.0).sum()
        loss.backward()
    (made,) = [engine._programs[k] for k in set(engine._programs) - before]
    products = [n for n in made.graph.nodes() if n.op is not None and n.op.name == "matmul"]
    assert len(products) == len(made.targets) == 1  # that of w: neither the forward one nor x's
