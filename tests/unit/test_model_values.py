"""Networks against the reference backend: losses, states and gradients, layouts and fusion on, off.

With relu and maxima, rounding decides here and there which way a gradient takes, and in a deep
network one such decision is seen in all layers before it. So gradients are compared twice: closely
with softplus in the place of relu, and in the network as it stands within what such decisions do.
"""

import itertools

import numpy as np
import pytest
from model_runs import (
    compiled,
    distances,
    loss,
    prediction_graph,
    reference,
    run,
    small_shapes,
    training_graph,
    values,
)

import mixflow as mx
from mixflow import _rt, models

pytestmark = pytest.mark.skipif(_rt.core.name == "pure", reason="one backend only")
#: What CI compares; all others are compared by `make prove`.
QUICK = ("lenet", "mlp", "softmax", "resnet-20-cifar", "mobilenet-0.25", "squeezenet-1.1")
#: The networks of benchmarks/convnets, compared at the size of their papers too.
LARGE = ("alexnet", "googlenet", "vgg-11", "resnet-50")
NETWORKS = [
    pytest.param(n, marks=() if n in QUICK else (pytest.mark.slow, pytest.mark.timeout(1800)))
    for n in models.NETWORKS
]
SETTINGS = [{"layout": x, "fuse": y} for x, y in itertools.product((False, True), repeat=2)]
#: Relative, in the norm: outputs and states; gradients. Where relu decides, ResNet-152 sets them:
#: images that differ by 1e-7 move the reference's own loss by 2e-4 and its gradients by 0.11.
SMOOTH = {"values": 2e-4, "gradients": 1e-2}
DECIDED = {"values": 2e-3, "gradients": 0.3}
CLOSE = 2e-4  # predictions: norms use fixed statistics, and nothing is amplified


@pytest.fixture(autouse=True)
def _pinned():
    """Kernels by rule, Winograd's among them: nothing is timed, and a run repeats."""
    with mx.config.override(deterministic=True):
        yield


def check_training(name, shapes, smooth):
    graph = training_graph(name, shapes, smooth)
    feeds = values(graph)
    wanted = reference(graph, feeds)
    for setting in SETTINGS:
        plan = compiled(graph, **setting)
        assert plan.plan.host_calls == 0
        got = run(graph, plan, feeds)
        limit = SMOOTH if smooth else DECIDED
        assert loss(got, feeds) == pytest.approx(loss(wanted, feeds), rel=limit["values"]), setting
        for key, distance in distances(got, wanted).items():
            bound = limit["gradients" if key.endswith("_grad") else "values"]
            assert distance <= bound, (setting, key)


@pytest.mark.parametrize("name", NETWORKS)
def test_losses_and_gradients_equal_the_reference(name):
    check_training(name, small_shapes(name, 4), smooth=False)


@pytest.mark.parametrize("name", NETWORKS)
def test_smooth_losses_and_gradients_equal_the_reference_closely(name):
    check_training(name, small_shapes(name, 4), smooth=True)


@pytest.mark.parametrize("name", NETWORKS)
def test_predictions_equal_the_reference(name):
    graph = prediction_graph(name, small_shapes(name, 2))
    feeds = values(graph)
    wanted = reference(graph, feeds)
    for setting in SETTINGS:
        plan = compiled(graph, **setting)
        assert plan.plan.host_calls == 0
        got = run(graph, plan, feeds)
        assert max(distances(got, wanted).values()) <= CLOSE, setting


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("name", LARGE)
def test_large_images_equal_the_reference_closely(name, deterministic):
    with mx.config.override(deterministic=deterministic):
        check_training(name, models.input_shapes(name, 2), smooth=True)


def test_masks_of_dropout_do_not_depend_on_fusion_or_layout():
    graph = training_graph("alexnet", small_shapes("alexnet", 2))
    slots = {
        tuple(
            sorted((s.label, s.draw_slot) for s in compiled(graph, **x).steps if s.draw_slot >= 0)
        )
        for x in SETTINGS
    }
    assert len(slots) == 1 and len(next(iter(slots))) == 2


def test_equal_names_draw_different_masks():
    data = mx.sym.Variable("data")
    net = mx.sym.Group([mx.sym.Dropout(data, p=0.5, name="drop") for _ in range(2)])
    executor = net.simple_bind(mx.cpu(), grad_req="null", data=(64,))
    executor.arg_dict["data"][:] = 1
    first, second = (o.asnumpy() for o in executor.forward(is_train=True))
    assert (first != second).any()
    assert not np.array_equal(first, executor.forward(is_train=True)[0].asnumpy())
