"""Row_sparse gradients under autograd: look-ups in tables that are dense or row_sparse."""

import numpy as np
import pytest

import mixflow as mx
from mixflow.errors import MixflowError, MXNetError, ParamError, ShapeError

nd, sparse = mx.nd, mx.nd.sparse
ROWS, WIDTH = 7, 3
START = np.arange(ROWS * WIDTH, dtype="float32").reshape(ROWS, WIDTH)
IDS = [[1, 3], [3, 0]]


def look_up(ids, table, sparse_grad=True):
    return nd.Embedding(
        nd.array(ids), table, input_dim=ROWS, output_dim=WIDTH, sparse_grad=sparse_grad
    )


def gradient_of(loss, table):
    with mx.autograd.record():
        value = loss(table)
    value.backward()
    return table.grad


def loss_of_two_look_ups(table):
    first, second = look_up(IDS, table), look_up([5, 3], table)
    return (first * first).sum() + second.sum()


def dense_gradient(loss):
    table = nd.array(START)
    table.attach_grad()
    return gradient_of(loss, table).asnumpy()


@pytest.mark.parametrize("stype", ["default", "row_sparse"])
@pytest.mark.parametrize("request_", ["write", "add"])
def test_rows_that_were_read(stype, request_):
    table = nd.array(START).tostype(stype)
    table.attach_grad(request_, stype="row_sparse")
    expected = dense_gradient(loss_of_two_look_ups)
    for time in (1, 2):
        found = gradient_of(loss_of_two_look_ups, table)
        assert (found.stype, found.indices.asnumpy().tolist()) == ("row_sparse", [0, 1, 3, 5])
        factor = time if request_ == "add" else 1
        np.testing.assert_allclose(found.asnumpy(), factor * expected)


def test_the_storage_of_a_gradient_follows_the_table_or_the_request():
    for stype, asked, expected in (
        ("default", None, "default"),
        ("row_sparse", None, "row_sparse"),
        ("row_sparse", "default", "default"),
    ):
        table = nd.array(START).tostype(stype)
        assert table.grad is None
        table.attach_grad(stype=asked)
        found = gradient_of(loss_of_two_look_ups, table)
        assert found.stype == expected
        np.testing.assert_allclose(found.asnumpy(), dense_gradient(loss_of_two_look_ups))


def test_dense_and_sparse_uses_add_up():
    def loss(table):
        return look_up([2], table).sum() + (nd.dot(table, nd.ones((WIDTH, 1))) * 2).sum()

    expected = dense_gradient(loss)
    for stype in ("default", "row_sparse"):
        table = nd.array(START).tostype(stype)
        table.attach_grad(stype="row_sparse")
        for _ in range(3):  # the first runs call by call, the next by a plan
            found = gradient_of(loss, table)
            assert found.stype == "row_sparse"
            np.testing.assert_allclose(found.asnumpy(), expected)


def test_rows_outside_are_held_within():
    table = nd.array(START)
    table.attach_grad(stype="row_sparse")
    found = gradient_of(lambda t: look_up([-4, 99], t).sum(), table)
    assert found.indices.asnumpy().tolist() == [0, ROWS - 1]


def test_rows_that_a_table_lacks_are_0():
    table = sparse.row_sparse_array((np.ones((1, WIDTH), "float32"), [3]), shape=(ROWS, WIDTH))
    assert look_up(IDS, table).asnumpy()[:, :, 0].tolist() == [[0, 1], [1, 0]]


def test_training_touches_the_rows_of_the_batches_alone():
    table = nd.array(START)
    table.attach_grad(stype="row_sparse")
    updater = mx.optimizer.get_updater(mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9))
    for _ in range(3):
        updater(0, gradient_of(lambda t: (look_up(IDS, t) ** 2).sum(), table), table)
    changed = (table.asnumpy() != START).any(axis=1)
    assert changed.tolist() == [True, True, False, True, False, False, False]


def test_without_sparse_grad_the_gradient_is_converted():
    table = nd.array(START)
    table.attach_grad(stype="row_sparse")
    found = gradient_of(lambda t: look_up(IDS, t, sparse_grad=False).sum(), table)
    assert found.indices.asnumpy().tolist() == [0, 1, 3]


def test_mistakes():
    table = nd.array(START)
    with pytest.raises(ParamError, match="stype 'default' or 'row_sparse', got 'csr'"):
        table.attach_grad(stype="csr")
    table.attach_grad(stype="row_sparse")
    ids = nd.array([1])
    with mx.autograd.record():
        value = nd.Embedding(ids, table, input_dim=ROWS, output_dim=WIDTH, sparse_grad=True)
    ids[:] = 2
    with pytest.raises(MXNetError, match="overwritten since"):
        value.backward()
    with mx.autograd.record():
        value = look_up([1], table)
    with pytest.raises(MixflowError, match="whose gradient is Python code"):
        mx.autograd.grad(value, table, create_graph=True)
    with pytest.raises(ShapeError, match=r"\[Embedding\] expected a weight of shape \(9, 3\)"):
        nd.Embedding(ids, table.tostype("row_sparse"), input_dim=9, output_dim=3)
