"""The store of one process: sparse values, compression, states. Values: tests/oracle."""

import warnings

import numpy as np
import pytest

import mixflow as mx
from mixflow.errors import MixflowError, MXNetError, ParamError, ShapeError, UnknownNameError
from mixflow.kvstore import base

SHAPE = (6, 2)


def table(rows, value=1.0):
    return mx.nd.sparse.row_sparse_array(
        (np.full((len(rows), 2), value, "float32"), rows), shape=SHAPE
    )


def empty():
    return mx.nd.sparse.zeros("row_sparse", SHAPE)


class TestRowSparse:
    def test_dense_values_meet_sparse_ones(self):
        store = mx.kv.create("local")
        store.init("t", table([1]))
        store.push("t", [table([1, 2]), mx.nd.ones(SHAPE)])
        out = mx.nd.zeros(SHAPE)
        store.pull("t", out=out)
        assert out.asnumpy()[:, 0].tolist() == [1, 2, 2, 1, 1, 1]
        rows = empty()
        store.init("d", mx.nd.ones(SHAPE) * 3)
        store.row_sparse_pull("d", out=rows, row_ids=mx.nd.array([4, 0]))  # rows of a dense key
        assert rows.asnumpy()[:, 0].tolist() == [3, 0, 0, 0, 3, 0]

    def test_row_numbers_as_lists(self):
        store = mx.kv.create("local")
        store.init("t", table(range(6)))
        out = empty()
        store.row_sparse_pull("t", out=out, row_ids=[3, 1, 3])
        assert out.indices.asnumpy().tolist() == [1, 3]

    def test_pull_leaves_sparse_arrays_and_warns_once(self):
        store = mx.kv.create("local")
        store.init("t", table([1]))
        out, dense = empty(), mx.nd.zeros(SHAPE)
        base._warned.clear()
        with pytest.warns(UserWarning, match="use row_sparse_pull"):
            store.pull("t", out=[out, dense])
        assert (out.asnumpy().sum(), dense.asnumpy().sum()) == (0, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store.pull("t", out=out)
            store.pushpull("t", table([2]))
        store.pull("t", out=out, ignore_sparse=False)
        assert out.indices.asnumpy().tolist() == [2]

    def test_an_updater_gets_the_sum_of_rows(self):
        store, seen = mx.kv.create("local"), []
        store.init("t", table(range(6)))
        store.set_updater(lambda key, grad, weight: seen.append((key, grad, weight)))
        store.push("t", [table([1]), table([1, 3])])
        ((key, grad, weight),) = seen
        assert (key, grad.stype, weight.stype) == ("t", "row_sparse", "row_sparse")
        assert grad.data.asnumpy()[:, 0].tolist() == [2, 1]

    def test_mistakes(self):
        store, ids = mx.kv.create("local"), mx.nd.array([1])
        store.init("t", table([1]))
        with pytest.raises(MixflowError, match="'out' in row_sparse_pull"):
            store.row_sparse_pull("t", row_ids=ids)
        with pytest.raises(MixflowError, match="'row_ids' in row_sparse_pull"):
            store.row_sparse_pull("t", out=empty())
        with pytest.raises(MixflowError, match="storage 'default'"):
            store.row_sparse_pull("t", out=mx.nd.zeros(SHAPE), row_ids=ids)
        with pytest.raises(ParamError, match="one per key"):
            store.row_sparse_pull(["t"], out=[empty()], row_ids=ids)
        with pytest.raises(ParamError, match="each of 2 arrays of 't', got 3"):
            store.row_sparse_pull("t", out=[empty(), empty()], row_ids=[ids] * 3)
        with pytest.raises(ShapeError, match=r"expected shape \(3, 2\), got \(6, 2\)"):
            store.row_sparse_pull("t", mx.nd.sparse.zeros("row_sparse", (3, 2)), row_ids=ids)
        with pytest.raises(MixflowError, match="call init"):
            store.row_sparse_pull("u", out=empty(), row_ids=ids)
        out = empty()
        store.row_sparse_pull("t", out=out, row_ids=mx.nd.array([6]))
        with pytest.raises(MXNetError, match="from 0 to 5, got 6"):
            out.asnumpy()


class TestCompression:
    def test_each_context_keeps_its_rest(self):
        store = mx.kv.create("device")
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        store.init("x", mx.nd.zeros((2, 2)))
        out, seen = mx.nd.zeros((2, 2)), []
        for value in (0.4, 0.1, 0.2, 0.3):
            pushed = [mx.nd.full((2, 2), value * k, ctx=mx.cpu(k - 1)) for k in (1, 2)]
            store.push("x", pushed)
            store.pull("x", out=out)
            seen.append(float(out.asnumpy()[1, 1]))
        # The first context's rest and value: 0.4, 0.5, 0.2, 0.5; the second's: 0.8, 0.5, 0.4, 1.
        assert seen == [0.5, 1.0, 0.0, 1.0]

    def test_one_bit(self):
        store = mx.kv.create("device")
        store.set_gradient_compression({"type": "1bit"})
        store.init("x", mx.nd.zeros((3,)))
        out = mx.nd.zeros((3,))
        store.pushpull("x", mx.nd.array([0.2, -3, 0]), out=out)
        assert out.asnumpy().tolist() == [1, -1, -1]

    def test_mistakes(self):
        with pytest.raises(MixflowError, match="a 'device' or 'dist' store, got 'local'"):
            mx.kv.create("local").set_gradient_compression({"type": "2bit"})
        store = mx.kv.create("device")
        with pytest.raises(UnknownNameError, match="2bit"):
            store.set_gradient_compression({"type": "3bit"})
        with pytest.raises(ParamError, match="expected 'type'"):
            store.set_gradient_compression({"typ": "2bit"})
        store.set_gradient_compression({"type": "2bit"})
        with pytest.raises(MixflowError, match="to be set once"):
            store.set_gradient_compression({"type": "2bit"})
        store.init(["x", "t"], [mx.nd.zeros((3,), dtype="float64"), table([1])])
        with pytest.raises(MixflowError, match="of 'x', got default float64"):
            store.push("x", mx.nd.ones((3,), dtype="float64"))
        with pytest.raises(MixflowError, match="of 't', got row_sparse float32"):
            store.push("t", table([2]))


class TestStates:
    def make(self, **options):
        store = mx.kv.create("local")
        store.init([0, 1], [mx.nd.ones(SHAPE), table(range(6))])
        store.set_optimizer(mx.optimizer.create("adam", learning_rate=0.1))
        return store

    def step(self, store):
        store.push([0, 1], [mx.nd.ones(SHAPE), table([1, 4])])

    def values(self, store):
        outs = [mx.nd.zeros(SHAPE) for _ in range(2)]
        store.pull([0, 1], out=outs)
        return np.stack([out.asnumpy() for out in outs])

    @pytest.mark.parametrize("dump", [False, True])
    def test_saved_and_loaded(self, dump, tmp_path):
        first, second = self.make(), self.make()
        for store in (first, second):
            for _ in range(3):
                self.step(store)
        path = str(tmp_path / "states")
        first.save_optimizer_states(path, dump_optimizer=dump)
        third = mx.kv.create("local")
        third.init([0, 1], [mx.nd.array(v) for v in self.values(first)])
        third.set_optimizer(mx.optimizer.create("adam", learning_rate=0.1))
        third.load_optimizer_states(path)
        for store in (second, third):
            self.step(store)
        np.testing.assert_allclose(self.values(third), self.values(second), rtol=1e-6)

    def test_mistakes(self, tmp_path):
        store = mx.kv.create("local")
        with pytest.raises(MixflowError, match="call set_optimizer"):
            store.save_optimizer_states(str(tmp_path / "x"))
        with pytest.raises(OSError, match="No such file"):
            self.make().load_optimizer_states(str(tmp_path / "x"))
