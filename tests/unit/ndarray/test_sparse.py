"""Row-sparse and CSR arrays: parts, tasks, errors. Values against MXNet: tests/oracle."""

import copy
import pickle
import threading

import numpy as np
import pytest

import mixflow as mx
from mixflow import _rt
from mixflow.errors import DTypeError, MixflowError, MXNetError, ParamError, ShapeError
from mixflow.ndarray import rows as row_math
from mixflow.ndarray.rows import Rows

nd, sparse = mx.nd, mx.nd.sparse


def table(rows, shape=(6, 2), value=1.0):
    return sparse.row_sparse_array(
        (np.full((len(rows), *shape[1:]), value, "float32"), rows), shape=shape
    )


def numbers(array):
    return array.indices.asnumpy().tolist()


class TestParts:
    def test_given_in_any_order(self):
        a = sparse.row_sparse_array(([[1, 2], [3, 4]], [3, 0]), shape=(5, 2))
        assert (a.stype, a.shape, a.ndim, a.size, len(a)) == ("row_sparse", (5, 2), 2, 10, 5)
        assert a.dtype is np.float32
        assert numbers(a) == [0, 3]
        assert a.data.asnumpy().tolist() == [[3, 4], [1, 2]]
        assert a.asnumpy()[:, 0].tolist() == [3, 0, 0, 1, 0]
        assert "RowSparseNDArray 5x2 @cpu(0)" in repr(a)
        assert a.context == a.ctx == mx.cpu()

    def test_sources(self):
        dense = np.array([[0, 0], [1, 0]], "float64")
        assert sparse.row_sparse_array(dense).dtype is np.float64
        assert sparse.row_sparse_array(dense.tolist()).dtype is np.float32
        assert numbers(sparse.row_sparse_array(nd.array(dense))) == [1]
        assert numbers(sparse.row_sparse_array((3, 2))) == []
        assert sparse.row_sparse_array(([[1.0]], [4])).shape == (5, 1)
        a = table([1])
        assert numbers(sparse.row_sparse_array(a)) == numbers(sparse.array(a)) == [1]
        assert numbers(nd.array(a)) == [1]
        parts = (nd.array([[7.0]]), nd.array([2]))
        assert sparse.row_sparse_array(parts, shape=(4, 1)).asnumpy()[2, 0] == 7

    def test_more_or_fewer_dimensions(self):
        one = sparse.row_sparse_array(([1.0, 2.0], [4, 1]), shape=(6,))
        assert one.asnumpy().tolist() == [0, 2, 0, 0, 1, 0]
        three = table([2], (4, 2, 3))
        assert three.asnumpy()[2].tolist() == [[1] * 3] * 2
        assert (three + three).data.shape == (1, 2, 3)

    def test_a_tall_array_costs_only_its_rows(self):
        tall = nd.zeros((10**12, 4), stype="row_sparse")
        assert (tall.size, numbers(tall)) == (4 * 10**12, [])
        one = sparse.row_sparse_array((np.ones((1, 4), "float32"), [10**11]), shape=tall.shape)
        assert numbers((one + tall) * 3) == [10**11]

    def test_copies_are_copies(self):
        a = table([1, 4])
        for made in (a.copy(), copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
            made *= 5
            assert made.asnumpy().sum() == 20
        assert a.asnumpy().sum() == 4
        assert a.as_in_context(mx.cpu()) is a
        assert a.as_in_context(mx.cpu(1)).context == mx.cpu(1)
        assert a.astype("float32", copy=False) is a
        assert a.detach() is a.tostype("row_sparse") is a[:]

    def test_assignment(self):
        a = table([1])
        a[:] = table([2, 3], value=5)
        assert numbers(a) == [2, 3]
        a[:] = 7
        assert numbers(a) == list(range(6))
        a[...] = np.zeros((6, 2))
        assert (numbers(a), a.asnumpy().sum()) == (list(range(6)), 0)
        dense = nd.ones((6, 2))
        dense[:] = table([1])
        assert dense.asnumpy().sum() == 2
        dense[1:3] = 4
        a += dense  # dense from here on
        assert isinstance(a, nd.NDArray)

    def test_mistakes(self):
        with pytest.raises(ValueError, match=r"\[index\] expected a value that broadcasts"):
            table([1])[:] = np.ones((9, 9))
        make = sparse.row_sparse_array
        with pytest.raises(ShapeError, match="each row once, got 1 twice"):
            make(([[1], [2]], [1, 1]), shape=(3, 1))
        with pytest.raises(ShapeError, match="row numbers from 0 to 2, got 1 to 3"):
            make(([[1], [2]], [1, 3]), shape=(3, 1))
        with pytest.raises(ShapeError, match=r"rows of shape \(2,\) and as many"):
            make(([[1], [2]], [0, 1]), shape=(3, 2))
        with pytest.raises(ShapeError, match="at least one dimension"):
            sparse.RowSparseNDArray(())
        with pytest.raises(DTypeError, match="'default' or 'row_sparse'"):
            table([1]).tostype("csr")
        with pytest.raises(ParamError, match="'default', 'row_sparse' or 'csr'"):
            nd.ones((2, 2)).tostype("coo")
        with pytest.raises(ParamError, match="'default', 'row_sparse' or 'csr'"):
            sparse.zeros("coo", (2, 2))
        with pytest.raises(ParamError, match=r"use mx\.nd\.array"):
            sparse.array([[1]])
        with pytest.raises(IndexError, match="see retain"):
            table([1])[0]
        with pytest.raises(IndexError, match=r"expected \[:\]"):
            table([1])[0] = 1
        with pytest.raises(MixflowError, match="use tostype first"):
            table([1]).reshape((2, 6))
        with pytest.raises(ShapeError, match=r"\[copyto\] expected shape"):
            table([1]).copyto(table([1], (4, 2)))
        with pytest.raises(TypeError, match="does not support type int"):
            table([1]).copyto(3)
        with pytest.raises(MixflowError, match="expected a row_sparse array, got default"):
            sparse.retain(nd.ones((2, 2)), nd.array([1]))
        with pytest.raises(MixflowError, match="got a csr one"):
            nd.square(nd.ones((2, 2)), out=sparse.zeros("csr", (2, 2)))
        with pytest.raises(MXNetError, match="from 0 to 5, got 9 to 9"):
            table([1]).retain([9]).asnumpy()
        with pytest.raises(ShapeError, match=r"\[dot\] expected matrices that fit"):
            nd.dot(sparse.csr_matrix(np.eye(3)), nd.ones((2, 2)))


class TestTasks:
    def test_calls_return_before_the_values_are_there(self):
        if _rt.core.name == "pure":
            pytest.skip("the plain core runs each task at once")
        a, may_end = table([1]), threading.Event()
        _rt.core.push(lambda: None if may_end.wait(30) else 1 / 0, [], [a.tag], "waiting")
        b = (a + table([2])).tostype("default") * 2
        may_end.set()
        assert b.asnumpy().sum() == 8

    def test_later_writes_wait_for_earlier_reads(self):
        a = table([1])
        for step in range(50):
            b = a + a
            a[:] = table([step % 6], value=step)
            assert b.asnumpy().sum() == (4 if step == 0 else 4 * (step - 1))

    def test_an_error_is_raised_by_whoever_waits(self):
        a = table([1])

        def fail():
            raise ValueError("no such luck")

        _rt.core.push(fail, [], [a.tag], "failing")
        b = a + table([2])
        with pytest.raises(MXNetError, match="no such luck"):
            b.asnumpy()
        a[:] = table([3])  # a write that does not read the old values replaces the error
        assert numbers(a) == [3]

    def test_dense_results_of_sparse_sources_follow_in_order(self):
        dense = nd.zeros((6, 2))
        for step in range(20):
            table([step % 6], value=step).copyto(dense)
        assert dense.asnumpy()[1].tolist() == [19, 19]


class TestOperators:
    def test_out(self):
        out = sparse.zeros("row_sparse", (6, 2))
        assert nd.elemwise_add(table([1]), table([2]), out=out) is out
        assert numbers(out) == [1, 2]
        dense = nd.zeros((6, 2))
        nd.elemwise_add(table([1]), table([2]), out=dense)
        assert dense.asnumpy().sum() == 4
        nd.square(nd.ones((6, 2)) * 3, out=out)
        assert (numbers(out), out.asnumpy().sum()) == (list(range(6)), 108)

    def test_recorded_calls_have_dense_gradients(self):
        weight = nd.array(np.arange(6.0).reshape(3, 2))
        weight.attach_grad()
        data = sparse.csr_matrix(np.array([[0, 2.0, 0], [1, 0, 0]]))
        with mx.autograd.record():
            loss = (nd.dot(data, weight) ** 2).sum()
        loss.backward()
        x = data.asnumpy()
        np.testing.assert_allclose(weight.grad.asnumpy(), 2 * x.T @ (x @ weight.asnumpy()))

    def test_long_products_are_made_in_blocks(self, monkeypatch):
        from mixflow.ndarray import csr

        monkeypatch.setattr(csr, "_BLOCK", 40)
        draw = np.random.default_rng(0)
        left = draw.normal(size=(30, 17)) * (draw.uniform(size=(30, 17)) < 0.4)
        left[4] = left[:, 3] = 0
        left = left.astype("float32")
        for turned, rows in ((False, 17), (True, 30)):
            right = draw.normal(size=(rows, 7)).astype("float32")
            made = nd.dot(sparse.csr_matrix(left), nd.array(right), transpose_a=turned)
            expected = (left.T if turned else left) @ right
            np.testing.assert_allclose(made.asnumpy(), expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "bfloat16"])
    def test_dtypes(self, dtype):
        a = nd.array([[0, 0], [1, 2], [3, 4]], dtype=dtype).tostype("row_sparse")
        made = (a + a) * 2
        assert made.dtype == a.dtype == nd.zeros((1,), dtype=dtype).dtype
        assert made.asnumpy().astype(float).tolist() == [[0, 0], [4, 8], [12, 16]]

    def test_arithmetic_with_none_and_texts(self):
        a = table([1])
        assert (a == None) is False  # noqa: E711
        assert (a != None) is True  # noqa: E711
        with pytest.raises(TypeError):
            a + "x"

    def test_an_array_of_one_element(self):
        one = sparse.row_sparse_array(([[2.5]], [0]), shape=(1, 1))
        assert one.asscalar() == 2.5
        assert bool(one)

    def test_csr_from_places_and_shapes(self):
        made = sparse.csr_matrix(([1.0, 2.0, 4.0], ([1, 0, 1], [2, 0, 2])), shape=(3, 4))
        assert made.asnumpy().tolist() == [[2, 0, 0, 0], [0, 0, 5, 0], [0, 0, 0, 0]]
        assert sparse.csr_matrix(([1.0], ([1], [2]))).shape == (2, 3)
        assert sparse.csr_matrix((2, 3)).asnumpy().sum() == 0
        made.check_format()
        assert pickle.loads(pickle.dumps(made)).asnumpy().tolist() == made.asnumpy().tolist()
        with pytest.raises(ShapeError, match=r"places within \(3, 4\), got 4 to 4 on axis 1"):
            sparse.csr_matrix(([1.0], ([1], [4])), shape=(3, 4))
        with pytest.raises(ShapeError, match="got -1 to 1 on axis 0"):
            sparse.csr_matrix(([1.0, 2.0], ([1, -1], [0, 0])))
        for rows, columns in (([0], [0, 1]), ([0, 1], [0, 1])):  # neither dropped nor stretched
            with pytest.raises(ShapeError, match="as many rows and columns as data"):
                sparse.csr_matrix(([1.0, 2.0, 3.0], (rows, columns)))


