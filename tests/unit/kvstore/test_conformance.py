"""The documented numbers of MXNet's distributed tests, with 1, 2 and 4 workers and 1 and 2 servers
over real sockets: dense, sparse, compressed, float16, arrays that are cut over the servers."""

import numpy as np
import pytest
from store_support import job, together

import mixflow as mx
from mixflow.errors import MixflowError, MXNetError, ShapeError
from mixflow.kvstore.protocol.client import Client

pytest.importorskip("zmq")

RATE = 2
REPEATS = 3
SIZES = [(workers, servers) for workers in (1, 2, 4) for servers in (1, 2)]
#: Below and above the number of elements from which a test job cuts arrays (100).
SMALL, BIG = (4, 3), (61, 5)

sizes = pytest.mark.parametrize("workers, servers", SIZES)
dtypes = pytest.mark.parametrize("dtype", ["float32", "float16"])


def test_optimizer():
    return mx.optimizer.create("test", rescale_grad=RATE)


test_optimizer.__test__ = False


def rows_of(values, numbers, shape, dtype="float32"):
    return mx.nd.sparse.row_sparse_array(
        (np.asarray(values, dtype).reshape(-1, *shape[1:]), numbers), shape=shape
    )


def pulled(store, key, shape, dtype="float32"):
    out = mx.nd.zeros(shape, dtype=dtype)
    store.pull(key, out=out)
    return out.asnumpy()


def pulled_rows(store, key, shape, numbers, dtype="float32"):
    out = mx.nd.sparse.zeros("row_sparse", shape, dtype=dtype)
    store.row_sparse_pull(key, out=out, row_ids=mx.nd.array(numbers))
    assert out.indices.asnumpy().tolist() == sorted(set(numbers))
    return out.asnumpy()


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: "{}x{}".format(*size))
def crew(request):
    """The stores of one job for several tests, which use keys of their own."""
    with job(*request.param) as stores:
        together(lambda store: store.set_optimizer(test_optimizer()), stores)
        yield stores


@dtypes
def test_dense_pushes_sum_over_workers(crew, dtype):
    workers = len(crew)
    keys = {f"dense {dtype}": SMALL, f"big {dtype}": BIG}

    def worker(store):
        store.init(list(keys), [mx.nd.ones(shape, dtype=dtype) for shape in keys.values()])
        for step in range(REPEATS):
            expected = (workers + 1) * workers * RATE / 2 * (step + 1) + 1
            for key, shape in keys.items():
                store.push(key, mx.nd.ones(shape, dtype=dtype) * (store.rank + 1))
                found = pulled(store, key, shape, dtype)
                assert found.dtype == dtype
                np.testing.assert_array_equal(found, np.full(shape, expected))

    together(worker, crew)


def test_several_contexts_count_each(crew):
    workers, contexts = len(crew), [mx.cpu(0), mx.cpu(1)]

    def worker(store):
        store.init("contexts", mx.nd.ones(BIG))
        for step in range(REPEATS):
            store.push("contexts", [mx.nd.ones(BIG, ctx=c) * (store.rank + 1) for c in contexts])
            expected = (workers + 1) * workers * RATE * len(contexts) / 2 * (step + 1) + 1
            np.testing.assert_array_equal(pulled(store, "contexts", BIG), np.full(BIG, expected))

    together(worker, crew)


def test_the_first_value_of_worker_0_counts(crew):
    def worker(store):
        values = [mx.nd.ones(shape) * (store.rank + 1) for shape in (SMALL, BIG)]
        store.init(["first 1", "first 2"], values)
        store.init("first 3", rows_of(np.full((2, 5), store.rank + 1), [0, 60], BIG))
        assert (pulled(store, "first 1", SMALL) == 1).all()
        assert (pulled(store, "first 2", BIG) == 1).all()
        assert pulled(store, "first 3", BIG).sum() == 10

    together(worker, crew)


