"""Schedules, initializers, metrics, optimizers, iterators, stores: the parts of a training."""

import gzip
import json
import math
import struct
import threading

import numpy as np
import pytest

import mixflow as mx
from mixflow import datasets
from mixflow.errors import FormatError, MixflowError, ParamError, ShapeError, UnknownNameError


class TestSchedules:
    def test_factor_changes_after_a_full_step(self):
        schedule = mx.lr_scheduler.FactorScheduler(step=10, factor=0.5, base_lr=1.0)
        assert [schedule(n) for n in (1, 10, 11, 20, 21)] == [1.0, 1.0, 0.5, 0.5, 0.25]

    def test_multi_factor(self):
        schedule = mx.lr_scheduler.MultiFactorScheduler([5, 8], factor=0.1, base_lr=1.0)
        assert np.allclose([schedule(n) for n in (5, 6, 8, 9)], [1, 0.1, 0.1, 0.01])

    def test_cosine_and_poly_end_at_final(self):
        cosine = mx.lr_scheduler.CosineScheduler(100, base_lr=1.0, final_lr=0.1)
        assert math.isclose(cosine(50), 0.55)
        assert math.isclose(cosine(100), 0.1)
        poly = mx.lr_scheduler.PolyScheduler(100, base_lr=1.0, pwr=1)
        assert math.isclose(poly(25), 0.75)
        assert poly(200) == poly(100)

    def test_warmup_is_linear(self):
        schedule = mx.lr_scheduler.FactorScheduler(
            100, base_lr=1.0, warmup_steps=10, warmup_begin_lr=0.5
        )
        assert math.isclose(schedule(5), 0.75)

    def test_bad_steps(self):
        with pytest.raises(ParamError, match="increasing steps"):
            mx.lr_scheduler.MultiFactorScheduler([3, 2])


class TestInitializers:
    def test_by_ending(self):
        start = mx.init.Xavier()
        for name, value in (("fc_bias", 0), ("bn_gamma", 1), ("bn_moving_var", 1)):
            array = mx.nd.full((3,), 7)
            start(name, array)
            assert (array.asnumpy() == value).all()

    def test_xavier_scale(self):
        mx.random.seed(1)
        array = mx.nd.zeros((100, 200))
        mx.init.Xavier(magnitude=3)("w_weight", array)
        assert abs(array.asnumpy()).max() <= math.sqrt(3 / 150)
        assert abs(array.asnumpy().std() - math.sqrt(1 / 150)) < 0.003

    def test_orthogonal(self):
        array = mx.nd.zeros((4, 9))
        mx.init.Orthogonal(scale=1.0)("w_weight", array)
        assert np.allclose(array.asnumpy() @ array.asnumpy().T, np.eye(4), atol=1e-5)

    def test_unknown_ending_says_what_to_do(self):
        with pytest.raises(ParamError, match=r"Variable\(name, init="):
            mx.init.Uniform()("strange", mx.nd.zeros((2,)))

    def test_variable_with_its_own(self):
        desc = mx.init.InitDesc("strange", {"__init__": mx.init.Constant(3.0).dumps()})
        array = mx.nd.zeros((2,))
        mx.init.Uniform()(desc, array)
        assert (array.asnumpy() == 3).all()

    def test_mixed_and_load(self):
        mixed = mx.init.Mixed([".*bias", ".*"], [mx.init.Zero(), mx.init.One()])
        array = mx.nd.zeros((2,))
        mixed("x_weight", array)
        assert (array.asnumpy() == 1).all()
        load = mx.init.Load({"arg:w": mx.nd.ones((3,))})
        with pytest.raises(ShapeError, match="expected shape"):
            load("w", array)


