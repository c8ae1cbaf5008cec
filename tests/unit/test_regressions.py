"""Bugs that a search for them found, each with the smallest program that shows it."""

import errno
import json
import logging
import os
import re
import stat
import subprocess
import sys

import numpy as np
import pytest

import mixflow as mx
from mixflow import cli, train


@pytest.mark.parametrize("shape", [(2**40, 2**40), (2**33, 2**33), (2**62, 4), (2**63 - 1,)])
def test_sizes_that_wrap_around_are_errors(shape):
    """2^66 elements were taken for 0: an array without memory behind it."""
    for make in (mx.nd.ones, mx.nd.empty, mx.nd.zeros):
        with pytest.raises(mx.MXNetError, match="expected"):
            make(shape).wait_to_read()


def test_graph_too_large_for_offsets_is_an_error():
    """Planning it ended the process with SIGFPE."""
    net = mx.models.get_symbol("lenet") if hasattr(mx.models, "get_symbol") else None
    net = net or mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), num_filter=8)
    with pytest.raises(mx.MXNetError, match="at most 2\\^60 bytes"):
        net.simple_bind(mx.cpu(), data=(999_999_999_999_999_999, 1, 28, 28))


def test_summary_of_a_huge_batch_is_one_line(capsys):
    assert cli.main(["summary", "--network", "lenet", "--batch-size", "9" * 18]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_saving_into_a_device_writes_into_it():
    """The rename had put a plain file in the place of /dev/full."""
    with pytest.raises(OSError, match="No space"):
        mx.nd.save("/dev/full", mx.nd.ones((100,)))
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_saving_through_a_link_replaces_its_file(tmp_path):
    file, link = tmp_path / "real", tmp_path / "link"
    mx.nd.save(str(file), mx.nd.zeros((2,)))
    link.symlink_to(file)
    mx.nd.save(str(link), mx.nd.ones((2,)))
    assert link.is_symlink()
    assert mx.nd.load(str(file))[0].asnumpy().tolist() == [1, 1]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_log_softmax_of_large_values(axis, dtype):
    """x - (max + log(sum)) rounded the logarithm away: 0 instead of -log 2."""
    x = mx.nd.full((2, 2), -1e30, dtype=dtype)
    made = mx.nd.log_softmax(x, axis=axis).asnumpy()
    np.testing.assert_allclose(made, np.full((2, 2), -np.log(2)), rtol=1e-6)


@pytest.mark.parametrize("power", [2, 3])
def test_lp_pooling_of_zeros_has_no_nan_gradient(power):
    x = mx.nd.zeros((1, 1, 2, 2))
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Pooling(x, kernel=(2, 2), pool_type="lp", p_value=power)
    y.backward()
    assert x.grad.asnumpy().tolist() == [[[[0, 0], [0, 0]]]]


def test_empty_diagonal():
    assert mx.nd.diag(mx.nd.ones((4, 1)), k=1).shape == (0,)
    with pytest.raises(mx.MXNetError, match="diagonal"):
        mx.nd.diag(mx.nd.ones((4, 1)), k=2)


def test_positions_have_no_gradient():
    x = mx.nd.array([[1.0, 2.0], [0.0, 1.0]])
    x.attach_grad()
    with mx.autograd.record():
        flat = mx.nd.ravel_multi_index(x, shape=(3, 4))
        y = x.sum() + flat.sum() + mx.nd.unravel_index(flat, shape=(3, 4)).sum()
    y.backward()
    assert x.grad.asnumpy().tolist() == [[1, 1], [1, 1]]


def _with(change):
    net = mx.sym.FullyConnected(mx.sym.Variable("x"), num_hidden=2, name="f")
    data = json.loads(net.tojson())
    change(data["nodes"])
    return json.dumps(data)


@pytest.mark.parametrize("text", ["(" * 5000, "__import__('os')", "(1,"])
def test_hostile_shape_attributes(text):
    """A SyntaxError or ValueError of the parser came out."""
    net = mx.sym.load_json(_with(lambda nodes: nodes[0].update(attrs={"__shape__": text})))
    with pytest.raises(mx.MXNetError, match="__shape__"):
        net.infer_shape()


@pytest.mark.parametrize("text", ["(" * 5000, "__import__('os')", "[1"])
def test_hostile_parameters(text):
    with pytest.raises(mx.MXNetError, match="num_hidden"):
        mx.sym.load_json(_with(lambda nodes: nodes[3]["attrs"].update(num_hidden=text)))


def test_unknown_parameter_in_a_file_is_an_error():
    """It was kept as an attribute, so a misspelt name meant the default without a word."""
    with pytest.raises(mx.MXNetError, match="no_bias"):
        mx.sym.load_json(_with(lambda nodes: nodes[3]["attrs"].update(nobias="True")))


def test_head_gradients_of_another_type():
    run = (mx.sym.Variable("x") * 2).simple_bind(mx.cpu(), x=(2,))
    run.forward(is_train=True)
    with pytest.raises(TypeError, match="head gradients"):
        run.backward(["x"])


@pytest.mark.parametrize("seed", [-1, -(2**40), 10**20])
def test_any_whole_number_seeds(seed):
    mx.random.seed(seed)
    first = mx.nd.random.uniform(shape=(4,)).asnumpy()
    mx.random.seed(seed)
    np.testing.assert_array_equal(first, mx.nd.random.uniform(shape=(4,)).asnumpy())


def test_results_folder_that_is_a_file_is_one_line(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("kept")
    options = ["train", "--network", "mlp", "--epochs", "1", "--quiet", "--out", str(file)]
    assert cli.main(options) == 1
    assert capsys.readouterr().err.strip().count("\n") == 0
    assert file.read_text() == "kept"


def _gradient(call, values):
    x = mx.nd.array(values)
    x.attach_grad()
    with mx.autograd.record():
        y = call(x)
    y.backward()
    return y.asnumpy(), x.grad.asnumpy()


def test_softrelu_has_slope_one_half_at_zero():
    """relu and abs of its formula have slope 0 there, so units that start at 0 never moved."""
    _, slope = _gradient(
        lambda x: mx.nd.Activation(x, act_type="softrelu"), [0.0, -0.0, np.inf, -np.inf, 40.0]
    )
    np.testing.assert_allclose(slope, [0.5, 0.5, 1, 0, 1])


def test_windows_beyond_the_data():
    """The mean was 0 / 0, the maximum -inf; MXNet gives 0 and the lowest number."""
    options = {"kernel": (1, 2), "stride": (1, 3), "pooling_convention": "full"}
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 1, 6)
    for include in (True, False):
        how = {**options, "pool_type": "avg", "count_include_pad": include}
        y, slope = _gradient(lambda x, how=how: mx.nd.Pooling(x, **how), x)
        assert y.ravel().tolist() == [0.5, 3.5, 0]
        assert slope.ravel().tolist() == [0.5, 0.5, 0, 0.5, 0.5, 0]
    y, slope = _gradient(lambda x: mx.nd.Pooling(x, pool_type="max", **options), x)
    assert y.ravel().tolist() == [1, 4, np.finfo(np.float32).min]
    assert slope.ravel().tolist() == [0, 1, 0, 0, 1, 0]


def test_empty_parts_are_recorded():
    x = mx.nd.ones((3,))
    x.attach_grad()
    with mx.autograd.record():
        first, rest = mx.nd.split_v2(x, (0,))
        empty = x[2:1]
    mx.autograd.backward([first, rest, empty])
    assert x.grad.asnumpy().tolist() == [1, 1, 1]


def test_clip_gradient_must_be_a_number():
    with pytest.raises(mx.MXNetError, match="clip_gradient"):
        mx.optimizer.create("sgd", clip_gradient=float("nan"))


@pytest.mark.parametrize("kind, slopes", [("elu", (1, 1)), ("selu", (1.0507, 1.7581))])
def test_exponential_units_of_large_values(kind, slopes):
    """expm1 of a large x was dropped by select, but its slope came back as 0 * inf = nan."""
    call = {"act_type": kind, "slope": 1.0}
    y, slope = _gradient(lambda x: mx.nd.LeakyReLU(x, **call), [100.0, 1e30, np.inf, 0.0])
    np.testing.assert_allclose(slope, [slopes[0]] * 3 + [slopes[1]], rtol=1e-4)
    assert not np.isnan(y).any()


def test_smooth_l1_of_infinite_values():
    _, slope = _gradient(lambda x: mx.nd.smooth_l1(x, scalar=1.0), [np.inf, -np.inf, 1e30, 0.5])
    assert slope.tolist() == [1, -1, 1, 0.5]


def test_arrays_on_absent_devices():
    """gpu(0) gave an array in host memory that said it was on a GPU."""
    for make in (
        lambda: mx.nd.ones((2,), ctx=mx.gpu(0)),
        lambda: mx.nd.ones((2,)).copyto(mx.gpu()),
    ):
        with pytest.raises(mx.MXNetError, match="no GPU backend"):
            make()
    for index in (-1, 2**40):
        with pytest.raises(mx.MXNetError, match="index of at least 0"):
            mx.cpu(index)


def test_a_failed_save_names_the_target(tmp_path):
    """The bare FileNotFoundError named the hidden temporary file."""
    path = str(tmp_path / "none" / "x")
    net = mx.sym.Variable("data") + 1
    for save in (lambda: mx.nd.save(path, mx.nd.ones((2,))), lambda: net.save(path)):
        with pytest.raises(
            mx.base.FileError, match=r"expected to write .*none/x, got: No such"
        ) as e:
            save()
        assert isinstance(e.value, OSError) and isinstance(e.value, mx.MXNetError)
        assert e.value.filename == path and e.value.errno == errno.ENOENT
        assert str(e.value).startswith("[files]")


def test_a_closed_pipe_is_quiet():
    command = [sys.executable, "-m", "mixflow.cli", "summary", "--network", "lenet"]
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    done.stdout.close()
    with done.stderr:
        assert done.stderr.read() == ""
    assert done.wait() != 0


def test_command_line_help(capsys):
    for arguments in (["--version"], ["train", "--help"]):
        with pytest.raises(SystemExit) as e:
            cli.main(arguments)
        assert e.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"mixflow {mx.__version__}" in text
    for name, default in (("epochs", 10), ("batch-size", 64), ("seed", 0)):
        assert f"(default: {default})" in text.split(f"--{name} ")[-1].split(" --")[0]
    assert "(default: None)" not in text


def test_summary_explains_the_memory_table(capsys):
    assert cli.main(["summary"]) == 0
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert "as in the paper" in last and "workspace included" in last


def test_a_cut_list_of_known_names_says_so():
    few = mx.errors.describe_unknown("op", "zzz", ["a", "b"])
    many = mx.errors.describe_unknown("op", "zzz", [f"n{i:02d}" for i in range(21)])
    assert few.endswith("known: a, b") and many.endswith("n19, ...")


def test_names_of_mxnet():
    assert mx.base.MXNetError is mx.MXNetError and issubclass(mx.base.ShapeError, mx.MXNetError)
    assert mx.rnd is mx.random and mx.mon is mx.monitor and mx.mon.Monitor is mx.Monitor
    made = mx.optimizer.Optimizer.create_optimizer("sgd", learning_rate=0.5)
    assert isinstance(made, mx.optimizer.SGD) and made.lr == 0.5

    @mx.optimizer.Optimizer.register
    class OfTheUser(mx.optimizer.SGD):
        pass

    assert isinstance(mx.optimizer.create("oftheuser"), OfTheUser)


def test_monitor():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    net = mx.sym.BatchNorm(net, name="bn")
    executor = net.simple_bind(mx.cpu(), data=(4, 2))
    for array in (*executor.arg_arrays, *executor.aux_arrays):
        array[:] = 2
    monitor = mx.mon.Monitor(2, sort=True)
    monitor.install(executor)
    seen = []
    for _ in range(3):
        monitor.tic()
        executor.forward(is_train=True)
        executor.backward()
        seen.append(monitor.toc())
    assert seen[1] == [] and [entry[0] for entry in seen[2]] == [3] * len(seen[2])
    names = [name for _, name, _ in seen[0]]
    assert names == sorted(names)
    assert {"data", "fc_weight", "fc_output", "bn_moving_mean", "bn_output"} <= set(names)
    found = {name: text for _, name, text in seen[0]}
    assert found["fc_weight"] == "2.0\t"
    np.testing.assert_allclose(float(found["fc_output"]), 10, rtol=1e-6)


def test_monitor_of_a_pattern_in_fit(caplog):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    net = mx.sym.SoftmaxOutput(net, name="softmax")
    inputs = mx.io.NDArrayIter(np.ones((8, 2), np.float32), np.zeros(8, np.float32), 4)
    monitor = mx.mon.Monitor(1, stat_func=lambda x: x.max(), pattern="fc_.*")
    with caplog.at_level(logging.INFO):
        mx.mod.Module(net).fit(inputs, num_epoch=1, monitor=monitor)
    lines = [m for m in caplog.messages if m.startswith("Batch:")]
    assert len(lines) == 6 and all(" fc_" in line for line in lines)
    assert lines[0].startswith("Batch:       1 fc_output ")


def test_log_lines_of_mxnet(caplog, tmp_path):
    metric = mx.metric.Accuracy()
    metric.update([mx.nd.array([0])], [mx.nd.array([[0.9, 0.1]])])
    with caplog.at_level(logging.INFO):
        for speed, shown in (
            (mx.callback.Speedometer(8, 8, auto_reset=False), metric),
            (mx.callback.Speedometer(8, 8), metric),
            (mx.callback.Speedometer(8, 8), None),
        ):
            for number in range(9):
                speed(mx.callback.BatchEndParam(1, number, shown, None))
        prefix = str(tmp_path / "net")
        mx.model.save_checkpoint(prefix, 2, None, {}, {})
    lines = [re.sub(r"Speed: [0-9.]+", "Speed: N", m) for m in caplog.messages]
    assert lines == [
        "Epoch[1] Batch [0-8]\tSpeed: N samples/sec\taccuracy=1.000000",
        "Epoch[1] Batch [0-8]\tSpeed: N samples/sec\taccuracy=1.000000",
        "Iter[1] Batch [8]\tSpeed: N samples/sec",
        f'Saved checkpoint to "{prefix}-0002.params"',
    ]


def test_training_figures_leave_out_the_padding(tmp_path, monkeypatch):
    """The accuracy of training counted the images that fill up the last batch."""
    counted = []
    update = mx.metric.Accuracy.update

    def counting(self, labels, preds):
        counted.append(len(labels[0]))
        update(self, labels, preds)

    monkeypatch.setattr(mx.metric.Accuracy, "update", counting)
    config = train.TrainConfig("mlp", epochs=1, batch_size=400, out=str(tmp_path))
    result = train.train(config)
    assert result.train_samples % 400
    assert sum(counted) == result.train_samples + result.test_samples