@dtypes
def test_row_sparse_pushes_sum_over_workers(crew, dtype):
    """Each worker pushes one row, its own number plus one; rows that nobody pushes stay."""
    workers = len(crew)

    def worker(store):
        for key, shape in ((f"rows {dtype}", SMALL), (f"big rows {dtype}", BIG)):
            store.init(key, mx.nd.ones(shape, dtype=dtype).tostype("row_sparse"))
            mine = (store.rank * 17) % shape[0]
            expected = np.ones(shape)
            for rank in range(workers):
                expected[(rank * 17) % shape[0]] += (rank + 1) * RATE * REPEATS
            for _ in range(REPEATS):
                store.push(key, rows_of([store.rank + 1] * shape[1], [mine], shape, dtype))
            asked = np.random.default_rng(store.rank).integers(0, shape[0], 9).tolist()
            found = pulled_rows(store, key, shape, asked, dtype)
            np.testing.assert_array_equal(found[asked], expected[asked])
            np.testing.assert_array_equal(pulled(store, key, shape, dtype), expected)

    together(worker, crew)


def test_row_sparse_pushes_without_rows_and_of_all_rows(crew):
    workers, every = len(crew), list(range(BIG[0]))

    def worker(store):
        store.init("every", mx.nd.ones(BIG).tostype("row_sparse"))
        for _ in range(REPEATS):
            store.push("every", mx.nd.sparse.zeros("row_sparse", BIG))
        assert (pulled_rows(store, "every", BIG, every) == 1).all()
        assert pulled_rows(store, "every", BIG, []).sum() == 0
        for _ in range(REPEATS):
            store.push("every", mx.nd.ones(BIG).tostype("row_sparse") * (store.rank + 1))
        expected = (workers + 1) * workers * RATE / 2 * REPEATS + 1
        assert (pulled_rows(store, "every", BIG, every) == expected).all()
        store.push("every", mx.nd.ones(BIG))  # a dense one
        assert (pulled_rows(store, "every", BIG, every) == expected + workers * RATE).all()

    together(worker, crew)