class TestMetrics:
    def test_accuracy(self):
        metric = mx.metric.create("acc")
        scores = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
        metric.update([mx.nd.array([1, 0, 0])], [mx.nd.array(scores)])
        assert metric.get() == ("accuracy", 2 / 3)

    def test_composite_and_local_reset(self):
        metric = mx.metric.create(["acc", "ce"])
        for label in ([0, 1], [0, 0]):
            metric.update([np.array(label)], [np.array([[0.9, 0.1], [0.2, 0.8]])])
            metric.reset_local()
        assert math.isnan(dict(metric.get_name_value())["accuracy"])
        assert dict(metric.get_global_name_value())["accuracy"] == 0.75

    def test_errors_of_regression(self):
        y, p = np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 3.0])
        for name, value in (("mae", 2 / 3), ("mse", 4 / 3), ("rmse", math.sqrt(4 / 3))):
            metric = mx.metric.create(name)
            metric.update([y], [p])
            assert math.isclose(metric.get()[1], value)

    def test_topk_f1_perplexity(self):
        top = mx.metric.TopKAccuracy(top_k=2)
        top.update([np.array([2, 0])], [np.array([[0.1, 0.5, 0.4], [0.1, 0.5, 0.4]])])
        assert top.get() == ("top_k_accuracy_2", 0.5)
        f1 = mx.metric.F1()
        f1.update([np.array([1, 1, 0])], [np.array([[0, 1], [1, 0], [1, 0]])])
        assert math.isclose(f1.get()[1], 2 / 3)
        perplexity = mx.metric.Perplexity(ignore_label=0)
        perplexity.update([np.array([0, 1])], [np.array([[0.5, 0.5], [0.5, 0.5]])])
        assert math.isclose(perplexity.get()[1], 2.0)

    def test_custom_and_unknown(self):
        metric = mx.metric.create(lambda label, pred: float(np.abs(label - pred).max()))
        metric.update([np.zeros(2)], [np.ones(2)])
        assert metric.get()[1] == 1.0
        with pytest.raises(UnknownNameError, match="did you mean"):
            mx.metric.create("accurracy")


def _reference(name, w, g, steps, lr, wd):
    """NumPy formulas of the update rules."""
    w = w.astype(np.float64)
    first, second = np.zeros_like(w), np.zeros_like(w)
    for t in range(1, steps + 1):
        d = g + wd * w
        if name == "sgd":
            first = 0.9 * first - lr * d
            w = w + first
        elif name == "nag":
            first = 0.9 * first + d
            w = w - lr * (d + 0.9 * first)
        elif name == "adam":
            first = 0.9 * first + 0.1 * d
            second = 0.999 * second + 0.001 * d * d
            rate = lr * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            w = w - rate * first / (np.sqrt(second) + 1e-8)
        elif name == "rmsprop":
            second = 0.1 * d * d + 0.9 * second
            w = w - lr * d / np.sqrt(second + 1e-8)
    return w


