"""VGG-11 and ResNet-50 on TensorFlow, NHWC: the better of a graph and a graph compiled by XLA."""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
here = sys.path.pop(0)
import tensorflow as tf  # noqa: E402 - this file's own folder must not shadow the package

sys.path.insert(0, here)
VERSION = f"tensorflow {tf.__version__}"
THREADS = int(os.environ["BENCH_THREADS"])
tf.config.threading.set_intra_op_parallelism_threads(THREADS)
tf.config.threading.set_inter_op_parallelism_threads(1)
layers = tf.keras.layers
SHAPE = (32, 224, 224, 3)


def vgg11():
    parts = [tf.keras.Input(SHAPE[1:])]
    for item in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"):
        if item == "M":
            parts.append(layers.MaxPooling2D(2))
        else:
            parts.append(layers.Conv2D(item, 3, padding="same", activation="relu"))
    for _ in range(2):
        parts += [layers.Dense(4096, activation="relu"), layers.Dropout(0.5)]
    parts.insert(-4, layers.Flatten())
    return tf.keras.Sequential([*parts, layers.Dense(1000)])


def norm(x):
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def conv_norm(x, filters, kernel, stride=1):
    x = layers.Conv2D(filters, kernel, stride, padding="same", use_bias=False)(x)
    return norm(x)


def bottleneck(x, width, stride):
    y = layers.ReLU()(conv_norm(x, width, 1, stride))
    y = layers.ReLU()(conv_norm(y, width, 3))
    y = conv_norm(y, 4 * width, 1)
    if stride > 1 or x.shape[-1] != 4 * width:
        x = conv_norm(x, 4 * width, 1, stride)
    return layers.ReLU()(layers.Add()([x, y]))


def resnet50():
    data = tf.keras.Input(SHAPE[1:])
    x = layers.ReLU()(conv_norm(data, 64, 7, 2))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            x = bottleneck(x, width, stride if number == 0 else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(data, layers.Dense(1000)(x))


NETS = {"vgg-11": vgg11, "resnet-50": resnet50}


def step(net, data, label, train):
    """Loss and gradients, or scores."""
    if not train:
        return tf.nn.softmax(net(data, training=False))
    with tf.GradientTape() as tape:
        scores = net(data, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(label, scores)
        loss = tf.reduce_mean(losses)
    return loss, tape.gradient(loss, net.trainable_variables)


def wait(result):
    for array in tf.nest.flatten(result):
        array.numpy()


def stepper(net, train, xla):
    data = tf.random.uniform(SHAPE)
    label = tf.zeros(SHAPE[:1], tf.int32)
    run = tf.function(lambda: step(net, data, label, train), jit_compile=xla, autograph=False)

    def measure():
        began = time.perf_counter()
        wait(run()[0] if train else run())  # the graph is done when one of its results is there
        return time.perf_counter() - began

    measure()  # traces and compiles
    return measure


def case(name, train):
    def build():
        net = NETS[name]()
        steppers = [stepper(net, train, xla) for xla in (False, True)]
        times = [min(s() for _ in range(2)) for s in steppers]
        return steppers[times.index(min(times))]

    return build


CASES = {f"{n} {kind}": case(n, kind == "train") for n in NETS for kind in ("train", "predict")}