class TestUpdates:
    def test_states_of_both_storages(self):
        draw = np.random.default_rng(1)
        start, gradient = draw.normal(size=(2, 6, 2)).astype("float32")
        gradient[[0, 2, 5]] = 0
        made = []
        for stype in ("default", "row_sparse"):
            weight, momentum = nd.array(start), nd.zeros((6, 2), stype=stype)
            for _ in range(3):
                sparse.sgd_mom_update(
                    *(weight, nd.array(gradient).tostype("row_sparse"), momentum),
                    **{"out": weight, "lr": 0.1, "momentum": 0.9, "wd": 0.1},
                )
            made.append(weight.asnumpy())
        np.testing.assert_array_equal(*made)
        assert (made[0][[0, 2, 5]] == start[[0, 2, 5]]).all()

    def test_into_another_array(self):
        weight, gradient = nd.ones((6, 2)), table([1])
        made = nd.sgd_update(weight, gradient, lr=1.0)
        assert (weight.asnumpy().sum(), made.asnumpy()[1].tolist()) == (12, [0, 0])
        out = nd.zeros((6, 2))
        nd.sgd_update(weight, gradient, lr=1.0, out=out)
        assert out.asnumpy().sum() == 10

    def test_rows_that_a_weight_lacks_are_added(self):
        weight = table([1, 4])
        nd.sgd_update(weight, table([2, 4]), lr=0.5, out=weight)
        assert numbers(weight) == [1, 2, 4]
        assert weight.asnumpy()[:, 0].tolist() == [0, 1, -0.5, 0, 0.5, 0]

    def test_a_16_bit_weight_with_a_float32_copy(self):
        optimizer = mx.optimizer.create("sgd", learning_rate=0.1, multi_precision=True)
        updater = mx.optimizer.get_updater(optimizer)
        weight = nd.ones((6, 2), dtype="float16")
        for _ in range(10):
            updater(0, table([1], value=0.001).astype("float16"), weight)
        assert weight.asnumpy()[:, 0].tolist() == [1, np.float16(0.999), 1, 1, 1, 1]

    def test_shapes_are_checked(self):
        with pytest.raises(ShapeError, match=r"\[sgd_update\] expected shape \(6, 2\), got"):
            nd.sgd_update(nd.ones((6, 2)), table([1], (5, 2)), lr=0.1)


class TestRowMathematics:
    def test_equal_rows_add_up(self):
        values = np.arange(8.0).reshape(4, 2)
        made = row_math.sum_equal(np.array([3, 1, 3, 0]), values)
        assert made.numbers.tolist() == [0, 1, 3]
        assert made.values.tolist() == [[6, 7], [2, 3], [4, 6]]
        assert len(row_math.sum_equal(np.empty(0, int), np.empty((0, 2))).numbers) == 0

    def test_sums_are_those_of_dense_arrays(self):
        draw = np.random.default_rng(2)
        for _ in range(50):
            shape = (int(draw.integers(1, 9)), int(draw.integers(1, 4)))
            parts, total = [], np.zeros(shape)
            for _ in range(draw.integers(1, 4)):
                chosen = np.flatnonzero(draw.uniform(size=shape[0]) < 0.5)
                parts.append(Rows(chosen, draw.normal(size=(len(chosen), shape[1]))))
                total += row_math.to_dense(parts[-1], shape)
            np.testing.assert_allclose(row_math.to_dense(row_math.add(parts), shape), total)