def test_dense_and_sparse_pushes_of_one_round_meet(crew):
    workers = len(crew)

    def worker(store):
        store.init("meet", mx.nd.zeros(BIG).tostype("row_sparse"))
        sparse = rows_of(np.ones((2, 5)), [1, 44], BIG)
        store.push("meet", sparse if store.rank % 2 == 0 else mx.nd.ones(BIG))
        found = pulled_rows(store, "meet", BIG, [0, 1, 44])
        assert (found[0] == RATE * (workers // 2)).all()
        assert (found[[1, 44]] == RATE * workers).all()

    together(worker, crew)


@sizes
def test_push_and_pull_in_one_without_an_optimizer(workers, servers):
    def worker(store):
        store.init("x", mx.nd.zeros(BIG))
        for step in range(REPEATS):
            value = mx.nd.ones(BIG) * (store.rank + 1) * (step + 1)
            store.pushpull("x", value)
            expected = (workers + 1) * workers / 2 * (step + 1)
            np.testing.assert_array_equal(value.asnumpy(), np.full(BIG, expected))
        store.init("t", mx.nd.ones(BIG).tostype("row_sparse"))
        store.push("t", rows_of(np.full((1, 5), store.rank + 1), [7], BIG))
        found = pulled_rows(store, "t", BIG, [7, 8])
        assert (found[7:9, 0] == [(workers + 1) * workers / 2, 0]).all()

    with job(workers, servers) as stores:
        together(worker, stores)


def compressed(kind, pushes, workers, servers, shapes=(SMALL, BIG)):
    """What each worker reads after each push, for each shape."""

    def worker(store):
        store.set_gradient_compression({"type": kind})
        for key, shape in enumerate(shapes):
            store.init(key, mx.nd.zeros(shape))
        store.set_optimizer(test_optimizer())
        seen = []
        for value in pushes:
            for key, shape in enumerate(shapes):
                store.push(key, mx.nd.ones(shape) * value)
                found = pulled(store, key, shape)
                assert (found == found.flat[0]).all()
                seen.append(float(found.flat[0]))
        return seen

    with job(workers, servers) as stores:
        return together(worker, stores)


@sizes
def test_2bit_compression_keeps_the_rest(workers, servers):
    once = 0.5 * RATE * workers
    for seen in compressed("2bit", (0.4, 0.1, 0.2, 0.3), workers, servers):
        assert seen == [0, 0, once, once, once, once, 2 * once, 2 * once]


@sizes
def test_1bit_compression_keeps_the_rest(workers, servers):
    once = RATE * workers
    for seen in compressed("1bit", (0.4, 0.1, 0.2, 0.4), workers, servers):
        assert seen == [once, once, 0, 0, once, once, 2 * once, 2 * once]


def test_compression_of_random_gradients_is_that_of_one_process():
    """The sum that the servers see, against codes that are computed here value by value."""
    draw = np.random.default_rng(3)
    pushes = draw.normal(size=(5, 2, *BIG)).astype("float32")
    expected, rest = np.zeros(BIG, "float32"), np.zeros((2, *BIG), "float32")
    for push in pushes:
        rest += push
        sent = np.where(rest >= 0.5, 0.5, np.where(rest <= -0.5, -0.5, 0)).astype("float32")
        rest -= sent
        expected += RATE * sent.sum(axis=0)

    def worker(store):
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        store.init("g", mx.nd.zeros(BIG))
        store.set_optimizer(test_optimizer())
        for push in pushes:
            store.push("g", mx.nd.array(push[store.rank]))
        return pulled(store, "g", BIG)

    with job(2, 2) as stores:
        for found in together(worker, stores):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


class TestLazyUpdates:
    """An optimizer on the servers gives what it gives on a row_sparse weight in one process."""

    OPTIMIZERS = (
        ("sgd", {"momentum": 0.9, "wd": 0.1}),
        ("sgd", {"momentum": 0.9, "wd": 0.1, "lazy_update": False}),
        ("adam", {}),
        ("adagrad", {}),
        ("ftrl", {}),
        ("rmsprop", {}),
    )

    @pytest.mark.parametrize("name, options", OPTIMIZERS)
    def test_values(self, name, options):
        draw = np.random.default_rng(4)
        start = draw.normal(size=BIG).astype("float32")
        gradients = []
        for _ in range(4):
            numbers = np.flatnonzero(draw.uniform(size=BIG[0]) < 0.2)
            values = draw.normal(size=(len(numbers), BIG[1]))
            gradients.append(rows_of(values, numbers, BIG))
        weight = mx.nd.array(start).tostype("row_sparse")
        updater = mx.optimizer.get_updater(mx.optimizer.create(name, **options))
        for gradient in gradients:
            updater(0, gradient, weight)

        def worker(store):
            store.init("t_weight", mx.nd.array(start).tostype("row_sparse"))
            store.set_optimizer(mx.optimizer.create(name, **options))
            for gradient in gradients:
                store.push("t_weight", gradient)
            return pulled(store, "t_weight", BIG)

        with job(1, 2) as stores:
            (found,) = together(worker, stores)
        np.testing.assert_allclose(found, weight.asnumpy(), rtol=1e-6, atol=1e-7)

    def test_float32_copies_of_16_bit_weights(self):
        def worker(store):
            store.init("t", mx.nd.ones(BIG, dtype="float16").tostype("row_sparse"))
            store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.1, multi_precision=True))
            for _ in range(10):
                store.push("t", rows_of([0.001] * 5, [3], BIG, "float16"))
            return pulled(store, "t", BIG, "float16")

        with job(1, 2) as stores:
            (found,) = together(worker, stores)
        assert (found[3] == np.float16(0.999)).all()
        assert np.delete(found, 3, axis=0).min() == 1

    @pytest.mark.parametrize("stype", ["default", "row_sparse"])
    @pytest.mark.parametrize("multi_precision", [False, True])
    def test_16_bit_gradients_are_summed_in_32(self, stype, multi_precision):
        pushes = [(2048, -2048), (1, 0)]  # 2049 has no place in 16 bits

        def worker(store):
            store.init("w", mx.nd.zeros(BIG, dtype="float16").tostype(stype))
            options = {"learning_rate": 1, "multi_precision": multi_precision}
            store.set_optimizer(mx.optimizer.create("sgd", **options))
            for value in pushes[store.rank]:
                store.push("w", (mx.nd.ones(BIG, dtype="float16") * value).tostype(stype))
            return pulled(store, "w", BIG, "float16")

        with job(2, 2) as stores:
            for found in together(worker, stores):
                assert (found == (-1 if multi_precision else 0)).all()

    def test_dense_pushes_before_and_after(self):
        def worker(store):
            store.init("t", mx.nd.zeros(BIG).tostype("row_sparse"))
            store.set_optimizer(mx.optimizer.create("sgd", learning_rate=1, momentum=0.5))
            store.push("t", mx.nd.ones(BIG))
            store.push("t", rows_of(np.ones((1, 5)), [7], BIG))
            store.push("t", mx.nd.ones(BIG))
            return pulled(store, "t", BIG)[:, 0]

        with job(1, 2) as stores:
            (found,) = together(worker, stores)
        # Momentum -1, then -1.5 for row 7 alone, then from these on.
        assert found[6] == -1 - 1.5
        assert found[7] == -1 - 1.5 - 1.75


