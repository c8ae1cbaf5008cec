"""Every layer once, in a few seconds: what to run first after a change."""

import numpy as np
import pytest

import mixflow as mx
from mixflow import autograd, nd


def digits(count=640):
    from mixflow import datasets

    found = datasets.digits()
    images = np.asarray(found.train_images[:count], np.float32)
    return images.reshape(count, -1) / images.max(), found.train_labels[:count]


def test_array_arithmetic():
    a, b = nd.array([[1.0, 2.0], [3.0, 4.0]]), nd.ones((2, 2))
    c = (a + b) * 2 - a / 2
    c[0, 1] = 100
    c += 1
    np.testing.assert_allclose(c.asnumpy(), [[4.5, 101.0], [7.5, 9.0]])
    np.testing.assert_allclose(nd.dot(a, b).sum().asscalar(), 20.0)


def test_autograd():
    x = nd.array([1.0, 2.0, 3.0])
    x.attach_grad()
    with autograd.record():
        loss = (x * x).sum()
    loss.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), [2.0, 4.0, 6.0])


def test_bound_symbol():
    x, w = mx.sym.Variable("x"), mx.sym.Variable("w")
    executor = (x * w).simple_bind(mx.cpu(), x=(2,), w=(2,))
    executor.arg_dict["x"][:] = [1.0, 2.0]
    executor.arg_dict["w"][:] = [3.0, 4.0]
    np.testing.assert_allclose(executor.forward(is_train=True)[0].asnumpy(), [3.0, 8.0])
    executor.backward()
    np.testing.assert_allclose(executor.grad_dict["w"].asnumpy(), [1.0, 2.0])


def test_module_learns_digits_and_checkpoints(tmp_path):
    images, labels = digits()
    mx.random.seed(0)
    iterator = mx.io.NDArrayIter(images, labels, batch_size=32, shuffle=False)
    net = mx.sym.Flatten(mx.sym.Variable("data"))
    net = mx.sym.Activation(mx.sym.FullyConnected(net, num_hidden=64, name="fc1"), act_type="relu")
    net = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(net, num_hidden=10, name="fc2"), name="softmax"
    )
    module = mx.mod.Module(net)
    module.fit(
        iterator,
        num_epoch=1,
        optimizer="adam",
        optimizer_params={"learning_rate": 0.01},
        initializer=mx.init.Xavier(),
    )
    ((_, accuracy),) = module.score(iterator, "acc")
    assert accuracy > 0.5
    prefix = str(tmp_path / "digits")
    module.save_checkpoint(prefix, 1)
    again = mx.mod.Module.load(prefix, 1)
    again.bind(iterator.provide_data, iterator.provide_label, for_training=False)
    again.init_params()
    got, wanted = again.predict(iterator).asnumpy(), module.predict(iterator).asnumpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)


def test_arrays_in_files(tmp_path):
    path = str(tmp_path / "arrays.params")
    nd.save(path, {"a": nd.arange(4), "b": nd.ones((2, 1))})
    loaded = nd.load(path)
    np.testing.assert_array_equal(loaded["a"].asnumpy(), [0, 1, 2, 3])
    assert loaded["b"].shape == (2, 1)


def test_an_error_names_what_is_wrong():
    with pytest.raises(mx.MXNetError, match="dot"):
        nd.dot(nd.ones((2, 3)), nd.ones((2, 3)))


def test_an_asynchronous_error_waits_for_the_next_wait():
    bad = nd.gather_nd(nd.ones((2, 3)), nd.array([[5.0], [0.0]]))
    with pytest.raises(mx.MXNetError, match=r"gather_nd.*2x3.*test_smoke.py:\d+"):
        (bad + 1).asnumpy()
    np.testing.assert_array_equal((nd.ones(2) + 1).asnumpy(), [2.0, 2.0])
