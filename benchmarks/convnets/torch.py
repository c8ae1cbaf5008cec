"""The same nets on PyTorch (eager): the better of contiguous and channels_last."""

import os
import sys
import time

here = sys.path.pop(0)
import torch  # noqa: E402 - this file's own folder must not shadow the package

sys.path.insert(0, here)
VERSION = f"torch {torch.__version__}"
torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
nn = torch.nn


def conv(i, o, k, s=1, p=0):
    return [nn.Conv2d(i, o, k, s, p), nn.ReLU()]


def alexnet():
    return nn.Sequential(
        *conv(3, 96, 11, 4),
        nn.LocalResponseNorm(5),
        nn.MaxPool2d(3, 2),
        *conv(96, 256, 5, 1, 2),
        nn.LocalResponseNorm(5),
        nn.MaxPool2d(3, 2),
        *conv(256, 384, 3, 1, 1),
        *conv(384, 384, 3, 1, 1),
        *conv(384, 256, 3, 1, 1),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.LazyLinear(4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 1000),
    )


def vgg11():
    layers, width = [], 3
    for item in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"):
        if item == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += conv(width, item, 3, 1, 1)
            width = item
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(512 * 49, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 1000),
    )


class Inception(nn.Module):
    def __init__(self, i, c1, r3, c3, r5, c5, pool):
        super().__init__()
        self.ways = nn.ModuleList(
            [
                nn.Sequential(*conv(i, c1, 1)),
                nn.Sequential(*conv(i, r3, 1), *conv(r3, c3, 3, 1, 1)),
                nn.Sequential(*conv(i, r5, 1), *conv(r5, c5, 5, 1, 2)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), *conv(i, pool, 1)),
            ]
        )

    def forward(self, x):
        return torch.cat([way(x) for way in self.ways], 1)


def googlenet():
    def pool():
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    return nn.Sequential(
        *conv(3, 64, 7, 2, 3),
        pool(),
        *conv(64, 64, 1),
        *conv(64, 192, 3, 1, 1),
        pool(),
        Inception(192, 64, 96, 128, 16, 32, 32),
        Inception(256, 128, 128, 192, 32, 96, 64),
        pool(),
        Inception(480, 192, 96, 208, 16, 48, 64),
        Inception(512, 160, 112, 224, 24, 64, 64),
        Inception(512, 128, 128, 256, 24, 64, 64),
        Inception(512, 112, 144, 288, 32, 64, 64),
        Inception(528, 256, 160, 320, 32, 128, 128),
        pool(),
        Inception(832, 256, 160, 320, 32, 128, 128),
        Inception(832, 384, 192, 384, 48, 128, 128),
        nn.AvgPool2d(7),
        nn.Flatten(),
        nn.LazyLinear(1000),
    )


class Bottleneck(nn.Module):
    def __init__(self, i, width, stride):
        super().__init__()
        o = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(i, width, 1, stride, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, o, 1, bias=False),
            nn.BatchNorm2d(o),
        )
        self.skip = nn.Identity()
        if stride > 1 or i != o:
            self.skip = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


def resnet50():
    layers = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    i = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            layers.append(Bottleneck(i, width, stride if number == 0 else 1))
            i = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


NETS = {"alexnet": alexnet, "googlenet": googlenet, "vgg-11": vgg11, "resnet-50": resnet50}


def stepper(net, train, layout):
    net = net.to(memory_format=layout)
    net.train(train)
    data = torch.rand(32, 3, 224, 224).to(memory_format=layout)
    label = torch.zeros(32, dtype=torch.long)
    loss = nn.CrossEntropyLoss()

    def measure():
        began = time.perf_counter()
        if train:
            net.zero_grad(set_to_none=True)
            loss(net(data), label).backward()
        else:
            with torch.inference_mode():
                torch.softmax(net(data), 1)
        return time.perf_counter() - began

    return measure


def case(name, train):
    def build():
        net = NETS[name]()
        net(torch.zeros(2, 3, 224, 224))
        steppers = [stepper(net, train, x) for x in (torch.contiguous_format, torch.channels_last)]
        times = [min(s() for _ in range(2)) for s in steppers]
        layouts = (torch.contiguous_format, torch.channels_last)
        return stepper(net, train, layouts[times.index(min(times))])

    return build


CASES = {f"{n} {kind}": case(n, kind == "train") for n in NETS for kind in ("train", "predict")}