class TestOptimizers:
    @pytest.mark.parametrize("name", ["sgd", "nag", "adam", "rmsprop"])
    @pytest.mark.parametrize("fused", [False, True])
    def test_against_formula(self, name, fused):
        rng = np.random.default_rng(0)
        values = [rng.normal(size=s).astype(np.float32) for s in ((3, 4), (7,))]
        grads = [rng.normal(size=v.shape).astype(np.float32) for v in values]
        extra = {"momentum": 0.9} if name in ("sgd", "nag") else {}
        names = {0: "a_weight", 1: "b_weight"}
        optimizer = mx.optimizer.create(
            name, learning_rate=0.05, wd=0.01, param_idx2name=names, **extra
        )
        updater = mx.optimizer.get_updater(optimizer)
        weights = [mx.nd.array(v) for v in values]
        arrays = [mx.nd.array(g) for g in grads]
        run = mx.optimizer.FusedUpdate(updater, [0, 1], weights, arrays)
        for _ in range(5):
            if fused:
                run.run()
            else:
                updater([0, 1], arrays, weights)
        for weight, value, grad in zip(weights, values, grads, strict=True):
            expected = _reference(name, value, grad, 5, 0.05, 0.01)
            assert np.allclose(weight.asnumpy(), expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("name", ["adagrad", "signum", "ftrl", "rmsprop"])
    def test_fused_equals_single(self, name):
        extra = {"centered": True} if name == "rmsprop" else {}
        results = []
        for fused in (False, True):
            updater = mx.optimizer.get_updater(
                mx.optimizer.create(name, learning_rate=0.1, **extra)
            )
            weight, grad = mx.nd.ones((5,)), mx.nd.array([1, -2, 3, 0, 0.5])
            run = mx.optimizer.FusedUpdate(updater, [0], [weight], [grad])
            for _ in range(4):
                run.run() if fused else updater(0, grad, weight)
            results.append(weight.asnumpy())
        assert np.allclose(*results, rtol=1e-5)
        assert not np.allclose(results[0], 1)

    def test_clip_and_multipliers(self):
        optimizer = mx.optimizer.create("sgd", learning_rate=1.0, clip_gradient=0.5)
        optimizer.set_lr_mult({0: 0.1})
        weight = mx.nd.zeros((2,))
        optimizer.update(0, weight, mx.nd.array([3.0, -0.2]), None)
        assert np.allclose(weight.asnumpy(), [-0.05, 0.02])

    def test_bias_has_no_decay(self):
        optimizer = mx.optimizer.create("sgd", wd=0.1, param_idx2name={0: "w_weight", 1: "b_bias"})
        assert optimizer._get_wd(0) == 0.1
        assert optimizer._get_wd(1) == 0.0

    @pytest.mark.parametrize("value", [math.nan, math.inf, -0.1])
    def test_rates_must_be_finite(self, value):
        with pytest.raises(ParamError, match="finite learning_rate"):
            mx.optimizer.create("sgd", learning_rate=value)

    def test_unknown_parameter(self):
        with pytest.raises(ParamError, match="momentun"):
            mx.optimizer.create("sgd", momentun=0.9)

    def test_states_round_trip_without_pickle(self):
        updater = mx.optimizer.get_updater(mx.optimizer.create("adam"))
        weight, grad = mx.nd.ones((3,)), mx.nd.ones((3,))
        updater(0, grad, weight)
        saved = updater.get_states()
        other = mx.optimizer.get_updater(mx.optimizer.create("adam"))
        other.set_states(saved)
        copy = weight.copy()
        updater(0, grad, weight)
        other(0, grad, copy)
        assert np.array_equal(weight.asnumpy(), copy.asnumpy())
        with pytest.raises(FormatError, match="allow_pickle"):
            other.set_states(b"\x80\x04.")
        with pytest.raises(FormatError):
            other.set_states(saved[: len(saved) // 2])

    def test_float16_with_float32_copy(self):
        optimizer = mx.optimizer.create("sgd", learning_rate=1e-4, multi_precision=True)
        updater = mx.optimizer.get_updater(optimizer)
        weight = mx.nd.ones((2,), dtype="float16")
        grad = mx.nd.ones((2,), dtype="float16")
        for _ in range(20):
            updater(0, grad, weight)
        assert np.allclose(updater.states[0][1].asnumpy(), 1 - 20e-4, atol=1e-6)
        assert weight.dtype == np.float16


class TestIterators:
    def test_pad_discard_roll_over(self):
        data = np.arange(10, dtype=np.float32)[:, None]
        pads = [b.pad for b in mx.io.NDArrayIter(data, batch_size=4)]
        assert pads == [0, 0, 2]
        assert len(list(mx.io.NDArrayIter(data, batch_size=4, last_batch_handle="discard"))) == 2
        rolling = mx.io.NDArrayIter(data, batch_size=4, last_batch_handle="roll_over")
        first = [b.data[0].asnumpy().ravel().tolist() for b in rolling]
        rolling.reset()
        second = [b.data[0].asnumpy().ravel().tolist() for b in rolling]
        assert [len(first), len(second)] == [2, 3]
        assert second[0] == [8, 9, 0, 1]

    def test_shuffle_keeps_pairs_and_follows_the_seed(self):
        data = np.arange(20, dtype=np.float32)
        orders = []
        for _ in range(2):
            mx.random.seed(3)
            batches = list(mx.io.NDArrayIter(data, data * 2, batch_size=5, shuffle=True))
            for batch in batches:
                assert np.array_equal(batch.label[0].asnumpy(), 2 * batch.data[0].asnumpy())
            orders.append(np.concatenate([b.data[0].asnumpy() for b in batches]))
        assert np.array_equal(*orders)
        assert sorted(orders[0]) == list(data)

    def test_dict_and_errors(self):
        found = mx.io.NDArrayIter({"b": np.zeros((4, 2)), "a": np.zeros((4, 3))}, batch_size=2)
        assert [d.name for d in found.provide_data] == ["a", "b"]
        with pytest.raises(ShapeError, match="expected 4 samples"):
            mx.io.NDArrayIter(np.zeros((4, 2)), np.zeros(3), batch_size=2)
        with pytest.raises(ParamError, match="last_batch_handle"):
            mx.io.NDArrayIter(np.zeros((4, 2)), batch_size=2, last_batch_handle="drop")

    def test_resize_and_prefetch(self):
        inner = mx.io.NDArrayIter(np.arange(6, dtype=np.float32), batch_size=2)
        resized = mx.io.ResizeIter(inner, 5)
        assert len(list(resized)) == 5
        fetched = mx.io.PrefetchingIter(mx.io.NDArrayIter(np.arange(6.0), batch_size=2))
        for _ in range(2):
            values = [b.data[0].asnumpy().tolist() for b in fetched]
            assert values == [[0, 1], [2, 3], [4, 5]]
            fetched.reset()
        fetched.close()
        assert not any(t.name == "PrefetchingIter" and t.is_alive() for t in threading.enumerate())

    def test_a_closed_prefetcher_says_so(self):
        fetched = mx.io.PrefetchingIter(mx.io.NDArrayIter(np.arange(4.0), batch_size=4))
        fetched.close()
        with pytest.raises(MixflowError, match="call reset"):
            fetched.next()
        fetched.reset()
        assert fetched.next().data[0].shape == (4,)
        fetched.close()

    def test_prefetch_passes_errors_on(self):
        class Broken(mx.io.DataIter):
            provide_data = provide_label = ()

            def next(self):
                raise OSError("disk gone")

        with pytest.raises(OSError, match="disk gone"):
            mx.io.PrefetchingIter(Broken(2)).next()

    def test_idx_files(self, tmp_path):
        images = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
        raw = b"\x00\x00\x08\x03" + struct.pack(">3I", 2, 3, 3) + images.tobytes()
        (tmp_path / "images").write_bytes(raw)
        (tmp_path / "labels.gz").write_bytes(
            gzip.compress(b"\x00\x00\x08\x01" + struct.pack(">I", 2) + b"\x01\x02")
        )
        found = mx.io.MNISTIter(
            str(tmp_path / "images"), str(tmp_path / "labels.gz"), batch_size=2, shuffle=False
        )
        batch = found.next()
        assert batch.data[0].shape == (2, 1, 3, 3)
        assert np.allclose(batch.data[0].asnumpy()[:, 0] * 256, images)
        for cut in (2, 7, len(raw) - 1):
            (tmp_path / "images").write_bytes(raw[:cut])
            with pytest.raises(FormatError, match="expected"):
                mx.io.read_idx(tmp_path / "images")


class TestStore:
    def test_push_sums_over_contexts(self):
        store = mx.kvstore.create("local")
        store.init(3, mx.nd.ones((2, 3)))
        parts = [mx.nd.full((2, 3), 2, ctx=mx.cpu(i)) for i in range(2)]
        store.push(3, parts)
        outs = [mx.nd.zeros((2, 3), ctx=mx.cpu(i)) for i in range(2)]
        store.pull(3, out=outs)
        assert all((o.asnumpy() == 4).all() for o in outs)

    def test_updater_and_lists(self):
        store = mx.kvstore.create("device")
        store.init(["a", "b"], [mx.nd.zeros((2,)), mx.nd.zeros((3,))])
        store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.5))
        store.push(["a", "b"], [mx.nd.ones((2,)), mx.nd.ones((3,))])
        out = mx.nd.zeros((3,))
        store.pull("b", out=out)
        assert (out.asnumpy() == -0.5).all()

    def test_mistakes(self):
        store = mx.kvstore.create()
        store.init(1, mx.nd.ones((2,)))
        with pytest.raises(MixflowError, match="a second time"):
            store.init(1, mx.nd.ones((2,)))
        with pytest.raises(MixflowError, match="Mixed key types"):
            store.init("x", mx.nd.ones((2,)))
        with pytest.raises(MixflowError, match="call init"):
            store.push(2, mx.nd.ones((2,)))
        with pytest.raises(ShapeError, match="expected shape"):
            store.push(1, mx.nd.ones((3,)))
        with pytest.raises(UnknownNameError, match="local"):
            mx.kvstore.create("locale")


class TestDatasets:
    def test_digits(self):
        found = datasets.digits()
        assert found.train_images.shape == (1438, 1, 28, 28)
        assert found.test_images.shape == (359, 1, 28, 28)
        assert found.train_images.min() >= 0
        assert found.train_images.max() <= 1
        assert set(found.test_labels) == set(range(10))

    def test_enlarge_keeps_a_constant_and_a_mean(self):
        assert np.allclose(datasets.enlarge(np.full((1, 8, 8), 0.5), 28), 0.5)

    def test_unknown_set(self):
        with pytest.raises(
            MixflowError, match="expected digits, mnist, fashion-mnist, cifar10 or a folder"
        ):
            datasets.load("nothing-here")

    def test_missing_file_is_named(self, tmp_path):
        with pytest.raises(FormatError, match="train-images-idx3-ubyte"):
            datasets.load(str(tmp_path))


def test_random_state_is_saved_and_restored_as_plain_values():
    mx.random.seed(5)
    mx.nd.random.uniform(shape=(3,))
    state = json.loads(json.dumps(mx.random.get_state()))

    def draws():
        found = mx.nd.random.normal(shape=(4,)).asnumpy().tolist()
        return found + mx.random.host_generator().random(3).tolist()

    first = draws()
    mx.random.set_state(state)
    assert draws() == first
    with pytest.raises(FormatError, match="expected a state of get_state"):
        mx.random.set_state({"device": [1]})