class TestRowSparsePull:
    def test_lists_of_keys_outs_and_rows(self):
        def worker(store):
            for key, value in (("a", 2), ("b", 3)):
                store.init(key, (mx.nd.ones(BIG) * value).tostype("row_sparse"))
            outs = [mx.nd.sparse.zeros("row_sparse", BIG) for _ in range(4)]
            ids = [mx.nd.array(n) for n in ([5, 60, 5], [[0], [1]], [2], [])]
            store.row_sparse_pull(["a", "b"], [outs[:2], outs[2:]], row_ids=[ids[:2], ids[2:]])
            found = [(o.indices.asnumpy().tolist(), o.asnumpy().sum()) for o in outs]
            assert found == [([5, 60], 20), ([0, 1], 20), ([2], 15), ([], 0)]
            store.row_sparse_pull("a", outs[2:], row_ids=ids[0])
            assert outs[2].asnumpy().sum() == outs[3].asnumpy().sum() == 20

        with job(2, 2) as stores:
            together(worker, stores)

    def test_only_rows_travel(self, monkeypatch):
        """Bytes of a push of one row of a tall table, and of an answer with two rows."""
        shape, sent, read = (20000, 4), [], []
        start, store_values = Client._start, Client._store

        def starting(self, server, message, *rest, **more):
            sent.extend(g.values.nbytes for g in getattr(message, "gradients", {}).values())
            start(self, server, message, *rest, **more)

        def storing(self, request, message):
            read.extend(values.nbytes for values in message.values.values())
            store_values(self, request, message)

        def worker(store):
            store.init("t", mx.nd.sparse.zeros("row_sparse", shape))
            store.set_optimizer(test_optimizer())
            store.push("t", rows_of(np.ones((1, 4)), [19999], shape))
            found = pulled_rows(store, "t", shape, [19999, 0])
            assert found[19999].tolist() == [2] * 4

        monkeypatch.setattr(Client, "_start", starting)
        monkeypatch.setattr(Client, "_store", storing)
        with job(1, 2) as stores:
            together(worker, stores)
        assert sorted(sent) == [0, 8 + 4 * 4]  # one of the two slices has no row
        assert read == [4 * 4, 4 * 4]

    def test_whole_values_go_to_row_sparse_arrays_if_asked(self):
        def worker(store):
            store.init("t", mx.nd.ones(BIG).tostype("row_sparse"))
            out = mx.nd.sparse.zeros("row_sparse", BIG)
            with pytest.warns(UserWarning, match="use row_sparse_pull"):
                mx.kvstore.base._warned.clear()
                store.pull("t", out=out)
            assert len(out.indices) == 0
            store.pull("t", out=[out, mx.nd.zeros(BIG)], ignore_sparse=False)
            assert out.asnumpy().sum() == 61 * 5
            both = [mx.nd.zeros(BIG), out]
            store.pushpull("t", rows_of(np.ones((1, 5)), [1], BIG), out=both)
            assert both[0].asnumpy().sum() == 5

        with job(1) as stores:
            together(worker, stores)

    def test_a_dense_key_takes_rows_as_dense_gradients(self):
        def worker(store):
            store.init("d", mx.nd.zeros(BIG))
            store.set_optimizer(test_optimizer())
            store.push("d", rows_of(np.ones((1, 5)), [9], BIG))
            assert pulled(store, "d", BIG)[:, 0].nonzero()[0].tolist() == [9]

        with job(1, 2) as stores:
            together(worker, stores)

    def test_mistakes(self):
        zeros = mx.nd.sparse.zeros
        with job(1, 2) as stores:
            store = stores[0]
            store.init("t", zeros("row_sparse", BIG))
            store.init("d", mx.nd.zeros(BIG))
            out, ids = zeros("row_sparse", BIG), mx.nd.array([1])
            with pytest.raises(MixflowError, match="'out' in row_sparse_pull"):
                store.row_sparse_pull("t", row_ids=ids)
            with pytest.raises(MixflowError, match="'row_ids' in row_sparse_pull"):
                store.row_sparse_pull("t", out=out)
            with pytest.raises(MixflowError, match="got one of storage 'default'"):
                store.row_sparse_pull("t", out=mx.nd.zeros(BIG), row_ids=ids)
            with pytest.raises(MixflowError, match="a list of row_ids, one per key"):
                store.row_sparse_pull(["t"], out=[out], row_ids=ids)
            with pytest.raises(MixflowError, match="row_ids for each of 2 arrays of 't', got 3"):
                store.row_sparse_pull("t", out=[out, out], row_ids=[ids] * 3)
            with pytest.raises(MixflowError, match="'d' to be initialised as row_sparse"):
                store.row_sparse_pull("d", out=out, row_ids=ids)
            with pytest.raises(ShapeError, match=r"expected shape \(61, 5\) for key 't'"):
                store.row_sparse_pull("t", out=zeros("row_sparse", (4, 5)), row_ids=ids)
            store.row_sparse_pull("t", out=out, row_ids=mx.nd.array([61]))
            with pytest.raises(MXNetError, match="row numbers from 0 to 60, got 61 to 61"):
                out.asnumpy()
            store.row_sparse_pull("t", out=out, row_ids=ids)
            assert out.asnumpy().sum() == 0
        with job(1) as stores:
            store = stores[0]
            store.set_gradient_compression({"type": "2bit"})
            store.init("t", zeros("row_sparse", BIG))
            with pytest.raises(MixflowError, match="expected dense gradients of 't'"):
                store.push("t", rows_of(np.ones((1, 5)), [9], BIG))

    def test_workers_that_disagree_on_a_key(self):
        def worker(store):
            sparse = mx.nd.ones((50, 3)).tostype("row_sparse")
            if store.rank == 0:
                return store.init("t", mx.nd.ones((50, 3)))
            with pytest.raises(MixflowError, match="slices of whole rows of 3 values"):
                store.init("t", sparse)
            return None

        with job(2, 2) as stores:
            together(lambda store: store.rank or worker(store), stores)
            together(lambda store: store.rank and worker(store), stores)
