"""A process of a TensorFlow job: MultiWorkerMirroredStrategy ('sync') or ParameterServerStrategy
('async'). Arguments: cell, folder, role, number, ports by role as JSON.

Several steps run inside of one graph call, as `steps_per_execution` does for Keras.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf
from tasks import HIDDEN, Cell, Watch, first_values, part_of, paths

STEPS_PER_CALL = 20
THREADS = int(os.environ["OMP_NUM_THREADS"])


def loss_of(cell, variables, x, y):
    """The mean loss of a batch."""
    layers = list(zip(variables[::2], variables[1::2], strict=True))
    for number, (weight, bias) in enumerate(layers):
        x = tf.matmul(x, weight, transpose_b=True) + bias
        if number < len(HIDDEN[cell.model]):
            x = tf.nn.relu(x)
    if cell.outputs == 1:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=y[:, None], logits=x)
    else:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.cast(y, tf.int32), logits=x
        )
    return tf.reduce_mean(losses)


def gradients(cell, variables, x, y, first):
    """Of the batch that begins with a row."""
    with tf.GradientTape() as tape:
        last = first + cell.size
        loss = loss_of(cell, variables, x[first:last], y[first:last])
    return tape.gradient(loss, variables)


def calls(first, count):
    """(step, steps) of each graph call."""
    end = first + count
    return [(s, min(STEPS_PER_CALL, end - s)) for s in range(first, end, STEPS_PER_CALL)]


def synchronous(cell, out, rank):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        variables = [tf.Variable(v) for v in first_values(cell)]
    x, y = (tf.constant(np.array(a)) for a in part_of(cell, rank))

    def step_of(step):
        first = step % cell.steps_per_pass * cell.size
        found = gradients(cell, variables, x, y, first)
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce(tf.distribute.ReduceOp.MEAN, found)
        for variable, gradient in zip(variables, summed, strict=True):
            variable.assign_sub(cell.rate * gradient)

    @tf.function
    def several(first, count):
        for step in tf.range(first, first + count):
            strategy.run(step_of, [step])

    def train(first, count):
        for step, steps in calls(first, count):
            several(tf.constant(step), tf.constant(steps))

    watch, done = Watch(out, rank), cell.warm
    train(0, done)
    while watch.begin():
        train(done, cell.steps)
        values = [v.numpy() for v in variables]  # waits for the last step
        watch.end()
        done += cell.steps
    barrier(strategy)
    if rank == 0:
        watch.write(values)


def barrier(strategy):
    @tf.function
    def ones():
        def one():
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))

        return strategy.run(one)

    ones()


def file_tensor(path):
    """The content of a .npy file, flat, as a node of a graph: each worker reads it itself."""
    with open(path, "rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        header = file.tell()
    size = tf.io.read_file(str(path))
    return tf.io.decode_raw(tf.strings.substr(size, header, -1), tf.float32)


def asynchronous(cell, out):
    """The coordinator: it schedules pieces of work of several steps each. A step takes a batch of
    the whole set by chance: which worker gets a piece is not known before."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [tf.Variable(v) for v in first_values(cell)]
    files = paths(cell.model)

    @tf.function
    def data():
        x = tf.reshape(file_tensor(files["x"]), [cell.rows, cell.features])
        return tf.data.Dataset.from_tensors((x, file_tensor(files["y"]))).repeat()

    @tf.function
    def several(iterator, count):
        x, y = next(iterator)
        for _ in tf.range(count):
            batch = tf.random.uniform([], 0, cell.rows // cell.size, tf.int32)
            found = gradients(cell, variables, x, y, batch * cell.size)
            for variable, gradient in zip(variables, found, strict=True):
                variable.assign_sub(cell.rate * gradient)

    iterator = iter(coordinator.create_per_worker_dataset(data))

    def train(count):
        for _, steps in calls(0, count):
            coordinator.schedule(several, args=(iterator, tf.constant(steps)))
        coordinator.join()

    watch = Watch(out, 0)
    train(cell.warm * cell.workers)
    while watch.begin():
        train(cell.steps * cell.workers)
        watch.end()
    watch.write([v.numpy() for v in variables])


def serve(cell, role):
    """A parameter server or a worker of the coordinator, until it is ended."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    config = tf.compat.v1.ConfigProto()
    config.intra_op_parallelism_threads = THREADS
    # What TensorFlow's guide asks for on a machine with fewer cores than workers.
    config.inter_op_parallelism_threads = cell.workers + 1
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=role, task_index=resolver.task_id, config=config
    )
    server.join()


def main():
    cell, out, role, number = Cell.from_json(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4])
    cluster = {r: [f"127.0.0.1:{p}" for p in ports] for r, ports in json.loads(sys.argv[5]).items()}
    task = {"type": role, "index": number}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    if cell.mode == "async" and role != "chief":
        serve(cell, role)
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    if role == "chief":
        asynchronous(cell, out)
    else:
        synchronous(cell, out, number)


if __name__ == "__main__":
    main()
