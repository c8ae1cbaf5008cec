"""The same step on PyTorch: eager, fused SGD; the better of contiguous and channels_last."""

import os
import sys
import time

here = sys.path.pop(0)
import torch  # noqa: E402 - this file's own folder must not shadow the package

sys.path.insert(0, here)
VERSION = f"torch {torch.__version__}"
STEPS = {"softmax": 200, "mlp": 100, "lenet": 5}
BATCH = 100
torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
nn = torch.nn


def dense(hidden):
    layers, width = [nn.Flatten()], 784
    for units in hidden:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, 10))


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.Tanh(),
        nn.Linear(500, 10),
    )


NETS = {"softmax": lambda: dense(()), "mlp": lambda: dense((128, 64)), "lenet": lenet}


def stepper(name, layout):
    net = NETS[name]().to(memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)
    data = torch.rand(BATCH, 1, 28, 28).to(memory_format=layout)
    label = torch.arange(BATCH) % 10
    loss = nn.CrossEntropyLoss()

    def steps(count):
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            loss(net(data), label).backward()
            optimizer.step()

    def measure():
        steps(max(1, STEPS[name] // 10))  # threads and caches as in a training run
        began = time.perf_counter()
        steps(STEPS[name])
        return (time.perf_counter() - began) / STEPS[name]

    return measure


def case(name):
    def build():
        layouts = [torch.contiguous_format]
        if name == "lenet":
            layouts.append(torch.channels_last)
        steppers = [stepper(name, layout) for layout in layouts]
        return lambda: min(s() for s in steppers)

    return build


CASES = {name: case(name) for name in STEPS}
