"""What makes a small training step short: feeds, one task, whole programs, prepared updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from core_support import native, plan, step

import mixflow as mx
from mixflow import _rt, nd
from mixflow.errors import MXNetError
from mixflow.optimizer import SGD, Adam, UpdateRule

RNG = np.random.default_rng(5)


def double(inputs: Any, outputs: Any, *_: Any) -> None:
    outputs[0][...] = 2 * inputs[0]


def array(core: Any, *values: float) -> Any:
    return core.from_numpy(np.array(values, np.float32), (1, 0))


# -- feeds


def test_a_run_copies_its_feeds_first_and_runs_all_phases(core: Any) -> None:
    steps = [
        step(double, [("arg", 0)], [("arena", 0, 16)]),
        step(double, [("arena", 0, 16)], [("arg", 1)]),
    ]
    made = plan(core, steps, "r w", arena_bytes=64, phase_ends=[1, 2])
    data, result = array(core, 0, 0, 0, 0), array(core, 0, 0, 0, 0)
    bound = made.bind([data, result], core.Arena((1, 0)))
    bound.run((), -1, None, [(0, array(core, 1, 2, 3, 4))])
    np.testing.assert_array_equal(result.to_numpy(), [4, 8, 12, 16])
    np.testing.assert_array_equal(data.to_numpy(), [1, 2, 3, 4])


def test_feeds_that_do_not_fit_are_errors(core: Any) -> None:
    made = plan(core, [step(double, [("arg", 0)], [("arg", 1)])], "r w")
    bound = made.bind([array(core, 0, 0, 0, 0), array(core, 0, 0, 0, 0)])
    with pytest.raises(MXNetError, match="expected feeds for arguments below 2, got 2"):
        bound.run((), 0, None, [(2, array(core, 1, 2, 3, 4))])
    with pytest.raises(MXNetError, match="as feed of argument 0, got"):
        bound.run((), 0, None, [(0, array(core, 1, 2))])


def test_an_aliased_feed_is_read_in_place_unless_it_is_an_argument(core: Any) -> None:
    made = plan(core, [step(double, [("arg", 0)], [("arg", 1)])], "r w")
    data, result = array(core, 0, 0, 0, 0), array(core, 1, 2, 3, 4)
    bound = made.bind([data, result])
    bound.run((), 0, None, [(0, array(core, 5, 6, 7, 8))], True)
    np.testing.assert_array_equal(result.to_numpy(), [10, 12, 14, 16])
    bound.run((), 0, None, [(0, result)], True)
    np.testing.assert_array_equal(result.to_numpy(), [20, 24, 28, 32])
    np.testing.assert_array_equal(data.to_numpy(), [10, 12, 14, 16])


# -- steps of a Module


def network() -> mx.sym.Symbol:
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=7, name="fc1")
    net = mx.sym.Activation(net, act_type="relu")
    net = mx.sym.FullyConnected(net, num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def ready(optimizer: Any = "sgd", **params: Any) -> mx.mod.Module:
    module = mx.mod.Module(network())
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    mx.random.seed(3)
    module.init_params(mx.init.Uniform(0.5))
    if isinstance(optimizer, str):
        module.init_optimizer(optimizer=optimizer, optimizer_params=params)
    else:
        module.init_optimizer(optimizer=optimizer)
    return module


def batch(seed: int = 0, dtype: str = "float32") -> mx.io.DataBatch:
    rng = np.random.default_rng(seed)
    data = nd.array(rng.normal(size=(8, 6)), dtype=dtype)
    return mx.io.DataBatch([data], [nd.array(np.arange(8) % 3)])


def gradients(module: mx.mod.Module) -> dict[str, np.ndarray]:
    grads = module._executors.executors[0].grad_dict
    return {n: g.asnumpy() for n, g in grads.items() if g is not None}


def parameters(module: mx.mod.Module) -> dict[str, np.ndarray]:
    return {n: a.asnumpy() for n, a in module.get_params()[0].items()}


def assert_equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_one_task_does_what_two_do() -> None:
    one, two = ready(), ready()
    for seed in range(3):
        one.forward_backward(batch(seed))
        two.forward(batch(seed), is_train=True)
        two.backward()
        assert_equal(gradients(one), gradients(two))
        np.testing.assert_array_equal(
            one.get_outputs()[0].asnumpy(), two.get_outputs()[0].asnumpy()
        )


def test_a_batch_may_be_overwritten_once_the_step_was_pushed() -> None:
    one, two = ready(), ready()
    fed = batch(1)
    one.forward_backward(fed)
    fed.data[0][:] = 100.0
    two.forward_backward(batch(1))
    assert_equal(gradients(one), gradients(two))


def test_whoever_looks_at_the_inputs_finds_the_batch() -> None:
    module = ready()
    executor = module._executors.executors[0]
    module.forward_backward(batch(1))
    seen = executor.arg_dict["data"]
    np.testing.assert_array_equal(seen.asnumpy(), batch(1).data[0].asnumpy())
    module.forward_backward(batch(2))
    np.testing.assert_array_equal(seen.asnumpy(), batch(2).data[0].asnumpy())
    module.forward(batch(3), is_train=False)
    np.testing.assert_array_equal(seen.asnumpy(), batch(3).data[0].asnumpy())


@pytest.mark.skipif(native is None, reason="the compiled core was not built")
def test_a_prediction_reads_its_batch_in_place() -> None:
    if _rt.core is not native:
        pytest.skip("the compiled core is not in use")
    module, fed = ready(), batch(1)
    executor = module._executors.executors[0]
    module.forward(fed, is_train=False)
    expected = module.get_outputs()[0].asnumpy()
    assert not executor._args["data"].asnumpy().any()  # nothing was copied
    module.forward(batch(2), is_train=True)  # its backward phase needs what it was given
    module.forward(fed, is_train=False)
    np.testing.assert_array_equal(module.get_outputs()[0].asnumpy(), expected)
    np.testing.assert_array_equal(executor.arg_dict["data"].asnumpy(), fed.data[0].asnumpy())


def test_a_batch_of_another_dtype_is_converted() -> None:
    module = ready()
    module.forward_backward(batch(1, "float64"))
    other = ready()
    other.forward_backward(batch(1))
    assert_equal(gradients(module), gradients(other))


def test_a_subclass_with_its_own_forward_is_asked() -> None:
    class Counting(mx.mod.Module):
        calls = 0

        def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
            self.calls += 1
            super().forward(data_batch, is_train)

    module = Counting(network())
    module.bind([("data", (8, 6))], [("softmax_label", (8,))])
    module.init_params()
    module.forward_backward(batch())
    assert module.calls == 1


@pytest.mark.skipif(native is None, reason="the compiled core was not built")
def test_a_training_step_is_two_tasks_and_short_ones_need_no_lane() -> None:
    module = ready(momentum=0.9)
    core: Any = _rt.core
    if core is not native:
        pytest.skip("the compiled core is not in use")
    for _ in range(200):  # until the quickest run was quick
        module.forward_backward(batch())
        module.update()
        mx.nd.waitall()
        core.start_trace()
        module.forward_backward(BATCH)
        module.update()
        mx.nd.waitall()
        events = core.stop_trace()
        assert len(events) == 2
        if all(e["lane"] == "small" for e in events):
            break
    else:
        raise AssertionError(events)


BATCH = batch()


# -- updates


def test_prepared_updates_notice_every_change() -> None:
    fused, plain = ready(momentum=0.9, wd=0.01), ready(momentum=0.9, wd=0.01)
    plain._make_fused = lambda names: None  # type: ignore[method-assign]  # one call per parameter
    changes = [
        lambda o: None,
        lambda o: o.set_learning_rate(0.3),
        lambda o: o.set_lr_mult({"fc1_weight": 0.5}),
        lambda o: o.wd_mult.update(fc1_bias=2.0),
        lambda o: setattr(o, "momentum", 0.5),
        lambda o: setattr(o, "rescale_grad", 0.25),
        lambda o: setattr(o, "clip_gradient", 0.01),
    ]
    for number, change in enumerate(changes):
        for module in (fused, plain):
            change(module._optimizer)
            module.forward_backward(batch(number))
            module.update()
        assert_equal(parameters(fused), parameters(plain))


@pytest.mark.parametrize("scheduled", [False, True])
def test_counts_reach_the_rules(scheduled: bool) -> None:
    class Halving(SGD):
        def update_rule(self, index: Any) -> UpdateRule:
            rule = super().update_rule(index)
            scalars = {**rule.scalars, "lr": rule.scalars["lr"] / 2 ** self._counts[index]}
            return UpdateRule(rule.op, rule.params, scalars)

    assert Halving.rule_counts
    assert Adam.rule_counts
    schedule = mx.lr_scheduler.FactorScheduler(1, 0.5, base_lr=0.2) if scheduled else None
    kind = SGD if scheduled else Halving
    modules = []
    for fuse in (True, False):
        module = ready(kind(learning_rate=0.2, lr_scheduler=schedule and type(schedule)(1, 0.5)))
        if not fuse:
            module._make_fused = lambda names: None  # type: ignore[method-assign]
        for seed in range(4):
            module.forward_backward(batch(seed))
            module.update()
        modules.append(module)
    assert_equal(*map(parameters, modules))


# -- programs that are compiled whole

SGD_MOMENTUM = (
    "t0 = multiply i0 i1; t1 = multiply t0 i2; t2 = multiply i3 i4; t3 = multiply i5 0.9; "
    "t4 = subtract t3 t2; t5 = subtract t4 t1; t6 = add i3 t5; out t5 t6"
)
ADAM = (
    "t0 = multiply i0 i1; t1 = multiply i2 i3; t2 = add t1 t0; t3 = multiply t2 t2; "
    "t4 = multiply t3 0.001; t5 = multiply i4 0.999; t6 = add t5 t4; t7 = sqrt t6; "
    "t8 = add t7 1e-08; t9 = multiply t2 0.1; t10 = multiply i5 0.9; t11 = add t10 t9; "
    "t12 = multiply t11 i6; t13 = divide t12 t8; t14 = subtract i0 t13; out t6 t11 t14"
)
SGD_PLAIN = (
    "t0 = multiply i0 i1; t1 = multiply t0 i2; t2 = multiply i3 i4; t3 = subtract t2 t1; out t3"
)
WHOLE = {
    "sgd": (SGD_PLAIN, "fssfs"),
    "sgd_momentum": (SGD_MOMENTUM, "fssfsf"),
    "adam": (ADAM, "fsfsffs"),
    "bias and relu": ("t0 = add i0 i1; t1 = relu t0; out t1", "ff"),
    "gradient of relu": ("t0 = greater i0 0.0; t1 = select t0 i1 0.0; out t1", "ff"),
    "gradient of tanh": (
        "t0 = multiply i0 i0; t1 = subtract 1.0 t0; t2 = multiply i1 t1; out t2",
        "ff",
    ),
}


def run_program(text: str, inputs: list[np.ndarray]) -> tuple[str, list[np.ndarray]]:
    from mixflow.ir import Desc

    assert native is not None
    count = len(text.rpartition("out ")[2].split())
    descs = [Desc(0, x.shape, 0, (1, 0)) for x in inputs]
    out = [Desc(0, (1037,), 0, (1, 0))] * count
    kernel = native.prepare("fused", {"program": text}, descs, out, 2)
    made = [native.from_numpy(np.zeros(1037, np.float32), (1, 0)) for _ in range(count)]
    native.run_kernel(kernel, [native.from_numpy(x, (1, 0)) for x in inputs], made)
    return kernel.implementation, [m.to_numpy() for m in made]


@pytest.mark.skipif(native is None, reason="the compiled core was not built")
@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_programs_give_the_bits_of_their_instructions(name: str, isa: str) -> None:
    text, kinds = WHOLE[name]
    inputs = [
        np.abs(RNG.normal(size=1037 if kind == "f" else ())).astype(np.float32) for kind in kinds
    ]
    inputs[0][:4] = [np.nan, np.inf, -1.0, 0.0]
    assert native is not None
    try:
        if native.limit_instructions(isa) != isa:
            pytest.skip(f"no {isa} here")
        whole, got = run_program(text, inputs)
        single, want = run_program(text + " t0", inputs)
    finally:
        native.limit_instructions("avx512")
    assert (whole, single) == ("fused:whole", "fused")
    for a, b in zip(got, want, strict=False):
        np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(native is None, reason="the compiled core was not built")
@pytest.mark.parametrize(("name", "params"), [("sgd", {"momentum": 0.9}), ("adam", {})])
def test_updates_use_whole_programs(
    name: str, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mixflow.optimizer import fused

    if _rt.core is not native:
        pytest.skip("the compiled core is not in use")
    plans = []
    build = fused.compile_graph
    monkeypatch.setattr(
        fused, "compile_graph", lambda *a, **k: plans.append(build(*a, **k)) or plans[-1]
    )
    module = ready(name, **params)
    module.forward_backward(batch())
    module.update()
    kinds = [s.kernel.implementation for s in plans[0].steps if s.output_descs[0].shape]
    assert kinds == ["fused:whole"] * 4
